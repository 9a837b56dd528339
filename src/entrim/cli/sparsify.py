"""`entrim sparsify`: prune a network, and save it with its report."""

import json
import warnings
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from entrim.cli import units
from entrim.cli.console import (
    print_json,
    print_reading,
    print_result,
    size_table,
    table,
    width_table,
)
from entrim.cli.distill import outcome
from entrim.cli.images import add_images, check_unused, read_arrays, read_images
from entrim.cli.model import add_model, read_model
from entrim.cli.options import (
    CALIBRATION,
    PENALTY,
    add_groups,
    add_method,
    add_penalty,
    add_verbose,
    given,
    method_of,
    option_names,
    penalty_of,
)
from entrim.cli.run_dir import (
    COMPARISON,
    add_out,
    check_contents,
    check_sizes,
    command_note,
    explain_interruption,
    is_same_command,
    next_command,
    render_onnx,
    reserve,
    result_summary,
    save_run,
    saved_note,
    split_sizes,
    write_onnx,
    write_report,
)
from entrim.cli.scores import add_score, add_scores, optional_metric
from entrim.config import SIZES, Budget, Calibration, Distillation, Target, Widths
from entrim.display.bars import ProgressDisplay
from entrim.distillation.distill import distill
from entrim.distributed.world import process_group
from entrim.errors import CommandError, OtherRunError
from entrim.federated.network_moments import NetworkMoments
from entrim.pipeline import Pruner, calibration_for, sparsify
from entrim.records import Record
from entrim.report.assessment import rank
from entrim.report.comparison import RunComparison, headings_of
from entrim.report.page import FILE, html
from entrim.report.report_data import COMMAND, ReportData, read
from entrim.results import SparsifyResult
from entrim.selection.base import Selector
from entrim.selection.baselines import Scores
from entrim.selection.entropic import EntropicSelector
from entrim.selection.targets import SELECTORS
from entrim.storage.checkpoint import UNFINISHED, CheckpointStore
from entrim.storage.model_folder import CHECKPOINT
from entrim.surgery.prune import SourceModel

_EXAMPLES = """\
examples:
  entrim sparsify nets.py:LeNet --weights lenet.safetensors --images x.npy --out small --params 30%
  entrim sparsify nets.py:ResNet20 --weights r20.pt --images photos/ --resize 32,32 \\
      --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --macs 50% --latency 5ms --out small
  entrim sparsify nets.py:ResNet20 --weights r20.pt --images x.npy --macs 33% --recover --out small
  entrim sparsify nets.py:VGG --images x.npy --width 'features.*=0.5' --exclude features.0 \\
      --out small
  entrim sparsify nets.py:VGG --images x.npy --macs 30%,50%,70% --out sizes
  entrim sparsify detector.onnx --images photos/ --resize 640,640 --macs 50% --out small
  entrim sparsify nets.py:VGG --images x.npy --preset paper --eps-w -1e-4 --out small
  entrim sparsify nets.py:VGG --moments all.safetensors --width 0.5 --out small"""
_LIMITS = ("params", "macs", "bytes", "latency", "max_error", "agreement")
_STRENGTHS = ("eps_w", "eps_l2", "eps", "preset")
_KINDS = {"budget": _LIMITS, "widths": ("width",), "penalty": _STRENGTHS}
"""The options of each kind of target."""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "sparsify",
        help="prune a network with unlabeled images",
        description="Prune a network and write it, its record and an HTML report to DIR. Pass one "
        "kind of target: a budget, widths, or a penalty; without one, the widths are those at the "
        "knee of the trade-off between cost and divergence. The code of MODEL is executed; files "
        "of weights and images are not.",
        epilog=_EXAMPLES,
    )
    add_model(parser)
    add_images(parser, moments=True)
    add_score(parser, "optional, for labeled images: the score before and after pruning")
    add_out(parser)
    parser.add_argument(
        "--recover",
        action="store_true",
        help="train the pruned network afterwards, without labels, on the same images, as "
        "`entrim distill` does",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the expected passes, time, memory and disk space, and write nothing",
    )
    add_verbose(parser)
    _add_targets(parser)
    _add_selection(parser)
    calibration = add_method(parser)
    calibration.add_argument(
        "--n-bootstrap",
        type=int,
        metavar="N",
        help="number of bootstrap samples on which the selection is repeated, to record how "
        "stable it is (default: 0)",
    )
    return parser


def _add_targets(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("budget", "upper limits; several at once must all hold")
    group.add_argument(
        "--params",
        type=units.several(units.limit),
        metavar="30%",
        help="parameters; several sizes such as 30%%,50%%,70%% give several networks",
    )
    group.add_argument(
        "--macs",
        type=units.several(units.limit),
        metavar="50%",
        help="multiply-accumulates per image, one or several sizes",
    )
    group.add_argument(
        "--bytes", type=units.several(units.size), metavar="2MB", help="bytes, one or several sizes"
    )
    group.add_argument(
        "--latency", type=units.time, metavar="5ms", help="time of one pass on this machine"
    )
    group.add_argument(
        "--batch", type=int, metavar="N", help="images of the timed pass (default: 4)"
    )
    group.add_argument(
        "--max-error",
        type=float,
        metavar="0.05",
        help="squared error of the outputs relative to their variance, on unseen images",
    )
    group.add_argument(
        "--agreement",
        type=units.fraction,
        metavar="95%",
        help="minimum share of images with the same predicted class, guaranteed for images like "
        "these; 40%% of the images are held out for it",
    )
    group.add_argument(
        "--confidence",
        type=units.fraction,
        metavar="95%",
        help="confidence of the agreement (default: 95%%)",
    )
    group.add_argument(
        "--depth",
        action=BooleanOptionalAction,
        help="entire residual blocks may be removed, too (default: if --latency is given)",
    )
    group = parser.add_argument_group("widths")
    group.add_argument(
        "--width",
        type=units.width,
        action="append",
        metavar="PATTERN=0.5",
        help="kept channels, as a number or a fraction; without PATTERN for all groups. Groups "
        "that no pattern matches keep all channels; may be repeated",
    )
    group = parser.add_argument_group("penalty", "as in entrim.EntropicPenalty")
    group.add_argument(
        "--eps-w",
        type=float,
        help="strength of the entropy term; more negative removes more channels (default: -1e-4)",
    )
    group.add_argument("--eps-l2", type=float, help="strength of the ridge term (default: 1e-4)")
    group.add_argument(
        "--eps",
        type=units.eps,
        action="append",
        metavar="PATTERN=EPS_W,EPS_L2",
        help="both strengths for some groups; others use --eps-w and --eps-l2, unless --include or "
        "--exclude leaves them out; may be repeated",
    )
    add_penalty(group)


def _add_selection(parser: ArgumentParser) -> None:
    group = add_groups(parser)
    group.add_argument(
        "--selector",
        choices=("auto", *SELECTORS),
        help="which channels to keep at a given width (auto, the default: greedy for a budget, "
        "entropic otherwise)",
    )
    group.add_argument(
        "--scores",
        metavar="FILE",
        help="use your own importances to select channels: an .npz or .pt with one array per "
        "group, one number per channel",
    )


def run(args: Namespace) -> int:
    """Prune, save, report, print a summary; under torchrun, the first rank does the latter."""
    if args.moments is not None:
        _check_moments(args)
    with process_group() as world:
        if world.size > 1:
            _check_processes(args)
        return _run(args) if world.is_root else _assist(args)


def _assist(args: Namespace) -> int:
    """Compute a share of the run of the first rank; print and write nothing."""
    options, model = options_of(args), read_model(args.model, args.weights, args.device)
    images = read_images(args, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparsify(
            model,
            images,
            example_inputs=_example_inputs(images, args.batch),
            callbacks=(),
            checkpoint_dir=CheckpointStore(folder=Path(args.out) / UNFINISHED),
            **options,
        )
    return 0


def _run(args: Namespace) -> int:
    if _has_sizes(args):
        return _run_sizes(args)
    place, options = Path(args.out), options_of(args)
    check_unused(args, args.images, args.test_images)
    if args.dry_run:
        return _estimate(args, options)
    checkpoints = CheckpointStore(folder=place / UNFINISHED, discard=args.force)
    training = CheckpointStore(folder=place / CHECKPOINT, discard=args.force)
    replaces = args.force or _was_saving(checkpoints, args)
    check = partial(check_contents, args=args, force=replaces, mine=_continued(place, args))
    with (
        _explain_other_run(place),
        explain_interruption(place, UNFINISHED, "finished steps are"),
        reserve(place, check),
    ):
        print_reading(args.model, args.moments or args.images)
        model = read_model(args.model, args.weights, args.device)
        images = _read_source(args, model)
        metric = optional_metric(args, model)
        with ProgressDisplay(verbose=args.verbose) as progress:
            small = sparsify(
                model,
                images,
                example_inputs=_example_inputs(images, args.batch),
                callbacks=[progress],
                checkpoint_dir=checkpoints,
                **options,
            )
            if args.recover:
                how = Distillation(seed=args.seed)
                small = distill(small, None, how, checkpoint_dir=training, callbacks=[progress])
        small = add_scores(small, metric)
        small, content = render_onnx(small, place)
        page = _save(small, content, place, (training, checkpoints), command_note(args))
    if args.json:
        print_json(_as_dict(small, place, page))
    else:
        saved = outcome(small, place, page) if args.recover else saved_note(small, place, page)
        parts = (
            width_table(small.record),
            size_table(small.record),
            saved,
            next_command(place),
        )
        print_result("\n\n".join(parts))
    return 0


def _run_sizes(args: Namespace) -> int:
    """Prune to several sizes with one sensitivity analysis; save each, and compare them."""
    place = Path(args.out)
    if args.dry_run or args.recover:
        raise CommandError("--dry-run and --recover take one size: pass one, or leave them out")
    sizes = [(run, options_of(run)) for run in split_sizes(args)]
    check_unused(args, args.images, args.test_images)
    checkpoints = CheckpointStore(folder=place / UNFINISHED, discard=args.force)
    check = partial(check_sizes, args=args, runs=[run for run, _ in sizes])
    with (
        _explain_other_run(place),
        explain_interruption(place, UNFINISHED, "finished steps are"),
        reserve(place, check),
    ):
        print_reading(args.model, args.images)
        model = read_model(args.model, args.weights, args.device)
        images = read_images(args, model)
        metric, options = optional_metric(args, model), dict(sizes[0][1])
        target = options.pop("budget")
        options["calibration"] = calibration_for(target, options.get("calibration", Calibration()))
        with (
            ProgressDisplay(verbose=args.verbose) as progress,
            Pruner(
                model,
                images,
                example_inputs=_example_inputs(images, args.batch),
                callbacks=[progress],
                checkpoint_dir=checkpoints,
                **options,
            ) as pruner,
        ):
            for run, found in sizes:
                progress.print_heading(run.out)
                save_run(add_scores(pruner.prune(found["budget"]), metric), Path(run.out))
                write_report(Path(run.out), run)
        folders = [run.out for run, _ in sizes]
        comparison = RunComparison(headings_of(folders), tuple(map(read, folders)))
        page = comparison.save(place / COMPARISON)
    if args.json:
        found = [asdict(data.record.after) | {"folder": data.folder} for data in comparison.runs]
        print_json({"folder": str(place), "comparison": str(page), "runs": found})
    else:
        saved = f"saved in {place}, comparison {page}"
        best = min(comparison.runs, key=rank)
        parts = table(comparison.rows()), saved, next_command(Path(best.folder))
        print_result("\n\n".join(parts))
    return 0


def _continued(place: Path, args: Namespace) -> tuple[str, ...]:
    """Return the names of the unfinished states that this command continues from."""
    trains = args.recover and (place / UNFINISHED).exists()
    return (UNFINISHED, CHECKPOINT) if trains else (UNFINISHED,)


def _estimate(args: Namespace, options: dict[str, Any]) -> int:
    """Print the expected cost of the run."""
    print_reading(args.model, args.images)
    model = read_model(args.model, args.weights, args.device)
    images = read_images(args, model)
    target = options.pop("budget", None)
    calibration = calibration_for(target, options.pop("calibration", Calibration()))
    examples = _example_inputs(images, args.batch)
    with Pruner(
        model, images, example_inputs=examples, calibration=calibration, **options
    ) as pruner:
        estimate = pruner.plan(target)
    if args.json:
        print_json(estimate.to_dict())
    else:
        print_result(f"{table(estimate.rows())}\n\n{estimate.summary()}")
    return 0


def options_of(args: Namespace) -> dict[str, Any]:
    """Return the arguments of `sparsify`; options that were not given are left out."""
    found = {**method_of(args), "seed": args.seed}
    target = target_of(args)
    if target is not None:
        found["budget"] = target
    selector = _selector_of(args, target)
    if selector is not None:
        found["selector"] = selector
    return found


def target_of(args: Namespace) -> Target | None:
    """Return the target; refuse several kinds of targets, and options without their target."""
    found = {kind: names for kind, options in _KINDS.items() if (names := given(args, options))}
    if len(found) > 1:
        raise CommandError(
            f"{option_names([next(iter(names)) for names in found.values()])} are different kinds "
            "of targets: pass either a budget (--params, --macs, --bytes, --latency, --max-error, "
            "--agreement), or --width, or a penalty (--eps-w, --eps-l2, --eps, --preset)"
        )
    if args.recover and args.agreement is not None:
        raise CommandError(
            "--agreement guarantees the network before the training, and --recover changes it: "
            "leave out one of them"
        )
    if args.confidence is not None and args.agreement is None:
        raise CommandError("--confidence belongs to --agreement: pass --agreement 95% too")
    if "penalty" not in found and (names := given(args, PENALTY)):
        raise CommandError(
            f"{option_names(names)} belongs to a penalty: pass --eps-w or --preset paper too"
        )
    if args.depth is not None and "budget" not in found:
        raise CommandError("--depth needs a budget: pass a limit such as --params 30%")
    if not found:
        if args.round_to is not None:
            raise CommandError(
                "--round-to needs a target: pass a budget such as --params 30%, --width or --eps-w"
            )
        return None
    if "penalty" in found:
        strengths = given(args, ("eps_w", "eps_l2"))
        return penalty_of(args, **strengths, per_group=dict(args.eps or ()))
    rounding = given(args, ("round_to",))
    if "widths" in found:
        return Widths(dict(args.width), **rounding)
    depth = {} if args.depth is None else {"depth": args.depth}
    return Budget(**found["budget"], **given(args, ("confidence",)), **depth, **rounding)


def _selector_of(args: Namespace, target: Target | None) -> str | Selector | None:
    if args.scores is not None:
        if args.selector is not None or args.coupling is not None:
            other = option_names(given(args, ("selector", "coupling")))
            raise CommandError(f"--scores selects the channels itself: leave out {other}")
        return Scores(_read_scores(Path(args.scores)))
    if args.coupling is None or given(args, _STRENGTHS):
        return args.selector
    automatic = args.selector in (None, "auto") and isinstance(target, Widths)
    if args.selector != "entropic" and not automatic:
        raise CommandError(
            "--coupling is an option of the entropic selection: pass --eps-w, --width or "
            "--selector entropic with it"
        )
    return EntropicSelector(coupling=args.coupling)


def _check_processes(args: Namespace) -> None:
    """Refuse what one process does better."""
    if args.dry_run or args.moments is not None or _has_sizes(args):
        raise CommandError(
            "--dry-run, --moments and several sizes need one process: start entrim without torchrun"
        )


def _has_sizes(args: Namespace) -> bool:
    return any(isinstance(getattr(args, kind), tuple) for kind in SIZES)


def _check_moments(args: Namespace) -> None:
    """Refuse options that need images if there are only moments."""
    needing = [*_LIMITS, "recover", "dry_run", "batch", *CALIBRATION]
    if names := given(args, needing):
        raise CommandError(
            f"{option_names(names)} needs images, and --moments contains none: pass --width or a "
            "penalty, or --images"
        )
    if args.labels is not None and args.test_images is None:
        raise CommandError("--labels needs images: pass --test-images too")


def _read_source(args: Namespace, model: nn.Module) -> Tensor | NetworkMoments:
    """Return the images, or the moments instead of them."""
    if args.moments is None:
        return read_images(args, model)
    return NetworkMoments.load(args.moments)


def _example_inputs(images: Tensor | NetworkMoments, batch: int | None) -> Tensor | None:
    """Return the images of the timed pass, if their number was given."""
    if batch is None:
        return None
    assert isinstance(images, Tensor)
    if not 1 <= batch <= len(images):
        raise CommandError(f"--batch is {batch}: pass 1 to {len(images)}, the number of images")
    return images[:batch]


def _read_scores(file: Path) -> dict[str, Tensor]:
    """Return the importances in a file, by group."""
    if not file.is_file():
        raise CommandError(f"there is no file {file}: name an .npz or .pt with --scores")
    arrays = read_arrays(file)
    if not isinstance(arrays, Mapping):
        raise CommandError(f"{file} contains one array: save one per group, under its name")
    return {name: torch.as_tensor(values) for name, values in arrays.items()}


@contextmanager
def _explain_other_run(place: Path) -> Iterator[None]:
    """Explain what can be done about an unfinished run of another command."""
    try:
        yield
    except OtherRunError as error:
        raise CommandError(
            f"{place} contains an unfinished run with other files or options: repeat its command "
            "to continue, name another folder, or pass --force to discard it"
        ) from error


def _was_saving(checkpoints: CheckpointStore, args: Namespace) -> bool:
    """Whether this command was interrupted while it saved its result."""
    file = checkpoints.pending_file(COMMAND)
    try:
        words = None if file is None else json.loads(file.read_text())["command"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return isinstance(words, list) and is_same_command(words, args)


def _save(
    small: SparsifyResult,
    content: bytes,
    place: Path,
    stores: Sequence[CheckpointStore],
    note: Mapping[str, Any],
) -> Path:
    """Save the network, its ONNX file, the command and the report.

    On a full disk an earlier run is unchanged.

    The small files are written to temporary names in the last of the checkpoint stores first, and
    renamed after the network is saved.
    """
    checkpoints = stores[-1]
    source = SourceModel.of(small.model)
    assert source is not None
    record = Record.from_json(small.record.to_json())
    data = ReportData.of(place, record, source.tensors, [note["command"]])
    aside = {
        FILE: checkpoints.set_aside(FILE, html(data).encode()),
        COMMAND: checkpoints.set_aside(COMMAND, json.dumps(note, indent=2).encode()),
    }
    small.save(place)
    write_onnx(content, place)
    for name, file in aside.items():
        file.replace(place / name)
    for store in stores:
        store.remove()
    return place / FILE


def _as_dict(small: SparsifyResult, place: Path, page: Path) -> dict[str, Any]:
    groups = small.record.groups
    return result_summary(small, place, page) | {
        "kept": {group.name: list(group.kept) for group in groups},
        "channels": {group.name: group.channels for group in groups},
        "seconds": dict(small.record.seconds),
        "distilled": None if small.record.distilled is None else asdict(small.record.distilled),
    }
