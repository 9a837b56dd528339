"""The part of a tensor that stays, and the way back into the whole."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Dims = Mapping[int, Sequence[int]]
"""The positions that stay, for every dimension that shrinks."""


def part_of(tensor: Tensor, dims: Dims) -> Tensor:
    """Return the part of `tensor` that stays."""
    for dim, positions in dims.items():
        tensor = tensor.index_select(dim, torch.tensor(positions, device=tensor.device))
    return tensor


def put_part(tensor: Tensor, dims: Dims, part: Tensor) -> None:
    """Write `part` to the positions of `tensor` that stay."""
    where = [
        torch.tensor(dims.get(dim, range(size)), device=tensor.device)
        for dim, size in enumerate(tensor.shape)
    ]
    tensor[torch.meshgrid(*where, indexing="ij") if where else ...] = part.to(tensor)


def zero_gone(tensor: Tensor, dim: int, dims: Dims) -> None:
    """Set the positions along `dim` that do not stay to zero."""
    stay = dims.get(dim, range(tensor.shape[dim]))
    gone = sorted(set(range(tensor.shape[dim])).difference(stay))
    tensor.index_fill_(dim, torch.tensor(gone, device=tensor.device).long(), 0)
