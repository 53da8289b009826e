"""Calls that wait in line: the contract of all limiters and queues that use it."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pulsar_nack import ClosedError
from pulsar_nack._waiting import WaitingCalls
from pulsar_nack.testing import virtual_time


class Line:
    """A line whose calls note the values that woke them."""

    def __init__(self) -> None:
        self.calls = WaitingCalls[str]()
        self.woken: list[tuple[int, str]] = []
        self.passed_on: list[str] = []

    async def wait(self, number: int, size: int = 1) -> None:
        """Wait in line."""
        self.woken.append((number, await self.calls.wait(self.passed_on.append, size)))

    async def start(self, *sizes: int) -> list[asyncio.Task[None]]:
        """Start one waiting call for each size."""
        tasks = [asyncio.create_task(self.wait(number, size)) for number, size in enumerate(sizes)]
        await asyncio.sleep(0)
        return tasks


@virtual_time
async def test_calls_are_woken_in_their_order() -> None:
    """The first in line is woken first, each gets its value, and a woken call no longer waits."""
    line = Line()
    tasks = await line.start(1, 1, 1)
    assert line.calls.wake_first("a")
    assert len(line.calls) == 2
    line.calls.wake_all("b")
    assert not line.calls
    assert not line.calls.wake_first("c")
    await asyncio.gather(*tasks)
    assert line.woken == [(0, "a"), (1, "b"), (2, "b")]
    assert line.passed_on == []


@virtual_time
async def test_a_cancelled_call_leaves_the_line() -> None:
    """A cancelled call, whether it has noticed or not, is neither woken nor first, and its value goes to the next."""
    line = Line()
    tasks = await line.start(5, 6, 7, 8)
    tasks[0].cancel()
    assert line.calls.first_size() == 6
    tasks[1].cancel()
    await asyncio.sleep(0)
    assert len(line.calls) == 2
    tasks[2].cancel()
    assert line.calls.wake_first("a")
    assert line.calls.first_size() is None
    await asyncio.gather(*tasks, return_exceptions=True)
    assert line.woken == [(3, "a")]
    assert line.passed_on == []


@virtual_time
async def test_a_value_is_passed_on_by_a_call_that_is_cancelled_after_it_was_woken() -> None:
    """No value is lost between the wake-up and the call; an error is not passed on."""
    line = Line()
    tasks = await line.start(1, 1)
    line.calls.wake_first("a")
    tasks[0].cancel()
    line.calls.fail_all(ClosedError("the line"))
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() for task in tasks)
    assert line.passed_on == ["a"]
    assert not line.calls


@virtual_time
async def test_all_calls_fail() -> None:
    """An error is raised in each call, and later calls wait again."""
    line = Line()
    tasks = await line.start(1, 1)
    line.calls.fail_all(ClosedError("the line"))
    for task in tasks:
        with pytest.raises(ClosedError, match="the line"):
            await task
    later = await line.start(1)
    assert line.calls.first_size() == 1
    line.calls.wake_all("a")
    await asyncio.gather(*later)


@virtual_time
async def test_nothing_is_lost_at_random() -> None:
    """Of calls that come, are cancelled and are woken at random, each value reaches one call or is passed on."""
    random = Random(18)
    line = Line()
    tasks: list[asyncio.Task[None]] = []
    given = 0
    for number in range(2_000):
        choice = random.randrange(4)
        if choice == 0:
            given += line.calls.wake_first("a")
        elif choice == 1 and tasks:
            random.choice(tasks).cancel()
        elif choice == 2:
            await asyncio.sleep(0)
        else:
            tasks.append(asyncio.create_task(line.wait(number)))
    await asyncio.sleep(0)
    given += len(line.calls)
    line.calls.wake_all("a")
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(line.woken) + len(line.passed_on) == given > 100
    assert [number for number, _ in line.woken] == sorted(number for number, _ in line.woken)
    assert not line.calls
