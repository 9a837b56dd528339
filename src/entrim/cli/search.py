"""`entrim search`: tune the penalty of each part of a network by a metric."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from entrim.cli import units
from entrim.cli.console import (
    print_json,
    print_reading,
    print_result,
    size_table,
    table,
)
from entrim.cli.images import add_images, check_unused, read_images
from entrim.cli.model import add_model, read_model
from entrim.cli.options import add_groups, add_method, add_penalty, given, method_of, penalty_of
from entrim.cli.run_dir import (
    LOGS,
    explain_interruption,
    next_command,
    reserve,
    result_summary,
    save_run,
    saved_note,
    write_json,
    write_report,
)
from entrim.cli.scores import Metric, add_score, read_metric
from entrim.display.bars import ProgressDisplay
from entrim.errors import BadSettingError, CommandError, StorageError
from entrim.hpo.search import SearchResult, at_work, remove_unused, search
from entrim.hpo.trial import SearchRecord, Trial
from entrim.report.numbers import percent
from entrim.results import SparsifyResult
from entrim.storage.model_folder import alone

RECORD = "search.json"
_DESCRIPTION = """\
Search for the penalty of each part of a network, size against score. Prints the Pareto front and
saves one of its networks as a run in DIR/trial-N. Every trial is stored in DIR: the same command
continues after an interruption, runs more trials with a larger --trials, and shares the work when
it is started several times at once. The code of MODEL is executed."""
_EXAMPLES = """\
examples:
  entrim search nets.py:LeNet --weights lenet.pt --images x.npy --test-images t.npy \\
      --labels y.npy --out found
  entrim search nets.py:ResNet20 --weights r20.pt --images photos/ --test-images by-class/ \\
      --resize 32,32 --part 'early=layer1.*' --part 'late=*' --cost-range 10%,40% --out found
  entrim search nets.py:Net --images x.npy --metric nets.py:score --timeout 2h --out found
  entrim search nets.py:Net --images x.npy --metric nets.py:score --pick 95% --out found"""
_VALUES = ("trials", "timeout", "cost", "eps_w", "eps_l2", "cost_range", "early_stop", "sampler")


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "search",
        help="search for the best pruned networks by a metric, size against score",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add_model(parser)
    add_images(parser)
    add_score(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder of the search")
    parser.add_argument(
        "--pick",
        type=units.parse_choice,
        default=0.99,
        metavar="99%",
        help="save the smallest network with at least this fraction of the original score, or the "
        "network of the trial with this number (default: 99%%)",
    )
    _add_options(parser)
    add_groups(parser)
    add_penalty(parser.add_argument_group("penalty", "as in entrim.EntropicPenalty"))
    add_method(parser)
    return parser


def _add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("search", "as in entrim.search")
    group.add_argument("--trials", type=int, help="total number of trials (default: 50)")
    group.add_argument(
        "--timeout",
        type=units.duration,
        metavar="2h",
        help="start no further trial after this time",
    )
    group.add_argument(
        "--part",
        type=units.part,
        action="append",
        metavar="NAME=PATTERN,PATTERN",
        help="a part of the network with its own penalty; may be repeated (default: four parts of "
        "neighboring groups)",
    )
    group.add_argument(
        "--cost", choices=("params", "macs"), help="the cost to minimize (default: params)"
    )
    for name in ("eps-w", "eps-l2"):
        sign = "-" if name == "eps-w" else ""
        group.add_argument(
            f"--{name}",
            type=units.pair,
            metavar="LOW,HIGH",
            help=f"range of {sign}{name.replace('-', '_')} (default: 1e-7,1e-2)",
        )
    group.add_argument(
        "--cost-range",
        type=units.fractions,
        metavar="10%,40%",
        help="relevant fractions of the cost; trials outside are not scored (default: 0%%,100%%)",
    )
    group.add_argument(
        "--early-stop",
        type=float,
        metavar="FACTOR",
        help="do not score a trial whose layers lose this many times more than those of a trial "
        "that costs no more (default: 2)",
    )
    group.add_argument("--no-early-stop", action="store_true", help="disable early stopping")
    group.add_argument(
        "--sampler", choices=("tpe", "random"), help="how trials are sampled (default: tpe)"
    )


def run(args: Namespace) -> int:
    """Search, print the front, save one network."""
    place, options = Path(args.out), options_of(args)
    check_unused(args, args.images, args.test_images)
    with explain_interruption(place, LOGS, "finished trials are"), reserve(place, _check_folder):
        print_reading(args.model, args.images)
        model = read_model(args.model, args.weights, args.device)
        images = read_images(args, model)
        metric = read_metric(args, model)
        found = _run_search(place, model, images, metric, options)
        _write_record(place, found.record, metric)
        try:
            trial = choose_trial(found, args.pick)
        except BadSettingError:
            _print_summary(found.record, metric, args.json)
            raise
        folder = place / f"trial-{trial.number}"
        small = _build_trial(found, trial, metric)
        with alone(place):
            small = save_run(small, folder)
            page = write_report(folder, args)
    _print_summary(found.record, metric, args.json, (trial, small, folder, page))
    return 0


def options_of(args: Namespace) -> dict[str, Any]:
    """Return the arguments of `search`; options that were not given are left out."""
    if args.no_early_stop and args.early_stop is not None:
        raise CommandError(
            "--early-stop and --no-early-stop contradict each other: pass one of them"
        )
    found = {**method_of(args), **given(args, _VALUES), "seed": args.seed}
    found["penalty"] = penalty_of(args)
    if args.no_early_stop:
        found["early_stop"] = None
    if args.part:
        found["patterns"] = dict(args.part)
    return found


def choose_trial(found: SearchResult, choice: int | float) -> Trial:
    """Return the trial with this number, or the smallest with this fraction of the score."""
    if isinstance(choice, int):
        scored = {t.number: t for t in found.record.trials if t.score is not None}
        if choice not in scored:
            front = ", ".join(str(trial.number) for trial in found.front)
            raise BadSettingError(
                f"trial {choice} was not scored: pass --pick with a trial of the front, {front}"
            )
        return scored[choice]
    intact = found.record.intact
    if intact <= 0:
        raise BadSettingError(
            f"the original network scores {intact:.4g}, of which a fraction is meaningless: pass "
            "--pick with the number of a trial"
        )
    return found.smallest(choice * intact)


def _run_search(
    place: Path, model: nn.Module, images: Tensor, metric: Metric, options: dict[str, Any]
) -> SearchResult:
    """Search with the storage of this metric; refuse a folder with another search."""
    file = place / f"search-{metric.identity}.log"
    if not all(remove_unused(other) for other in place.glob(LOGS) if other != file):
        raise CommandError(
            f"{place} contains a search by another metric, or on other labeled images: name "
            "another folder with --out"
        )
    display = ProgressDisplay(each=frozenset({"search"}))
    try:
        with at_work(file), display:
            score = metric.score
            return search(model, images, score, storage=file, callbacks=[display], **options)
    except StorageError as error:
        why = str(error).rpartition(": ")[0]  # the remedy is one of Python
        raise CommandError(
            f"{place} cannot store this search: {why}: name another folder with --out"
        ) from error


def _build_trial(found: SearchResult, trial: Trial, metric: Metric) -> SparsifyResult:
    """Return the network of a trial; its record states that it was selected by this score."""
    on = metric.on and f"{metric.on}, which the search used"
    with ProgressDisplay() as progress:
        progress.print_heading(f"trial {trial.number}")
        return found.sparsify(trial, name=metric.name, on=on, callbacks=[progress])


def _write_record(place: Path, record: SearchRecord, metric: Metric) -> None:
    """Write all trials, unless another process has written more of them."""
    file = place / RECORD
    with alone(place):
        known = json.loads(file.read_text())["trials"] if file.exists() else []
        if len(known) <= len(record.trials):
            write_json(file, {"metric": metric.name, **json.loads(record.to_json())})


def _check_folder(place: Path) -> None:
    names = [entry.name for entry in place.iterdir()]
    if names != [".entrim.lock"] and not list(place.glob(LOGS)):
        raise CommandError(
            f"{place} contains something other than a search: name another folder with --out"
        )


def _print_summary(
    record: SearchRecord,
    metric: Metric,
    as_json: bool,
    saved: tuple[Trial, SparsifyResult, Path, Path] | None = None,
) -> None:
    if as_json:
        print_json(_as_dict(record, metric, saved))
        return
    number = len(record.trials)
    print_result(
        f"{number} trial{'s' * (number != 1)}, {record.unscored} not scored; {metric.name} of the "
        f"original: {record.intact:.4g}\n\n{front_table(record, metric.name)}"
    )
    if saved is not None:
        trial, small, folder, page = saved
        print_result(f"\ntrial {trial.number}:\n{size_table(small.record)}")
        print_result(f"\n{saved_note(small, folder, page)}\n\n{next_command(folder)}")


def front_table(record: SearchRecord, metric: str) -> str:
    """Return the front as a table, the smallest first, with eps_w and eps_l2 of every part."""
    parts = record.settings["parts"]
    head = ["trial", "parameters", "MACs", metric, *(f"eps of {name}" for name in parts)]
    return table([head, *(_row(trial, parts) for trial in record.front)])


def _row(trial: Trial, parts: dict[str, Any]) -> list[str]:
    pairs = (trial.eps[patterns[0]] for patterns in parts.values())
    return [
        str(trial.number),
        percent(trial.params),
        percent(trial.macs),
        f"{trial.score:.4g}",
        *(f"{eps_w:.1e}, {eps_l2:.1e}" for eps_w, eps_l2 in pairs),
    ]


def _as_dict(
    record: SearchRecord, metric: Metric, saved: tuple[Trial, SparsifyResult, Path, Path] | None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "metric": metric.name,
        "cost": record.cost,
        "intact": record.intact,
        "trials": len(record.trials),
        "unscored": record.unscored,
        "front": [asdict(trial) for trial in record.front],
        "picked": None,
    }
    if saved is not None:
        trial, small, folder, page = saved
        found["picked"] = {"trial": trial.number, **result_summary(small, folder, page)}
    return found
