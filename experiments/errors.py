"""What the experiments refuse beside the errors of entrim itself."""

from entrim.errors import EntrimError


class MissingPackageError(EntrimError, ImportError):
    """An experiment needs a package that entrim itself does not."""

    def __init__(self, what: str, package: str) -> None:
        super().__init__(
            f"{what} needs {package}: pip install {package}, or all that the experiments need with "
            "pip install --group experiments"
        )
