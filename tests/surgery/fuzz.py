"""Draw networks and plans for a given time: `python -m tests.surgery.fuzz --seconds 60`.

`--networks 3000` stops after this number. Prints how many networks were drawn, pruned and wrong.
Exits with 1 when any was wrong, after printing the steps that draw it again.
"""

import argparse
import collections
import copy
import math
import random
import time
import warnings
from collections.abc import Sequence

import torch
from torch import nn

from entrim.allocation.costs import Costs
from entrim.calibration.executor import Program
from entrim.errors import EntrimError, NothingToCutError, RolledBackWarning
from entrim.graph.channel_graph import ChannelGraph
from entrim.graph.eager import ExampleInputs, samples
from entrim.surgery.measure import measure
from entrim.surgery.prune import PrunedModel, prune
from entrim.surgery.trace import trace
from tests.surgery.drawing import STEPS, Drawn, Operation
from tests.surgery.kinds import shaken
from tests.surgery.oracle import distance, flat, masked_outputs, outputs, random_plan

TOLERANCE = 1e-6
PROGRESS = 250
"""Number of networks after which the counts are printed."""
COSTS = 4
"""The predicted sizes of every fourth network are compared with the measured ones."""


def draw(seed: int) -> list[Operation]:
    """Return one to twelve random steps."""
    source = random.Random(seed)
    count = source.randint(1, 12)
    names = sorted(STEPS)
    return [
        (source.choice(names), source.randrange(64), source.randrange(64)) for _ in range(count)
    ]


def check_network(steps: Sequence[Operation], seed: int, *, costs: bool = True) -> str:
    """Return the outcome for one network: pruned, rolled back, nothing to prune, or wrong.

    The comparison of `costs` takes most of the time.
    """
    torch.manual_seed(seed)
    model = Drawn(steps).eval()
    example = model.example_inputs()
    shaken(model)
    before = copy.deepcopy(example)
    try:
        graph = trace(model, example)
    except NothingToCutError:
        return "nothing to prune"
    plan = random_plan(graph, seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RolledBackWarning)
        try:
            result = prune(model, plan, example, graph=graph)
        except EntrimError as error:
            return f"wrong: {error}"
    expected = masked_outputs(copy.deepcopy(model), graph, result.plan.kept, example)
    gap = distance(outputs(copy.deepcopy(result.model), example), expected)
    if not gap < TOLERANCE:
        return f"wrong: off by {gap:.1e}"
    if distance(flat(example), flat(before)) > 0:
        return "wrong: the images were changed"
    if costs and (difference := compare_costs(model, graph, result, example)):
        return f"wrong: {difference}"
    return "rolled back" if caught else "pruned"


def compare_costs(
    model: nn.Module, graph: ChannelGraph, done: PrunedModel, example_inputs: ExampleInputs
) -> str:
    """Return how the sizes that a formula predicts differ from those measured; "" where not."""
    if any(len({*map(len, m.indices)}) > 1 for group in graph.groups for m in group.members):
        return ""  # the formula is exact for channels of equal size only
    program = Program.of(model, example_inputs)
    full, small = (measure(net, example_inputs, repeats=2) for net in (model, done.model))
    costs = Costs.of(model, graph, program, full.macs, samples(example_inputs))
    widths = {group.name: group.channels for group in graph.groups}
    widths |= {name: len(units) for name, units in done.plan.kept.items()}
    predicted = costs.at(widths)
    for size in ("params", "macs", "bytes"):
        found = getattr(small, size)
        if abs(predicted[size] - found) > 1 + 1e-6 * found:
            return f"{predicted[size]:.0f} {size} predicted, {found} measured"
    return ""


def main() -> int:
    """Run until the time is over or all networks are drawn, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--networks", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    most = math.inf if options.networks is None else options.networks
    tally: collections.Counter[str] = collections.Counter()
    begin, seed = time.monotonic(), options.seed
    while time.monotonic() - begin < options.seconds and tally.total() < most:
        steps = draw(seed)
        outcome = check_network(steps, seed, costs=seed % COSTS == 0)
        tally[outcome.partition(":")[0]] += 1
        if outcome.startswith("wrong"):
            print(f"seed {seed}: {outcome}\n  {steps}", flush=True)
        seed += 1
        if tally.total() % PROGRESS == 0:
            print(summarize(tally, time.monotonic() - begin), flush=True)
    print(summarize(tally, time.monotonic() - begin))
    print(f"{tally['wrong']} wrong")
    return 1 if tally["wrong"] else 0


def summarize(tally: collections.Counter[str], seconds: float) -> str:
    """Return the number of networks with each outcome."""
    counts = ", ".join(f"{number} {outcome}" for outcome, number in tally.items())
    return f"{tally.total()} networks drawn in {seconds:.0f} s: {counts}"


if __name__ == "__main__":
    raise SystemExit(main())
