"""The options of the method that every command with a cut takes."""

import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from entrim.choose import COUPLINGS
from entrim.cli import units as amounts
from entrim.errors import CommandError
from entrim.settings import RIDGE


def check_writable(place: Path) -> None:
    """Refuse a file that could not be written."""
    if place.is_dir():
        raise CommandError(f"{place} is a folder: name a file")
    folder = place.parent
    if not folder.is_dir():
        raise CommandError(f"there is no folder {folder}: make it, or name another file")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CommandError(
            f"{folder} cannot be written ({error.strerror}): name a file elsewhere"
        ) from error


_VALUES = ("preset", "mode", "coupling", "batchnorm", "round_to", "ridge", "positions")
_VALUES += ("memory_limit",)


def add_method(group: Any) -> None:
    """Add the options to a group of arguments."""
    group.add_argument("--layers", action="append", metavar="PATTERN", help="look at these only")
    group.add_argument("--skip", action="append", default=[], metavar="PATTERN", help="leave alone")
    group.add_argument("--preset", choices=("paper",), help="the method as it was published")
    group.add_argument(
        "--mode",
        choices=("sequential", "independent"),
        help="rebuild layers in order, each on what it will see (sequential), or each alone",
    )
    group.add_argument("--no-refit", action="store_true", help="keep the weights of the choice")
    group.add_argument("--no-correct", action="store_true", help="let skip paths drift")
    group.add_argument(
        "--coupling",
        choices=COUPLINGS,
        help="channels that several layers read: chosen for all at once (joint), or by the layer "
        "that needs them most",
    )
    group.add_argument(
        "--batchnorm",
        choices=("keep", "reestimate"),
        help="behind a cut: keep the statistics (keep), or take those of the images",
    )
    group.add_argument("--round-to", type=int, metavar="8", help="widths are multiples of this")
    group.add_argument(
        "--ridge",
        type=float,
        help=f"how strongly a refit is pulled to the old weights ({RIDGE:g}); more for few images",
    )
    group.add_argument("--positions", type=int, help="look at so many positions of each image")
    group.add_argument(
        "--memory-limit",
        type=amounts.size,
        metavar="4GB",
        help="that second moments or activations may take (4GiB); activations beyond wait on disk",
    )
    group.add_argument("--seed", type=int, default=0, help="of whatever is random (0)")


def method_of(args: Namespace) -> dict[str, Any]:
    """Return the options as `sparsify` takes them, the seed apart; those not given are left out."""
    found = given(args, _VALUES)
    for name in ("layers", "skip"):
        if getattr(args, name):
            found[name] = getattr(args, name)
    for name in ("refit", "correct"):
        if getattr(args, f"no_{name}"):
            found[name] = False
    return found


def given(args: Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """Return those of the options that were given."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}
