"""The virtual loop and the manual clock."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import Mock

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from pulsar_nack import InvalidArgumentError
from pulsar_nack.errors import VirtualDeadlockError
from pulsar_nack.testing import ManualClock, VirtualClockEventLoop, hold_time, run, virtual_time
from tests.for_each import for_each
from tests.processes import run_python


def loop_time() -> float:
    """Return the running loop's time."""
    return asyncio.get_running_loop().time()


@virtual_time
async def test_time_starts_at_zero_and_jumps_to_each_timer_exactly() -> None:
    """Sleeping takes exactly as many virtual seconds as asked, and hardly any real ones."""
    started = time.monotonic()
    assert loop_time() == 0
    await asyncio.sleep(0.3)
    assert loop_time() == 0.3
    await anyio.sleep(86_400 * 365)
    assert loop_time() == 0.3 + 86_400 * 365
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("start", [0.0, 1e6, 3.2e9, 2.0**40])
def test_timers_are_met_however_late_it_is(start: float) -> None:
    """A timer one unit of the float's resolution ahead fires exactly, at time 0 and after centuries."""

    async def main() -> float:
        await asyncio.sleep(start)
        await asyncio.sleep(1e-3)
        return loop_time()

    assert run(main()) == pytest.approx(start + 1e-3, abs=1e-3)


@virtual_time
async def test_timers_run_in_the_order_of_their_times() -> None:
    """Tasks that sleep for different times interleave by virtual time."""
    seen: list[tuple[float, str]] = []

    async def tick(name: str, period: float, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(period)
            seen.append((loop_time(), name))

    async with anyio.create_task_group() as group:
        group.start_soon(tick, "a", 2, 3)
        group.start_soon(tick, "b", 3.5, 2)
    assert seen == [(2, "a"), (3.5, "b"), (4, "a"), (6, "a"), (7, "b")]


@virtual_time
async def test_a_cancelled_timer_is_not_jumped_to() -> None:
    """A timeout that was not needed leaves no trace in time."""
    async with asyncio.timeout(1000):
        await asyncio.sleep(1)
    with anyio.move_on_after(500):
        await asyncio.sleep(1)
    await asyncio.sleep(1)
    assert loop_time() == 3


@virtual_time
async def test_timeouts_fire() -> None:
    """A wait that never ends is ended by its timeout at the exact time."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5):
            await asyncio.Event().wait()
    assert loop_time() == 2.5


def test_an_endless_wait_is_an_error_that_names_the_task() -> None:
    """When nothing is scheduled and nothing runs, the loop raises an error that lists the waiting tasks."""

    async def main() -> None:
        await asyncio.sleep(2)
        await asyncio.Event().wait()

    with pytest.raises(VirtualDeadlockError, match=r"virtual second 2: nothing is scheduled(.|\n)*main") as caught:
        run(main())
    assert len(caught.value.waiting) == 1


@pytest.mark.timeout(10)
@for_each("endless", [anyio.sleep_forever, lambda: asyncio.wait_for(asyncio.Event().wait(), math.inf)])
def test_a_sleep_without_an_end_is_endless_too(endless: Callable[[], Awaitable[object]]) -> None:
    """Other timers fire first; then nothing would ever wake the task."""

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(3600))
            await endless()

    with pytest.raises(VirtualDeadlockError, match="virtual second 3600: nothing is scheduled"):
        run(main())


@virtual_time
async def test_threads_are_waited_for_really() -> None:
    """Time stands still while a thread works, with anyio, asyncio and the executor."""
    ticks = asyncio.get_running_loop().call_later(0.001, lambda: None)

    def work(name: str) -> str:
        time.sleep(0.02)
        return name

    assert await anyio.to_thread.run_sync(work, "anyio") == "anyio"
    assert await asyncio.to_thread(work, "asyncio") == "asyncio"
    limiter = anyio.CapacityLimiter(1)
    assert await anyio.to_thread.run_sync(lambda: 3, limiter=limiter) == 3
    assert loop_time() == 0
    assert not ticks.cancelled()
    await asyncio.sleep(0.001)
    assert loop_time() == 0.001


def test_threads_end_in_the_same_order_in_each_run() -> None:
    """Several threads interleave with the loop in the same way in each run, however fast they are."""

    async def main(pause: float) -> list[str]:
        seen: list[str] = []

        async def work(name: str) -> None:
            for turn in range(4):
                await asyncio.to_thread(time.sleep, pause * (turn + len(name)))
                seen.append(name)

        async def tick() -> None:
            for _ in range(40):
                await asyncio.sleep(0)
                seen.append(".")

        await asyncio.gather(work("a"), work("bb"), work("cccc"), tick())
        return seen

    assert run(main(0)) == run(main(0.002)) == run(main(0))


@virtual_time
async def test_a_thread_may_call_back_into_the_loop() -> None:
    """``from_thread`` works while the loop waits for its thread."""
    seen: list[float] = []

    def work() -> str:
        anyio.from_thread.run_sync(lambda: seen.append(loop_time()))
        return "done"

    assert await anyio.to_thread.run_sync(work) == "done"
    assert seen == [0]


@virtual_time
async def test_hold_time_waits_for_your_own_thread() -> None:
    """Inside the block a timer does not fire while the loop waits for ``call_soon_threadsafe``."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    thread = threading.Timer(0.02, lambda: loop.call_soon_threadsafe(done.set))
    with hold_time():
        thread.start()
        async with asyncio.timeout(0.001):
            await done.wait()
    thread.join()
    assert loop_time() == 0


def test_hold_time_on_a_real_loop_does_nothing() -> None:
    """Code that holds time runs on any loop."""

    async def main() -> int:
        with hold_time():
            return 7

    assert asyncio.run(main()) == 7


def test_a_real_wait_is_bounded_by_patience() -> None:
    """If time is held for ever, the loop gives up and says what it waited for."""

    async def main() -> None:
        with hold_time():
            await asyncio.sleep(1)

    with pytest.raises(VirtualDeadlockError, match=r"work outside of the loop did not end within 0\.02 real seconds"):
        run(main(), patience=0.02)


@virtual_time
async def test_sockets_work_while_time_is_held() -> None:
    """Streams over a real socket pair run under the loop, and time stands still."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    other_reader, other_writer = await asyncio.open_connection(sock=theirs)
    with hold_time():
        writer.write(b"ping\n")
        assert await other_reader.readline() == b"ping\n"
        other_writer.write(b"pong\n")
        assert await asyncio.wait_for(reader.readline(), 1) == b"pong\n"
    for one in (writer, other_writer):
        one.close()
        await one.wait_closed()
    assert loop_time() == 0


def test_silent_sockets_are_waited_for_with_patience() -> None:
    """With a socket open and no timer the loop really waits, then gives up."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            await reader.readline()
        finally:
            writer.close()
            theirs.close()

    with pytest.raises(VirtualDeadlockError, match=r"open sockets within 0\.02"):
        run(main(), patience=0.02)


@virtual_time
async def test_advance_is_a_blocking_call() -> None:
    """Time that passes in a blocking call makes the timers late, as on a real loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockEventLoop)
    fired: list[float] = []
    loop.call_later(1, lambda: fired.append(loop.time()))
    loop.advance(5)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fired == [5]
    for bad in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidArgumentError, match="seconds"):
            loop.advance(bad)


@pytest.mark.slow
def test_the_recipe_for_pytest_asyncio(tmp_path: Path) -> None:
    """The loop is a loop factory for pytest-asyncio, for tests with async fixtures."""
    (tmp_path / "conftest.py").write_text(
        "from pulsar_nack.testing import VirtualClockEventLoop\n"
        "def pytest_asyncio_loop_factories(config, item):\n"
        "    return {'virtual': VirtualClockEventLoop}\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import asyncio, pytest_asyncio\n"
        "@pytest_asyncio.fixture\n"
        "async def hour():\n"
        "    await asyncio.sleep(3600)\n"
        "async def test_time(hour):\n"
        "    assert asyncio.get_running_loop().time() == 3600\n"
    )
    options = ["-q", "-c", "/dev/null", "--rootdir", str(tmp_path), "-o", "asyncio_mode=auto"]
    options += ["-o", "asyncio_default_fixture_loop_scope=function", str(tmp_path)]
    done = run_python("-m", "pytest", *options)
    if "unknown hook 'pytest_asyncio_loop_factories'" in done.stdout + done.stderr:
        pytest.skip("this pytest-asyncio has no loop factories")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_manual_clock_moves_forward_only() -> None:
    """Time stands still until it is moved, and never goes back."""
    clock = ManualClock(5)
    assert hasattr(clock, "call_at")
    assert clock.now_ms() == 5
    clock.advance(10)
    clock.set(15)
    assert clock.now_ms() == 15
    with pytest.raises(InvalidArgumentError, match="ms: expected at least the present time"):
        clock.set(14)
    with pytest.raises(InvalidArgumentError, match="at least 0"):
        clock.advance(-1)
    with pytest.raises(InvalidArgumentError, match="as an int"):
        clock.advance(1.5)  # type: ignore[arg-type]
    assert clock.now_ms() == 15


def test_manual_clock_halts_at_every_alarm() -> None:
    """Alarms run in order at their own times, also those set on the way and those of one time."""
    clock = ManualClock()
    seen: list[tuple[str, int]] = []

    def note(name: str) -> None:
        seen.append((name, clock.now_ms()))

    def first() -> None:
        note("first")
        clock.call_at(25, lambda: note("added"))
        clock.call_at(5, lambda: note("past"))

    clock.call_at(30, lambda: note("last"))
    clock.call_at(10, first)
    clock.call_at(10, lambda: note("second"))
    cancel = clock.call_at(20, lambda: note("cancelled"))
    cancel()
    cancel()
    clock.call_at(31, lambda: note("later"))
    clock.set(30)
    assert seen == [("first", 10), ("second", 10), ("past", 10), ("added", 25), ("last", 30)]
    assert clock.alarms == 1
    assert clock.now_ms() == 30


def test_manual_clock_meets_past_alarms_at_the_next_move() -> None:
    """An alarm for the present waits for a move, ``advance(0)`` included."""
    clock = ManualClock(100)
    seen: list[int] = []
    clock.call_at(100, lambda: seen.append(clock.now_ms()))
    assert not seen
    clock.advance(0)
    assert seen == [100]


def test_manual_clock_passes_errors_on_and_keeps_the_other_alarms() -> None:
    """A callback's error ends the move at its time; the remaining alarms run at later moves."""
    clock = ManualClock()
    seen: list[int] = []

    def fail() -> None:
        raise RuntimeError("boom")

    clock.call_at(10, fail)
    clock.call_at(20, lambda: seen.append(clock.now_ms()))
    with pytest.raises(RuntimeError, match="boom"):
        clock.advance(50)
    assert clock.now_ms() == 10
    clock.advance(50)
    assert seen == [20]


def test_manual_clock_forgets_cancelled_alarms() -> None:
    """Objects that only a cancelled alarm refers to are freed at once, and its place is used again."""
    clock = ManualClock()
    later = [clock.call_at(1_000, lambda: None) for _ in range(3)]
    for _ in range(10_000):
        callback = Mock()
        kept = weakref.ref(callback)
        clock.call_at(500, callback)()
        del callback
        assert kept() is None
    assert clock.alarms == len(later)
    assert len(clock._alarms) < 100


def test_a_plain_function_has_no_virtual_time() -> None:
    """Decorating it is refused by name, before any of it runs."""

    def plain() -> None:
        raise AssertionError

    with pytest.raises(InvalidArgumentError, match="a coroutine function"):
        virtual_time(plain)  # type: ignore[arg-type]
