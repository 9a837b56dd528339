"""Following the channels of a network, and cutting them."""

from entrim.network.proof import Proof
from entrim.network.surgery import Cut, apply_plan, cut
from entrim.network.trace import trace

__all__ = ["Cut", "Proof", "apply_plan", "cut", "trace"]
