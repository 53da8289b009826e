"""How a tracker begins and ends: case N15, the end of N17, cancellation and abuse."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import anyio
import pytest

from pulsar_nack import ClosedError, MessageId, NackConfig, NegativeAcksTracker
from pulsar_nack.errors import NotOpenError
from pulsar_nack.nack import Closed, NackEvent
from pulsar_nack.testing import run, virtual_time
from tests.nack._harness import Recorder, RecordingClock, loop_ms, mid, settle

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)


def other_tasks() -> set[asyncio.Task[object]]:
    """Return all tasks except the present one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


def ways_to_nack(tracker: NegativeAcksTracker) -> list[Callable[[], None]]:
    """Return every synchronous call that adds an id."""
    return [
        partial(tracker.nack_nowait, mid(2), 1.0),
        partial(tracker.nack_many, [mid(2)], 1.0),
        partial(tracker.nack_entries, 3, [2], 1.0),
    ]


@virtual_time
async def test_close_returns_what_was_pending() -> None:
    """N15: nack, close, let time pass: nothing is sent, no timer or task is left, the ids are returned."""
    clock = RecordingClock()
    recorder = Recorder(clock.now_ms)
    events: list[NackEvent] = []
    async with NegativeAcksTracker(recorder, clock=clock, hooks=[events.append]) as tracker:
        tracker.nack_many([mid(1), mid(2)], 1.0)
        tracker.nack_nowait(mid(3), 2.0)
        left = await tracker.aclose()
        assert sorted(left) == [mid(1), mid(2), mid(3)]
        assert clock.alarms == 0
        assert not other_tasks()
        clock.set(100_000)
        await settle()
        assert await tracker.aclose() == left
    assert not recorder.commands
    assert events[-1] == Closed(3, 0)
    assert [type(event) for event in events].count(Closed) == 1


@virtual_time
async def test_nack_after_close_is_refused() -> None:
    """N15: every nacking call raises the closed error; the other calls do nothing."""
    async with NegativeAcksTracker(Recorder()) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
    for call in ways_to_nack(tracker):
        with pytest.raises(ClosedError, match="NegativeAcksTracker is closed"):
            call()
    with pytest.raises(ClosedError):
        await tracker.nack(mid(2), 1.0)
    with pytest.raises(ClosedError):
        await tracker.__aenter__()
    assert tracker.clear() == 0
    assert not tracker.ack(mid(1))
    assert tracker.statistics().pending == 0


@virtual_time
async def test_it_has_to_be_entered() -> None:
    """Outside of ``async with`` a nack says so; closing a tracker that was never entered is fine."""
    tracker = NegativeAcksTracker(Recorder())
    for call in ways_to_nack(tracker):
        with pytest.raises(NotOpenError, match="use it inside 'async with'"):
            call()
    with pytest.raises(NotOpenError):
        await tracker.nack(mid(2), 1.0)
    assert tracker.statistics().pending == 0
    assert not await tracker.aclose()
    with pytest.raises(ClosedError):
        await tracker.__aenter__()


@virtual_time
async def test_close_waits_for_callbacks() -> None:
    """N17: a callback that ends within ``close_timeout`` is waited for, and its ids are not returned."""
    recorder = Recorder(seconds=3)
    async with NegativeAcksTracker(recorder, EXACT) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        tracker.nack_nowait(mid(2), 2.0)
        await asyncio.sleep(1.5)
        assert list(await tracker.aclose()) == [mid(2)]
        assert loop_ms() == 4000
    assert tracker.statistics().sent == 1


@virtual_time
async def test_close_cancels_callbacks_in_the_end() -> None:
    """N17: after ``close_timeout`` callbacks are cancelled, and their ids returned, except acked ones."""
    config = NackConfig(negative_ack_precision_bit_cnt=0, close_timeout=2, max_batch=2, max_in_flight=2)
    recorder = Recorder(seconds=1000)
    async with NegativeAcksTracker(recorder, config) as tracker:
        tracker.nack_many([mid(entry) for entry in range(5)], 1.0)
        await asyncio.sleep(1.5)
        assert tracker.statistics().in_flight == 4
        acked = recorder.ids[1]
        tracker.ack(acked)
        left = await tracker.aclose()
        assert loop_ms() == 3500
        assert sorted(left) == [mid(entry) for entry in range(5) if mid(entry) != acked]
        assert recorder.running == 0
        assert not other_tasks()


@virtual_time
async def test_what_fails_while_closing_comes_back() -> None:
    """N16, N17: ids whose callback fails during the close, and those that wait for a retry, are returned."""
    recorder = Recorder(outcomes=[OSError("no")])

    async def redeliver(ids: Sequence[MessageId]) -> None:
        await recorder(ids)
        await asyncio.sleep(1)
        raise OSError("late")

    async with NegativeAcksTracker(redeliver, EXACT) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        tracker.nack_nowait(mid(2), 1.02)
        tracker.nack_nowait(mid(3), 9.0)
        await asyncio.sleep(1.03)
        assert tracker.statistics().retrying == tracker.statistics().in_flight == 1
        assert sorted(await tracker.aclose()) == [mid(1), mid(2), mid(3)]
        assert loop_ms() == 2020


@virtual_time
async def test_leaving_by_an_error_closes() -> None:
    """An error in the block closes the tracker, leaves no task, and is raised to the caller."""
    recorder = Recorder(seconds=1)

    async def fail() -> None:
        async with NegativeAcksTracker(recorder, EXACT) as tracker:
            tracker.nack_nowait(mid(1), 1.0)
            await asyncio.sleep(1.5)
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert loop_ms() == 2000
    assert not other_tasks()
    assert recorder.ids == [mid(1)]


@virtual_time
async def test_leaving_by_cancellation_closes() -> None:
    """Cancelled inside the block, by a task or by a scope, the tracker is closed and leaves no task."""
    for seconds, took in ((2, 1500), (1000, 5000)):
        recorder = Recorder(seconds=seconds)

        async def main(recorder: Recorder = recorder) -> None:
            async with NegativeAcksTracker(recorder, EXACT) as tracker:
                tracker.nack_nowait(mid(1), 1.0)
                await asyncio.sleep(100)

        task = asyncio.create_task(main())
        await asyncio.sleep(1.5)
        task.cancel()
        start = loop_ms()
        await asyncio.wait([task])
        assert task.cancelled()
        assert loop_ms() - start == took
        assert recorder.running == 0
        assert not other_tasks()

        with anyio.move_on_after(1.5) as scope:
            await main()
        assert scope.cancelled_caught
        assert not other_tasks()


@virtual_time
async def test_cancelling_the_close_cuts_it_short() -> None:
    """A close that is cancelled while it waits for callbacks cancels them, cleans up, and is cancelled."""
    recorder = Recorder(seconds=1000)
    async with NegativeAcksTracker(recorder, EXACT) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        await asyncio.sleep(1.5)
        closing = asyncio.create_task(tracker.aclose())
        await asyncio.sleep(1)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        assert loop_ms() == 2500
        assert list(await tracker.aclose()) == [mid(1)]
        assert not other_tasks()


@virtual_time
async def test_a_callback_that_will_not_end_does_not_hold_the_close_for_ever() -> None:
    """A callback that shields itself costs ``close_timeout`` and a second; its ids are returned."""

    async def redeliver(ids: Sequence[MessageId]) -> None:
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(400)

    async with NegativeAcksTracker(redeliver, EXACT) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        await asyncio.sleep(2)
        assert list(await tracker.aclose()) == [mid(1)]
        assert loop_ms() == 8000
    await asyncio.sleep(500)
    assert not other_tasks()


@virtual_time
async def test_two_closes_at_once_return_the_same() -> None:
    """``aclose`` from several tasks: each waits, each returns the same ids."""
    recorder = Recorder(seconds=1)
    async with NegativeAcksTracker(recorder, EXACT) as tracker:
        tracker.nack_many([mid(1), mid(2)], 10.0)
        tracker.nack_nowait(mid(3), 1.0)
        await asyncio.sleep(1.5)
        results = await asyncio.gather(*(tracker.aclose() for _ in range(3)))
    assert [sorted(result) for result in results] == [[mid(1), mid(2)]] * 3


@virtual_time
async def test_closing_from_the_callback_does_not_wait_for_itself() -> None:
    """A callback may close its tracker; it ends like any other, and the tracker with it."""
    sent: list[MessageId] = []

    async def redeliver(ids: Sequence[MessageId]) -> None:
        await tracker.aclose()
        sent.extend(ids)

    async with NegativeAcksTracker(redeliver, EXACT) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        tracker.nack_nowait(mid(2), 5.0)
        await asyncio.sleep(1.5)
        assert sent == [mid(1)]
        assert list(await tracker.aclose()) == [mid(2)]
        assert loop_ms() == 1500


@virtual_time
async def test_close_wakes_those_who_wait_for_room() -> None:
    """N22: calls that wait for room get the closed error when the tracker closes."""
    async with NegativeAcksTracker(Recorder(), NackConfig(max_held=1)) as tracker:
        tracker.nack_nowait(mid(1), 100.0)
        waiting = [asyncio.create_task(tracker.nack(mid(entry), 1.0)) for entry in (2, 3)]
        await settle()
        assert tracker.statistics().waiting == 2
        cancelled = waiting[1]
        await asyncio.gather(tracker.aclose(), asyncio.to_thread(lambda: None))
        await settle()
        with pytest.raises(ClosedError):
            await waiting[0]
        assert isinstance(cancelled.exception(), ClosedError)


def test_a_forgotten_tracker_warns() -> None:
    """Dropped without ``aclose``, an entered tracker warns, stops its task, and disturbs nothing else."""

    async def main() -> None:
        tracker = await NegativeAcksTracker(Recorder()).__aenter__()
        tracker.nack_nowait(mid(1), 10.0)
        trackers = [tracker]
        del tracker
        with pytest.warns(ResourceWarning, match="unclosed <NegativeAcksTracker open, 1 pending>"):
            trackers.clear()
        await settle()
        assert not other_tasks()
        await asyncio.sleep(100)

    run(main())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NegativeAcksTracker(Recorder())
        gc.collect()


def test_a_loop_that_ends_first_leaves_a_warning_and_no_hang() -> None:
    """The loop ends with the tracker open: nothing hangs, later calls are refused, and the drop warns."""
    kept: list[NegativeAcksTracker] = []

    async def main() -> None:
        tracker = await NegativeAcksTracker(Recorder(seconds=100), EXACT).__aenter__()
        tracker.nack_many([mid(1), mid(2)], 1.0)
        await asyncio.sleep(1.5)
        kept.append(tracker)

    run(main())
    with pytest.raises(ClosedError):
        kept[0].nack_nowait(mid(2), 1.0)
    with pytest.warns(ResourceWarning, match="unclosed <NegativeAcksTracker broken"):
        kept.clear()


@virtual_time
async def test_callbacks_do_not_run_in_the_context_of_the_nack() -> None:
    """Context variables of a nacking request are not visible in the redelivery."""
    request = contextvars.ContextVar("request", default="none")
    seen: list[str] = []

    async def redeliver(ids: Sequence[MessageId]) -> None:
        seen.append(request.get())

    async with NegativeAcksTracker(redeliver) as tracker:
        request.set("42")
        tracker.nack_nowait(mid(1), 1.0)
        await asyncio.sleep(2)
    assert seen == ["none"]
