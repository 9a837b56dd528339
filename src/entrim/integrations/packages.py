"""Import packages on which entrim does not depend."""

from importlib import import_module
from typing import Any

import torch

from entrim.errors import MissingPackageError


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
