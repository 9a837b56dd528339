"""Sufficient statistics of the rows of one layer, which can be added."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from entrim.errors import BadRowsError, GramTooLargeError

MEMORY_LIMIT = 4 * 2**30
_CHUNK_BYTES = 64 * 2**20
_BLOCK = 256
"""Rows of a block of the upper triangle."""

Rows = Tensor | np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Second moments of inputs and outputs of a layer, as float64 sums over rows.

    With z = (1; x) the inputs of a row after a constant, and y its outputs. Memory does not depend
    on the number of rows, and moments of two sets of rows are added with `+`.

    Attributes
    ----------
    count : int
        Number of rows.
    gram_sum : Tensor of shape (n+1, n+1)
        Sum of z z'.
    cross_sum : Tensor of shape (n+1, M)
        Sum of z y'.
    target_sum_sq : float
        Sum of y'y.
    block : int, default 1
        Number of adjacent columns per channel (channel-major order).

    Examples
    --------
    >>> import torch, entrim
    >>> x, y = torch.randn(100, 6), torch.randn(100, 2)
    >>> first, rest = (entrim.Moments.of(x[s], y[s], block=3) for s in (slice(40), slice(40, None)))
    >>> first + rest
    Moments(100 rows, 2 channels x 3 columns, 2 outputs)
    """

    count: int
    gram_sum: Tensor
    cross_sum: Tensor
    target_sum_sq: float
    block: int = 1

    def __post_init__(self) -> None:
        for name in ("gram_sum", "cross_sum"):
            object.__setattr__(self, name, _doubles(getattr(self, name)))
        object.__setattr__(self, "target_sum_sq", float(self.target_sum_sq))
        _check_sums(self)

    @classmethod
    def of(
        cls, inputs: Rows, outputs: Rows, block: int = 1, *, memory_limit: int = MEMORY_LIMIT
    ) -> "Moments":
        """Return the moments of `inputs` and `outputs`. Cost: 2 T n (n + M).

        Products and sums are float64, on the device of `inputs`, or on the CPU if the device does
        not support float64.

        Parameters
        ----------
        inputs : Tensor or array of shape (T, D*block)
            Rows of inputs, of any real dtype.
        outputs : Tensor or array of shape (T, M)
            Rows of outputs.
        block : int, default 1
            Number of adjacent columns per channel.
        memory_limit : int, default 4 GiB
            Maximum size of the Gram matrix in bytes.

        Raises
        ------
        BadRowsError
            If the rows are not finite matrices of matching shapes.
        GramTooLargeError
            If the Gram matrix exceeds `memory_limit`.
        """
        x, y = _as_rows("inputs", inputs), _as_rows("outputs", outputs)
        _check_rows(x, y, block)
        size = (x.shape[1] + 1) ** 2 * 8
        if size > memory_limit:
            raise GramTooLargeError(
                f"the Gram matrix of {x.shape[1]} columns takes {size / 2**30:.1f} GiB, above the "
                f"limit of {memory_limit / 2**30:.1f} GiB: pool the feature map before it is "
                "flattened, or raise memory_limit= (solving needs about three times more memory)"
            )
        device = "cpu" if x.device.type == "mps" else x.device
        gram = torch.zeros(x.shape[1] + 1, x.shape[1] + 1, dtype=torch.float64, device=device)
        cross = torch.zeros(x.shape[1] + 1, y.shape[1], dtype=torch.float64, device=device)
        power = 0.0
        for z, target in _chunks(x, y, device):
            gram.addmm_(z.T, z)
            cross.addmm_(z.T, target)
            power += float(target.square().sum())
        if not bool(torch.isfinite(gram).all() & torch.isfinite(cross).all()):
            _check_finite(x, y)
        return cls(count=len(x), gram_sum=gram, cross_sum=cross, target_sum_sq=power, block=block)

    @property
    def columns(self) -> int:
        """The number n of input columns, without the constant."""
        return self.gram_sum.shape[0] - 1

    @property
    def channels(self) -> int:
        """The number D of input channels."""
        return self.columns // self.block

    @property
    def outputs(self) -> int:
        """The number M of outputs."""
        return self.cross_sum.shape[1]

    def to(self, device: torch.device | str) -> "Moments":
        """Return the moments on `device`; the object itself if they are there already."""
        if self.gram_sum.device == torch.device(device):
            return self
        gram, cross = self.gram_sum.to(device), self.cross_sum.to(device)
        return replace(self, gram_sum=gram, cross_sum=cross)

    def through_origin(self) -> "Moments":
        """Return the moments for a fit without intercept.

        The constant is made orthogonal to all columns and outputs, so that a solution has an
        intercept of exactly 0 and the weights of a fit without intercept.
        """
        gram, cross = self.gram_sum.clone(), self.cross_sum.clone()
        gram[0, 1:] = 0
        gram[1:, 0] = 0
        cross[0] = 0
        return replace(self, gram_sum=gram, cross_sum=cross)

    def __add__(self, other: "Moments") -> "Moments":
        """Return the moments of the rows of both operands."""
        if not isinstance(other, Moments):
            return NotImplemented
        own, others = ((m.channels, m.block, m.outputs) for m in (self, other))
        if own != others:
            raise BadRowsError(
                f"moments of {own} (channels, block, outputs) and of {others} cannot be added: "
                "add moments of the same layer only"
            )
        other = other.to(self.gram_sum.device)
        return Moments(
            count=self.count + other.count,
            gram_sum=self.gram_sum + other.gram_sum,
            cross_sum=self.cross_sum + other.cross_sum,
            target_sum_sq=self.target_sum_sq + other.target_sum_sq,
            block=self.block,
        )

    def __radd__(self, other: int) -> "Moments":
        """Return `self` for 0, the start value of `sum`."""
        return self if other == 0 else NotImplemented

    def __getstate__(self) -> tuple[Any, ...]:
        """Return the attributes to pickle, without the lower triangle of the Gram matrix."""
        upper = upper_triangle(self.gram_sum)
        return self.count, upper, self.cross_sum, self.target_sum_sq, self.block

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        names = ("count", "gram_sum", "cross_sum", "target_sum_sq", "block")
        count, upper, *rest = state
        for name, value in zip(names, (count, symmetric_matrix(upper), *rest), strict=True):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return (
            f"Moments({self.count} rows, {self.channels} channels x {self.block} columns, "
            f"{self.outputs} outputs)"
        )


def columns_of(channels: Int[Tensor, " k"], block: int) -> Int[Tensor, " n1"]:
    """Return the columns of (1; X) that belong to `channels`, the constant first."""
    offsets = torch.arange(block, device=channels.device)
    inner = (1 + channels[:, None] * block + offsets).reshape(-1)
    return torch.cat([inner.new_zeros(1), inner])


def upper_triangle(matrix: Float[Tensor, "*batch n n"]) -> list[Tensor]:
    """Return the blocks of rows of a symmetric matrix, without most of the lower triangle."""
    starts, form = range(0, matrix.shape[-1], _BLOCK), torch.contiguous_format
    parts = (matrix[..., start : start + _BLOCK, start:] for start in starts)
    return [part.clone(memory_format=form) for part in parts]  # a view would be pickled entirely


def symmetric_matrix(upper: Sequence[Tensor]) -> Float[Tensor, "*batch n n"]:
    """Return the symmetric matrix whose `upper_triangle` this is."""
    n = upper[0].shape[-1]
    found = upper[0].new_empty(*upper[0].shape[:-2], n, n)
    for number, rows in enumerate(upper):
        start = number * _BLOCK
        stop = start + rows.shape[-2]
        found[..., start:stop, start:] = rows
        found[..., stop:, start:stop] = rows[..., stop - start :].mT
    return found


def _as_rows(name: str, rows: Rows) -> Tensor:
    try:
        tensor = torch.as_tensor(rows).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadRowsError(f"{name} must be a tensor or array ({error})") from error
    if tensor.is_complex():
        raise BadRowsError(f"{name} must be real, got {tensor.dtype}")
    if tensor.ndim != 2:
        raise BadRowsError(
            f"{name} must have the shape (rows, columns), one row per sample, got "
            f"{tuple(tensor.shape)}"
        )
    return tensor


def _check_rows(x: Tensor, y: Tensor, block: int) -> None:
    _check_block(x.shape[1], block)
    if len(x) != len(y):
        raise BadRowsError(
            f"inputs and outputs must have the same number of rows, got {len(x)} and {len(y)}"
        )
    if len(x) == 0:
        raise BadRowsError("inputs have no rows: pass at least one, preferably a few hundred")
    if y.shape[1] == 0:
        raise BadRowsError("outputs have no columns: pass the outputs of the layer, (rows, M)")


def _check_block(columns: int, block: int) -> None:
    if not isinstance(block, int) or block < 1:
        raise BadRowsError(
            f"block, the number of columns per channel, must be a positive integer, got {block!r}"
        )
    if columns == 0 or columns % block:
        raise BadRowsError(
            f"the number of input columns must be a positive multiple of block={block}, got "
            f"{columns}: block is k*k for a k x k convolution, H*W for a linear layer after a "
            "flatten, and 1 otherwise"
        )


def _chunks(x: Tensor, y: Tensor, device: torch.device | str) -> Iterator[tuple[Tensor, Tensor]]:
    rows = max(1, _CHUNK_BYTES // (8 * (x.shape[1] + 1)))
    for inputs, outputs in zip(x.split(rows), y.split(rows), strict=True):
        z = torch.ones(len(inputs), x.shape[1] + 1, dtype=torch.float64, device=device)
        z[:, 1:] = inputs
        yield z, outputs.to(device, torch.float64)


def _check_finite(x: Tensor, y: Tensor) -> None:
    for name, rows in (("inputs", x), ("outputs", y)):
        bad = (~torch.isfinite(rows)).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise BadRowsError(
                f"{len(bad)} values of the {name} are NaN or infinite, the first in row {row}, "
                f"column {column}: remove these images, or check the layers before this one"
            )
    raise BadRowsError("the sums of squares overflow: scale the rows down")


def _doubles(values: Rows) -> Tensor:
    tensor = torch.as_tensor(values).detach()
    return tensor.to("cpu" if tensor.device.type == "mps" else tensor.device, torch.float64)


def _check_sums(m: Moments) -> None:
    gram, cross = m.gram_sum, m.cross_sum
    if m.count < 1:
        raise BadRowsError(f"count must be a positive integer, got {m.count}")
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise BadRowsError(f"gram_sum must have the shape (n+1, n+1), got {tuple(gram.shape)}")
    _check_block(m.columns, m.block)
    if cross.ndim != 2 or len(cross) != len(gram) or cross.shape[1] == 0:
        raise BadRowsError(
            f"cross_sum must have the shape ({len(gram)}, M), one row for the constant and one per "
            f"column, got {tuple(cross.shape)}"
        )
    if not bool(torch.isfinite(gram).all() & torch.isfinite(cross).all()):
        raise BadRowsError("the sums contain NaN or infinity: collect them again from finite rows")
    if not 0 <= m.target_sum_sq < float("inf"):
        raise BadRowsError(f"target_sum_sq must be finite and not negative, got {m.target_sum_sq}")
    if abs(float(gram[0, 0]) - m.count) > 1e-9 * m.count or float(gram.diagonal().min()) < 0:
        raise BadRowsError(
            "gram_sum is not a sum of z z' with z = (1; x): its corner must equal count and its "
            "diagonal must not be negative"
        )
