"""Pruner: several targets on one collection, and the extension points of the pipeline."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import entrim
from entrim.allocation.sensitivity import SensitivityAnalyzer
from entrim.calibration import collect
from entrim.calibration.executor import Execution
from entrim.errors import BadImagesError, BadSettingError, BudgetError, RolledBackWarning
from entrim.graph.tracer import RULES, OpCall, Result
from entrim.reconstruction.sequential import LayerTask
from entrim.selection import elimination
from tests.callbacks import Recorder, StopAt, StopError
from tests.pipeline.networks import chain, images, residual

X, MANY = images(100, 3, 8, 8), images(250, 3, 8, 8)
SPLIT, ALL = entrim.Calibration(holdout=150), entrim.Calibration(holdout=0)
TARGETS: dict[str, entrim.Budget | entrim.Widths | entrim.EntropicPenalty | None] = {
    "size": entrim.Budget(params=0.5),
    "smaller size": entrim.Budget(macs=0.3, round_to=2),
    "error": entrim.Budget(max_error=0.1),
    "widths": entrim.Widths({"conv1": 5, "*": 0.75}),
    "penalty": entrim.EntropicPenalty(eps_w=-3e-3, eps_l2=3e-3),
    "knee": None,
}


def assert_same(one: entrim.SparsifyResult, other: entrim.SparsifyResult) -> None:
    assert one.plan.kept == other.plan.kept
    first, second = one.model.state_dict(), other.model.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    for part in (
        "settings",
        "groups",
        "layers",
        "tradeoff",
        "before",
        "after",
        "notes",
        "error",
        "holdout",
    ):
        assert getattr(one.record, part) == getattr(other.record, part), part


def widths_of(result: entrim.SparsifyResult) -> dict[str, int]:
    return {group.name: len(group.kept) for group in result.record.groups}


@pytest.fixture(scope="module")
def separate() -> dict[str, entrim.SparsifyResult]:
    """Return the result of `sparsify` for every target."""
    return {
        name: entrim.sparsify(residual(), MANY, target, calibration=SPLIT)
        for name, target in TARGETS.items()
    }


class TestSeveralTargets:
    @pytest.mark.parametrize("order", [list(TARGETS), list(reversed(TARGETS))])
    def test_a_pruner_returns_exactly_the_results_of_sparsify(
        self, separate: dict[str, entrim.SparsifyResult], order: list[str]
    ) -> None:
        with entrim.Pruner(residual(), MANY, calibration=SPLIT) as pruner:
            for name in order:
                assert_same(pruner.prune(TARGETS[name]), separate[name])

    def test_the_same_target_returns_the_same_result_twice(self) -> None:
        with entrim.Pruner(residual(), X, selector="random", seed=3) as pruner:
            assert_same(*(pruner.prune(TARGETS["size"]) for _ in range(2)))

    def test_a_refused_target_does_not_affect_the_next_one(
        self, separate: dict[str, entrim.SparsifyResult]
    ) -> None:
        with entrim.Pruner(residual(), MANY, calibration=SPLIT) as pruner:
            with pytest.raises(BudgetError):
                pruner.prune(entrim.Budget(params=3))
            assert_same(pruner.prune(TARGETS["size"]), separate["size"])

    def test_the_network_and_the_random_state_of_the_caller_do_not_change(self) -> None:
        model = residual().train()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state = torch.get_rng_state()
        with entrim.Pruner(model, X, calibration=entrim.Calibration(n_bootstrap=1)) as pruner:
            results = [pruner.prune(TARGETS[name]) for name in ("size", "penalty")]
        assert torch.equal(torch.get_rng_state(), state)
        assert model.training
        assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
        assert all(result.original is model for result in results)
        assert results[0].model is not results[1].model

    def test_the_steps_of_prune_can_be_called_one_by_one(
        self, separate: dict[str, entrim.SparsifyResult]
    ) -> None:
        with entrim.Pruner(residual(), MANY, calibration=SPLIT) as pruner:
            selection = pruner.select(TARGETS["size"])
            pruned = pruner.apply(selection)
            assert (
                set(pruner.allocator.rankings)
                == set(pruner.allocator.curves)
                == set(selection.channels)
            )
            for name, found in selection.channels.items():
                assert found.kept == pruner.allocator.rankings[name].kept(len(found.kept))
        assert pruned.plan.kept == separate["size"].plan.kept

    def test_each_record_contains_its_own_times(self) -> None:
        with entrim.Pruner(residual(), X) as pruner:
            first, second = (pruner.prune(TARGETS[n]).record for n in ("size", "smaller size"))
        assert {"trace", "collect", "select", "sensitivity"} <= set(first.seconds)
        assert second.seconds.keys().isdisjoint({"trace", "sensitivity"})
        assert {"allocate", "reconstruct", "prune", "measure"} <= set(second.seconds)


@dataclass
class Work:
    """What was executed: the batches of every execution, and calls by name."""

    executions: list[int] = field(default_factory=list)
    operations: int = 0
    calls: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        self.executions.clear()
        self.operations = 0
        self.calls.clear()


class TestReusedWork:
    @pytest.fixture
    def work(self, monkeypatch: pytest.MonkeyPatch) -> Work:
        """Return the counted work from now on."""
        found = Work()

        def wrap(place: Any, name: str, note: Callable[..., None]) -> None:
            original = getattr(place, name)

            def noting(*args: Any, **kwargs: Any) -> Any:
                note(*args, **kwargs)
                return original(*args, **kwargs)

            monkeypatch.setattr(place, name, noting)

        def note_execution(_: Execution, *args: Any, **fields: Any) -> None:
            found.executions.append(len(fields["batches"] if fields else args[1]))

        def note_operation(*_: object, **__: object) -> None:
            found.operations += 1

        def count(name: str) -> Callable[..., None]:
            return lambda *_, **__: found.calls.update([name])

        wrap(Execution, "__init__", note_execution)
        wrap(Execution, "run", note_operation)
        wrap(elimination, "elimination_order", count("ranking"))
        wrap(collect, "_watch", count("collection"))
        wrap(LayerTask, "run", count("refit"))
        wrap(SensitivityAnalyzer, "_change", count("sensitivity"))
        return found

    def test_another_size_costs_only_its_reconstruction(self, work: Work) -> None:
        plain = entrim.Reconstruction(mixtures=0)
        with entrim.Pruner(residual(), X, calibration=ALL, reconstruction=plain) as pruner:
            pruner.prune(entrim.Budget(params=0.7))
            groups, batches = len(pruner.graph.groups), len(pruner.statistics.forward.batches)
            operations = len(pruner.statistics.forward.programs[0].nodes)
            assert batches == 2
            assert work.calls["ranking"] == groups == 3
            assert work.calls["sensitivity"] >= groups
            assert len(work.executions) > batches + work.calls["sensitivity"]
            work.clear()
            second = pruner.prune(entrim.Budget(params=0.4))
        # the original and the reconstructed execution, each over all batches, and nothing else
        assert work.executions == [batches, batches]
        assert work.operations <= 2 * operations * batches
        assert work.calls["ranking"] == work.calls["sensitivity"] == 0
        assert work.calls["refit"] == len(second.record.layers)

    def test_an_independent_reconstruction_needs_no_execution_at_all(self, work: Work) -> None:
        independent = entrim.Reconstruction(order="independent")
        options: Any = {"reconstruction": independent, "calibration": ALL}
        with entrim.Pruner(residual(), X, **options) as pruner:
            pruner.prune(entrim.Budget(params=0.7))
            work.clear()
            pruner.prune(entrim.Budget(params=0.4))
        assert work == Work()

    @pytest.mark.parametrize("name", ["widths", "penalty", "knee", "error"])
    def test_targets_of_other_types_use_the_same_statistics(self, work: Work, name: str) -> None:
        independent = entrim.Reconstruction(order="independent")
        options: Any = {"reconstruction": independent, "calibration": ALL}
        with entrim.Pruner(residual(), X, **options) as pruner:
            pruner.prune(entrim.Budget(params=0.7))
            work.clear()
            pruner.prune(TARGETS[name])
        assert not work.calls
        if name != "error":  # which runs the network at every point that it evaluates
            assert work.executions == []


class TestSeveralLimits:
    """With a size, an error and a latency at once, later points of the path are tried too."""

    def test_a_size_and_an_error_hold_together(self) -> None:
        model = residual()
        alone = entrim.sparsify(model, X, entrim.Budget(params=0.6), calibration=ALL)
        assert alone.record.error is not None
        loose = entrim.Budget(params=0.6, max_error=2 * alone.record.error)
        result = entrim.sparsify(model, X, loose, calibration=ALL)
        assert result.plan.kept == alone.plan.kept
        assert result.record.after.params <= 0.6 * result.record.before.params
        assert all(" of " in group.reason for group in result.record.groups)
        tight = entrim.Budget(params=0.6, max_error=1e-3 * alone.record.error)
        with pytest.raises(BudgetError, match="contradicts the rest of the budget"):
            entrim.sparsify(model, X, tight, calibration=ALL)

    def test_a_size_and_a_latency_hold_together(self) -> None:
        model = residual()
        result = entrim.sparsify(model, X, entrim.Budget(params=0.6, latency=3600.0))
        assert_kept(result, entrim.sparsify(model, X, entrim.Budget(params=0.6)))
        with pytest.raises(BudgetError, match="the narrowest network still takes"):
            entrim.sparsify(model, X, entrim.Budget(params=0.6, latency=1e-9))


def assert_kept(one: entrim.SparsifyResult, other: entrim.SparsifyResult) -> None:
    assert one.plan.kept == other.plan.kept


@dataclass
class Energy:
    """A cost that is linear in the widths, as a look-up table of a device may be."""

    prices: Mapping[str, float]
    asked: list[dict[str, int]] = field(default_factory=list)

    def __call__(self, widths: Mapping[str, int], /) -> float:
        self.asked.append(dict(widths))
        return sum(self.prices[name] * width for name, width in widths.items())


class TestCosts:
    PRICES: Mapping[str, float] = {"stem": 0.7, "conv1": 0.31, "conv3": 1.3}

    @pytest.mark.parametrize("share", [0.9, 0.5, 0.2])
    def test_a_cost_of_the_user_is_met_and_used_up_to_less_than_one_step(
        self, share: float
    ) -> None:
        model, energy = residual(), Energy(self.PRICES)
        full = {group.name: group.channels for group in entrim.trace(model, X[:4]).groups}
        limit = share * energy(full)
        result = entrim.sparsify(model, X, entrim.Budget(costs={"energy": (energy, limit)}))
        found = widths_of(result)
        assert energy(found) <= limit
        for name, width in found.items():
            if width < full[name]:
                assert energy({**found, name: width + 1}) > limit
        assert all(widths.keys() == full.keys() for widths in energy.asked)
        assert f"at most {limit:,} energy" in result.record.groups[0].reason
        assert result.record.settings["budget"]["costs"]["energy"][1] == limit

    def test_it_holds_together_with_a_size(self) -> None:
        energy = Energy(self.PRICES)
        budget = entrim.Budget(params=0.5, costs={"energy": (energy, 8.0)}, round_to=2)
        result = entrim.sparsify(residual(), X, budget)
        assert energy(widths_of(result)) <= 8.0
        assert result.record.after.params <= 0.5 * result.record.before.params
        assert all(width % 2 == 0 for width in widths_of(result).values())

    def test_a_limit_below_the_narrowest_network_is_refused(self) -> None:
        lowest, recorder = sum(self.PRICES.values()), Recorder()
        budget = entrim.Budget(costs={"energy": (Energy(self.PRICES), 0.9 * lowest)})
        with pytest.raises(BudgetError, match=f"energy cannot be met.*still has {lowest}"):
            entrim.sparsify(residual(), X, budget, callbacks=[recorder])
        assert "sensitivity" not in recorder.stages

    def test_several_costs_hold_at_once(self) -> None:
        model = residual()
        limits = {"width of the stem": 4.0, "width of a block": 9.0}
        costs = {
            "width of the stem": (lambda widths: float(widths["stem"]), 4.0),
            "width of a block": (lambda widths: float(widths["conv1"]), 9.0),
        }
        found = widths_of(entrim.sparsify(model, X, entrim.Budget(costs=costs)))
        assert [found["stem"], found["conv1"]] == list(limits.values())
        assert found["conv3"] == 14


def kl_divergence(outputs: Tensor, reference: Tensor) -> Tensor:
    """Return the default sensitivity of a classifier, image by image."""
    found, expected = (t.double().log_softmax(1) for t in (outputs, reference))
    return (expected.exp() * (expected - found)).sum(1)


class TwoOutputs(nn.Module):
    """A network that returns a map and a vector."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(3, 8, 3, padding=1)
        self.map, self.head = nn.Conv2d(8, 2, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x).relu()
        return self.map(y), self.head(y.mean((2, 3)))


class TestSensitivity:
    def test_the_default_measure_as_a_function_gives_the_same_result(self) -> None:
        calibration = entrim.Calibration(sensitivity=kl_divergence)
        budget = entrim.Budget(params=0.4)
        own = entrim.sparsify(residual(), X, budget, calibration=calibration)
        default = entrim.sparsify(residual(), X, budget)
        assert own.plan.kept == default.plan.kept
        divergences = [[p.divergence for p in r.record.tradeoff] for r in (own, default)]
        assert divergences[0] == pytest.approx(divergences[1], rel=1e-6)

    def test_another_measure_moves_the_widths_where_it_is_sensitive(self) -> None:
        def first_class_only(outputs: Tensor, reference: Tensor) -> Tensor:
            return (outputs - reference)[:, 0].square()

        class Separate(nn.Module):
            """Two classes from layers of their own."""

            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.one, self.two = nn.Linear(6, 12), nn.Linear(6, 12)
                self.out_one, self.out_two = nn.Linear(12, 1), nn.Linear(12, 1)

            def forward(self, x: Tensor) -> Tensor:
                return torch.cat(
                    [self.out_one(self.one(x).relu()), self.out_two(self.two(x).relu())], 1
                )

        x = torch.randn(100, 6)
        calibration = entrim.Calibration(sensitivity=first_class_only)
        model, budget = Separate().eval(), entrim.Budget(params=0.6)
        found = widths_of(entrim.sparsify(model, x, budget, calibration=calibration))
        assert found["one"] > 4 * found["two"]
        default = widths_of(entrim.sparsify(model, x, budget))
        assert default["one"] < 4 * default["two"]

    def test_it_is_called_with_the_outputs_of_a_batch_and_may_depend_on_all_of_them(self) -> None:
        shapes: list[Any] = []

        def sensitivity(outputs: tuple[Tensor, ...], reference: tuple[Tensor, ...]) -> Tensor:
            shapes.append([tuple(t.shape) for t in (*outputs, *reference)])
            pairs = zip(outputs, reference, strict=True)
            return sum(((a - b).flatten(1).square().sum(1) for a, b in pairs), torch.zeros(50))

        result = entrim.sparsify(
            TwoOutputs().eval(),
            X,
            entrim.Budget(params=0.5),
            calibration=entrim.Calibration(sensitivity=sensitivity, batch_size=50, holdout=0),
        )
        assert result.record.after.params <= 0.5 * result.record.before.params
        one_batch = [(50, 2, 8, 8), (50, 3)]
        assert all(shape == one_batch * 2 for shape in shapes)

    @pytest.mark.parametrize(
        ("wrong", "shape"),
        [
            (lambda outputs, reference: kl_divergence(outputs, reference).mean(), r"\(\)"),
            (lambda outputs, reference: (outputs - reference).square(), r"\(\d+, 4\)"),
            (lambda _outputs, _reference: 0.0, r"\(\)"),
        ],
    )
    def test_anything_but_one_value_per_image_is_refused(self, wrong: Any, shape: str) -> None:
        calibration = entrim.Calibration(sensitivity=wrong, batch_size=50)
        sentence = rf"must return one value per image, shape \(\d+,\), got the shape {shape}"
        with pytest.raises(BadSettingError, match=sentence):
            entrim.sparsify(residual(), X, entrim.Budget(params=0.5), calibration=calibration)


@dataclass(frozen=True)
class Sample:
    """A batch of a custom data loader."""

    picture: Tensor
    label: int


class TestCalibration:
    @pytest.mark.parametrize("as_dict", [False, True])
    def test_batches_of_any_type_can_be_converted(self, as_dict: bool) -> None:
        def convert(batch: Sample) -> Tensor | dict[str, Tensor]:
            return {"x": batch.picture} if as_dict else batch.picture

        loader = (Sample(part, 3) for part in X.split(30))
        calibration = entrim.Calibration(batch_to_inputs=convert)
        target = entrim.Widths(0.5)
        converted = entrim.sparsify(residual(), loader, target, calibration=calibration)
        assert_kept(converted, entrim.sparsify(residual(), X, target))
        assert converted.record.images == 100

    def test_a_conversion_that_returns_no_tensor_is_refused(self) -> None:
        wrong: Any = lambda _: "photo.png"  # noqa: E731
        calibration = entrim.Calibration(batch_to_inputs=wrong)
        with pytest.raises(BadImagesError, match=r"a batch must be a tensor .* got str"):
            entrim.sparsify(residual(), X, entrim.Widths(0.5), calibration=calibration)

    @pytest.mark.parametrize(("batch_size", "batches"), [(10, 10), (64, 2), (1000, 1)])
    def test_the_batch_size_changes_the_batches_but_not_the_result(
        self, batch_size: int, batches: int
    ) -> None:
        recorder, target = Recorder(), entrim.Widths(0.5)
        unmixed = entrim.Reconstruction(mixtures=0)  # images are mixed within their batch
        result = entrim.sparsify(
            residual(),
            X,
            target,
            calibration=entrim.Calibration(batch_size=batch_size, holdout=0),
            reconstruction=unmixed,
            callbacks=[recorder],
        )
        assert {event.total for event in recorder.in_stage("collect")} == {batches}
        expected = entrim.sparsify(residual(), X, target, calibration=ALL, reconstruction=unmixed)
        assert_kept(result, expected)
        for name, tensor in expected.plan.weights.items():
            torch.testing.assert_close(result.plan.weights[name], tensor, rtol=1e-3, atol=1e-4)


@dataclass
class LastChannels:
    """A selector without a ranking: keeps the channels with the largest index."""

    widths: list[tuple[str, int]] = field(default_factory=list)

    def select(self, statistics: entrim.GroupStatistics, k: int) -> Tensor:
        self.widths.append((statistics.group.name, k))
        return torch.arange(statistics.channels)[-k:]

    def __str__(self) -> str:
        return "last channels"


class Nested:
    """A selector with a ranking: removes the channels with the largest index first."""

    def __init__(self) -> None:
        self.ranked: list[str] = []

    def select(self, statistics: entrim.GroupStatistics, k: int) -> list[int]:
        return list(range(k))

    def rank(self, statistics: entrim.GroupStatistics) -> list[int]:
        self.ranked.append(statistics.group.name)
        return list(range(statistics.channels))[::-1]


class TestSelectors:
    def test_it_selects_at_given_widths(self) -> None:
        selector = LastChannels()
        target = entrim.Widths({"conv1": 4, "conv3": 0.5})
        result = entrim.sparsify(residual(), X, target, selector=selector)
        assert result.plan.kept == {"conv1": (10, 11, 12, 13), "conv3": tuple(range(7, 14))}
        assert selector.widths == [("conv1", 4), ("conv3", 7)]
        reasons = {group.reason for group in result.record.groups}
        assert reasons == {"last channels, at this width"}

    def test_without_a_ranking_it_selects_at_the_widths_of_the_greedy_allocation(self) -> None:
        selector, budget = LastChannels(), entrim.Budget(params=0.5)
        result = entrim.sparsify(residual(), X, budget, selector=selector)
        assert widths_of(result) == widths_of(entrim.sparsify(residual(), X, budget))
        for group in result.record.groups:
            first = group.channels - len(group.kept)
            assert group.kept == tuple(range(first, group.channels))

    def test_with_a_ranking_the_allocation_measures_its_own_choices(self) -> None:
        selector, budget = Nested(), entrim.Budget(params=0.5)
        with entrim.Pruner(residual(), X, selector=selector) as pruner:
            result = pruner.prune(budget)
            order = pruner.allocator.rankings["conv1"].order
        assert selector.ranked == [group.name for group in result.record.groups]
        assert order == tuple(range(14))[::-1]
        assert all(group.kept == tuple(range(len(group.kept))) for group in result.record.groups)
        assert all(group.reason.startswith("Nested, at most") for group in result.record.groups)
        greedy = entrim.sparsify(residual(), X, budget)
        assert [p.divergence for p in result.record.tradeoff] != [
            p.divergence for p in greedy.record.tradeoff
        ]

    def test_it_receives_moments_weights_and_a_seeded_generator(self) -> None:
        class Drawing:
            def select(self, statistics: entrim.GroupStatistics, k: int) -> list[int]:
                assert [m.channels for m in statistics.moments] == [statistics.channels]
                outputs = [m.outputs for m in statistics.moments]
                columns = [m.columns for m in statistics.moments]
                shapes = [tuple(weight.shape) for weight in statistics.weights]
                assert shapes == list(zip(outputs, columns, strict=True))
                order = torch.randperm(statistics.channels, generator=statistics.generator)
                return order[:k].tolist()

        one, same, other = (
            entrim.sparsify(chain(), X, entrim.Widths(0.5), selector=Drawing(), seed=seed)
            for seed in (1, 1, 2)
        )
        assert one.plan.kept == same.plan.kept != other.plan.kept
        assert (one.record.seed, other.record.seed) == (1, 2)

    @pytest.mark.parametrize(
        ("wrong", "sentence"),
        [
            (
                lambda channels, k: range(k + 1),
                "7 distinct channels, got 8 channels with 8 distinct",
            ),
            (lambda channels, k: [0] * k, "7 distinct channels, got 7 channels with 1 distinct"),
            (lambda channels, k: [], "7 distinct channels, got 0 channels with 0 distinct"),
            (
                lambda channels, k: range(1, k + 8),
                "7 distinct channels, got 14 channels with 14 distinct",
            ),
            (lambda channels, k: [*range(k - 1), channels], "channels from 0 to 13, got"),
            (lambda channels, k: [*range(k - 1), -1], "channels from 0 to 13, got"),
            (
                lambda channels, k: torch.arange(channels) < k,
                "7 distinct channels, got 14 channels with 2 distinct",
            ),
            (lambda channels, k: None, "channel indices as integers, got NoneType"),
            (lambda channels, k: torch.rand(k), "channel indices as integers, got Tensor"),
            (lambda channels, k: ["a"] * k, "channel indices as integers, got list"),
        ],
    )
    def test_wrong_indices_are_refused(
        self, wrong: Callable[[int, int], Any], sentence: str
    ) -> None:
        class Wrong:
            def select(self, statistics: entrim.GroupStatistics, k: int) -> Any:
                return wrong(statistics.channels, k)

        with pytest.raises(BadSettingError, match=f"^Wrong must return {sentence}"):
            entrim.sparsify(residual(), X, entrim.Widths({"conv1": 7}), selector=Wrong())

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda channels: range(channels - 1),
            lambda channels: [0] * channels,
            lambda channels: range(1, channels + 1),
            lambda channels: None,
            lambda channels: torch.rand(channels),
        ],
    )
    def test_wrong_rankings_are_refused(self, wrong: Callable[[int], Any]) -> None:
        class Wrong(Nested):
            def rank(self, statistics: entrim.GroupStatistics) -> Any:
                return wrong(statistics.channels)

        sentence = r"^Wrong (ranked .*: return each of its 10|must return channel indices)"
        with pytest.raises(BadSettingError, match=sentence):
            entrim.sparsify(residual(), X, entrim.Budget(params=0.5), selector=Wrong())

    def test_scores_keep_the_largest(self) -> None:
        g = torch.Generator().manual_seed(0)
        values = {"conv1": torch.rand(14, generator=g), "conv3": torch.rand(14, generator=g)}
        for target in (entrim.Widths(5), entrim.Budget(params=0.5)):
            result = entrim.sparsify(
                residual(),
                X,
                target,
                selector=entrim.Scores(values),
                include="conv*",
                exclude="stem",
            )
            for group in result.record.groups:
                largest = values[group.name].topk(len(group.kept)).indices.sort().values
                assert group.kept == tuple(largest.tolist())
            assert result.record.settings["selector"]["scores"].keys() == values.keys()


class TestCallbacks:
    @pytest.mark.parametrize("name", ["size", "widths", "penalty"])
    def test_every_stage_begins_before_its_steps_and_ends_after_them(self, name: str) -> None:
        recorder = Recorder()
        result = entrim.sparsify(residual(), X, TARGETS[name], callbacks=[recorder])
        running: list[str] = []  # a stage may contain another one
        for method, stage in recorder.calls:
            if method == "begin":
                running.append(stage)
            assert running[-1] == stage
            if method == "end":
                running.pop()
        assert not running
        assert list(recorder.seconds) == list(result.record.seconds)
        assert recorder.seconds == pytest.approx(dict(result.record.seconds))

    def test_several_callbacks_receive_the_same_events(self) -> None:
        one, other = Recorder(), Recorder()
        entrim.sparsify(residual(), X, TARGETS["widths"], callbacks=(one, other))
        assert one.events == other.events
        assert one.calls == other.calls

    def test_a_subclass_may_override_a_single_method(self) -> None:
        class Stages(entrim.Callback):
            names: list[str] = []  # noqa: RUF012

            def on_stage_begin(self, stage: str) -> None:
                self.names.append(stage)

        entrim.sparsify(residual(), X, TARGETS["widths"], callbacks=[Stages()])
        assert list(dict.fromkeys(Stages.names)) == [
            "trace",
            "collect",
            "select",
            "reconstruct",
            "prune",
            "measure",
        ]

    @pytest.mark.parametrize("method", ["on_stage_begin", "on_step", "on_stage_end"])
    def test_an_exception_ends_the_call(self, method: str) -> None:
        def fail(*_: object) -> None:
            raise StopError

        callback = Recorder()
        setattr(callback, method, fail)
        with pytest.raises(StopError):
            entrim.sparsify(residual(), X, TARGETS["widths"], callbacks=[callback])

    def test_a_pruner_can_be_used_after_a_callback_raised(self) -> None:
        pending = iter([True])
        stop = StopAt(lambda event: event.stage == "reconstruct" and next(pending, False))
        with entrim.Pruner(residual(), X, callbacks=[stop]) as pruner:
            with pytest.raises(StopError):
                pruner.prune(TARGETS["size"])
            result = pruner.prune(TARGETS["size"])
        assert_same(result, entrim.sparsify(residual(), X, TARGETS["size"]))


@pytest.fixture
def scale() -> Iterator[Callable[[Tensor], Tensor]]:
    """Return an operator that entrim does not know; remove its rule at the end."""

    @torch.library.custom_op("entrim_tests::scale", mutates_args=())
    def operator(x: Tensor) -> Tensor:
        return 2 * x

    @operator.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    yield lambda x: operator(x)
    RULES.pop("entrim_tests::scale", None)


class Scaled(nn.Module):
    """Two convolutions with an operator between them."""

    def __init__(self, operator: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.head = nn.Conv2d(3, 12, 3), nn.Conv2d(12, 6, 3), nn.Linear(6, 3)
        self.operator = operator

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(self.operator(self.one(x).relu())).relu()
        return self.head(y.mean((2, 3)))


class TestRules:
    def test_channels_behind_a_registered_operator_are_pruned(
        self, scale: Callable[[Tensor], Tensor]
    ) -> None:
        model = Scaled(scale).eval()
        graph = entrim.trace(model, X[:4])
        assert [group.name for group in graph.groups] == ["two"]
        reasons = {frozen.layer: frozen.reason for frozen in graph.frozen}
        assert reasons["one"] == "no rule for the operation entrim_tests::scale"

        def rule(call: OpCall) -> Result:
            return call.value()

        entrim.register_rule("entrim_tests::scale", rule)
        assert [group.name for group in entrim.trace(model, X[:4]).groups] == ["one", "two"]
        result = entrim.sparsify(model, X, entrim.Widths({"one": 5}))
        assert len(result.plan.kept["one"]) == 5
        plain = Scaled(lambda x: 2 * x).eval()
        expected = entrim.sparsify(plain, X, entrim.Widths({"one": 5}))
        assert_kept(result, expected)
        torch.testing.assert_close(result.model(X), expected.model(X), rtol=1e-4, atol=1e-5)

    def test_a_rule_that_fails_freezes_the_channels_and_is_named(
        self, scale: Callable[[Tensor], Tensor]
    ) -> None:
        def rule(call: OpCall) -> Result:
            raise LookupError("not today")

        entrim.register_rule("entrim_tests::scale", rule)
        frozen = entrim.trace(Scaled(scale).eval(), X[:4]).frozen
        reasons = {one.layer: one.reason for one in frozen}
        assert "cannot be traced (LookupError: not today)" in reasons["one"]

    def test_a_wrong_rule_does_not_change_the_outputs(self) -> None:
        """The verification finds that the outputs differ, and the group is not pruned."""

        @torch.library.custom_op("entrim_tests::mix", mutates_args=())
        def mix(x: Tensor) -> Tensor:
            return x.flip(1) + x.mean(1, keepdim=True)

        @mix.register_fake
        def _(x: Tensor) -> Tensor:
            return torch.empty_like(x)

        entrim.register_rule("entrim_tests::mix", lambda call: call.value())
        model = Scaled(lambda x: mix(x)).eval()
        try:
            with pytest.warns(RolledBackWarning, match="one"):
                same = entrim.apply_plan(model, entrim.Plan({"one": [0, 1, 2]}), X[:4])
        finally:
            RULES.pop("entrim_tests::mix")
        torch.testing.assert_close(same(X), model(X))
