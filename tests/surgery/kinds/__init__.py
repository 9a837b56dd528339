"""One small network for every kind of layer and of connection between channels."""

from tests.surgery.kinds import attention, code, layers, meetings, norms
from tests.surgery.kinds.kind import KINDS, Kind, Net, conv, shaken, shuffle

__all__ = [
    "KINDS",
    "Kind",
    "Net",
    "attention",
    "code",
    "conv",
    "layers",
    "meetings",
    "norms",
    "shaken",
    "shuffle",
]
