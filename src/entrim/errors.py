"""Errors and warnings; each message states the problem and its remedy."""

import sys
import warnings

_WRAPPERS = ("contextlib", "functools", "torch.utils._contextlib")
"""Modules of decorators, whose frames are between those of entrim."""


def warn(note: str, category: type[Warning]) -> None:
    """Issue a warning at the line of the user that called entrim."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__"))
        if module not in _WRAPPERS and module.partition(".")[0] != "entrim":
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(note, category, stacklevel=level)


class EntrimError(Exception):
    """Base class of all errors; the message states the problem and its remedy."""


class BadRowsError(EntrimError, ValueError):
    """Rows or sums are not valid statistics of a layer."""


class BadSettingError(EntrimError, ValueError):
    """An argument or option is invalid."""


class DeadInputError(EntrimError, ValueError):
    """All input channels are zero on every row, so none can be selected."""


class GramTooLargeError(EntrimError, MemoryError):
    """The Gram matrix would exceed the memory limit."""


class SingularMomentsError(EntrimError, ArithmeticError):
    """The normal equations are not positive definite in spite of their ridge."""


class MissingExtraError(EntrimError, ImportError):
    """Packages of an optional extra are required, but not installed."""

    def __init__(self, what: str, packages: str, extra: str) -> None:
        listed = " and ".join(packages.replace(" ", ", ").rsplit(", ", 1))
        super().__init__(
            f"{what} needs {listed}: pip install {packages}, or in a checkout of entrim "
            f'pip install ".[{extra}]"'
        )


class MissingPackageError(EntrimError, ImportError):
    """A package that is in no extra of entrim is required, but not installed, or does not run."""


class TraceError(EntrimError, ValueError):
    """The network cannot be traced from its inputs to its outputs."""


class NothingToCutError(TraceError):
    """All channels of the network are frozen, so none can be pruned.

    `print(error.graph)` lists every frozen layer with its reason.
    """

    def __init__(self, message: str, graph: object = None) -> None:
        super().__init__(message)
        self.graph = graph


class PlanError(EntrimError, ValueError):
    """A plan does not fit the network, or its file cannot be read."""


class SurgeryError(EntrimError, ArithmeticError):
    """Verification of the pruned network failed, so it is not returned."""


class SaveError(EntrimError, OSError):
    """A network cannot be saved; the previous content of the folder is unchanged."""


class LoadError(EntrimError, ValueError):
    """A saved network is damaged, has a newer format, or belongs to another network."""


class ExportError(EntrimError, RuntimeError):
    """A network cannot be exported, or its exported outputs differ."""


class OnnxError(EntrimError, ValueError):
    """An ONNX file is damaged, or contains something that entrim cannot import or write."""


class CheckpointError(EntrimError, ValueError):
    """A checkpoint is damaged, or belongs to another run."""


class OtherRunError(CheckpointError):
    """The checkpoints belong to another run."""


class ScratchError(EntrimError, OSError):
    """Tensors that exceed the memory limit cannot be written to disk."""


class DataError(EntrimError, OSError):
    """A dataset or a pre-trained network is not available."""


class BadImagesError(EntrimError, ValueError):
    """The images cannot be used for calibration."""


class MomentsError(EntrimError, ValueError):
    """Moments of a network are damaged, belong to another network, or are counted twice."""


class BudgetError(EntrimError, ValueError):
    """No pruned network satisfies the budget."""

    @classmethod
    def size(cls, resource: str, limit: int | float, lowest: int | float) -> "BudgetError":
        """Return the error for a size that cannot be reached."""
        return cls(
            f"a budget of {limit:,} {resource} cannot be met: with every group at its minimum "
            f"width the network still has {lowest:,}; allow at least that, or prune more groups "
            "(include=, exclude=)"
        )

    @classmethod
    def latency(cls, limit: int | float, lowest: float) -> "BudgetError":
        """Return the error for a latency that cannot be reached."""
        return cls(
            f"a latency of {1e3 * limit:.3g} ms cannot be met: the narrowest network still takes "
            f"{1e3 * lowest:.3g} ms on this machine; allow more than that, or prune more groups "
            "(include=, exclude=)"
        )

    @classmethod
    def contradiction(cls, limit: int | float, found: float) -> "BudgetError":
        """Return the error for a `max_error` that the other limits exclude."""
        return cls(
            f"max_error={limit:.3g} contradicts the rest of the budget, which leads to an error of "
            f"{found:.3g}: allow this error, or a larger network"
        )

    @classmethod
    def agreement(
        cls, target: float, confidence: float, share: float, images: int, needed: int | None
    ) -> "BudgetError":
        """Return the error for an agreement that the mildest pruned network does not show."""
        remedy = (
            f"hold out {needed:,} images, for which this agreement is enough, or request less"
            if needed is not None
            else "request less, or exclude sensitive groups"
        )
        return cls(
            f"an agreement of {target:.1%} with {confidence:.0%} confidence cannot be shown: the "
            f"best pruned network agrees on {share:.1%} of {images:,} hold-out images; {remedy}"
        )

    @classmethod
    def disagreement(cls, target: float, low: float, possible: str) -> "BudgetError":
        """Return the error for an agreement that the other limits exclude."""
        return cls(
            f"agreement={target:.3g} contradicts the rest of the budget, which leads to a lower "
            f"bound of {low:.3g}: request at most that, or a larger network ({possible})"
        )


class DistributedError(EntrimError, RuntimeError):
    """A rank of a process group failed, ended, or has other inputs than the first one."""


class SearchError(EntrimError, RuntimeError):
    """All trials of a search failed."""


class StorageError(EntrimError, OSError):
    """A search cannot be stored in this file, or the file contains another search."""


class CommandError(EntrimError, ValueError):
    """An argument of the command line is invalid."""


class CalibrationWarning(UserWarning):
    """The images may differ from those of the training, or be too few."""


class NothingCutWarning(UserWarning):
    """No channel was removed."""


class RolledBackWarning(UserWarning):
    """A group was not pruned, because the code of the network depends on its size."""


class BudgetWarning(UserWarning):
    """The pruned network exceeds a requested size."""


class LatencyWarning(BudgetWarning):
    """The measured latency of the pruned network exceeds the requested one."""


class MeasurementWarning(UserWarning):
    """Operations of the network cannot be counted."""


class DivergedWarning(UserWarning):
    """Training diverged to NaN or infinity; the best state before is returned."""
