"""Calibration from sums: the same result as with all images, and honest errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

import entrim
from entrim.calibration.data import read_images
from entrim.errors import (
    BadImagesError,
    BadSettingError,
    CalibrationWarning,
    MomentsError,
)
from entrim.federated.network_moments import NetworkMoments, _seal
from entrim.report.repeat import call
from tests.pipeline.networks import chain, images, residual

X = images(320, 3, 8, 8)
ALL = entrim.Calibration(holdout=0)
INDEPENDENT = entrim.Reconstruction(order="independent")


@pytest.fixture(scope="module")
def parts() -> list[NetworkMoments]:
    """Return the moments of a chain at two sites of different size."""
    return [entrim.collect(chain(), x, calibration=ALL) for x in (X[:100], X[100:])]


@pytest.fixture(scope="module")
def merged(parts: list[NetworkMoments]) -> NetworkMoments:
    return entrim.merge(parts)


def assert_same_network(first: nn.Module, second: nn.Module) -> None:
    """Check that the weights agree to a relative precision of 1e-6."""
    for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6 * float(b.abs().max()))


# The result


@pytest.mark.parametrize(
    "target", [entrim.Widths(0.4), entrim.EntropicPenalty(eps_w=-3e-3, eps_l2=3e-3)]
)
def test_moments_of_all_sites_give_the_network_of_all_images(
    merged: NetworkMoments, target: entrim.Widths | entrim.EntropicPenalty
) -> None:
    every = entrim.Calibration(holdout=0, n_positions=None)
    central = entrim.sparsify(chain(), X, target, reconstruction=INDEPENDENT, calibration=every)
    found = entrim.sparsify(chain(), merged, target)
    assert found.plan.kept == central.plan.kept
    assert_same_network(found.model, central.model)
    for own, other in zip(found.record.layers, central.record.layers, strict=True):
        assert (own.layer, own.rows, own.columns) == (other.layer, other.rows, other.columns)
        assert own.error == pytest.approx(other.error)


def test_weights_of_the_published_method_follow_from_moments() -> None:
    options = entrim.paper_preset(-3e-3, 3e-3)
    moments = entrim.collect(residual(), X, calibration=ALL)
    central = entrim.sparsify(residual(), X, **options)
    found = entrim.sparsify(residual(), moments, **options)
    assert found.plan.kept == central.plan.kept
    assert found.plan.kept
    assert_same_network(found.model, central.model)


def test_hold_out_error_is_the_error_on_these_images() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(300, 12)
    moments = entrim.collect(net, x)
    found = entrim.sparsify(net, moments, entrim.Widths(0.5))
    unseen = read_images(x, net).split(50, 0)[1].batch(slice(0, 50))
    assert isinstance(unseen, Tensor)
    with torch.no_grad():
        y, small = net(unseen).double(), found.model(unseen).double()
    (layer,) = found.record.layers
    error = (small - y).square().sum() / (y - y.mean(0)).square().sum()
    assert layer.holdout_error == pytest.approx(float(error), rel=1e-4)
    assert layer.holdout_error != pytest.approx(layer.error, rel=1e-2)
    assert found.record.worst_layer == ("2", layer.holdout_error)
    assert "without images" in found.record.notes[-1]
    measured = found.refresh(torch.randn(80, 12)).record
    assert measured.holdout is not None
    assert measured.holdout.images == 80
    assert found.record.images == 300
    assert entrim.Record.from_json(found.record.to_json()) == found.record
    assert call(found.record.settings).startswith("entrim.sparsify(model, moments, entrim.Widths(")


def test_interrupted_run_continues(merged: NetworkMoments, tmp_path: Path) -> None:
    class Interrupt(entrim.Callback):
        def on_step(self, event: entrim.ProgressEvent) -> None:
            if event.stage == "select" and event.done == 2:
                raise KeyboardInterrupt

    folder, target = tmp_path / "units", entrim.Widths(0.4)
    with pytest.raises(KeyboardInterrupt):
        entrim.sparsify(chain(), merged, target, callbacks=[Interrupt()], checkpoint_dir=folder)
    assert len(list(folder.glob("*.safetensors"))) == 2
    found = entrim.sparsify(chain(), merged, target, checkpoint_dir=folder)
    assert found.plan.kept == entrim.sparsify(chain(), merged, target).plan.kept
    assert not folder.exists()


# What needs images


def test_options_that_need_images_are_refused(merged: NetworkMoments) -> None:
    widths, net = entrim.Widths(0.5), chain()
    sequential = entrim.Reconstruction(order="sequential")
    reestimate = entrim.Reconstruction(batchnorm="reestimate")
    bootstrap = entrim.Calibration(n_bootstrap=2)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("a budget", {"budget": entrim.Budget(macs=0.5)}),
        ("a budget", {}),
        ("sequential", {"budget": widths, "reconstruction": sequential}),
        ("reestimate", {"budget": widths, "reconstruction": reestimate}),
        ("n_bootstrap", {"budget": widths, "calibration": bootstrap}),
    ]
    for part, arguments in wrong:
        with pytest.raises(BadSettingError, match=f"{part}.* needs images"):
            entrim.sparsify(net, merged, **arguments)


def test_layer_with_more_columns_than_rows_needs_images() -> None:
    net = nn.Sequential(nn.Linear(8, 80), nn.ReLU(), nn.Linear(80, 6), nn.ReLU(), nn.Linear(6, 2))
    moments = entrim.collect(net, torch.randn(60, 8), calibration=ALL)
    with pytest.raises(MomentsError, match=r"0 cannot be pruned .* 80 columns, .* 60 rows only"):
        entrim.sparsify(net, moments, entrim.Widths(0.5))
    found = entrim.sparsify(net, moments, entrim.Widths(0.5), exclude="0")
    assert list(found.plan.kept) == ["2"]


def test_layer_beyond_the_memory_limit_is_left_out() -> None:
    small = entrim.Calibration(holdout=0, memory_limit=17 * 17 * 8)
    with pytest.warns(CalibrationWarning, match=r"exceed memory_limit=2,312 bytes: 3, 7, 9"):
        moments = entrim.collect(chain(), X, calibration=small)
    assert not moments.fitting
    with pytest.raises(MomentsError, match="do not contain this layer"):
        entrim.sparsify(chain(), moments, entrim.Widths(0.5))


# Merging


def test_merging_does_not_depend_on_the_order(parts: list[NetworkMoments], tmp_path: Path) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for part, file in zip(parts, files, strict=True):
        part.save(file)
        assert NetworkMoments.load(file).checksum() == part.checksum()
    first, second = entrim.merge(files), entrim.merge(parts[::-1])
    assert {one.id for one in first.image_sets} == {one.id for one in second.image_sets}
    for layer, gram in first.fitting.items():
        assert gram.count == second.fitting[layer].count
        assert torch.equal(gram.sums, second.fitting[layer].sums)


def test_images_are_not_counted_twice(parts: list[NetworkMoments], merged: NetworkMoments) -> None:
    shuffled = entrim.collect(chain(), X[:100].flip(0), calibration=ALL, seed=3)
    halved = entrim.Calibration(holdout=0.5)
    for again in (parts[0], shuffled, merged, entrim.collect(chain(), X[:100], calibration=halved)):
        with pytest.raises(MomentsError, match=r"counted twice|hold-out images"):
            entrim.merge([*parts, again])
    with pytest.raises(MomentsError, match="counted twice"):
        entrim.merge([merged, shuffled])


def test_parts_of_other_networks_are_refused_with_the_difference(
    parts: list[NetworkMoments],
) -> None:
    trained = chain()
    with torch.no_grad():
        next(trained.parameters()).add_(1e-3)
    other = entrim.collect(trained, X, calibration=ALL)
    with pytest.raises(MomentsError, match=r"another weights cannot be added"):
        entrim.merge([parts[0], other])
    with pytest.raises(MomentsError, match="another weights do not fit together"):
        entrim.sparsify(trained, parts[0], entrim.Widths(0.5))
    with pytest.raises(
        MomentsError, match=r"of a Sequential and of a Residual with another struct"
    ):
        entrim.sparsify(residual(), parts[0], entrim.Widths(0.5))


# Files


def test_few_images_are_refused() -> None:
    for count, holdout in ((49, 0), (99, 50), (200, 30), (240, None)):
        calibration = entrim.Calibration(holdout=holdout)
        with pytest.raises(BadImagesError, match="a sum over a few images can reveal them"):
            entrim.collect(chain(), X[:count], calibration=calibration)


def test_a_number_of_positions_is_refused() -> None:
    with pytest.raises(BadSettingError, match="every position is counted"):
        entrim.collect(chain(), X, calibration=entrim.Calibration(n_positions=3))


def write(file: Path, header: dict[str, object], tensors: dict[str, Tensor]) -> None:
    """Write moments with a valid checksum, whatever they contain."""
    text = json.dumps(header)
    notes = {"moments": text, "seal": _seal(text, tensors)}
    safetensors.torch.save_file(tensors, file, notes)


def test_damaged_and_foreign_files_are_refused(parts: list[NetworkMoments], tmp_path: Path) -> None:
    file, bad = tmp_path / "part.safetensors", tmp_path / "bad.safetensors"
    parts[0].save(file)
    content = file.read_bytes()
    with safe_open(file, "pt") as stored:
        header = json.loads(stored.metadata()["moments"])
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    flipped = bytearray(content)
    flipped[-5] ^= 1
    for wrong, part in (
        (content[:-9], "is damaged"),
        (bytes(flipped), "its checksum differs"),
        (safetensors.torch.save({"a": torch.zeros(1)}), "contains no moments"),
    ):
        bad.write_bytes(wrong)
        with pytest.raises(MomentsError, match=part):
            NetworkMoments.load(bad)
    with pytest.raises(MomentsError, match="cannot be read"):
        NetworkMoments.load(tmp_path / "gone.safetensors")
    write(bad, {**header, "format": 2}, tensors)
    with pytest.raises(MomentsError, match="has format 2"):
        NetworkMoments.load(bad)
    name = next(iter(tensors))
    for change in (lambda t: -t, lambda t: t * 1.1, lambda t: t * torch.nan, lambda t: t.float()):
        write(bad, header, {**tensors, name: change(tensors[name])})
        with pytest.raises(MomentsError, match="are not sums of squares and products"):
            NetworkMoments.load(bad)
    write(bad, header, {name: tensors[name]})
    with pytest.raises(MomentsError, match="is damaged"):
        NetworkMoments.load(bad)


# Other inputs


class TwoInputs(nn.Module):
    """Adds a second input, or its embedding, to the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        shift = self.table(shift) if shift.dtype == torch.int64 else shift
        return self.last(self.first(x).relu()) + shift


def test_inputs_are_drawn_at_random_unless_they_are_integers() -> None:
    torch.manual_seed(0)
    net, x = TwoInputs(), torch.randn(100, 8)
    moments = entrim.collect(net, {"x": x, "shift": torch.rand(100, 3)}, calibration=ALL)
    assert moments.input_shapes == {"x": (8,), "shift": (3,)}
    assert entrim.sparsify(net, moments, entrim.Widths(0.5)).plan.kept
    whole = {"x": x, "shift": torch.randint(5, (100,))}
    moments = entrim.collect(net, whole, calibration=ALL)
    with pytest.raises(MomentsError, match="pass example_inputs="):
        entrim.sparsify(net, moments, entrim.Widths(0.5))
    example = {name: value[:4] for name, value in whole.items()}
    found = entrim.sparsify(net, moments, entrim.Widths(0.5), example_inputs=example)
    assert found.plan.kept
