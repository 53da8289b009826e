"""Reads figures of objects in their event loops, for scrapes that run in other threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, Protocol
from weakref import ref

_TIMEOUT_S: Final = 1.0


class Measured(Protocol):
    """Something that is read in a loop; without a loop it is read in the thread that asks."""

    loop: ref[asyncio.AbstractEventLoop] | None

    def measure(self) -> None:
        """Read the figures, and keep them for the thread that asked."""
        ...


def running_loop() -> ref[asyncio.AbstractEventLoop] | None:
    """Return the loop that runs in this thread."""
    try:
        return ref(asyncio.get_running_loop())
    except RuntimeError:
        return None


def measure_all(measured: Iterable[Measured]) -> None:
    """Read all, each in its loop if that runs in another thread; one that does not answer for a second is left out."""
    elsewhere: dict[asyncio.AbstractEventLoop, list[Measured]] = {}
    here = running_loop()
    for each in measured:
        loop = None if each.loop is None or each.loop == here else each.loop()
        if loop is not None and loop.is_running():
            elsewhere.setdefault(loop, []).append(each)
        else:
            each.measure()
    for loop, some in elsewhere.items():
        _measure_in(loop, some)


def _measure_in(loop: asyncio.AbstractEventLoop, some: list[Measured]) -> None:
    done: Future[None] = Future()

    def measure() -> None:
        try:
            for each in some:
                each.measure()
        finally:
            done.set_result(None)

    with suppress(RuntimeError, TimeoutError):  # the loop was just closed, or is busy: the last figures stay
        loop.call_soon_threadsafe(measure)
        done.result(_TIMEOUT_S)
