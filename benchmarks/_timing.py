"""Times of code: of this thread's own work, the best of several rounds."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

thread_ns = time.thread_time_ns
"""What the thread has worked, in ns: time in which others had the processor is left out."""


def best(measure: Callable[[], float], rounds: int = 5) -> float:
    """Return the smallest of several measurements: the one that the rest of the machine disturbed least."""
    found = math.inf
    for _ in range(rounds):
        gc.collect()
        with no_collector():
            found = min(found, measure())
    return found


@contextmanager
def no_collector() -> Iterator[None]:
    """Keep the garbage collector out: it would look through the benchmark's own million objects again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
