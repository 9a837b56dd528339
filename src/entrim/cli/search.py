"""`entrim search`: eps tuned for each part of a network, by a metric."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from entrim.cli import units as amounts
from entrim.cli.console import Progress, print_progress, sizes, table, tell_json, tell_reading
from entrim.cli.images import add_images, check_idle, read_pictures
from entrim.cli.model import add_model, read_model
from entrim.cli.options import add_method, given, method_of
from entrim.cli.run_dir import LOGS, keeping, note, plain, reported, reserved
from entrim.cli.scores import Metric, add_score, read_metric
from entrim.errors import BadSettingError, CommandError, StorageError
from entrim.hpo.search import SearchResult, at_work, forget, search
from entrim.hpo.trial import SearchRecord, Trial
from entrim.report.numbers import percent
from entrim.sparsified import SparsifyResult
from entrim.storage.model_folder import alone

RECORD = "search.json"
_WHAT = """\
Try settings for each part of a network, size against score, print the front between the two,
and save one network of it as a run in DIR/trial-N. Every trial is kept in DIR: the same command
goes on after a stop or a kill, tries more with a larger --trials, and shares the work when it
is started several times. The code of MODEL is run."""
_EXAMPLES = """\
examples:
  entrim search nets.py:LeNet --weights lenet.pt --images x.npy --test-images t.npy \\
      --labels y.npy --out found
  entrim search nets.py:ResNet20 --weights r20.pt --images photos/ --test-images by-class/ \\
      --resize 32,32 --part 'early=layer1.*' --part 'late=*' --between 10%,40% --out found
  entrim search nets.py:Net --images x.npy --metric nets.py:score --timeout 2h --out found
  entrim search nets.py:Net --images x.npy --metric nets.py:score --pick 95% --out found"""
_VALUES = ("trials", "timeout", "cost", "eps_w", "eps_l2", "between", "prune", "sampler")


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "search",
        help="tune the cut of a network by a metric, size against score",
        description=_WHAT,
        epilog=_EXAMPLES,
    )
    add_model(parser)
    add_images(parser)
    add_score(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder of the search")
    parser.add_argument(
        "--pick", type=amounts.parse_choice, default=0.99, metavar="99%",
        help="save the smallest network that holds this share of the original's metric (99%%), or "
        "the trial of this number",
    )  # fmt: skip
    _add_options(parser)
    return parser


def _add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("search", "as in entrim.search; PATTERN may hold * and ?")
    group.add_argument("--trials", type=int, help="so many in all (50)")
    group.add_argument(
        "--timeout", type=amounts.duration, metavar="2h", help="begin no further trial after this"
    )
    group.add_argument(
        "--part", type=amounts.part, action="append", metavar="NAME=PATTERN,PATTERN",
        help="a part of the network with eps of its own; may be repeated (four neighbourhoods)",
    )  # fmt: skip
    group.add_argument("--cost", choices=("params", "macs"), help="what shall be small (params)")
    group.add_argument(
        "--eps-w", type=amounts.pair, metavar="LOW,HIGH", help="range of |eps_w| (1e-7,1e-2)"
    )
    group.add_argument(
        "--eps-l2", type=amounts.pair, metavar="LOW,HIGH", help="range of eps_l2 (1e-7,1e-2)"
    )
    group.add_argument(
        "--between", type=amounts.shares, metavar="10%,40%", help="sizes that you care for"
    )
    group.add_argument(
        "--prune", type=float, help="end trials whose layers lose so many times more (2)"
    )
    group.add_argument("--no-prune", action="store_true", help="score all trials")
    group.add_argument(
        "--sampler", choices=("tpe", "random"), help="how eps are drawn (tpe); random to compare"
    )
    add_method(parser.add_argument_group("method", "as in entrim.sparsify"))


def run(args: Namespace) -> int:
    """Search, print the front, save the network that was asked for."""
    place = Path(args.out)
    check_idle(args, args.images, args.test_images)
    with keeping(place, LOGS, "the trials that ended are"), reserved(place, _check_other):
        tell_reading(args.model, args.images)
        model = read_model(args.model, args.weights)
        images = read_pictures(args, model)
        metric = read_metric(args, model)
        found = _searched(args, place, model, images, metric)
        _note(place, found.record, metric)
        try:
            trial = picked(found, args.pick)
        except BadSettingError:
            _print_result(found.record, metric, args.json)
            raise
        folder = place / f"trial-{trial.number}"
        small = _made(found, trial, metric)
        with alone(place):
            small.save(folder)
            page = reported(folder, args)
    _print_result(found.record, metric, args.json, (trial, small, folder, page))
    return 0


def options(args: Namespace) -> dict[str, Any]:
    """Return the arguments as `search` takes them; what was not given is left out."""
    if args.no_prune and args.prune is not None:
        raise CommandError("--prune and --no-prune contradict each other: pass one of them")
    found = {**method_of(args), **given(args, _VALUES), "seed": args.seed}
    if args.no_prune:
        found["prune"] = None
    if args.part:
        found["patterns"] = dict(args.part)
    return found


def picked(found: SearchResult, choice: int | float) -> Trial:
    """Return the trial of this number, or the smallest that holds this share of the metric."""
    if isinstance(choice, int):
        scored = {t.number: t for t in found.record.trials if t.score is not None}
        if choice not in scored:
            front = ", ".join(str(trial.number) for trial in found.front)
            raise BadSettingError(
                f"trial {choice} was not scored: pass --pick with one of the front, {front}"
            )
        return scored[choice]
    intact = found.record.intact
    if intact <= 0:
        raise BadSettingError(
            f"the original scores {intact:.4g}, and a share of that means nothing: pass --pick "
            "with the number of a trial"
        )
    return found.smallest(choice * intact)


def _searched(
    args: Namespace, place: Path, model: Any, images: Any, metric: Metric
) -> SearchResult:
    """Search in the notebook of this metric; one by another metric or of other images is left."""
    file = place / f"search-{metric.identity}.log"
    if not all(forget(other) for other in place.glob(LOGS) if other != file):
        raise CommandError(
            f"{place} holds a search by another metric, or on other labelled images: name another "
            "folder with --out"
        )
    shown = Progress(each=frozenset({"search"}))
    try:
        with at_work(file):
            return search(model, images, metric.score, storage=file, on_step=shown, **options(args))
    except StorageError as error:
        why = str(error).rpartition(": ")[0]  # its remedies are those of Python
        raise CommandError(
            f"{place} cannot hold this search: {why}: name another folder with --out"
        ) from error


def _made(found: SearchResult, trial: Trial, metric: Metric) -> SparsifyResult:
    """Return the network of a trial; its record says that its score was what was searched by."""
    on = metric.on and f"{metric.on}, those that the search went by"
    with Progress() as progress:
        progress.head(f"trial {trial.number}")
        return found.sparsify(trial, name=metric.name, on=on, on_step=progress)


def _note(place: Path, record: SearchRecord, metric: Metric) -> None:
    """Write all trials down, unless another process that ended just before knew of more."""
    file = place / RECORD
    with alone(place):
        known = json.loads(file.read_text())["trials"] if file.exists() else []
        if len(known) <= len(record.trials):
            note(file, {"metric": metric.name, **json.loads(record.to_json())})


def _check_other(place: Path) -> None:
    names = [entry.name for entry in place.iterdir()]
    if names != [".entrim.lock"] and not list(place.glob(LOGS)):
        raise CommandError(
            f"{place} holds something else than a search: name another folder with --out"
        )


def _print_result(
    record: SearchRecord,
    metric: Metric,
    as_json: bool,
    saved: tuple[Trial, SparsifyResult, Path, Path] | None = None,
) -> None:
    if as_json:
        tell_json(_plain(record, metric, saved))
        return
    print_progress(
        f"{len(record.trials)} trials, {record.spared} of them not scored; {metric.name} of the "
        f"original: {record.intact:.4g}\n\n{front(record, metric.name)}"
    )
    if saved is not None:
        trial, small, folder, page = saved
        print_progress(f"\ntrial {trial.number}:\n{sizes(small.record)}")
        print_progress(f"\nsaved in {folder}, report {page}")


def front(record: SearchRecord, metric: str) -> str:
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


def _plain(
    record: SearchRecord, metric: Metric, saved: tuple[Trial, SparsifyResult, Path, Path] | None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "metric": metric.name,
        "cost": record.cost,
        "intact": record.intact,
        "trials": len(record.trials),
        "spared": record.spared,
        "front": [asdict(trial) for trial in record.front],
        "picked": None,
    }
    if saved is not None:
        trial, small, folder, page = saved
        found["picked"] = {"trial": trial.number, **plain(small, folder, page)}
    return found
