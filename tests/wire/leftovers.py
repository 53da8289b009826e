"""What a native client may leave behind: tasks, timers, entries of tables, consumers and producers at the broker."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pulsar_nack.wire import Client
from tests.wire.fake_broker import FakeBroker


def timers() -> list[asyncio.TimerHandle]:
    """Return the timers that are set in the running loop."""
    loop: Any = asyncio.get_running_loop()
    return [timer for timer in loop._scheduled if not timer.cancelled()]


def check_idle(client: Client, broker: FakeBroker, *, connections: int = 1) -> None:
    """Assert that a client holds only connections when all its consumers and producers are closed."""
    assert client._context is not None
    pool = client._context.pool
    assert not pool._opening
    assert len(pool.connections()) <= connections
    for connection in pool.connections():
        assert not connection.consumers
        assert not connection.producers
        assert len(connection._requests) == 0
        assert len(connection._requests._deadlines) <= 65
        assert not connection._handshake._tasks
    for link in broker.links:
        assert not link.consumers
        assert not link.producers
    if list(client._open):
        gc.collect()
    assert not list(client._open)


@contextmanager
def nothing_left() -> Iterator[None]:
    """Assert that tasks and timers are the same as before, and that the loop reported nothing."""
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    tasks, set_before = asyncio.all_tasks(), len(timers())
    try:
        yield
    finally:
        loop.set_exception_handler(None)
    assert reported == []
    assert asyncio.all_tasks() == tasks
    assert len(timers()) <= set_before
