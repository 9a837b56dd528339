"""The options that commands share, and the configuration values that they stand for."""

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from entrim.cli import units
from entrim.config import (
    COUPLINGS,
    OUTPUT_KINDS,
    Calibration,
    EntropicPenalty,
    Reconstruction,
    paper_preset,
)
from entrim.errors import CommandError

PENALTY = ("solver", "min_decrease", "single_consumer")
"""Options of the penalty, besides its strengths."""
CALIBRATION = ("holdout", "outputs", "n_positions", "n_bootstrap", "memory_limit")
_RECONSTRUCTION = (
    "reconstruction",
    "order",
    "ridge",
    "relaxation",
    "no_residual_correction",
    "no_mirror",
    "mixtures",
    "batchnorm",
)


def check_writable(place: Path) -> None:
    """Refuse a file that cannot be written."""
    if place.is_dir():
        raise CommandError(f"{place} is a folder: name a file")
    folder = place.parent
    if not folder.is_dir():
        raise CommandError(f"there is no folder {folder}: create it, or name another file")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CommandError(
            f"{folder} cannot be written ({error.strerror}): name a file elsewhere"
        ) from error


def add_verbose(parser: ArgumentParser) -> None:
    """Add the option that shows every layer."""
    parser.add_argument(
        "--verbose", action="store_true", help="show one line per group and layer, not per stage"
    )


def add_groups(parser: ArgumentParser) -> Any:
    """Add the options that select groups of channels; return their argument group."""
    group = parser.add_argument_group(
        "groups", "a PATTERN matches the names of groups or of their layers; it may contain * and ?"
    )
    group.add_argument(
        "--include",
        action="append",
        metavar="PATTERN",
        help="prune matching groups only; may be repeated (default: all groups)",
    )
    group.add_argument(
        "--exclude",
        action="append",
        metavar="PATTERN",
        help="exclude matching groups; may be repeated",
    )
    group.add_argument(
        "--round-to", type=int, metavar="8", help="round widths to multiples of this"
    )
    group.add_argument(
        "--coupling",
        choices=COUPLINGS,
        help="entropic selection with several consumers: solve for all of them at once (joint, the "
        "default), or for each and take the largest importance (max)",
    )
    return group


def add_penalty(group: Any) -> None:
    """Add the options of the penalty other than its strengths."""
    group.add_argument(
        "--preset",
        choices=("paper",),
        help="the method as published: the weights of the entropic solution, and only channels "
        "with one producer and one consumer",
    )
    group.add_argument(
        "--solver",
        choices=("mm", "alternating"),
        help="majorize-minimize (mm, the default), or the alternation of the paper (needs SciPy)",
    )
    group.add_argument(
        "--min-decrease",
        type=float,
        metavar="3e-3",
        help="stop the solver when a step decreases the objective by less than this",
    )
    group.add_argument(
        "--single-consumer",
        action="store_true",
        help="prune only channels with one producer and one consumer",
    )


def add_method(parser: ArgumentParser) -> Any:
    """Add the options of reconstruction and calibration; return the group of the latter."""
    group = parser.add_argument_group("reconstruction", "as in entrim.Reconstruction")
    group.add_argument(
        "--reconstruction",
        choices=("least_squares", "solution"),
        help="new weights: a least-squares fit on the kept channels (default), or those of the "
        "entropic solution",
    )
    group.add_argument("--no-reconstruction", action="store_true", help="keep the original weights")
    group.add_argument(
        "--order",
        choices=("sequential", "independent"),
        help="fit the layers in order, each on its inputs in the pruned network (sequential, the "
        "default), or each on the original activations",
    )
    group.add_argument(
        "--ridge",
        type=float,
        help="strength of the ridge penalty toward the original weights; increase it for few "
        "images (default: selected for each layer)",
    )
    group.add_argument(
        "--relaxation",
        type=int,
        metavar="4",
        help="rounds of refits in which outputs below zero in front of a ReLU are no errors if the "
        "original ones are below zero, too; 0 disables them",
    )
    group.add_argument(
        "--no-residual-correction", action="store_true", help="disable residual correction"
    )
    group.add_argument(
        "--no-mirror",
        action="store_true",
        help="do not fit on mirror images (default: fit on them if the network is invariant to "
        "mirroring)",
    )
    group.add_argument(
        "--mixtures",
        type=int,
        metavar="N",
        help="fit on N mixtures of each image with another one, too (default: as many as keep the "
        "number of images at 500 or less)",
    )
    group.add_argument(
        "--batchnorm",
        choices=("keep", "reestimate"),
        help="BatchNorm statistics behind pruned layers: keep them (default), or reestimate them "
        "on the images",
    )
    group = parser.add_argument_group("calibration", "as in entrim.Calibration")
    group.add_argument(
        "--holdout",
        type=units.holdout,
        metavar="10%",
        help="images that are not used for pruning, as a fraction or a number: the result is "
        "measured on them (default: 10%%, at least 50, at most 20%%)",
    )
    group.add_argument(
        "--outputs",
        choices=OUTPUT_KINDS,
        help="what the outputs of the network are (default: auto, which recognizes probabilities; "
        "other outputs of the form images x classes count as logits)",
    )
    group.add_argument(
        "--n-positions",
        type=int,
        metavar="N",
        help="random output positions per image that enter the statistics (default: auto, enough "
        "rows for the columns of each layer)",
    )
    group.add_argument(
        "--memory-limit",
        type=units.size,
        metavar="4GB",
        help="memory for statistics or activations; activations beyond it are stored on disk "
        "(default: 4GiB)",
    )
    group.add_argument("--seed", type=int, default=0, help="seed of random choices (default: 0)")
    return group


def method_of(args: Namespace) -> dict[str, Any]:
    """Return the options of `Pruner` that were given, except for selector and seed."""
    found = given(args, ("include", "exclude"))
    if reconstruction := _reconstruction_of(args):
        found["reconstruction"] = reconstruction[0]
    calibration = given(args, CALIBRATION)
    if args.preset == "paper":
        found["calibration"] = replace(paper_preset()["calibration"], **calibration)
    elif calibration:
        found["calibration"] = Calibration(**calibration)
    return found


def _reconstruction_of(args: Namespace) -> list[Reconstruction | None]:
    """Return the reconstruction in a list; an empty list for the default."""
    found = given(args, _RECONSTRUCTION)
    if args.no_reconstruction:
        if found:
            raise CommandError(
                f"--no-reconstruction keeps the original weights: leave out {option_names(found)}"
            )
        return [None]
    if "reconstruction" in found:
        found["weights"] = found.pop("reconstruction")
    if found.pop("no_residual_correction", False):
        found["residual_correction"] = False
    if found.pop("no_mirror", False):
        found["mirror"] = False
    if args.preset == "paper":
        return [replace(paper_preset()["reconstruction"], **found)]
    return [Reconstruction(**found)] if found else []


def penalty_of(args: Namespace, **strengths: Any) -> EntropicPenalty:
    """Return the penalty with these strengths and the options that were given."""
    found = strengths | given(args, (*PENALTY, "coupling", "round_to"))
    if args.preset == "paper":
        return paper_preset(**found)["budget"]
    return EntropicPenalty(**found)


def given(args: Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Return the options that were given; flags that are off are left out."""
    values = {name: getattr(args, name, None) for name in names}
    return {name: v for name, v in values.items() if v is not None and v is not False}


def option_names(names: Sequence[str] | dict[str, Any]) -> str:
    """Return the names of options as they are written on the command line.

    >>> option_names(["round_to", "eps"])
    '--round-to and --eps'
    """
    *first, last = (f"--{name.replace('_', '-')}" for name in names)
    return f"{', '.join(first)} and {last}" if first else last
