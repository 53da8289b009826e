"""How few bytes an id can take at all: the entropy of the streams."""

from __future__ import annotations

import math
from collections.abc import Iterable


def entropy_bytes(share: float) -> float:
    """Return the fewest bytes per id that can tell which random share of a range is a member."""
    return -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) / share / 8


def choice_bytes(chances: Iterable[float]) -> float:
    """Return the fewest bytes that can tell which of several things with these chances happened."""
    return -sum(chance * math.log2(chance) for chance in chances if chance > 0) / 8


def late_bytes(by_ms: int, width_ms: int) -> float:
    """Return the fewest bytes that can tell in which bucket an id is whose nack came up to ``by_ms`` late."""
    total = 0.0
    for place in range(width_ms):
        shares = [
            max(min(edge + width_ms, place + by_ms) - max(edge, place), 0) / by_ms
            for edge in range(0, place + by_ms, width_ms)
        ]
        total += choice_bytes(shares)
    return total / width_ms
