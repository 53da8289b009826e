"""Time limits that only end what hangs: they grow with how slow and how busy the machine is."""

from __future__ import annotations

import functools
import os
import time

_TURNS = 400_000
_REFERENCE_S = 0.03
"""Processor time of the yardstick on the machine on which the limits were chosen."""

_MOST_CONTENTION = 3.0

_MARGIN = 4.0
"""How much longer than on a quiet machine anything may take before it counts as hanging."""


def processor_slowness() -> float:
    """Return how many times the processor time of the machine where limits were chosen work takes now; at least 1.

    Others on a busy machine cost caches and halves of cores, which the yardstick hardly feels: up to three times.
    """
    return max(1.0, min(_load(), _MOST_CONTENTION), _yardstick()[0] / _REFERENCE_S)


def patience(seconds: float) -> float:
    """Return how long to wait for what takes at most ``seconds`` on a quiet machine, before it counts as hanging."""
    return seconds * _MARGIN * max(1.0, _load(), _slowness())


def _load() -> float:
    """Return how many processes want each processor."""
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 1.0


@functools.cache
def _slowness() -> float:
    """Return how many times longer work took by the clock when this was first asked."""
    return _yardstick()[1] / _REFERENCE_S


def _yardstick() -> tuple[float, float]:
    """Return the processor time and the time by the clock of a fixed piece of work, in seconds."""
    clock, processor = time.perf_counter(), time.process_time()
    total = 0
    for turn in range(_TURNS):
        total += turn & 7
    return time.process_time() - processor, time.perf_counter() - clock
