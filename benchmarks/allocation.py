"""Ask for a size: how the widths are chosen, at equal budgets, nothing trained and no labels.

`python -m benchmarks.allocation` measures what its ledger lacks and writes the table; with names of
networks only those. Needs ENTRIM_ASSETS.
"""

import copy
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn

import entrim
from benchmarks.cifar import REPORT, Subject, interval, percent_right
from benchmarks.ledger import Ledger
from benchmarks.lenet import trained_lenet
from benchmarks.plots import PICTURES, plot_allocation
from benchmarks.record import table, verdict, write
from entrim.allocate import Market, over
from entrim.budgeting import Ladder, climb, sense
from entrim.choose import Chosen
from entrim.deciding import Scene, choose_in
from entrim.experiments import load_mnist, normalisation
from entrim.images import read_images
from entrim.network.sensing import Sensor
from entrim.network.shelf import Shelf
from entrim.pipeline import build
from entrim.recording import recorded
from entrim.run import Run
from entrim.settings import Settings

NETWORKS = ("lenet", "cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16")
SHARES, TIMES = (0.75, 0.5, 0.25, 0.1), (1.5, 2.0, 3.0)
BUDGETS = {
    **{f"{share:.0%} of the parameters": entrim.Budget(params=share) for share in SHARES},
    **{f"{times}x fewer MACs": entrim.Budget(macs=1 / times) for times in TIMES},
}
PEER = "cifar10_resnet56", "2.1x fewer MACs", entrim.Budget(macs=1 / 2.1)
"""Where a peer reports what it reaches after sparse training with labels."""
DISTILLED = ("25% of the parameters", "10% of the parameters", "2.0x fewer MACs")
"""Where the larger networks are distilled, and cut at random, for time."""
SMALL = ("lenet", "cifar10_resnet20")
RANDOM = "allocation, random channels"
CHANCE = 10.0
EPS = [10 ** (-exponent / 2) for exponent in range(14, 2, -1)]
"""The ladder of one eps for all layers; every second rung for VGG-16, whose layers are wide."""


def subject_of(name: str) -> Subject:
    """Return one network, 500 unlabelled training images and the test images."""
    if name != "lenet":
        return Subject.of(name)
    train, test = load_mnist("train")[:500], load_mnist("test")
    how = normalisation.MNIST
    return Subject(name, trained_lenet(), train.normalised(how), test.normalised(how), test.labels)


@dataclass(slots=True, eq=False)
class Bench:
    """One network looked at once, so that every budget costs a rebuild only."""

    subject: Subject
    run: Run
    scene: Scene
    grams: Shelf
    example: Tensor
    ladders: Mapping[str, Ladder]
    sensor: Sensor
    market: Market
    by_eps: dict[float, dict[str, Chosen]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str) -> "Bench":
        subject = subject_of(name)
        images = read_images(subject.images, torch.device("cpu"), torch.float32)
        run = Run(subject.model, Settings(), images, None, lambda _: None)
        example = subject.images[:4]
        graph = entrim.trace(subject.model, example)
        scene = Scene.of(run, graph, images)
        grams = Shelf(run.settings.memory_limit)
        asks = run.settings.asks(graph, scene.alone)
        ladders = climb(run, scene, asks, grams, example)
        sensor, market = sense(run, scene, ladders, grams, example)
        return cls(subject, run, scene, grams, example, ladders, sensor, market)

    def finished(self, kept: Mapping[str, tuple[int, ...]]) -> entrim.Sparsified:
        """Return the network with these channels, rebuilt and cut."""
        chosen = {name: Chosen(kept=units, how="") for name, units in kept.items()}
        asks = self.run.settings.asks(self.scene.graph, self.scene.alone)
        done = build(self.run, self.scene, chosen, self.grams, self.example)
        record = recorded(self.run, self.scene, asks, chosen, {}, None, done, self.example)
        return entrim.Sparsified(
            model=done.model, plan=done.plan, record=record, original=self.subject.model
        )

    def at(self, widths: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the channels that stay at these widths."""
        return {name: ladder.kept(widths[name]) for name, ladder in self.ladders.items()}


def allocated(bench: Bench, budget: entrim.Budget) -> dict[str, tuple[int, ...]]:
    """Return the channels at the widths that `sparsify` allocates."""
    limits = budget.limits(bench.market.sizes)
    return bench.at(bench.market.filled(bench.market.way_down(limits)[-1], limits).widths)


def uniform(bench: Bench, budget: entrim.Budget) -> dict[str, tuple[int, ...]]:
    """Return the channels at the largest fraction, the same everywhere, that keeps the budget."""
    market, limits = bench.market, budget.limits(bench.market.sizes)

    def widths(fraction: float) -> dict[str, int]:
        even = {n: max(market.floor(n), round(fraction * c)) for n, c in market.whole.items()}
        return {**market.whole, **{n: even[n] for n in bench.ladders}}

    fits = [n / 400 for n in range(1, 401) if not over(market.costs.at(widths(n / 400)), limits)]
    return bench.at(widths(max(fits)))


def one_eps(bench: Bench, budget: entrim.Budget) -> dict[str, tuple[int, ...]] | None:
    """Return the channels at the least eps of a ladder, the same everywhere, that keeps it."""
    limits = budget.limits(bench.market.sizes)
    for eps in EPS[2:9:2] if bench.subject.name == "cifar10_vgg16" else EPS:
        if eps not in bench.by_eps:
            run = replace(bench.run, settings=Settings(eps_w=-eps, eps_l2=eps))
            asks = run.settings.asks(bench.scene.graph, bench.scene.alone)
            groups = [ladder.group for ladder in bench.ladders.values()]
            bench.by_eps[eps] = choose_in(groups, run, bench.scene, asks, bench.grams, quiet=True)
        kept = {name: found.kept for name, found in bench.by_eps[eps].items()}
        widths = {**bench.market.whole, **{name: len(units) for name, units in kept.items()}}
        if not over(bench.market.costs.at(widths), limits):
            return kept
    return None


def drawn(bench: Bench, budget: entrim.Budget) -> dict[str, tuple[int, ...]]:
    """Return random channels at the widths that `sparsify` allocates."""
    g = torch.Generator().manual_seed(0)
    kept = allocated(bench, budget)
    return {
        name: tuple(sorted(torch.randperm(ladder.group.channels, generator=g)[:width].tolist()))
        for name, ladder in bench.ladders.items()
        for width in [len(kept[name])]
    }


def torch_pruned(bench: Bench, budget: entrim.Budget) -> nn.Module | None:
    """Return what torch-pruning's global magnitude gives at the least ratio that keeps it.

    Only channels that one layer makes and one reads: behind a padded shortcut its network does not
    run.
    """
    limits = budget.limits(bench.market.sizes)
    alone = {g.name for g in bench.scene.graph.groups if bench.scene.alone(g)}
    low, high, best = 0.0, 1.0, None
    for _ in range(9):
        ratio = (low + high) / 2
        model = copy.deepcopy(bench.subject.model)
        kept: list[nn.Module] = [
            layer
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Conv2d | nn.Linear) and name not in alone
        ]
        tp.pruner.MagnitudePruner(
            model,
            bench.example,
            importance=tp.importance.GroupMagnitudeImportance(p=2),
            global_pruning=True,
            pruning_ratio=ratio,
            max_pruning_ratio=0.98,
            ignored_layers=kept,
        ).step()
        cost = entrim.measure(model, bench.example, repeats=2)
        sizes = {"params": cost.params, "macs": cost.macs, "bytes": cost.bytes}
        if over(sizes, limits):
            low = ratio
        else:
            best, high = model, ratio
    return best


WAYS: dict[str, Callable[[Bench, entrim.Budget], Any]] = {
    "allocation": allocated,
    "uniform": uniform,
    "one eps": one_eps,
    RANDOM: drawn,
    "torch-pruning": torch_pruned,
}


OTHERS = [way for way in WAYS if way != "allocation"]


def point(bench: Bench, way: str, budget: entrim.Budget, distil: bool) -> dict[str, Any]:
    """Return what one way gives under one budget; nothing where it cannot keep it."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = WAYS[way](bench, budget)
        if found is None:
            return {}
        result = None if isinstance(found, nn.Module) else bench.finished(found)
        model = found if result is None else result.model
        measured = {"seconds": round(time.perf_counter() - begin, 1), **_measured(bench, model)}
        if way == "allocation" and result and distil:
            distilled = entrim.distill(result, bench.subject.images).model
            measured["distilled"] = _measured(bench, distilled)["report"]
    return measured


def _measured(bench: Bench, model: nn.Module) -> dict[str, float]:
    whole = bench.market.sizes
    cost = entrim.measure(model, bench.example, repeats=2)
    return {
        "params": cost.params / whole["params"],
        "macs": cost.macs / whole["macs"],
        "report": _right(bench.subject, model),
    }


def measure(name: str, ledger: Ledger) -> None:
    """Measure every cell of one network that the ledger lacks."""
    known = ledger.points()
    budgets = dict(BUDGETS)
    if name == PEER[0]:
        budgets[PEER[1]] = PEER[2]
    keys = {
        f"{name} | {b} | {way}": (b, way)
        for b in budgets
        for way in WAYS
        if way != RANDOM or name in SMALL or b in DISTILLED
    }
    missing = {key: cell for key, cell in keys.items() if key not in known}
    if not missing:
        return
    bench = Bench.of(name)
    intact = {"report": _right(bench.subject, bench.subject.model)}
    ledger.point(f"{name} | intact", lambda: intact)
    ledger.point(f"{name} | stages", lambda: {"seconds": dict(bench.run.seconds)})
    for key, (budget, way) in missing.items():
        distil = name in SMALL or budget in DISTILLED
        ledger.point(key, lambda b=budgets[budget], w=way, d=distil: point(bench, w, b, d))


def latency(name: str, ledger: Ledger) -> None:
    """Measure what half the MACs and half the time really give, at one image and at 32."""

    def once() -> dict[str, Any]:
        subject = subject_of(name)
        found: dict[str, Any] = {"threads": torch.get_num_threads()}
        for batch in (1, 32):
            example = subject.images[:batch]
            before = entrim.measure(subject.model, example)
            wishes = {
                "macs": entrim.Budget(macs=0.5),
                "latency": entrim.Budget(latency=before.latency.median / 2),
            }
            for wish, budget in wishes.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    r = entrim.sparsify(
                        subject.model, subject.images, budget=budget, example=example
                    )
                after = entrim.measure(r.model, example)
                found[f"{wish} {batch}"] = {
                    "macs": before.macs / after.macs,
                    "time": before.latency.median / after.latency.median,
                    "spread": after.latency.spread / after.latency.median,
                    "report": _right(subject, r.model),
                }
        return found

    ledger.point(f"{name} | latency", once)


def _right(subject: Subject, model: nn.Module) -> float:
    return percent_right(model, subject.tests[REPORT], subject.labels[REPORT])


def section(points: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Return the table of one network."""
    budgets = [*BUDGETS, *([PEER[1]] if name == PEER[0] else [])]
    rows = []
    for budget in budgets:
        cells = {way: points.get(f"{name} | {budget} | {way}") for way in WAYS}
        ours = cells["allocation"] or {}
        row: list[object] = [budget, _cell(cells["allocation"])]
        row.append(f"{ours['distilled']:.2f}" if "distilled" in ours else "not run")
        rows.append([*row, *(_cell(cells[way]) for way in OTHERS)])
    intact = points[f"{name} | intact"]["report"]
    lines = [
        f"## {name}, intact {intact:.2f} ± {interval(intact):.2f}",
        table(("budget", "allocation", "+ distill", *OTHERS), rows),
    ]
    half = points.get(f"{name} | 2.0x fewer MACs | allocation")
    if half:
        seconds = {**points[f"{name} | stages"]["seconds"], "rebuild": half["seconds"]}
        stages = ", ".join(f"{k} {v:.0f}" for k, v in seconds.items())
        total = sum(seconds.values())
        ratio = total / (total - seconds["sense"])
        lines += [
            f"Seconds by stage at half the MACs, one thread beside others: {stages}.",
            verdict(f"at most 6 times the run without sensing: {ratio:.1f}", ratio <= 6),
        ]
    if cost := points.get(f"{name} | latency"):
        lines.append(_side_by_side(cost))
    return "\n\n".join(lines)


def _side_by_side(cost: Mapping[str, Any]) -> str:
    rows = []
    for batch in (1, 32):
        for wish, name in (("macs", "MACs"), ("latency", "time")):
            cell = cost[f"{wish} {batch}"]
            saved = f"{cell['time']:.2f}x (spread {cell['spread']:.0%})"
            label = f"half the {name}, batch of {batch}"
            rows.append([label, f"{cell['macs']:.2f}x", saved, f"{cell['report']:.2f}"])
    header = (f"asked for, {cost['threads']} threads", "MACs saved", "time saved", "accuracy, %")
    return table(header, rows)


def _cell(point: Mapping[str, Any] | None) -> str:
    if point is None:
        return "not run"
    if "report" not in point:
        return "cannot"
    return f"{point['report']:.2f} ({100 * point['params']:.0f}/{100 * point['macs']:.0f})"


def verdicts(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return whether the allocation is best on average, and how far below the best it ever is."""
    behind: dict[str, float] = {}
    means: dict[str, list[float]] = {way: [] for way in WAYS}
    for name in NETWORKS:
        for budget in BUDGETS:
            keys = {way: f"{name} | {budget} | {way}" for way in WAYS}
            cells = {way: points[key] for way, key in keys.items() if key in points}
            if not {"allocation", "uniform", "one eps", "torch-pruning"} <= cells.keys():
                continue
            for way, cell in cells.items():
                means[way].append(cell.get("report", CHANCE))
            best = max(cells[way].get("report", 0.0) for way in OTHERS if way in cells)
            behind[f"{name}, {budget}"] = best - cells["allocation"]["report"]
    if not behind:
        return "No cell was measured."
    average = {w: sum(v) / len(v) for w, v in means.items() if len(v) == len(behind)}
    worst = max(behind, key=lambda cell: behind[cell])
    told = ", ".join(f"{way} {value:.2f}" for way, value in average.items())
    lines = [
        f"Mean accuracy over {len(behind)} cells, {CHANCE:.0f} where a way cannot keep the budget: "
        f"{told}.",
        verdict(
            "the allocation is best on average",
            max(average, key=lambda w: average[w]) == "allocation",
        ),
        verdict(
            f"nowhere more than 0.5 below the best: at most {behind[worst]:.2f} ({worst})",
            behind[worst] <= 0.5,
        ),
    ]
    for name, budget, bar in (
        ("cifar10_resnet20", "2.0x fewer MACs", 86.0),
        (PEER[0], PEER[1], 88.9),
    ):
        if cell := points.get(f"{name} | {budget} | allocation"):
            text = f"{name}, {budget}: above {bar}: {cell['report']:.2f}"
            lines.append(verdict(text, cell["report"] > bar))
    return "\n\n".join(lines)


def main() -> None:
    """Measure what is asked for, then write the tables of all that is known."""
    if not os.environ.get("ENTRIM_ASSETS"):
        print("skipped: the pre-trained networks are looked for in ENTRIM_ASSETS, which is unset")
        return
    ledger = Ledger.called("allocation")
    for name in sys.argv[1:] or NETWORKS:
        measure(name, ledger)
        if name == "cifar10_resnet20":
            latency(name, ledger)
    points = ledger.points()
    note = (
        "Accuracy in percent on test images 5,000-9,999, without labels, from 500 images; in "
        "brackets the parameters and MACs that remain, in percent. Nothing is trained but under "
        "`+ distill`, which learns from the same 500 images. All ways but torch-pruning's global "
        "magnitude, which keeps the old weights, are rebuilt alike; one eps is the least of a "
        "ladder (half powers of ten, for VGG-16 powers of ten) that keeps the budget and may cut "
        "more than it must."
    )
    known = [name for name in NETWORKS if f"{name} | intact" in points]
    looks = {"allocation": "allocation", "+ distill": "allocation", **{w: w for w in OTHERS}}
    plot_allocation(points, known, looks, PICTURES / "allocation.png")
    sections = [note, verdicts(points), *(section(points, name) for name in known)]
    print(write("allocation", "python -m benchmarks.allocation", sections))


if __name__ == "__main__":
    main()
