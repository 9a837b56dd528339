"""A saved run comes back whole: network, plan, record, original."""

from pathlib import Path

import pytest
import torch
from torch import nn

import entrim
from entrim.errors import LoadError
from entrim.storage.model_folder import read_manifest
from tests.pipeline.networks import chain, images
from tests.storage.saves import Tied, everything

X = images(60, 3, 8, 8)


@pytest.fixture(scope="module")
def small() -> entrim.SparsifyResult:
    return entrim.sparsify(chain(0), X, widths={"*": 0.5}, selector="greedy")


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return all(m == n and torch.equal(s, t) for (m, s), (n, t) in pairs)


def test_a_run_comes_back_and_is_saved_as_it_was(
    small: entrim.SparsifyResult, tmp_path: Path
) -> None:
    small.save(tmp_path / "a")
    back = entrim.SparsifyResult.load(chain(0), tmp_path / "a")
    assert same(back.model, small.model)
    assert back.record.to_json() == small.record.to_json()
    assert back.plan.kept == small.plan.kept
    assert same(back.original, small.original)
    back.save(tmp_path / "b")
    assert read_manifest(tmp_path / "a") == read_manifest(tmp_path / "b")


def test_the_plan_that_comes_back_makes_the_network(
    small: entrim.SparsifyResult, tmp_path: Path
) -> None:
    small.save(tmp_path)
    plan = entrim.SparsifyResult.load(chain(0), tmp_path).plan
    assert set(plan.weights) == set(small.model.state_dict())
    assert same(entrim.apply_plan(chain(7), plan, X[:4]), small.model)


def test_shared_tensors_and_buffers_outside_the_state_dict_have_their_place_in_the_plan(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model, x = Tied().eval(), torch.randn(50, 4)
    small = entrim.sparsify(model, x, widths={"a": 3})
    small.save(tmp_path)
    again = entrim.apply_plan(model, entrim.SparsifyResult.load(model, tmp_path).plan, x[:4])
    assert isinstance(again, Tied)
    assert again.c.weight is again.b.weight
    assert everything(again) == everything(small.model)


def test_what_was_distilled_comes_back_with_what_was_done(
    small: entrim.SparsifyResult, tmp_path: Path
) -> None:
    small.save(tmp_path / "a")
    options = {"epochs": 1, "shift": 0.0}
    one = entrim.distill(entrim.SparsifyResult.load(chain(0), tmp_path / "a"), X, **options)
    assert same(one.model, entrim.distill(small, X, **options).model)
    one.save(tmp_path / "b")
    back = entrim.SparsifyResult.load(chain(0), tmp_path / "b")
    assert back.record.distilled == one.record.distilled
    assert same(back.model, one.model)


def test_an_original_with_other_weights_is_refused(
    small: entrim.SparsifyResult, tmp_path: Path
) -> None:
    small.save(tmp_path)
    with pytest.raises(LoadError, match="cut from a Sequential with other weights: give"):
        entrim.SparsifyResult.load(chain(1), tmp_path)
    assert same(entrim.load(chain(1), tmp_path), small.model)  # the network alone needs no weights


def test_a_network_without_a_record_is_no_run(small: entrim.SparsifyResult, tmp_path: Path) -> None:
    entrim.save(small.model, small.plan, tmp_path)
    with pytest.raises(LoadError, match="without the record of a run: save what sparsify returned"):
        entrim.SparsifyResult.load(chain(0), tmp_path)
