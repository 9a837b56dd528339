"""A saved run is loaded completely: network, plan, record, original."""

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
    return entrim.sparsify(chain(0), X, entrim.Widths(0.5), selector="greedy")


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return all(m == n and torch.equal(s, t) for (m, s), (n, t) in pairs)


def test_a_loaded_run_is_saved_as_it_was(small: entrim.SparsifyResult, tmp_path: Path) -> None:
    small.save(tmp_path / "a")
    back = entrim.SparsifyResult.load(chain(0), tmp_path / "a")
    assert same(back.model, small.model)
    assert back.record.to_json() == small.record.to_json()
    assert back.plan.kept == small.plan.kept
    assert same(back.original, small.original)
    back.save(tmp_path / "b")
    assert read_manifest(tmp_path / "a") == read_manifest(tmp_path / "b")


def test_the_loaded_plan_produces_the_network(small: entrim.SparsifyResult, tmp_path: Path) -> None:
    small.save(tmp_path)
    plan = entrim.SparsifyResult.load(chain(0), tmp_path).plan
    assert set(plan.weights) == set(small.model.state_dict())
    assert same(entrim.apply_plan(chain(7), plan, X[:4]), small.model)


def test_shared_tensors_and_buffers_outside_the_state_dict_are_in_the_plan(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model, x = Tied().eval(), torch.randn(50, 4)
    small = entrim.sparsify(model, x, entrim.Widths({"a": 3}))
    small.save(tmp_path)
    again = entrim.apply_plan(model, entrim.SparsifyResult.load(model, tmp_path).plan, x[:4])
    assert isinstance(again, Tied)
    assert again.c.weight is again.b.weight
    assert everything(again) == everything(small.model)


def test_a_distilled_network_is_loaded_with_its_training_record(
    small: entrim.SparsifyResult, tmp_path: Path
) -> None:
    small.save(tmp_path / "a")
    config = entrim.Distillation(epochs=1, shift=0.0)
    one = entrim.distill(entrim.SparsifyResult.load(chain(0), tmp_path / "a"), X, config)
    assert same(one.model, entrim.distill(small, X, config).model)
    one.save(tmp_path / "b")
    back = entrim.SparsifyResult.load(chain(0), tmp_path / "b")
    assert back.record.distilled == one.record.distilled
    assert same(back.model, one.model)


def test_an_original_with_other_weights_is_refused(
    small: entrim.SparsifyResult, tmp_path: Path
) -> None:
    small.save(tmp_path)
    with pytest.raises(LoadError, match="pruned from a Sequential with other weights: load"):
        entrim.SparsifyResult.load(chain(1), tmp_path)
    assert same(entrim.load(chain(1), tmp_path), small.model)  # the network alone needs no weights


def test_a_folder_that_does_not_exist_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"^\S*nowhere does not exist"):
        entrim.load(chain(1), tmp_path / "nowhere")


def test_a_network_without_a_record_is_not_a_run(
    small: entrim.SparsifyResult, tmp_path: Path
) -> None:
    entrim.save(small.model, small.plan, tmp_path)
    with pytest.raises(LoadError, match="without the record of a run: save the result of sparsify"):
        entrim.SparsifyResult.load(chain(0), tmp_path)
