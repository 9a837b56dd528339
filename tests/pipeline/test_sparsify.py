"""What sparsify hands back, held against mathematics."""

import copy
import json
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import entrim
from entrim.errors import CalibrationWarning, NothingCutWarning
from tests.pipeline.networks import Residual, chain, images, residual
from tests.surgery.kinds import KINDS, Kind, shaken
from tests.surgery.oracle import distance, outputs


def inputs_of(model: nn.Module, layer: str, x: Tensor) -> Tensor:
    """Return what `layer` reads when `model` runs on `x`."""
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


def gap(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).detach().square().mean())


@pytest.mark.parametrize("fall", [None, 1e-3])
def test_the_paper_preset_puts_in_what_solve_finds(fall: float | None) -> None:
    model, x = chain(), images(120, 3, 8, 8)
    moments = entrim.Moments.of(*rows_of(model, x), block=9)
    how = {} if fall is None else {"method": "reference", "fall": fall}
    found = entrim.solve(moments, -3e-3, 3e-3, **how)
    assert 1 < len(found.kept) < 12
    assert (found.status.outcome is entrim.Outcome.SLOW) == (fall is not None)
    r = entrim.sparsify(model, x, -3e-3, 3e-3, preset="paper", layers="0", alternation=fall)
    assert list(r.plan.kept["0"]) == found.kept.tolist()
    small = r.model.get_submodule("3")
    assert isinstance(small, nn.Conv2d)
    torch.testing.assert_close(small.weight.flatten(1).double(), found.weight, rtol=1e-4, atol=1e-5)
    before, after = (m.get_buffer("4.running_mean").double() for m in (model, r.model))
    torch.testing.assert_close(before - after, found.bias, rtol=1e-4, atol=1e-5)


def test_an_independent_refit_is_least_squares_on_the_original_activations() -> None:
    model, x = chain(), images(120, 3, 8, 8)
    r = entrim.sparsify(model, x, widths={"0": 5}, mode="independent", ridge=0.0)
    kept = list(r.plan.kept["0"])
    best = entrim.refit(entrim.Moments.of(*rows_of(model, x), block=9), kept)
    small = r.model.get_submodule("3")
    assert isinstance(small, nn.Conv2d)
    torch.testing.assert_close(small.weight.flatten(1).double(), best.weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layer", ["3", "7", "9"])
def test_after_a_sequential_rebuild_no_layer_can_do_better_on_what_it_sees(layer: str) -> None:
    """The error of each layer is orthogonal to everything that the layer reads."""
    model, x = chain(), images(300, 3, 8, 8)
    r = entrim.sparsify(model, x, widths={"0": 6, "3": 5, "7": 8}, ridge=0.0)
    seen = inputs_of(r.model, layer, x).double()
    small, old = r.model.get_submodule(layer), model.get_submodule(layer)
    wanted = copy.deepcopy(old).double()(inputs_of(model, layer, x).double())
    found = copy.deepcopy(small).double()(seen)
    if layer == "3":
        stay = list(r.plan.kept["3"])
        wanted = wanted[:, stay]
        shift = model.get_buffer("4.running_mean")[stay] - r.model.get_buffer("4.running_mean")
        found = found + shift.double()[:, None, None]
        seen = F.unfold(seen, 3, padding=1, stride=2).mT.flatten(0, 1)
        wanted, found = (y.flatten(2).mT.flatten(0, 1) for y in (wanted, found))
    elif layer == "7":
        wanted = wanted[:, list(r.plan.kept["7"])]
    error = (found - wanted).detach()
    assert float(error.abs().max()) > 1e-3
    z = torch.cat([torch.ones(len(seen), 1, dtype=torch.float64), seen], 1)
    cosine = (z.T @ error).abs() / (z.norm(dim=0)[:, None] * error.norm(dim=0) + 1e-30)
    assert float(cosine.max()) < 1e-3


def test_rebuilding_in_order_beats_each_layer_alone_at_the_output() -> None:
    model, x = chain(), images(300, 3, 8, 8)
    errors = {}
    for mode in ("independent", "sequential"):
        r = entrim.sparsify(model, x, widths={"0": 6, "3": 6, "7": 9}, mode=mode)
        errors[mode] = gap(r.model(x), model(x))
    assert errors["sequential"] < errors["independent"]


def test_correction_brings_the_sum_behind_a_skip_path_closer() -> None:
    model, x = residual(), images(300, 3, 8, 8)
    errors = {}
    for correct in (False, True):
        r = entrim.sparsify(
            model, x, widths={"conv1": 4, "conv3": 7}, correct=correct, selector="greedy"
        )
        small = r.model
        assert isinstance(small, Residual)
        errors[correct] = gap(small.stream(x), model.stream(x))
    assert errors[True] < errors[False]


def test_channels_that_follow_from_others_go_without_a_trace() -> None:
    """Half of the channels are copies of the others, so a half-cut must change nothing."""
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
    r = entrim.sparsify(model, x, widths={"0": 6})
    assert len(r.plan.kept["0"]) == 6
    torch.testing.assert_close(r.model(x), model(x), rtol=1e-3, atol=1e-3)
    bad = entrim.apply_plan(model, entrim.Plan({"0": range(3, 9)}), x[:4])
    assert gap(bad(x), model(x)) > 1e-4


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_kind_of_network_is_cut_and_proven(kind: Kind) -> None:
    torch.manual_seed(0)
    model, example = shaken(kind.build()), kind.example()
    if isinstance(example, tuple) or kind is KINDS["unbatched Conv2d"]:
        pytest.skip("takes several positional inputs, or no batch")
    batches = example
    if isinstance(example, Tensor) and example.is_floating_point():
        batches = torch.randn(16, *example.shape[1:])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        r = entrim.sparsify(model, batches, widths={"*": 0.5}, selector="greedy")
    assert r.record.after.params < r.record.before.params
    assert r.record.proof["final"] <= r.record.proof["tolerance"]
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all(bool(torch.isfinite(out).all()) for out in outputs(r.model, example))


def test_whole_widths_give_the_same_network_back() -> None:
    model, x = residual(), images(60, 3, 8, 8)
    with pytest.warns(NothingCutWarning, match="width asked for"):
        r = entrim.sparsify(model, x, widths={"*": 1.0})
    assert distance(outputs(r.model, x), outputs(model, x)) == 0.0


def test_the_residual_stream_is_chosen_for_all_that_read_it() -> None:
    model, x = residual(), images(200, 3, 8, 8)
    group = entrim.trace(model, x[:2]).group("stem")
    assert set(group.layers) == {"stem", "conv2", "conv4"}
    for coupling in ("joint", "max"):
        r = entrim.sparsify(model, x, widths={"stem": 6}, coupling=coupling)
        assert len(r.plan.kept["stem"]) == 6
        assert r.model.get_submodule("head").in_features == 6
    paper = entrim.sparsify(model, x, -1e-2, 1e-2, preset="paper")
    assert "stem" not in paper.plan.kept
    assert {group.name for group in paper.record.groups} == {"conv1", "conv3"}


def test_batches_with_labels_give_the_same_as_one_tensor() -> None:
    model, x = chain(), images(96, 3, 8, 8)
    labels = torch.zeros(96, dtype=torch.int64)
    pairs = [(a, b) for a, b in zip(x.split(32), labels.split(32), strict=True)]
    one, other = (entrim.sparsify(model, data, -1e-3, 1e-3) for data in (x, iter(pairs)))
    assert one.plan.kept == other.plan.kept
    assert all(torch.equal(a, other.plan.weights[k]) for k, a in one.plan.weights.items())


def test_a_number_of_images_without_divisors_is_no_hindrance() -> None:
    model, x = chain(), images(131, 3, 8, 8)
    r = entrim.sparsify(model, x, widths={"3": 8})
    assert r.record.images == 131
    assert r.record.layers[0].rows == 131


def test_little_memory_changes_nothing_but_the_time() -> None:
    model, x = chain(), images(80, 3, 8, 8)
    free = entrim.sparsify(model, x, widths={"0": 6, "3": 8})
    tight = entrim.sparsify(model, x, widths={"0": 6, "3": 8}, memory_limit=150_000)
    assert free.plan.kept == tight.plan.kept
    for name, tensor in free.plan.weights.items():
        torch.testing.assert_close(tensor, tight.plan.weights[name])


def test_groups_whose_moments_exceed_the_limit_stay_whole_and_are_named() -> None:
    model, x = chain(), images(80, 3, 8, 8)
    with pytest.warns(CalibrationWarning, match="memory_limit=50,000 bytes: 0; raise"):
        r = entrim.sparsify(model, x, widths={"0": 6, "3": 8}, memory_limit=50_000)
    assert set(r.plan.kept) == {"3"}


def test_round_to_gives_multiples() -> None:
    model, x = chain(), images(120, 3, 8, 8)
    r = entrim.sparsify(model, x, -3e-3, 3e-3, round_to=4)
    widths = {group.name: len(group.kept) for group in r.record.groups}
    assert all(width % 4 == 0 for width in widths.values())
    assert min(widths["0"] / 12, widths["3"] / 16) < 1


def test_the_eps_that_is_named_when_nothing_was_cut_cuts() -> None:
    model, x = chain(), images(80, 3, 8, 8)
    with pytest.warns(NothingCutWarning, match="eps is too small") as caught:
        r = entrim.sparsify(model, x, -1e-12, 1e-12, layers="0")
    assert r.record.after == r.record.before
    sentence = str(caught[0].message)
    eps_w, eps_l2 = (
        float(part.split("=")[1].split(",")[0]) for part in sentence.split() if "=" in part
    )
    again = entrim.sparsify(model, x, eps_w, eps_l2, layers="0")
    assert again.record.after.params < again.record.before.params


def test_sampled_positions_and_resamples_draw_from_the_generator() -> None:
    model, x = chain(), images(100, 3, 8, 8)

    def once(seed: int) -> entrim.SparsifyResult:
        g = torch.Generator().manual_seed(seed)
        return entrim.sparsify(
            model, x, -3e-3, 3e-3, layers="0", positions=3, resamples=2, generator=g
        )

    one, same = once(0), once(0)
    assert one.plan.kept == same.plan.kept
    assert all(torch.equal(a, same.plan.weights[k]) for k, a in one.plan.weights.items())
    overlap = one.record.groups[0].stability
    assert overlap is not None
    assert 0 < overlap <= 1


def test_steps_and_record_tell_what_happened(tmp_path) -> None:
    model, x = chain(), images(100, 3, 8, 8)
    steps: list[entrim.ProgressEvent] = []
    r = entrim.sparsify(model, x, -3e-3, 3e-3, on_step=steps.append)
    assert [s.name for s in steps if s.stage == "choose"] == ["0", "3", "7"]
    assert [s.name for s in steps if s.stage == "rebuild"] == ["3", "7", "9"]
    assert steps[0].stage == "trace"
    assert [s.stage for s in steps[-2:]] == ["cut", "measure"]
    chosen = r.record.groups[0]
    assert chosen.w is not None
    assert sum(chosen.w) == pytest.approx(1)
    assert [d for d, w in enumerate(chosen.w) if w > 0] == list(chosen.kept)
    assert list(chosen.trace) == sorted(chosen.trace, reverse=True)
    assert r.record.before.macs > r.record.after.macs
    assert set(r.record.seconds) == {"trace", "collect", "choose", "rebuild", "cut", "measure"}
    r.save(tmp_path / "small")
    manifest = json.loads((tmp_path / "small" / "entrim.json").read_text())
    assert manifest["record"] == json.loads(r.record.to_json())
    assert distance(outputs(entrim.load(model, tmp_path / "small"), x), outputs(r.model, x)) == 0
    assert "fewer" in str(r.record)


def test_a_weight_that_serves_two_calls_is_refitted_for_both() -> None:
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
    r = entrim.sparsify(model, x, widths={"one": 5}, ridge=0.0)
    kept = list(r.plan.kept["one"])
    best = entrim.refit(
        entrim.Moments.of(torch.cat(rows), torch.cat(targets)[:, kept], block=9), kept
    )
    torch.testing.assert_close(
        r.model.get_parameter("two.weight").flatten(1).double(), best.weight, rtol=1e-3, atol=1e-4
    )
