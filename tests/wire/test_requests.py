"""The table of requests: one timer, for the earliest, and no more memory than open requests need."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from pulsar_nack.errors import ConnectionLostError, RequestTimeoutError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._connection._requests import PendingRequests, set_response
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb

Response = asyncio.Future[pb.BaseCommand]
DONE = pb.BaseCommand(type=pb.BaseCommand.SUCCESS)


def table(timeout: float = 10) -> PendingRequests:
    """Return an empty table in the running loop."""
    return PendingRequests(asyncio.get_running_loop(), timeout, "pulsar://b:1")


def begin(requests: PendingRequests, what: str, timeout: float | None = None) -> tuple[int, Response]:
    """Begin a request; return its id, and a future for the response."""
    response: Response = asyncio.get_running_loop().create_future()
    return requests.begin(what, partial(set_response, response), timeout), response


@virtual_time
async def test_each_has_its_own_time() -> None:
    """Each request times out exactly at its own time, whatever the order in which they were made."""
    requests, loop = table(), asyncio.get_running_loop()
    ended: dict[str, float] = {}

    async def wait(name: str, timeout: float | None) -> None:
        with pytest.raises(RequestTimeoutError, match=rf"pulsar://b:1: no answer to {name} within"):
            await begin(requests, name, timeout)[1]
        ended[name] = loop.time()

    await asyncio.gather(wait("usual", None), wait("short", 2), wait("long", 15), wait("shortest", 1))
    assert ended == {"shortest": 1, "short": 2, "usual": 10, "long": 15}
    assert len(requests) == 0


@virtual_time
async def test_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one timer for any number of requests, and none when all are answered or failed."""
    requests, loop = table(), asyncio.get_running_loop()
    timers: list[float] = []
    call_at = loop.call_at

    def count(when: float, *args: Any, **more: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *args, **more)

    monkeypatch.setattr(loop, "call_at", count)
    waiting = [begin(requests, "PING") for _ in range(1_000)]
    assert timers == [10]
    for number, _ in waiting[:-1]:
        requests.resolve(number, DONE)
    requests.fail_all(ConnectionLostError("over"))
    with pytest.raises(ConnectionLostError, match="over"):
        await waiting[-1][1]
    await asyncio.sleep(100)
    assert len([when for when in timers if when == 10]) == 1


@virtual_time
async def test_memory_is_that_of_what_waits() -> None:
    """Deadlines of answered requests are dropped when they are the greater part."""
    requests = table()
    for _ in range(10_000):
        requests.resolve(begin(requests, "ACK")[0], DONE)
    assert len(requests) == 0
    assert len(requests._deadlines) < 100


@virtual_time
async def test_answers_that_nobody_waits_for() -> None:
    """Answers and failures of forgotten, cancelled or unknown requests are dropped."""
    requests = table()
    (_, cancelled), (_, forgotten) = begin(requests, "a"), begin(requests, "b")
    cancelled.cancel()
    requests.discard(2)
    for number in (1, 2, 3):
        requests.resolve(number, DONE)
        requests.fail(number, ConnectionLostError("x"))
    await asyncio.sleep(20)
    assert not forgotten.done()
    assert len(requests) == 0


@virtual_time
async def test_what_raises_keeps_nothing_from_the_others() -> None:
    """A callback that raises is reported to the loop; all other callbacks get their outcomes."""
    requests = table()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(_: pb.BaseCommand | None, error: Exception | None) -> None:
        raise RuntimeError("a fault") from error

    requests.begin("ACK", fail, 1)
    _, other = begin(requests, "PING", 2)
    with pytest.raises(RequestTimeoutError):
        await other
    requests.resolve(requests.begin("ACK", fail), DONE)
    requests.begin("ACK", fail)
    _, last = begin(requests, "PING")
    requests.fail_all(ConnectionLostError("x"))
    with pytest.raises(ConnectionLostError):
        await last
    assert [str(each["exception"]) for each in reported] == ["a fault"] * 3
