"""The operator of torchvision that ultralytics calls, where its compiled part is missing."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

LIBRARY = "torchvision"
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _suppress(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of boxes that overlap with no box of a higher score."""
    kept, order = [], scores.argsort(descending=True)
    area = (dets[:, 2:] - dets[:, :2]).prod(1)
    while len(order):
        best, order = order[0], order[1:]
        kept.append(int(best))
        low = torch.maximum(dets[order, :2], dets[best, :2])
        high = torch.minimum(dets[order, 2:], dets[best, 2:])
        common = (high - low).clamp(min=0).prod(1)
        order = order[common <= iou_threshold * (area[order] + area[best] - common)]
    return torch.tensor(kept, dtype=torch.long)


def define_missing_operators() -> None:
    """Define `torchvision::nms` in Python if torchvision was built for another PyTorch."""
    if find_spec(LIBRARY) is None:
        return
    try:
        import_module(LIBRARY)
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", SCHEMA)
        torch.library.impl("torchvision::nms", "CPU", _suppress)
        import_module(LIBRARY)  # without its other operators
        extension: Any = import_module(f"{LIBRARY}.extension")
        extension._has_ops = lambda: True
