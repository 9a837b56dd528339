"""Configuration values: targets and options. Each is validated when it is created."""

import difflib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from entrim.entropic.moments import MEMORY_LIMIT
from entrim.entropic.solve import Solver, SolverSettings
from entrim.errors import BadSettingError

Patterns = str | Sequence[str]
"""Names of groups or of layers that produce their channels; `*` and `?` are wildcards."""
SIZES = {"params": "parameters", "macs": "MACs", "bytes": "bytes"}
COUPLINGS = ("joint", "max")
OUTPUT_KINDS = ("auto", "logits", "probabilities", "values")
BATCH_SIZE = 64
SCRATCH_LIMIT = 20 * 2**30
WORKING_SHARE = 0.25
"""Share of the memory limit for second moments while they are collected; data are stored in the
rest."""
HOLDOUT, MIN_HOLDOUT, MAX_HOLDOUT = 0.1, 50, 0.2
"""Hold-out images by default: this share, at least this number, at most this share."""
SELECTION_HOLDOUT = 0.4
"""Share of hold-out images for targets that select on them."""
MIN_IMAGES = 10
"""With fewer images, none are held out by default."""
STEPS, MIN_EPOCHS = 1000, 2
"""Number of steps of a distillation by default, and the minimum number of its epochs."""
ALTERNATIONS = 4000
"""Maximum number of ridge solves of the alternating solver."""


@runtime_checkable
class Cost(Protocol):
    """The cost of a network as a function of its widths: energy, a look-up table, another device.

    It is called with the width of every group and must not increase when a group becomes narrower.
    """

    def __call__(self, widths: Mapping[str, int], /) -> float:
        """Return the cost of the network with these widths."""
        ...


@runtime_checkable
class Sensitivity(Protocol):
    """The distance between the outputs of a pruned network and those of the original.

    Values are per image, so that they add up over batches: 0 for equal outputs, larger is worse.
    """

    def __call__(self, outputs: Any, reference: Any, /) -> Tensor:
        """Return one value per image, for the outputs of one batch.

        Both arguments are a tensor, or a tuple of tensors if the network returns several.
        """
        ...


if TYPE_CHECKING:
    BatchToInputs = Callable[[Any], Tensor | tuple[Any, ...] | Mapping[str, Any]]
    Number = float
else:  # other types are refused here, with a remedy
    BatchToInputs = Number = object


_Config = TypeVar("_Config", bound=type)
_REMEDIES = {
    "flops": "macs=, one multiply-accumulate is two FLOPs",
    "gflops": "macs=, one multiply-accumulate is two FLOPs",
    "parameters": "params=",
    "size": "params= or bytes=",
    "ratio": "params= or macs=",
    "pruning_ratio": "params= or macs=, the fraction to keep",
    "sparsity": "params= or macs=, the fraction to keep",
    "accuracy": "agreement=, the share of equal predictions, which needs no labels",
}
"""Names from other libraries, and the limit of a budget that replaces them."""


def _explain_arguments(config: _Config) -> _Config:
    """Let a configuration value answer wrong arguments with a BadSettingError."""
    create, name = config.__init__, config.__name__

    @wraps(create)
    def __init__(self: object, *values: object, **options: object) -> None:  # noqa: N807
        known = [item.name for item in fields(config)]
        if len(values) > sum(not item.kw_only for item in fields(config)):
            names = ["macs"] if name == "Budget" else known
            named = (f"{key}={value!r}" for key, value in zip(names, values, strict=False))
            shown = ", ".join(map(repr, values))
            raise BadSettingError(
                f"{name}({shown}) does not name its values: pass entrim.{name}({', '.join(named)})"
            )
        for option in sorted(options.keys() - set(known)):
            remedy = _REMEDIES.get(option) if name == "Budget" else None
            near = difflib.get_close_matches(option, known, 1) or known
            remedy = remedy or ", ".join(f"{one}=" for one in near)
            raise BadSettingError(f"{name} has no parameter {option}=: pass {remedy}")
        create(self, *values, **options)

    config.__init__ = __init__
    return config


_P = ParamSpec("_P")
_R = TypeVar("_R")


def explain_options(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function answer an unknown keyword with a BadSettingError that names its place."""
    known = inspect.signature(function).parameters

    @wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> _R:
        for option, value in options.items():
            if option not in known:
                raise BadSettingError(_unknown_option(option, value, list(known)))
        return function(*args, **options)

    return call


def _unknown_option(option: str, value: object, known: Sequence[str]) -> str:
    """Return the message for a keyword that belongs elsewhere, or nowhere."""
    for config, place in (
        (Budget, ""),
        (Calibration, "calibration="),
        (Reconstruction, "reconstruction="),
        (EntropicPenalty, ""),
    ):
        if option in {item.name for item in fields(config)}:
            example = f"{place}entrim.{config.__name__}({option}={value!r})"
            return f"{option}= is an option of entrim.{config.__name__}: pass {example}"
    if option in _REMEDIES:
        return f"there is no parameter {option}=: pass an entrim.Budget with {_REMEDIES[option]}"
    near = difflib.get_close_matches(option, known, 1) or [k for k in known if k != "self"]
    return f"there is no parameter {option}=: pass {', '.join(f'{one}=' for one in near)}"


@_explain_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Upper limits for the pruned network. If several are given, all must hold.

    Parameters
    ----------
    params, macs, bytes : float or int, optional
        Number of parameters, multiply-accumulates per image, and bytes of all parameters and
        buffers. A float is a fraction of the original; an integer is absolute.
    latency : float, optional
        Seconds of one forward pass on the example inputs on this machine, the median of several
        runs.
    max_error : float, optional
        Maximum relative error ||y - y0||^2 / ||y0 - mean||^2 of the outputs on unseen images: the
        widths are selected on one half of the hold-out images, and the result is measured on the
        other. If it is the only limit, the network becomes as small as the error permits. With
        `Calibration(holdout=0)` the error is that on the fitting images, which is too optimistic.
    agreement : float, optional
        Minimum share of images with the same predicted class, guaranteed with `confidence` for
        images like the hold-out images. If it is the only limit, the network becomes as small as
        the agreement permits. `sparsify` holds out 40 % of the images for `max_error` and
        `agreement`, unless `Calibration(holdout=...)` is given.
    confidence : float, default 0.95
        Probability with which the agreement holds.
    costs : dict, optional
        Further costs, `{"energy": (cost, limit)}` with a `Cost` and its upper limit.
    round_to : int, default 1
        Widths are multiples of this number.
    depth : bool or "auto", default "auto"
        Whether entire residual blocks may be removed, besides channels. "auto" allows it if the
        latency is limited: it costs one reconstruction for every block.

    Raises
    ------
    BadSettingError
        If no limit is given, or a limit is not positive.

    Examples
    --------
    >>> import entrim
    >>> entrim.Budget(params=0.3, macs=2_000_000).limits({"params": 1000, "macs": 5_000_000})
    {'params': 300, 'macs': 2000000}
    """

    params: float | int | None = None
    macs: float | int | None = None
    bytes: float | int | None = None
    latency: float | int | None = None
    max_error: float | int | None = None
    agreement: Number | None = None
    confidence: Number = 0.95
    costs: Mapping[str, tuple[Cost, float]] = field(default_factory=dict)
    round_to: int = 1
    depth: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if not self.sizes and not self.costs and self.latency is None and not self.needs_holdout:
            raise BadSettingError(
                "the budget is empty: pass params=, macs=, bytes=, latency=, max_error=, "
                "agreement= or costs="
            )
        if self.agreement is not None and self.max_error is not None:
            raise BadSettingError("pass either max_error= or agreement=, not both")
        for name in ("agreement", "confidence"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, float) and 0 < value < 1):
                raise BadSettingError(f"{name} must be a fraction such as 0.95, got {value!r}")
        for name, value in self.sizes.items():
            fraction = isinstance(value, float) and 0 < value <= 1
            absolute = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not fraction and not absolute:
                raise BadSettingError(
                    f"{name} must be a fraction above 0.0 and at most 1.0, or a positive integer, "
                    f"got {value!r}"
                )
        for name, unit in (("latency", "seconds"), ("max_error", "a share of the variance")):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value < math.inf):
                raise BadSettingError(f"{name} must be positive ({unit}), got {value!r}")
        if not isinstance(self.costs, Mapping):
            raise BadSettingError(
                f"costs must be a dict {{name: (cost, limit)}}, got {self.costs!r}"
            )
        for name, pair in self.costs.items():
            good = isinstance(pair, Sequence) and len(pair) == 2 and callable(pair[0])
            if name in SIZES or not good or not _is_number(pair[1]):
                raise BadSettingError(
                    f"costs[{name!r}] must be a pair (cost, limit) of a function of the widths and "
                    f"a number, under a name other than {', '.join(SIZES)}; got {pair!r}"
                )
        _check_count("round_to", self.round_to)
        _check_choice("depth", self.depth, ("auto", True, False))

    @property
    def removes_blocks(self) -> bool:
        """Whether entire residual blocks may be removed."""
        return self.latency is not None if self.depth == "auto" else self.depth

    @property
    def needs_holdout(self) -> bool:
        """Whether the widths are selected on hold-out images."""
        return self.max_error is not None or self.agreement is not None

    @property
    def sizes(self) -> dict[str, float | int]:
        """The limited sizes, as fractions or absolute numbers."""
        given = {kind: getattr(self, kind) for kind in SIZES}
        return {kind: value for kind, value in given.items() if value is not None}

    def limits(self, full: Mapping[str, int]) -> dict[str, int | float]:
        """Return all limits as absolute numbers, for an original network of size `full`."""
        sizes = {
            kind: int(value * full[kind]) if isinstance(value, float) else value
            for kind, value in self.sizes.items()
        }
        return sizes | {name: limit for name, (_, limit) in self.costs.items()}


@_explain_arguments
@dataclass(frozen=True, slots=True)
class Widths:
    """The number of channels that each group keeps.

    Parameters
    ----------
    widths : float, int or dict
        Fraction of the channels (float) or number of channels (int), for all groups or by pattern.
        If several patterns match a group, the first one applies. Groups without a matching pattern
        keep all channels.
    round_to : int, default 1
        Widths are rounded up to multiples of this number.

    Examples
    --------
    >>> import entrim
    >>> entrim.Widths(0.5) == entrim.Widths({"*": 0.5})
    True
    """

    widths: float | int | Mapping[str, float | int]
    round_to: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        widths = self.widths if isinstance(self.widths, Mapping) else {"*": self.widths}
        for pattern, width in widths.items():
            fraction = isinstance(width, float) and 0 < width <= 1
            absolute = isinstance(width, int) and not isinstance(width, bool) and width >= 1
            if not fraction and not absolute:
                raise BadSettingError(
                    f"the width of {pattern!r} must be a fraction above 0.0 and at most 1.0, or a "
                    f"positive integer, got {width!r}"
                )
        if not widths:
            raise BadSettingError('the widths are empty: pass a fraction, or {"*": 0.5}')
        object.__setattr__(self, "widths", dict(widths))
        _check_count("round_to", self.round_to)

    @property
    def by_pattern(self) -> dict[str, float | int]:
        """The widths by pattern."""
        assert isinstance(self.widths, Mapping)
        return dict(self.widths)


@_explain_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class EntropicPenalty:
    """The entropy penalty of the paper, which determines both the kept channels and their number.

    Parameters
    ----------
    eps_w : float, default -1e-4
        Strength of the entropy term; more negative removes more channels.
    eps_l2 : float, default 1e-4
        Strength of the ridge term.
    per_group : dict, optional
        `{pattern: (eps_w, eps_l2)}` for individual groups. If several patterns match a group, the
        first one applies.
    solver : {"mm", "alternating"}, default "mm"
        Fast majorize-minimize method, or the alternation of the paper (slower, requires SciPy).
    min_decrease : float, optional
        Stop when a step decreases the objective by less than this value.
    coupling : {"joint", "max"}, default "joint"
        "joint" solves for all consumers of a group together; "max" solves for each consumer
        separately, uses the largest importance, and estimates the weights of each again.
    single_consumer : bool, default False
        Prune only channels that one layer produces and one layer consumes, as in the paper.
    round_to : int, default 1
        Widths are rounded up to multiples of this number.
    """

    eps_w: Number = -1e-4
    eps_l2: Number = 1e-4
    per_group: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    solver: Solver = "mm"
    min_decrease: Number | None = None
    coupling: str = "joint"
    single_consumer: bool = False
    round_to: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.per_group, Mapping):
            raise BadSettingError(
                f"per_group must be a dict {{pattern: (eps_w, eps_l2)}}, got {self.per_group!r}"
            )
        if self.min_decrease is not None and not _is_number(self.min_decrease):
            raise BadSettingError(f"min_decrease must be a number, got {self.min_decrease!r}")
        for pattern, pair in self.per_group.items():
            if not isinstance(pair, Sequence) or len(pair) != 2:
                raise BadSettingError(
                    f"per_group[{pattern!r}] must be (eps_w, eps_l2), got {pair!r}"
                )
            self.solver_settings(*pair)
        self.solver_settings(self.eps_w, self.eps_l2)
        _check_choice("coupling", self.coupling, COUPLINGS)
        _check_choice("single_consumer", self.single_consumer, (True, False))
        _check_count("round_to", self.round_to)

    def solver_settings(self, eps_w: float, eps_l2: float) -> SolverSettings:
        """Return the solver settings for these strengths."""
        if not _is_number(eps_w) or not _is_number(eps_l2):
            raise BadSettingError(
                f"eps_w and eps_l2 must be numbers, got {eps_w!r} and {eps_l2!r}; for individual "
                "groups, pass per_group={pattern: (eps_w, eps_l2)}"
            )
        more = {"max_solves": ALTERNATIONS} if self.solver == "alternating" else {}
        return SolverSettings(
            eps_w=eps_w,
            eps_l2=eps_l2,
            solver=self.solver,
            min_decrease=0.0 if self.min_decrease is None else self.min_decrease,
            **more,
        )


Target = Budget | Widths | EntropicPenalty


@_explain_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """How the weights of the kept channels are refitted.

    Parameters
    ----------
    weights : {"least_squares", "solution"}, default "least_squares"
        Least-squares fit on the kept channels, or the weights of the entropic solution.
    order : {"sequential", "independent"}, optional
        "sequential" (the default for least squares) refits the layers in order, each on its inputs
        in the pruned network. "independent" refits each layer on the original activations, which
        saves one pass. Weights of the entropic solution are always independent.
    ridge : float, optional
        Shrinks the fit toward the original weights, relative to the second moment of each column.
        By default it is selected for each layer on a fifth of the images, which also decides
        whether the original weights are better than any fit; in independent order it is 1e-2.
    residual_correction : bool, default True
        A layer whose output is added to a skip connection also compensates for the change on that
        path. Applies to sequential order only.
    relaxation : int, default 3
        Number of further rounds in which a layer in front of a ReLU is refitted to relaxed targets:
        where the original input of the ReLU is negative, only values above zero are errors. Applies
        to sequential order with residual correction. 0 disables this.
    mirror : bool or "auto", default "auto"
        Refit the layers on the images and on their mirror images, and with at most 250 images
        select the channels on both, too. "auto" does so if mirroring changes the outputs of the
        network by an error of at most 20 % of their variance, measured on 128 of the images.
        Applies to sequential order and to networks whose only input is a batch of images (images,
        channels, height, width).
    mixtures : int or "auto", default "auto"
        How many mixtures of each image with another one (mixup or CutMix) the layers are also
        refitted on. "auto" adds as many as keep the number of images, every view counted, at 500 or
        less; none with `batchnorm="reestimate"`. Applies to the same networks as `mirror`.
        Images are mixed within a batch, so the weights depend on `Calibration(batch_size=...)`;
        mixtures count as rows of a layer.
    batchnorm : {"keep", "reestimate"}, default "keep"
        "reestimate" replaces the running statistics of every BatchNorm after pruned layers by those
        of the calibration images. A BatchNorm that is called several times keeps its statistics.
    """

    weights: str = "least_squares"
    order: str | None = None
    ridge: Number | None = None
    residual_correction: bool = True
    relaxation: int = 3
    mirror: bool | Literal["auto"] = "auto"
    mixtures: int | Literal["auto"] = "auto"
    batchnorm: str = "keep"

    def __post_init__(self) -> None:
        _check_choice("weights", self.weights, ("least_squares", "solution"))
        _check_choice("order", self.order, (None, "sequential", "independent"))
        _check_choice("batchnorm", self.batchnorm, ("keep", "reestimate"))
        _check_choice("residual_correction", self.residual_correction, (True, False))
        _check_choice("mirror", self.mirror, ("auto", True, False))
        if self.mixtures != "auto" and (isinstance(self.mixtures, bool) or self.mixtures != 0):
            _check_count("mixtures", self.mixtures)
        if not isinstance(self.relaxation, int) or self.relaxation < 0:
            raise BadSettingError(f"relaxation must be 0 or positive, got {self.relaxation!r}")
        ridge = 0 if self.ridge is None else self.ridge
        if not _is_number(ridge) or not 0 <= ridge < math.inf:
            raise BadSettingError(f"ridge must be 0 or positive, got {self.ridge!r}")
        if self.weights == "solution" and self.order == "sequential":
            raise BadSettingError(
                'order="sequential" refits the layers: pass weights="least_squares", or leave the '
                "order out"
            )

    @property
    def refits(self) -> bool:
        """Whether the weights are refitted after the selection."""
        return self.weights == "least_squares"

    @property
    def is_sequential(self) -> bool:
        """Whether layers are refitted in order."""
        return self.refits and self.order != "independent"


@_explain_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How the calibration images are read and used.

    Parameters
    ----------
    batch_size : int, default 64
        Number of images per forward pass.
    batch_to_inputs : callable, optional
        Converts one batch of a custom data loader to the inputs of the network: a tensor, or a
        dict of keyword arguments.
    sharded : bool, default False
        Under `torch.distributed`: whether every rank passes images of its own. All ranks then use
        the images of all. By default, all ranks pass the same images.
    holdout : float or int, optional
        Share (float) or number (int) of the images that are not used for pruning: the agreement,
        the KL divergence and the error of the result are measured on them. By default one tenth,
        at least 50, but at most a fifth; none of fewer than 10 images. 0 uses all images for
        pruning. The images are drawn at random when the `Pruner` is created.
    outputs : {"auto", "logits", "probabilities", "values"} or sequence of them, default "auto"
        What the outputs of the network are, for all outputs or one by one. Logits and
        probabilities have classes in axis 1 and perhaps positions behind it, as in a segmentation
        map; they are compared by predicted classes and KL divergence, values by their relative
        error. "auto" recognizes probabilities; other N x K outputs count as logits.
    sensitivity : Sensitivity, optional
        Replaces the measure of the change of the outputs. The default is the KL divergence for
        logits and probabilities, and the squared error relative to the variance for values.
    sensitivity_widths : sequence of float, default (0.7, 0.4, 0.15)
        Fractions of the channels of a group at which its sensitivity is measured, besides its
        minimum width; other widths are interpolated.
    sensitivity_images : int, optional
        Approximate number of images on which the sensitivity is measured. By default as many as
        cost about four forward passes of all images, at least 50, and half of them at widths below
        0.3, where the divergence is large.
    n_positions : int, "auto" or None, default "auto"
        Number of random output positions per image used for the statistics and the reconstruction.
        "auto" provides 60 rows per column of each layer, and fewer for wide layers; None uses all
        positions.
    n_bootstrap : int, default 0
        Number of bootstrap samples of the images on which the selection is repeated, to record the
        stability of the kept channels.
    memory_limit : int, default 4 GiB
        Maximum number of bytes in memory for images of a loader, second moments and activations of
        several batches together. Images take at most half of it. Data beyond the limit is written
        to disk. The network, the activations of one batch, and the solution of one layer (about
        four times its second moments) come on top.
    scratch_limit : int, default 20 GiB
        Maximum number of bytes on disk. If the activations of all images exceed both limits, the
        first layers are refitted on fewer images, and the record states which.
    scratch_dir : str or path, optional
        Folder for data on disk; by default the temporary folder, unless that is in memory.
    """

    batch_size: int = BATCH_SIZE
    batch_to_inputs: BatchToInputs | None = None
    sharded: bool = False
    holdout: Number | None = None
    outputs: str | Sequence[str] = "auto"
    sensitivity: Sensitivity | None = None
    sensitivity_widths: Sequence[float] = (0.7, 0.4, 0.15)
    sensitivity_images: int | None = None
    n_positions: int | Literal["auto"] | None = "auto"
    n_bootstrap: int = 0
    memory_limit: int = MEMORY_LIMIT
    scratch_limit: int = SCRATCH_LIMIT
    scratch_dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.sensitivity_images is not None:
            _check_count("sensitivity_images", self.sensitivity_images)
        for name in ("batch_size", "memory_limit", "scratch_limit"):
            _check_count(name, getattr(self, name))
        if self.holdout is not None:
            share = isinstance(self.holdout, float) and 0 <= self.holdout < 1
            count = isinstance(self.holdout, int) and not isinstance(self.holdout, bool)
            if not share and not (count and self.holdout >= 0):
                raise BadSettingError(
                    "holdout must be a fraction below 1.0, a number of images or 0, got "
                    f"{self.holdout!r}"
                )
        for kind in [self.outputs] if isinstance(self.outputs, str) else self.outputs:
            _check_choice("outputs", kind, OUTPUT_KINDS)
        fractions = self.sensitivity_widths
        if not all(_is_number(fraction) and 0 < fraction < 1 for fraction in fractions):
            raise BadSettingError(
                f"sensitivity_widths must be fractions between 0 and 1, got {fractions!r}"
            )
        if self.n_positions is not None and self.n_positions != "auto":
            _check_count("n_positions", self.n_positions)
        if not isinstance(self.n_bootstrap, int) or self.n_bootstrap < 0:
            raise BadSettingError(f"n_bootstrap must be 0 or positive, got {self.n_bootstrap!r}")
        if not isinstance(self.sharded, bool):
            raise BadSettingError(f"sharded must be True or False, got {self.sharded!r}")
        for name in ("batch_to_inputs", "sensitivity"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise BadSettingError(f"{name} must be callable, got {type(value).__name__}")

    @property
    def stored_memory(self) -> int:
        """Bytes of memory for stored data: without what second moments need to be collected."""
        return round(self.memory_limit * (1 - WORKING_SHARE))

    def holdout_size(self, images: int) -> int:
        """Return the number of hold-out images among `images`."""
        if self.holdout is None:
            usual = min(max(round(HOLDOUT * images), MIN_HOLDOUT), int(MAX_HOLDOUT * images))
            return usual if images >= MIN_IMAGES else 0
        if isinstance(self.holdout, int) and self.holdout >= images:
            raise BadSettingError(
                f"holdout={self.holdout} leaves none of {images} images for pruning: pass fewer, "
                "or more images"
            )
        count = self.holdout if isinstance(self.holdout, int) else round(self.holdout * images)
        return min(count, images - 1)


@_explain_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """How the pruned network is trained to reproduce the outputs of the original.

    Parameters
    ----------
    epochs : int, optional
        Number of epochs. By default as many as make 1,000 steps, at least two.
    learning_rate : float, default 1e-3
        Highest learning rate; it decreases to 0 by a cosine schedule.
    warmup : int, default 20
        Number of steps in which the learning rate rises to its highest value.
    batch_size : int, default 64
        Number of images per step.
    temperature : float, default 4.0
        Divides the logits of both networks; larger values give unlikely classes more weight.
    mix : bool, default True
        Mix the images of a batch in pairs, half of the batches by mixup, half by CutMix, so that
        few images become many. The original network computes the target of every mixed image.
        Inputs that are not images are not mixed.
    shift : float, default 1/8
        Maximum random shift of an image, as a fraction of its height and width. With 0 and without
        mixing and flips, the original network runs once per image instead of once per image and
        epoch.
    flip : bool, optional
        Mirror images with probability 1/2. By default only if the outputs of the original network
        on mirrored images are nearly the same.
    holdout : float, default 0.1
        Fraction of the images that is not trained on, and decides whether the trained network is
        better than the one before. The hold-out images of `sparsify` are not among them.
    patience : int, optional
        Return the epoch with the lowest loss on these images, and stop after this many epochs
        without a lower one. By default the training is judged at its end only: the loss rises at
        first.
    seed : int, default 0
        Seed of the order, the shifts, the mixing and the images in `holdout`.
    """

    epochs: int | None = None
    learning_rate: Number = 1e-3
    warmup: int = 20
    batch_size: int = 64
    temperature: Number = 4.0
    mix: bool = True
    shift: Number = 1 / 8
    flip: bool | None = None
    holdout: Number = 0.1
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_count("batch_size", self.batch_size)
        for name in ("epochs", "patience"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        if not isinstance(self.warmup, int) or isinstance(self.warmup, bool) or self.warmup < 0:
            raise BadSettingError(f"warmup must be 0 or a number of steps, got {self.warmup!r}")
        _check_choice("mix", self.mix, (True, False))
        _check_choice("flip", self.flip, (None, True, False))
        for name in ("learning_rate", "temperature"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value < math.inf:
                raise BadSettingError(f"{name} must be positive, got {value!r}")
        if not _is_number(self.shift) or not 0 <= self.shift <= 0.5:
            raise BadSettingError(f"shift must be a fraction from 0 to 0.5, got {self.shift!r}")
        if not _is_number(self.holdout) or not 0 < self.holdout < 1:
            raise BadSettingError(f"holdout must be a fraction such as 0.1, got {self.holdout!r}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise BadSettingError(f"seed must be a non-negative integer, got {self.seed!r}")

    def epochs_for(self, images: int) -> int:
        """Return the number of epochs for this number of training images.

        >>> Distillation().epochs_for(640), Distillation().epochs_for(10**6)
        (100, 2)
        """
        if self.epochs is not None:
            return self.epochs
        return max(MIN_EPOCHS, math.ceil(STEPS / math.ceil(images / self.batch_size)))


def paper_preset(eps_w: float = -1e-4, eps_l2: float = 1e-4, **penalty: Any) -> dict[str, Any]:
    """Return the options of `sparsify` for the method as published.

    Every layer is solved separately, its weights are those of the entropic solution, only channels
    with one producer and one consumer are pruned, and no images are held out.

    Parameters
    ----------
    eps_w : float, default -1e-4
        Strength of the entropy term.
    eps_l2 : float, default 1e-4
        Strength of the ridge term.
    **penalty
        Further parameters of `EntropicPenalty`, such as `solver="alternating"`.

    Returns
    -------
    dict
        Keyword arguments of `sparsify`: `budget`, `reconstruction` and `calibration`.

    Examples
    --------
    >>> import entrim
    >>> sorted(entrim.paper_preset(-1e-3, 1e-3))
    ['budget', 'calibration', 'reconstruction']
    """
    return {
        "budget": EntropicPenalty(
            eps_w=eps_w, eps_l2=eps_l2, **{"single_consumer": True, **penalty}
        ),
        "reconstruction": Reconstruction(weights="solution"),
        "calibration": Calibration(holdout=0, n_positions=None),
    }


def to_plain(value: Any) -> Any:
    """Return a configuration value as JSON data; functions are represented by their name."""
    if is_dataclass(value) and not isinstance(value, type):
        entries = {item.name: to_plain(getattr(value, item.name)) for item in fields(value)}
        return {"type": type(value).__name__, **entries}
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)


def list_patterns(patterns: Patterns) -> list[str]:
    """Return one or several patterns as a list."""
    found = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(found, Sequence) or not all(isinstance(one, str) for one in found):
        raise BadSettingError(f"patterns must be a string or a list of strings, got {patterns!r}")
    return list(found)


def check_type(name: str, value: Any, expected_type: type) -> Any:
    """Return a configuration value; raise an error if it has another type."""
    if isinstance(value, expected_type) or (value is None and expected_type is Reconstruction):
        return value
    raise BadSettingError(
        f"{name} must be an entrim.{expected_type.__name__}, got {type(value).__name__}"
    )


def check_seed(seed: object) -> int:
    """Return a seed; raise an error if it is not one."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise BadSettingError(f"seed must be a non-negative integer, got {seed!r}")
    return seed


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadSettingError(f"{name} must be a positive integer, got {value!r}")


def _check_choice(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise BadSettingError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}")
