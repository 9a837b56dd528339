"""The names of what can go wrong, each message ending in its remedy."""


class EntrimError(Exception):
    """Anything that entrim refuses; the message names the remedy."""


class BadRowsError(EntrimError, ValueError):
    """The rows or sums handed over cannot be statistics of a layer."""


class BadSettingError(EntrimError, ValueError):
    """A setting is outside its range."""


class DeadInputError(EntrimError, ValueError):
    """Every input channel is zero on every row, so there is nothing to choose from."""


class GramTooLargeError(EntrimError, MemoryError):
    """The second moments of this many columns would not fit the memory limit."""


class SingularMomentsError(EntrimError, ArithmeticError):
    """The normal equations are not positive definite, although they are ridged above rounding."""


class MissingExtraError(EntrimError, ImportError):
    """Something needs packages of an optional extra that are not installed."""

    def __init__(self, what: str, packages: str, extra: str) -> None:
        listed = " and ".join(packages.replace(" ", ", ").rsplit(", ", 1))
        super().__init__(
            f"{what} needs {listed}: pip install {packages}, or in a checkout of entrim all of the "
            f'extra with pip install ".[{extra}]"'
        )


class TraceError(EntrimError, ValueError):
    """The network cannot be followed from its inputs to its outputs."""


class NothingToCutError(TraceError):
    """Every channel of the network is frozen, so there is nothing to choose from."""


class PlanError(EntrimError, ValueError):
    """A plan does not fit the network, or its file cannot be read."""


class SurgeryError(EntrimError, ArithmeticError):
    """The smaller network does not compute what the plan says, so it is not handed out."""


class SaveError(EntrimError, OSError):
    """A network cannot be saved here; what the folder held before is still there."""


class LoadError(EntrimError, ValueError):
    """A saved network is damaged, of a newer format, or of another network."""


class ExportError(EntrimError, RuntimeError):
    """A network cannot be written for another runtime, or would say something else there."""


class CheckpointError(EntrimError, ValueError):
    """A checkpoint is damaged, or belongs to another run."""


class OtherRunError(CheckpointError):
    """What was kept of an unfinished run belongs to another one."""


class ScratchError(EntrimError, OSError):
    """Tensors that exceed the memory limit cannot be written to disk."""


class DataError(EntrimError, OSError):
    """A dataset or a pre-trained network cannot be had."""


class BadImagesError(EntrimError, ValueError):
    """The images cannot tell which channels matter."""


class BudgetError(EntrimError, ValueError):
    """No network that can be reached by cutting keeps the budget."""

    @classmethod
    def size(cls, resource: str, limit: int | float, lowest: int | float) -> "BudgetError":
        """Return the error of a size that cannot be reached."""
        return cls(
            f"a budget of {limit:,} {resource} cannot be met: with every group at its minimum "
            f"width the network still has {lowest:,}; allow at least that, or prune more groups "
            "(include=, exclude=)"
        )

    @classmethod
    def latency(cls, limit: int | float, lowest: float) -> "BudgetError":
        """Return the error of a time that cannot be reached."""
        return cls(
            f"a latency of {1e3 * limit:.3g} ms cannot be kept: the narrowest network still takes "
            f"{1e3 * lowest:.3g} ms here; allow more than that, or let more groups be cut"
        )

    @classmethod
    def contradiction(cls, limit: int | float, found: float) -> "BudgetError":
        """Return the error of an output error that the other limits do not allow."""
        return cls(
            f"max_error={limit:.3g} contradicts the rest of the budget, which leads to an error of "
            f"{found:.3g}: allow that much, or a larger network"
        )


class SearchError(EntrimError, RuntimeError):
    """A search found nothing, because every trial failed."""


class StorageError(EntrimError, OSError):
    """A search cannot be kept in this file, or the file holds another one."""


class CommandError(EntrimError, ValueError):
    """The command line names something that cannot be used."""


class CalibrationWarning(UserWarning):
    """The images may not be what the network expects, or too few."""


class NothingCutWarning(UserWarning):
    """Every channel was kept, because the penalty is too small."""


class RolledBackWarning(UserWarning):
    """A group was left at its full width, because the network's own code cannot follow its cut."""


class BudgetWarning(UserWarning):
    """The finished network was measured above a size that was asked for."""


class LatencyWarning(BudgetWarning):
    """The finished network was measured above the latency that was asked for."""


class DivergedWarning(UserWarning):
    """A training ended in NaN or infinity; the best state before that is handed out."""
