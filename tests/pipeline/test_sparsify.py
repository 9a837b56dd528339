"""The result of sparsify, compared with mathematics."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import entrim
from entrim.errors import CalibrationWarning, NothingCutWarning
from tests.callbacks import Recorder
from tests.pipeline.networks import Residual, chain, images, residual
from tests.surgery.kinds import KINDS, Kind, shaken
from tests.surgery.oracle import distance, outputs

ALL = entrim.Calibration(holdout=0)
"""No images are held out."""


def inputs_of(model: nn.Module, layer: str, x: Tensor) -> Tensor:
    """Return the inputs of `layer` when `model` runs on `x`."""
    seen: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_pre_hook(
        lambda _, args: seen.append(args[0])
    )
    with torch.no_grad():
        model(x)
    hook.remove()
    return seen[0]


def rows_of(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return patches and outputs of the second convolution of `chain`."""
    seen = inputs_of(model, "3", x).double()
    conv = model[3] if isinstance(model, nn.Sequential) else None
    assert isinstance(conv, nn.Conv2d)
    patches = F.unfold(seen, 3, padding=1, stride=2).mT.flatten(0, 1)
    target = F.conv2d(seen, conv.weight.double(), None, 2, 1).flatten(2).mT.flatten(0, 1)
    return patches, target


def squared_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).detach().square().mean())


@pytest.mark.parametrize("min_decrease", [None, 1e-3])
def test_the_paper_preset_uses_the_weights_of_the_solution(min_decrease: float | None) -> None:
    model, x = chain(), images(120, 3, 8, 8)
    moments = entrim.Moments.of(*rows_of(model, x), block=9)
    options: dict[str, Any] = {}
    if min_decrease is not None:
        options = {"solver": "alternating", "min_decrease": min_decrease}
    found = entrim.solve(moments, -3e-3, 3e-3, **options)
    assert 1 < len(found.kept) < 12
    assert (found.status.outcome is entrim.Outcome.SLOW) == (min_decrease is not None)
    r = entrim.sparsify(model, x, **entrim.paper_preset(-3e-3, 3e-3, **options), include="0")
    assert list(r.plan.kept["0"]) == found.kept.tolist()
    small = r.model.get_submodule("3")
    assert isinstance(small, nn.Conv2d)
    torch.testing.assert_close(small.weight.flatten(1).double(), found.weight, rtol=1e-4, atol=1e-5)
    before, after = (m.get_buffer("4.running_mean").double() for m in (model, r.model))
    torch.testing.assert_close(before - after, found.bias, rtol=1e-4, atol=1e-5)


def test_an_independent_refit_is_least_squares_on_the_original_activations() -> None:
    model, x = chain(), images(120, 3, 8, 8)
    reconstruction = entrim.Reconstruction(order="independent", ridge=0.0)
    r = entrim.sparsify(
        model, x, entrim.Widths({"0": 5}), reconstruction=reconstruction, calibration=ALL
    )
    kept = list(r.plan.kept["0"])
    best = entrim.refit(entrim.Moments.of(*rows_of(model, x), block=9), kept)
    small = r.model.get_submodule("3")
    assert isinstance(small, nn.Conv2d)
    torch.testing.assert_close(small.weight.flatten(1).double(), best.weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layer", ["3", "7", "9"])
def test_after_a_sequential_reconstruction_no_layer_can_be_fitted_better(layer: str) -> None:
    """The error of each layer is orthogonal to all of its inputs."""
    model, x = chain(), images(300, 3, 8, 8)
    widths = entrim.Widths({"0": 6, "3": 5, "7": 8})
    exact = entrim.Reconstruction(ridge=0.0, relaxation=0)
    r = entrim.sparsify(model, x, widths, reconstruction=exact, calibration=ALL)
    seen = inputs_of(r.model, layer, x).double()
    small, old = r.model.get_submodule(layer), model.get_submodule(layer)
    expected = copy.deepcopy(old).double()(inputs_of(model, layer, x).double())
    found = copy.deepcopy(small).double()(seen)
    if layer == "3":
        stay = list(r.plan.kept["3"])
        expected = expected[:, stay]
        shift = model.get_buffer("4.running_mean")[stay] - r.model.get_buffer("4.running_mean")
        found = found + shift.double()[:, None, None]
        seen = F.unfold(seen, 3, padding=1, stride=2).mT.flatten(0, 1)
        expected, found = (y.flatten(2).mT.flatten(0, 1) for y in (expected, found))
    elif layer == "7":
        expected = expected[:, list(r.plan.kept["7"])]
    error = (found - expected).detach()
    assert float(error.abs().max()) > 1e-3
    z = torch.cat([torch.ones(len(seen), 1, dtype=torch.float64), seen], 1)
    cosine = (z.T @ error).abs() / (z.norm(dim=0)[:, None] * error.norm(dim=0) + 1e-30)
    assert float(cosine.max()) < 1e-3


def test_sequential_reconstruction_has_a_smaller_error_than_independent() -> None:
    model, x = chain(), images(300, 3, 8, 8)
    errors = {}
    widths = entrim.Widths({"0": 6, "3": 6, "7": 9})
    for order in ("independent", "sequential"):
        reconstruction = entrim.Reconstruction(order=order)
        r = entrim.sparsify(model, x, widths, reconstruction=reconstruction)
        errors[order] = squared_error(r.model(x), model(x))
    assert errors["sequential"] < errors["independent"]


def test_residual_correction_reduces_the_error_behind_a_skip_connection() -> None:
    model, x = residual(), images(300, 3, 8, 8)
    errors = {}
    widths = entrim.Widths({"conv1": 4, "conv3": 7})
    for corrected in (False, True):
        reconstruction = entrim.Reconstruction(residual_correction=corrected)
        r = entrim.sparsify(model, x, widths, reconstruction=reconstruction, selector="greedy")
        small = r.model
        assert isinstance(small, Residual)
        errors[corrected] = squared_error(small.stream(x), model.stream(x))
    assert errors[True] < errors[False]


def test_pruning_redundant_channels_does_not_change_the_outputs() -> None:
    """Half of the channels are copies of the others, so half of them are enough."""
    model, x = chain(), images(200, 3, 8, 8)
    conv, norm = model[0], model[1]
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    assert conv.bias is not None
    with torch.no_grad():
        for tensor in (conv.weight, conv.bias, norm.weight, norm.bias):
            tensor[6:] = tensor[:6]
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean[6:] = norm.running_mean[:6]
        norm.running_var[6:] = norm.running_var[:6]
    r = entrim.sparsify(model, x, entrim.Widths({"0": 6}))
    assert len(r.plan.kept["0"]) == 6
    torch.testing.assert_close(r.model(x), model(x), rtol=1e-3, atol=1e-3)
    bad = entrim.apply_plan(model, entrim.Plan({"0": range(3, 9)}), x[:4])
    assert squared_error(bad(x), model(x)) > 1e-4


@pytest.mark.parametrize("case", KINDS.values(), ids=list(KINDS))
def test_every_kind_of_network_is_pruned_and_verified(case: Kind) -> None:
    torch.manual_seed(0)
    model, example = shaken(case.build()), case.example_inputs()
    if isinstance(example, tuple) or case is KINDS["unbatched Conv2d"]:
        pytest.skip("takes several positional inputs, or no batch")
    batches = example
    if isinstance(example, Tensor) and example.is_floating_point():
        batches = torch.randn(16, *example.shape[1:])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        r = entrim.sparsify(model, batches, entrim.Widths(0.5), selector="greedy")
    assert r.record.after.params < r.record.before.params
    assert r.record.proof["final"] <= r.record.proof["tolerance"]
    # PyTorch 2.8 rounds the running statistics of an InstanceNorm in every call in eval mode.
    rtol = 1e-5 if case is KINDS["InstanceNorm"] else 0.0
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=rtol, atol=0.0)
    assert all(bool(torch.isfinite(out).all()) for out in outputs(r.model, example))


def test_full_widths_return_the_same_network() -> None:
    model, x = residual(), images(60, 3, 8, 8)
    with pytest.warns(NothingCutWarning, match="every group keeps the requested width"):
        r = entrim.sparsify(model, x, entrim.Widths(1.0))
    assert distance(outputs(r.model, x), outputs(model, x)) == 0.0


def test_a_residual_stream_is_selected_for_all_its_consumers() -> None:
    model, x = residual(), images(200, 3, 8, 8)
    group = entrim.trace(model, x[:2]).group("stem")
    assert set(group.layers) == {"stem", "conv2", "conv4"}
    for coupling in ("joint", "max"):
        selector = entrim.EntropicSelector(coupling=coupling)
        r = entrim.sparsify(model, x, entrim.Widths({"stem": 6}), selector=selector)
        assert len(r.plan.kept["stem"]) == 6
        assert r.model.get_submodule("head").in_features == 6
    paper = entrim.sparsify(model, x, **entrim.paper_preset(-1e-2, 1e-2))
    assert "stem" not in paper.plan.kept
    assert {group.name for group in paper.record.groups} == {"conv1", "conv3"}


@pytest.mark.parametrize(
    "target", [entrim.EntropicPenalty(eps_w=-1e-2, eps_l2=1e-2, coupling="max"), entrim.Widths(6)]
)
def test_maximum_coupling_estimates_the_weights_of_each_consumer_again(target: Any) -> None:
    model, x = residual(), images(200, 3, 8, 8)
    options = {"include": "stem", "reconstruction": entrim.Reconstruction(weights="solution")}
    if isinstance(target, entrim.Widths):
        options["selector"] = entrim.EntropicSelector(coupling="max")
    with entrim.Pruner(model, x, **options) as pruner:
        selection = pruner.select(target)
        small = pruner.apply(selection).model
    found = selection.channels["stem"]
    assert len(found.kept) < 10
    assert len(found.parts) == 3
    layers = (
        small.get_submodule(name).get_parameter("weight") for name in ("conv1", "conv3", "head")
    )
    expected = [part.weight.to(torch.float32) for part in found.parts]
    for weight, one in zip(layers, expected, strict=True):
        torch.testing.assert_close(weight.flatten(1), one)
    old = model.get_submodule("conv1").get_parameter("weight")[:, list(found.kept)]
    assert not torch.allclose(old.flatten(1), expected[0])


def test_batches_with_labels_give_the_same_result_as_one_tensor() -> None:
    model, x = chain(), images(96, 3, 8, 8)
    labels = torch.zeros(96, dtype=torch.int64)
    pairs = [(a, b) for a, b in zip(x.split(32), labels.split(32), strict=True)]
    penalty = entrim.EntropicPenalty(eps_w=-1e-3, eps_l2=1e-3)
    one, other = (entrim.sparsify(model, data, penalty) for data in (x, iter(pairs)))
    assert one.plan.kept == other.plan.kept
    assert all(torch.equal(a, other.plan.weights[k]) for k, a in one.plan.weights.items())


def test_a_prime_number_of_images_is_used_completely() -> None:
    model, x = chain(), images(131, 3, 8, 8)
    unmixed = entrim.Reconstruction(mixtures=0)
    r = entrim.sparsify(model, x, entrim.Widths({"3": 8}), calibration=ALL, reconstruction=unmixed)
    assert r.record.images == 131
    assert r.record.layers[0].rows == 131


def test_a_low_memory_limit_does_not_change_the_result() -> None:
    model, x = chain(), images(80, 3, 8, 8)
    widths, little = entrim.Widths({"0": 6, "3": 8}), entrim.Calibration(memory_limit=150_000)
    free = entrim.sparsify(model, x, widths)
    tight = entrim.sparsify(model, x, widths, calibration=little)
    assert free.plan.kept == tight.plan.kept
    for name, tensor in free.plan.weights.items():
        torch.testing.assert_close(tensor, tight.plan.weights[name])


def test_groups_whose_moments_exceed_the_memory_limit_are_not_pruned_and_named() -> None:
    model, x = chain(), images(80, 3, 8, 8)
    with pytest.warns(CalibrationWarning, match="memory_limit=50,000 bytes: 0; raise"):
        r = entrim.sparsify(
            model,
            x,
            entrim.Widths({"0": 6, "3": 8}),
            calibration=entrim.Calibration(memory_limit=50_000),
        )
    assert set(r.plan.kept) == {"3"}


def test_round_to_returns_multiples() -> None:
    model, x = chain(), images(120, 3, 8, 8)
    penalty = entrim.EntropicPenalty(eps_w=-3e-3, eps_l2=3e-3, round_to=4)
    r = entrim.sparsify(model, x, penalty)
    widths = {group.name: len(group.kept) for group in r.record.groups}
    assert all(width % 4 == 0 for width in widths.values())
    assert min(widths["0"] / 12, widths["3"] / 16) < 1


def test_the_penalty_that_is_named_when_nothing_was_pruned_prunes() -> None:
    model, x = chain(), images(80, 3, 8, 8)
    weak = entrim.EntropicPenalty(eps_w=-1e-12, eps_l2=1e-12)
    with pytest.warns(NothingCutWarning, match="the penalty is too small") as caught:
        r = entrim.sparsify(model, x, weak, include="0")
    assert r.record.after == r.record.before
    sentence = str(caught[0].message)
    eps_w, eps_l2 = (
        float(part.split("=")[1].split(",")[0]) for part in sentence.split() if "=" in part
    )
    stronger = entrim.EntropicPenalty(eps_w=eps_w, eps_l2=eps_l2)
    again = entrim.sparsify(model, x, stronger, include="0")
    assert again.record.after.params < again.record.before.params


def test_the_same_seed_draws_the_same_positions_and_bootstrap_samples() -> None:
    model, x = chain(), images(100, 3, 8, 8)

    penalty = entrim.EntropicPenalty(eps_w=-3e-3, eps_l2=3e-3)
    calibration = entrim.Calibration(n_positions=3, n_bootstrap=2)
    one, same = (
        entrim.sparsify(model, x, penalty, include="0", calibration=calibration, seed=0)
        for _ in range(2)
    )
    assert one.plan.kept == same.plan.kept
    assert all(torch.equal(a, same.plan.weights[k]) for k, a in one.plan.weights.items())
    overlap = one.record.groups[0].stability
    assert overlap is not None
    assert 0 < overlap <= 1


def test_events_and_record_contain_every_decision(tmp_path: Path) -> None:
    model, x = chain(), images(100, 3, 8, 8)
    recorder, penalty = Recorder(), entrim.EntropicPenalty(eps_w=-3e-3, eps_l2=3e-3)
    r = entrim.sparsify(model, x, penalty, callbacks=[recorder])
    assert [event.name for event in recorder.in_stage("select")] == ["0", "3", "7"]
    assert [event.name for event in recorder.in_stage("reconstruct")] == ["3", "7", "9"]
    assert recorder.events[0].stage == "trace"
    order = list(dict.fromkeys(event.stage for event in recorder.events))
    assert order[-2:] == ["prune", "measure"]
    group = r.record.groups[0]
    assert group.w is not None
    assert sum(group.w) == pytest.approx(1)
    assert [d for d, w in enumerate(group.w) if w > 0] == list(group.kept)
    assert list(group.trace) == sorted(group.trace, reverse=True)
    assert r.record.before.macs > r.record.after.macs
    stages = {"trace", "collect", "select", "reconstruct", "prune", "measure"}
    assert set(r.record.seconds) == stages
    r.save(tmp_path / "small")
    manifest = json.loads((tmp_path / "small" / "entrim.json").read_text())
    assert manifest["record"] == json.loads(r.record.to_json())
    assert distance(outputs(entrim.load(model, tmp_path / "small"), x), outputs(r.model, x)) == 0
    assert "fewer" in str(r.record)


def test_a_weight_that_is_used_by_two_calls_is_refitted_for_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x).relu()
            return self.head(self.two(self.two(x).relu()).mean((2, 3)))

    model, x = Twice().eval(), images(100, 3, 8, 8)
    rows, targets = [], []
    seen = model.one(x).relu()
    for _ in range(2):
        rows.append(F.unfold(seen.double(), 3, padding=1).mT.flatten(0, 1))
        targets.append(model.two(seen).double().flatten(2).mT.flatten(0, 1))
        seen = model.two(seen).relu()
    exact = entrim.Reconstruction(ridge=0.0)
    r = entrim.sparsify(model, x, entrim.Widths({"one": 5}), reconstruction=exact, calibration=ALL)
    kept = list(r.plan.kept["one"])
    best = entrim.refit(
        entrim.Moments.of(torch.cat(rows), torch.cat(targets)[:, kept], block=9), kept
    )
    torch.testing.assert_close(
        r.model.get_parameter("two.weight").flatten(1).double(), best.weight, rtol=1e-3, atol=1e-4
    )
