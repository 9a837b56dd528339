"""Import packages on which entrim does not depend."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from entrim.errors import MissingPackageError, SaveError


def import_package(module: str, package: str, what: str) -> Any:
    """Return `module` of `package`, which `what` needs; raise a MissingPackageError without it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{what} needs {package} ({error}): pip install {package}"
        ) from error
    except Exception as error:  # RuntimeError, if its binary does not fit PyTorch
        names = " and ".join(dict.fromkeys((package, "torchvision")))  # most packages import it
        raise MissingPackageError(
            f"importing {package} failed ({error}): install {names} for PyTorch {torch.__version__}"
        ) from error


def check_new_folder(place: Path) -> None:
    """Raise a SaveError unless `place` is missing or an empty folder."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise SaveError(f"{place} is not an empty folder: name a new one")
