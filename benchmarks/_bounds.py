"""The smallest possible number of bytes per id: the entropy of the streams."""

from __future__ import annotations

import math
from collections.abc import Iterable


def entropy_bytes(share: float) -> float:
    """Return the entropy, in bytes per id, of a random share of a range."""
    return -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) / share / 8


def choice_bytes(chances: Iterable[float]) -> float:
    """Return the entropy, in bytes, of a choice with these probabilities."""
    return -sum(chance * math.log2(chance) for chance in chances if chance > 0) / 8


def late_bytes(by_ms: int, width_ms: int) -> float:
    """Return the entropy, in bytes, of the bucket of an id whose nack came up to ``by_ms`` late."""
    total = 0.0
    for place in range(width_ms):
        shares = [
            max(min(edge + width_ms, place + by_ms) - max(edge, place), 0) / by_ms
            for edge in range(0, place + by_ms, width_ms)
        ]
        total += choice_bytes(shares)
    return total / width_ms
