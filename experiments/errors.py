"""Errors of the experiments, besides those of entrim itself."""

from entrim.errors import EntrimError


class MissingPackageError(EntrimError, ImportError):
    """An experiment needs a package that entrim itself does not."""

    def __init__(self, what: str, package: str) -> None:
        super().__init__(
            f"{what} needs {package}: pip install {package}, or everything the experiments need "
            "with pip install --group experiments"
        )
