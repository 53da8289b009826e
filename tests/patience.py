"""Time limits that only end tests that hang: they grow with how slow and how busy the machine is."""

from __future__ import annotations

import functools
import os
import time

_TURNS = 400_000
_REFERENCE_S = 0.03
"""The yardstick's processor time on the machine on which the limits were chosen."""

_MAX_CONTENTION = 3.0
"""By which factor the processor time of the same work grows at most while others use the processors."""

_MARGIN = 4.0
"""By which factor work may take longer than on a quiet machine before it counts as hanging."""


def processor_slowness() -> float:
    """Return how many times slower this processor is now than the one on which limits were chosen; at least 1.

    Other work on a busy machine costs caches and shared cores, which the yardstick hardly notices: it counts up to
    three times.
    """
    return max(1.0, min(load(), _MAX_CONTENTION), _yardstick()[0] / _REFERENCE_S)


def patience(seconds: float) -> float:
    """Return when work that takes up to ``seconds`` on a quiet machine counts as hanging here, in seconds."""
    return seconds * _MARGIN * max(1.0, load(), _slowness())


def load() -> float:
    """Return how many processes want each processor now."""
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 1.0


@functools.cache
def _slowness() -> float:
    """Return how many times longer the yardstick took by the clock, measured at the first call."""
    return _yardstick()[1] / _REFERENCE_S


def _yardstick() -> tuple[float, float]:
    """Return the processor time and the clock time of a fixed piece of work, in seconds."""
    clock, processor = time.perf_counter(), time.process_time()
    total = 0
    for turn in range(_TURNS):
        total += turn & 7
    return time.process_time() - processor, time.perf_counter() - clock
