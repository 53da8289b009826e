"""What the collectors share: figures are read in the event loops of their objects, for scrapes in other threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar
from weakref import ref

from ..errors import MissingExtraError

T = TypeVar("T")
_TIMEOUT_S: Final = 1.0


class Watched(Generic[T]):
    """Figures that are read in the loop in which they were added; without a loop, in the thread that asks.

    :param source: the object whose figures they are, or a reference to it
    """

    def __init__(self, source: object, read: Callable[[], T]) -> None:
        self.source = source
        self.loop = running_loop()
        self.value = read()
        self._read = read

    def measure(self) -> None:
        """Read the figures, and keep them for the thread that asked."""
        self.value = self._read()


def prometheus() -> Any:
    """Return the module ``prometheus_client.core``.

    :raises MissingExtraError: prometheus-client is not installed
    """
    try:
        from prometheus_client import core
    except ImportError as error:
        raise MissingExtraError("the export of metrics", "prometheus-client>=0.20", "metrics") from error
    return core


def namespace_of(full_topic_name: str) -> str:
    """Return the namespace of a topic: two parts, or three in old names with a cluster."""
    parts = full_topic_name.partition("://")[2].split("/", 3)
    return "/".join(parts[:-1])


def running_loop() -> ref[asyncio.AbstractEventLoop] | None:
    """Return the event loop of this thread; None without one."""
    try:
        return ref(asyncio.get_running_loop())
    except RuntimeError:
        return None


def measure_all(measured: Iterable[Watched[Any]]) -> None:
    """Read all, each in its loop if that runs in another thread; one that does not answer for a second is left out."""
    elsewhere: dict[asyncio.AbstractEventLoop, list[Watched[Any]]] = {}
    here = running_loop()
    for each in measured:
        loop = None if each.loop is None or each.loop == here else each.loop()
        if loop is not None and loop.is_running():
            elsewhere.setdefault(loop, []).append(each)
        else:
            each.measure()
    for loop, some in elsewhere.items():
        _measure_in(loop, some)


def _measure_in(loop: asyncio.AbstractEventLoop, some: list[Watched[Any]]) -> None:
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
