"""The options of the method that every command with a cut takes."""

from argparse import Namespace
from typing import Any

from entrim.choose import COUPLINGS
from entrim.commands import amounts

_VALUES = ("preset", "mode", "coupling", "batchnorm", "round_to", "ridge", "positions")
_VALUES += ("memory_limit",)


def add_method(group: Any) -> None:
    """Add the options to a group of arguments."""
    group.add_argument("--layers", action="append", metavar="PATTERN", help="look at these only")
    group.add_argument("--skip", action="append", default=[], metavar="PATTERN", help="leave alone")
    group.add_argument("--preset", choices=("paper",))
    group.add_argument("--mode", choices=("sequential", "independent"))
    group.add_argument("--no-refit", action="store_true", help="keep the weights of the choice")
    group.add_argument("--no-correct", action="store_true", help="let skip paths drift")
    group.add_argument("--coupling", choices=COUPLINGS)
    group.add_argument("--batchnorm", choices=("keep", "reestimate"))
    group.add_argument("--round-to", type=int, metavar="8", help="widths are multiples of this")
    group.add_argument("--ridge", type=float)
    group.add_argument("--positions", type=int, help="look at so many positions of each image")
    group.add_argument("--memory-limit", type=amounts.size, metavar="4GB")
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
