"""Following the channels of a network, cutting them, and what that saves."""

from entrim.network.measure import Latency, Measurement, measure
from entrim.network.proof import Proof
from entrim.network.surgery import Cut, apply_plan, cut
from entrim.network.trace import trace

__all__ = [
    "Cut",
    "Latency",
    "Measurement",
    "Proof",
    "apply_plan",
    "cut",
    "measure",
    "trace",
]
