"""Timing of code: the work of this thread, the best of several rounds."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

thread_ns = time.thread_time_ns
"""Return the processor time of this thread in ns, without time in which other threads ran."""


def best(measure: Callable[[], float], rounds: int = 5) -> float:
    """Return the smallest of several measurements, which the rest of the machine disturbed least."""
    found = math.inf
    for _ in range(rounds):
        gc.collect()
        with no_collector():
            found = min(found, measure())
    return found


@contextmanager
def no_collector() -> Iterator[None]:
    """Disable the garbage collector, which would traverse the benchmark's own million objects repeatedly."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
