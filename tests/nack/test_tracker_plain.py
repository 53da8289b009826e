"""Callbacks that are plain functions: the timer calls them directly."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from pulsar_nack import InvalidArgumentError, MessageId, NackConfig, NegativeAcksTracker, RedeliveryError
from pulsar_nack._wake_up import WakeUp
from pulsar_nack.clock import LoopClock, MonotonicClock
from pulsar_nack.testing import ManualClock, virtual_time
from tests.for_each import for_each

from ._harness import Recorder, loop_ms, mid, settle

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)


class Fatal(BaseException):
    """Not an Exception."""


@virtual_time
async def test_the_timer_calls_it_without_a_turn_in_between() -> None:
    """Callbacks made ready in the deadline's turn run after a plain function, and before a coroutine function."""
    order: list[str] = []

    def plain(_: Sequence[MessageId]) -> None:
        order.append("sent")

    async def coroutine(_: Sequence[MessageId]) -> None:
        order.append("sent")

    for callback in (plain, coroutine):
        async with NegativeAcksTracker(callback, EXACT) as tracker:
            await settle()
            tracker.nack_nowait(mid(1), 1.0)
            asyncio.get_running_loop().call_at(loop_ms() / 1000 + 1.0, order.append, "other")
            await asyncio.sleep(2)
            assert (tracker.statistics().commands, tracker.statistics().wakeups) == (1, 1)
    assert order == ["sent", "other", "other", "sent"]


@virtual_time
async def test_all_that_is_due_is_sent_in_commands_of_bounded_size() -> None:
    """The timer sends the first request, the sending task further ones; the next deadline comes in time."""
    sent: list[tuple[int, int]] = []
    config = EXACT.model_copy(update={"max_batch": 10})
    async with NegativeAcksTracker(lambda ids: sent.append((loop_ms(), len(ids))), config) as tracker:
        began = loop_ms()
        tracker.nack_entries(3, range(35), 1.0)
        tracker.nack_nowait(mid(99), 2.0)
        await asyncio.sleep(3)
        assert tracker.statistics().pending == 0
    assert sent == [(began + 1_000, 10)] * 3 + [(began + 1_000, 5), (began + 2_000, 1)]


@virtual_time
async def test_it_may_nack_and_acknowledge() -> None:
    """A nack in the callback starts a new deadline, even an immediate one."""
    sent: list[tuple[int, MessageId]] = []

    def redeliver(ids: Sequence[MessageId]) -> None:
        sent.extend((loop_ms(), each) for each in ids)
        if len(sent) < 4:
            tracker.nack_nowait(ids[0], 0.0 if len(sent) == 1 else 0.5)
        tracker.ack(mid(7))

    tracker = NegativeAcksTracker(redeliver, EXACT)
    async with tracker:
        began = loop_ms()
        tracker.nack_nowait(mid(7), 1.2)
        tracker.nack_nowait(mid(1), 1.0)
        await asyncio.sleep(5)
        assert tracker.statistics().pending == 0
        assert tracker.statistics().held == 0
    assert sent == [(began + at, mid(1)) for at in (1_000, 1_000, 1_500, 2_000)]


@virtual_time
async def test_each_call_has_its_own_context() -> None:
    """A context variable that one call sets is not visible in the next, as with a task for each."""
    variable = contextvars.ContextVar("variable", default=0)
    seen: list[int] = []

    def redeliver(_: Sequence[MessageId]) -> None:
        seen.append(variable.get())
        variable.set(variable.get() + 1)

    async with NegativeAcksTracker(redeliver, EXACT) as tracker:
        for entry in range(3):
            tracker.nack_nowait(mid(entry), 1.0 + entry)
        await asyncio.sleep(5)
    assert seen == [0, 0, 0]


@virtual_time
async def test_failures_come_again_and_others_meanwhile() -> None:
    """A failed id is retried in a separate request; others keep to their times."""
    sent: list[list[MessageId]] = []
    fails = [OSError("no"), asyncio.CancelledError(), RuntimeError("no")]

    def redeliver(ids: Sequence[MessageId]) -> None:
        sent.append(list(ids))
        if mid(1) in ids and fails:
            raise fails.pop()

    async with NegativeAcksTracker(redeliver, EXACT, random=lambda: 0.5) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        await asyncio.sleep(1)
        tracker.nack_nowait(mid(2), 0.05)
        await asyncio.sleep(5)
        statistics = tracker.statistics()
    assert sent.count([mid(1)]) == 4
    assert sent.index([mid(2)]) == 1
    assert (statistics.failed_commands, statistics.pending, statistics.held) == (3, 0, 0)


@virtual_time
async def test_what_it_returns_is_awaited() -> None:
    """At most max_in_flight awaitables run at once, and their errors are treated like any other."""
    recorder = Recorder(outcomes=[OSError("no")], seconds=1)

    def redeliver(ids: Sequence[MessageId]) -> Awaitable[None]:
        return recorder(ids)

    config = EXACT.model_copy(update={"max_in_flight": 2})
    async with NegativeAcksTracker(redeliver, config) as tracker:
        for entry in range(4):
            tracker.nack_nowait(mid(entry), 1 + entry / 100)
        await asyncio.sleep(10)
        assert tracker.statistics().in_flight == 0
    assert recorder.most_running == 2
    assert sorted(recorder.ids) == sorted([mid(0), *(mid(entry) for entry in range(4))])


@virtual_time
async def test_what_is_no_exception_ends_the_tracker() -> None:
    """The exception is raised by the close; all pending ids are returned."""

    def redeliver(_: Sequence[MessageId]) -> None:
        raise Fatal

    tracker = NegativeAcksTracker(redeliver, EXACT)
    await tracker.__aenter__()
    tracker.nack_nowait(mid(1), 1.0)
    tracker.nack_nowait(mid(2), 100.0)
    await asyncio.sleep(2)
    with pytest.raises(BaseExceptionGroup) as caught:
        await tracker.aclose()
    assert caught.value.subgroup(Fatal) is not None
    with pytest.raises(BaseExceptionGroup):
        await tracker.aclose()


class Unprintable(Exception):  # noqa: N818
    """Cannot be printed."""

    def __repr__(self) -> str:
        raise ValueError("no name")


@pytest.mark.parametrize("error", [RedeliveryError("no", failed=[[1]]), Unprintable()])
@pytest.mark.parametrize("is_plain", [True, False])
@virtual_time
async def test_an_error_that_cannot_be_printed_or_names_no_ids_is_retried(error: Exception, is_plain: bool) -> None:
    """The statistics name its type, and all ids of the call come again."""
    calls: list[list[MessageId]] = []

    def plain(ids: Sequence[MessageId]) -> None:
        calls.append(list(ids))
        if len(calls) == 1:
            raise error

    async def coroutine(ids: Sequence[MessageId]) -> None:
        plain(ids)

    async with NegativeAcksTracker(plain if is_plain else coroutine, EXACT) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        await asyncio.sleep(5)
        assert calls == [[mid(1)], [mid(1)]]
        assert type(error).__name__ in (tracker.statistics().last_error or "")


class UnreadableError(RedeliveryError):
    """Its ids cannot be read."""

    def __getattribute__(self, name: str) -> Any:
        if name == "failed":
            raise ValueError("no ids")
        return super().__getattribute__(name)


@pytest.mark.parametrize("error", [UnreadableError("no", failed=[mid(1)])])
@pytest.mark.parametrize("is_plain", [True, False])
@virtual_time
async def test_what_cannot_be_noted_ends_the_tracker_too(error: Exception, is_plain: bool) -> None:
    """A tracker that cannot continue says so, and returns all ids; it does not hang."""

    def plain(_: Sequence[MessageId]) -> None:
        raise error

    async def coroutine(_: Sequence[MessageId]) -> None:
        raise error

    tracker = NegativeAcksTracker(plain if is_plain else coroutine, EXACT)
    await tracker.__aenter__()
    tracker.nack_nowait(mid(1), 1.0)
    tracker.nack_nowait(mid(2), 1.5)
    await asyncio.sleep(5)
    assert "broken" in repr(tracker)
    with pytest.raises(ExceptionGroup):
        await tracker.aclose()
    assert sorted(tracker._unsent or ()) == [mid(1), mid(2)]


def test_an_interrupt_ends_the_program() -> None:
    """KeyboardInterrupt leaves the loop, as from anywhere else."""

    def redeliver(_: Sequence[MessageId]) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with NegativeAcksTracker(redeliver, EXACT) as tracker:
            tracker.nack_nowait(mid(1), 0.005)
            await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


# -- ahead of time --------------------------------------------------------------------------------------------------


async def test_it_is_called_a_part_of_a_millisecond_ahead() -> None:
    """Some calls come before their time, none by more than configured."""
    early: list[float] = []

    def redeliver(_: Sequence[MessageId]) -> None:
        early.append(due_at_ms - time.monotonic_ns() / 1e6)

    async with NegativeAcksTracker(redeliver, EXACT, lead_time=0.0009) as tracker:
        for entry in range(2_000):
            due_at_ms = time.monotonic_ns() // 1_000_000 + 2
            tracker.nack_nowait(mid(entry), 0.002)
            if time.monotonic_ns() // 1_000_000 + 2 != due_at_ms:
                tracker.clear()  # the next ms came in between
                continue
            while tracker.statistics().pending:
                await asyncio.sleep(0.001)
            if early and early[-1] > 0:
                break
    assert 0 < early[-1] <= 0.9 + 0.001
    assert max(early) == early[-1]


async def test_clocks_of_whole_milliseconds_are_not_ahead() -> None:
    """Such clocks could not say what is due."""
    assert WakeUp(LoopClock(), print, 0.0005).lead_time_ns == 500_000
    assert WakeUp(MonotonicClock(), print, 0.0005).lead_time_ns == 0
    assert WakeUp(ManualClock(), print, 0.0005).lead_time_ns == 0
    async with NegativeAcksTracker(Recorder(), lead_time=0.0005) as tracker:
        assert tracker.lead_time == 0.0005
    sent: list[int] = []
    clock = ManualClock()
    async with NegativeAcksTracker(
        lambda _: sent.append(clock.now_ms()), EXACT, clock=clock, lead_time=0.0005
    ) as tracker:
        await settle()
        assert tracker.lead_time == 0
        due_at = clock.now_ms() + 10
        tracker.nack_nowait(mid(1), 0.01)
        clock.advance(9)
        await settle()
        assert sent == []
        clock.advance(1)
        await settle()
    assert sent == [due_at]


@for_each("lead_time", [-0.1, 0.001, float("nan"), True, "0", None])
def test_bad_times_ahead(lead_time: Any) -> None:
    """An invalid lead time is refused by name, with the value."""
    with pytest.raises(InvalidArgumentError, match="lead_time"):
        NegativeAcksTracker(Recorder(), lead_time=lead_time)
