"""Requests, acknowledgements, failures, limits: cases N14, N16 to N23."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from datetime import timedelta

import anyio
import pytest

from pulsar_nack import MessageId, NackConfig, NegativeAcksTracker, RedeliveryError, WouldBlockError
from pulsar_nack.errors import NotOpenError
from pulsar_nack.nack import (
    Cancelled,
    Cleared,
    Closed,
    Nacked,
    NackEvent,
    Redelivered,
    RedeliveryFailed,
)
from pulsar_nack.testing import ManualClock, VirtualClockEventLoop, run, virtual_time
from tests.for_each import for_each
from tests.nack._harness import Recorder, RecordingClock, loop_ms, mid, settle

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)


def full() -> float:
    """Replace the random number, so that a retry's delay is its largest."""
    return 1.0


@virtual_time
async def test_an_acknowledged_id_costs_nothing() -> None:
    """N14: nacked with 5 s and acked at 1 s: nothing is sent, nothing is pending, and there is no wake-up."""
    recorder = Recorder()
    async with NegativeAcksTracker(recorder) as tracker:
        tracker.nack_nowait(mid(1), 5.0)
        await asyncio.sleep(1)
        assert mid(1) in tracker
        assert tracker.ack(mid(1))
        assert not tracker.ack(mid(1))
        assert mid(1) not in tracker
        assert tracker.statistics().pending == tracker.statistics().held == tracker.statistics().buckets == 0
        await asyncio.sleep(10)
        assert tracker.statistics().wakeups == 0
    assert not recorder.commands


@virtual_time
async def test_an_acknowledgement_moves_the_timer_on() -> None:
    """N14: the timer skips a bucket that an ack has emptied."""
    clock = RecordingClock()
    recorder = Recorder(clock.now_ms)
    async with NegativeAcksTracker(recorder, EXACT, clock=clock) as tracker:
        tracker.nack_nowait(mid(1), 5.0)
        tracker.nack_nowait(mid(2), 8.0)
        tracker.nack_nowait(mid(3), 5.0)
        tracker.ack(mid(1))
        assert clock.set_for == [5000]
        tracker.ack(mid(3))
        assert clock.set_for == [5000, 8000]
        assert clock.alarms == 1
        await clock.run_to(9000, step=500)
        assert tracker.statistics().wakeups == 1
    assert recorder.commands == [(8000, [mid(2)])]


@virtual_time
async def test_failed_ids_are_tried_again_in_commands_of_their_own() -> None:
    """N16: the callback fails for two of four: only these are repeated, 100 ms later; other ids go out as usual."""
    failure = RedeliveryError("the broker is away", failed=[mid(1), mid(3), mid(99)])
    recorder = Recorder(outcomes=[failure])
    events: list[NackEvent] = []
    async with NegativeAcksTracker(recorder, EXACT, hooks=[events.append], random=full) as tracker:
        for entry in range(4):
            tracker.nack_nowait(mid(entry), 1.0)
        tracker.nack_nowait(mid(7), 1.1)
        await asyncio.sleep(1.05)
        statistics = tracker.statistics()
        assert (statistics.sent, statistics.pending, statistics.retrying, statistics.failed_commands) == (2, 3, 2, 1)
        assert statistics.last_error is not None
        assert "the broker is away" in statistics.last_error
        assert mid(1) in tracker
        await asyncio.sleep(1)
        assert tracker.statistics().retries == 1
        assert tracker.statistics().held == 0
    assert sorted((at, sorted(ids)) for at, ids in recorder.commands) == [
        (1000, [mid(0), mid(1), mid(2), mid(3)]),
        (1100, [mid(1), mid(3)]),
        (1100, [mid(7)]),
    ]
    failed = [event for event in events if isinstance(event, RedeliveryFailed)]
    assert failed == [RedeliveryFailed([mid(1), mid(3)], 1000, 1, failure, 1100)]
    taken = [(event.at_ms, sorted(event.ids), event.attempt) for event in events if isinstance(event, Redelivered)]
    assert sorted(taken) == [
        (1000, [mid(0), mid(2)], 1),
        (1100, [mid(1), mid(3)], 2),
        (1100, [mid(7)], 1),
    ]


@for_each("failed", [[(3, 1, -1, -1)], ["3:1:-1"], [mid(1), "3:2:-1"]])
def test_all_ids_are_tried_again_if_the_error_names_something_else(failed: list[object]) -> None:
    """N16: ids of another client, or text, are no ids: nothing counts as sent, and the tracker continues."""

    async def main() -> None:
        recorder = Recorder(outcomes=[RedeliveryError("the broker is away", failed=failed)])
        async with NegativeAcksTracker(recorder, EXACT, random=full) as tracker:
            tracker.nack_many([mid(1), mid(2)], 1.0)
            await asyncio.sleep(2)
            assert tracker.statistics().sent == 2
        assert recorder.commands == [(1000, [mid(1), mid(2)]), (1100, [mid(1), mid(2)])]

    run(main())


@virtual_time
async def test_retries_double_up_to_thirty_seconds() -> None:
    """N16: a callback that always fails is called after 100 ms, 200 ms ... 30 s, whatever ``backoff`` is."""
    recorder = Recorder(outcomes=[OSError("no")] * 13)
    async with NegativeAcksTracker(recorder, EXACT, backoff=[1.0], random=full) as tracker:
        tracker.nack_nowait(mid(1))
        await asyncio.sleep(300)
        assert tracker.statistics().failed_commands == 13
        assert tracker.statistics().sent == 1
    gaps = [later - earlier for earlier, later in itertools.pairwise(recorder.times)]
    assert gaps == [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000, 30_000, 30_000]


@virtual_time
async def test_retries_are_jittered() -> None:
    """N16: a retry comes between half of its delay and all of it."""
    recorder = Recorder(outcomes=[OSError("no")])
    async with NegativeAcksTracker(recorder, EXACT, random=lambda: 0.0) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        await asyncio.sleep(2)
    assert recorder.times == [1000, 1050]


@virtual_time
async def test_hanging_retries_do_not_hold_up_others() -> None:
    """N16: requests that fail after hanging never take the last place: fresh ids go out in time."""
    poison = {mid(entry) for entry in range(8)}
    sent: list[tuple[int, MessageId]] = []

    async def redeliver(ids: Sequence[MessageId]) -> None:
        if poison.intersection(ids):
            await asyncio.sleep(3 if len(sent) > 0 else 0)
            raise OSError("poisoned")
        sent.extend((loop_ms(), message_id) for message_id in ids)

    config = NackConfig(negative_ack_precision_bit_cnt=0, max_batch=1, close_timeout=0.1)
    async with NegativeAcksTracker(redeliver, config, random=full) as tracker:
        tracker.nack_nowait(mid(50), 0.5)
        for message_id in poison:
            tracker.nack_nowait(message_id, 0.1)
        await asyncio.sleep(5)
        due: list[int] = []
        for entry in range(100, 150):
            tracker.nack_nowait(mid(entry), 1.0)
            due.append(loop_ms() + 1000)
            await asyncio.sleep(0.5)
        await asyncio.sleep(2)
        assert [at for at, message_id in sent if message_id != mid(50)] == due
        assert tracker.statistics().retries > 10
    assert set(await tracker.aclose()) == poison


@virtual_time
async def test_retries_get_a_turn_however_much_is_due() -> None:
    """N16: with one place, and ids always due, a failed id is still retried."""
    config = NackConfig(negative_ack_precision_bit_cnt=0, max_in_flight=1, max_batch=1)
    recorder = Recorder(seconds=0.1, outcomes=[OSError("no")])
    async with NegativeAcksTracker(recorder, config, random=full) as tracker:
        for entry in range(100):
            tracker.nack_nowait(mid(entry), 0.01)
        await asyncio.sleep(12)
    first = recorder.ids[0]
    assert recorder.ids.count(first) == 2
    assert recorder.at(first)[1] <= 500


@virtual_time
async def test_up_to_four_callbacks_run_at_once() -> None:
    """N17: a callback takes 5 s; ids due meanwhile go out in time while fewer than four run."""
    recorder = Recorder(seconds=5)
    async with NegativeAcksTracker(recorder, EXACT) as tracker:
        for entry in range(6):
            tracker.nack_nowait(mid(entry), 1.0 + entry / 10)
        await asyncio.sleep(1.55)
        assert tracker.statistics().in_flight == 4
        assert tracker.statistics().pending == 2
        assert tracker.statistics().held == 6
        await asyncio.sleep(20)
    assert recorder.times == [1000, 1100, 1200, 1300, 6000]
    assert recorder.commands[-1] == (6000, [mid(4), mid(5)])
    assert recorder.most_running == 4
    assert tracker.statistics().lateness.max_ms == 4600


@virtual_time
async def test_an_acknowledgement_in_flight_is_remembered() -> None:
    """N17: an id acked while its request is open is not repeated when that fails."""

    async def fail_slowly(ids: Sequence[MessageId]) -> None:
        commands.append(list(ids))
        await asyncio.sleep(1)
        raise OSError("no")

    commands: list[list[MessageId]] = []
    async with NegativeAcksTracker(fail_slowly, EXACT, random=full) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        tracker.nack_nowait(mid(2), 1.0)
        await asyncio.sleep(1.5)
        assert mid(1) not in tracker
        assert not tracker.ack(mid(1))
        await asyncio.sleep(1)
        assert tracker.statistics().held == 1
        await asyncio.sleep(0.5)
        assert tracker.ack(mid(2)) is False
        await asyncio.sleep(10)
        assert tracker.statistics().held == tracker.statistics().pending == 0
    assert [sorted(ids) for ids in commands] == [[mid(1), mid(2)], [mid(2)]]


@virtual_time
async def test_a_nack_in_flight_starts_a_new_deadline() -> None:
    """N17: an id nacked while its request is open is pending again; a failure of the request does not hurry it."""
    for outcome in (None, OSError("no")):
        start = loop_ms()
        recorder = Recorder(outcomes=[0.5, outcome])

        async def redeliver(ids: Sequence[MessageId], recorder: Recorder = recorder) -> None:
            await recorder(ids)
            if recorder.outcomes and isinstance(error := recorder.outcomes.popleft(), BaseException):
                raise error

        async with NegativeAcksTracker(redeliver, EXACT, random=full) as tracker:
            tracker.nack_nowait(mid(1), 1.0)
            await asyncio.sleep(1.2)
            assert tracker.statistics().in_flight == 1
            tracker.nack_nowait(mid(1), 10.0)
            assert tracker.statistics().pending == 1
            await asyncio.sleep(20)
            assert tracker.statistics().held == 0
        assert [at - start for at in recorder.times] == [1000, 11_200]


@virtual_time
async def test_two_commands_with_the_same_id_do_not_double_it() -> None:
    """N17: an id is in two requests; the older one fails, then the newer: the id is retried once."""
    recorder = Recorder(outcomes=[])

    async def redeliver(ids: Sequence[MessageId]) -> None:
        number = len(recorder.commands)
        await recorder(ids)
        if number < 2:
            await asyncio.sleep(2)
            raise OSError("no")

    async with NegativeAcksTracker(redeliver, EXACT, random=full) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        await asyncio.sleep(1.5)
        tracker.nack_nowait(mid(1), 0)
        await asyncio.sleep(10)
        assert tracker.statistics().held == 0
    assert recorder.times == [1000, 1500, 3600]


@virtual_time
async def test_a_retrying_id_may_be_acked_or_hurried() -> None:
    """N16: while an id waits for its next attempt, an ack cancels it, and an earlier nack counts."""
    for delay, expected in ((0.05, [1000, 1050]), (50.0, [1000, 1100]), (None, [1000])):
        start = loop_ms()
        recorder = Recorder(outcomes=[OSError("no")])
        async with NegativeAcksTracker(recorder, EXACT, random=full) as tracker:
            tracker.nack_nowait(mid(1), 1.0)
            await asyncio.sleep(1.0)
            await settle()
            assert tracker.statistics().retrying == 1
            if delay is None:
                assert tracker.ack(mid(1))
            else:
                tracker.nack_nowait(mid(1), delay)
            assert tracker.statistics().held == tracker.statistics().pending == (delay is not None)
            wakeups = tracker.statistics().wakeups
            await asyncio.sleep(100)
            assert tracker.statistics().wakeups - wakeups == (delay is not None)
            assert tracker.statistics().held == 0
        assert [at - start for at in recorder.times] == expected


@virtual_time
async def test_entries_that_overlap_retrying_ids_are_kept_once() -> None:
    """N16: ``nack_entries`` and ``nack_many`` with an id that waits for its next attempt do not double it."""
    recorder = Recorder(outcomes=[OSError("no")])
    async with NegativeAcksTracker(recorder, EXACT, random=full) as tracker:
        tracker.nack_nowait(mid(5), 1.0)
        await asyncio.sleep(1.01)
        tracker.nack_entries(3, range(10), 1.0)
        tracker.nack_many([mid(entry) for entry in range(10)], 1.0)
        assert tracker.statistics().held == tracker.statistics().pending == 10
        await asyncio.sleep(10)
    assert recorder.commands[1:2] == [(1100, [mid(5)])]
    assert [sorted(ids) for _, ids in recorder.commands[2:]] == [[mid(entry) for entry in range(10) if entry != 5]]


@virtual_time
async def test_nack_lets_the_loop_run_every_five_milliseconds() -> None:
    """N17a: a tight loop of ``await nack()`` lets timers due every 10 ms run, and yields only when needed."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockEventLoop)
    ticks: list[int] = []
    yields = 0
    is_counting = True

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.01)
            ticks.append(loop_ms())

    def count() -> None:
        nonlocal yields
        yields += 1
        if is_counting:
            loop.call_soon(count)

    async with NegativeAcksTracker(lambda ids: None) as tracker:
        task = asyncio.create_task(tick())
        loop.call_soon(count)
        for entry in range(10_000):
            await tracker.nack(mid(entry), 60.0)
            loop.advance(0.0001)
        passed = loop_ms()
        task.cancel()
        assert passed == 1000
        assert max(later - earlier for earlier, later in itertools.pairwise(ticks)) <= 20
        assert len(ticks) >= 45
        assert 150 <= yields <= 250
        is_counting = False


@virtual_time
async def test_hooks_run_outside_of_locks() -> None:
    """N18: a hook takes a lock that the caller of a second nack holds in turn; hooks may also call the tracker."""
    lock = threading.Lock()
    events: list[NackEvent] = []

    def hook(event: NackEvent) -> None:
        assert lock.acquire(timeout=1)
        events.append(event)
        lock.release()
        if isinstance(event, Nacked) and event.ids == (mid(1),):
            tracker.nack_nowait(mid(2), 1.0)
        if isinstance(event, Redelivered):
            tracker.ack(mid(3))

    async with NegativeAcksTracker(Recorder(), EXACT, hooks=[hook]) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        tracker.nack_nowait(mid(3), 5.0)
        await asyncio.sleep(2)
        assert tracker.statistics().hook_errors == 0
    assert [type(event) for event in events] == [Nacked, Nacked, Nacked, Redelivered, Cancelled, Closed]
    assert events[0] == Nacked((mid(1),), 0, 1000, 1000)


@virtual_time
async def test_callbacks_may_call_the_tracker() -> None:
    """N18: a callback nacks, waits for a nack, acks and reads the statistics of its tracker."""
    recorder = Recorder()

    async def redeliver(ids: Sequence[MessageId]) -> None:
        await recorder(ids)
        if mid(1) in ids:
            tracker.nack_nowait(mid(2), 1.0)
            await tracker.nack(mid(3), 2.0)
            assert tracker.ack(mid(9))
            assert tracker.statistics().in_flight == 1

    async with NegativeAcksTracker(redeliver, EXACT) as tracker:
        tracker.nack_nowait(mid(9), 50.0)
        tracker.nack_nowait(mid(1), 1.0)
        await asyncio.sleep(100)
        assert tracker.statistics().failed_commands == 0
    assert recorder.commands == [(1000, [mid(1)]), (2000, [mid(2)]), (3000, [mid(3)])]


@virtual_time
async def test_a_hook_that_raises_is_counted() -> None:
    """N18: a hook's error, a CancelledError too, reaches neither the caller nor other hooks nor the sending."""
    seen: list[NackEvent] = []

    def bad(event: NackEvent) -> None:
        raise RuntimeError("hook")

    def cancelled(event: NackEvent) -> None:
        raise asyncio.CancelledError

    recorder = Recorder()
    async with NegativeAcksTracker(recorder, hooks=[bad, cancelled, seen.append]) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        tracker.nack_many([mid(2), mid(3)], 1.0)
        tracker.nack_entries(3, [4, 5], 1.0)
        assert tracker.ack(mid(5))
        await asyncio.sleep(2)
    assert tracker.statistics().hook_errors == 2 * len(seen) == 12
    recorder.assert_once_each([mid(entry) for entry in (1, 2, 3, 4)])


@virtual_time
async def test_clear_drops_everything() -> None:
    """N19: after ``clear`` no old id is requested: neither pending nor retrying nor of a failing request."""
    recorder = Recorder(outcomes=[OSError("no"), 1.0])
    events: list[NackEvent] = []

    async def redeliver(ids: Sequence[MessageId]) -> None:
        await recorder(ids)
        if mid(2) in ids:
            raise OSError("too late")

    async with NegativeAcksTracker(redeliver, EXACT, hooks=[events.append], random=full) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        tracker.nack_nowait(mid(2), 1.01)
        tracker.nack_nowait(mid(3), 5.0)
        await asyncio.sleep(1.02)
        statistics = tracker.statistics()
        assert (statistics.retrying, statistics.in_flight, statistics.pending) == (1, 1, 2)
        assert tracker.clear() == 2
        assert tracker.clear() == 0
        await asyncio.sleep(20)
        assert tracker.statistics().held == 0
        assert tracker.statistics().wakeups == 2
        tracker.nack_nowait(mid(4), 1.0)
        await asyncio.sleep(2)
    assert recorder.ids == [mid(1), mid(2), mid(4)]
    assert [event.count for event in events if isinstance(event, Cleared)] == [2]


@virtual_time
async def test_a_rewind_takes_everything_at_the_first_deadline() -> None:
    """N20: with ``collapse`` four buckets 300 ms apart go out in one request at the first deadline."""
    recorder = Recorder(outcomes=[None, OSError("no")])
    config = NackConfig(negative_ack_precision_bit_cnt=0, max_batch=2)
    async with NegativeAcksTracker(recorder, config, collapse=True, random=full) as tracker:
        for entry in range(4):
            tracker.nack_nowait(mid(entry), 1.0 + 0.3 * entry)
        await asyncio.sleep(10)
        assert tracker.statistics().wakeups == 1
        tracker.nack_nowait(mid(8), 1.0)
        await asyncio.sleep(1.05)
        tracker.nack_nowait(mid(9), 50.0)
        await asyncio.sleep(60)
        assert tracker.statistics().held == 0
    assert recorder.commands == [
        (1000, [mid(entry) for entry in range(4)]),
        (11_000, [mid(8)]),
        (11_100, [mid(9), mid(8)]),
    ]


@virtual_time
async def test_commands_are_of_bounded_size() -> None:
    """N21: 2 500 ids due at once go out in requests of 1 000, 1 000 and 500; an empty request is never sent."""
    recorder = Recorder()
    ids = [mid(entry) for entry in range(2500)]
    async with NegativeAcksTracker(recorder) as tracker:
        tracker.nack_many(ids, 1.0)
        tracker.nack_many([], 1.0)
        tracker.nack_entries(3, range(0), 1.0)
        await asyncio.sleep(5)
    assert [len(command) for _, command in recorder.commands] == [1000, 1000, 500]
    recorder.assert_once_each(ids)


@virtual_time
async def test_nowait_refuses_beyond_max_held() -> None:
    """N22: at ``max_held`` nothing more is added and nothing is dropped; a pending id may still be nacked again."""
    config = NackConfig(negative_ack_precision_bit_cnt=0, max_held=3)
    recorder = Recorder()
    async with NegativeAcksTracker(recorder, config) as tracker:
        tracker.nack_many([mid(1), mid(2)], 1.0)
        with pytest.raises(WouldBlockError, match="room for 1 more, 2 wanted"):
            tracker.nack_many([mid(2), mid(3), mid(4), mid(3)], 1.0)
        with pytest.raises(WouldBlockError, match="2 wanted"):
            tracker.nack_entries(3, [2, 3, 4], 1.0)
        assert tracker.statistics().pending == 2
        tracker.nack_entries(3, [1, 2, 3], 1.0)
        with pytest.raises(WouldBlockError, match="room for 0 more, 1 wanted"):
            tracker.nack_nowait(mid(4), 1.0)
        tracker.nack_nowait(mid(3), 0.5)
        await tracker.nack(mid(3), 0.5)
        tracker.nack_many([mid(1), mid(2), mid(3)], 1.0)
        assert tracker.statistics().pending == tracker.statistics().held == 3
        await asyncio.sleep(2)
    recorder.assert_once_each([mid(1), mid(2), mid(3)])
    assert recorder.at(mid(3)) == [500]


@virtual_time
async def test_a_range_beyond_the_room_is_refused_without_making_its_ids() -> None:
    """N22: a range of any length is refused at once, with nothing added."""
    tracker = NegativeAcksTracker(Recorder(), NackConfig(max_held=1_000))
    for entries in (range(2**40), range(2**63), range(2**63 - 1, -1, -2)):
        with pytest.raises(NotOpenError):
            tracker.nack_entries(1, entries)
    async with tracker:
        for entries in (range(2**40), range(2**63), range(2**63 - 1, -1, -2)):
            with pytest.raises(WouldBlockError) as caught:
                tracker.nack_entries(1, entries)
            assert caught.value.wanted == (entries[-1] - entries[0]) // entries.step + 1
        assert tracker.statistics().pending == 0
        tracker.nack_entries(1, range(600))
        with pytest.raises(WouldBlockError):
            tracker.nack_entries(1, range(2_000))
        tracker.nack_entries(1, range(1_000))
        assert tracker.statistics().held == tracker.statistics().pending == 1_000


@virtual_time
async def test_nack_waits_for_room_in_line() -> None:
    """N22: ``await nack()`` waits; places go to waiting calls in the order in which they came."""
    config = NackConfig(negative_ack_precision_bit_cnt=0, max_held=2)
    added: list[tuple[int, int]] = []
    recorder = Recorder()
    async with NegativeAcksTracker(recorder, config) as tracker:

        async def nack(entry: int) -> None:
            await tracker.nack(mid(entry), 1.0)
            added.append((loop_ms(), entry))

        async with anyio.create_task_group() as group:
            for entry in range(6):
                group.start_soon(nack, entry)
            await settle()
            assert tracker.statistics().waiting == 4
            assert added == [(0, 0), (0, 1)]
            assert tracker.ack(mid(1))
            with pytest.raises(WouldBlockError):
                tracker.nack_nowait(mid(50), 1.0)
            await settle()
            assert added[2:] == [(0, 2)]
        assert added[3:] == [(1000, 3), (1000, 4), (2000, 5)]
        await asyncio.sleep(5)
    recorder.assert_once_each([mid(entry) for entry in (0, 2, 3, 4, 5)])
    assert recorder.at(mid(5)) == [3000]


@virtual_time
async def test_bad_arguments_are_refused_before_the_wait() -> None:
    """N22, N24: without room a bad delay, id or count raises at once, without waiting first."""
    async with NegativeAcksTracker(Recorder(), NackConfig(max_held=1)) as tracker:
        tracker.nack_nowait(mid(1), 100.0)
        for arguments in ((mid(2), -1.0), ("id", 1.0)):
            with pytest.raises(ValueError, match="expected"):
                await tracker.nack(*arguments)
        with pytest.raises(ValueError, match="redelivery_count"):
            await tracker.nack(mid(2), 1.0, redelivery_count=-1)
        assert tracker.statistics().waiting == 0


@virtual_time
async def test_cancelling_nack_leaves_no_half() -> None:
    """N23: cancelled before, while and after it gets its place, an id is either pending or not; no place is lost."""
    config = NackConfig(negative_ack_precision_bit_cnt=0, max_held=1)
    for rounds in range(6):
        recorder = Recorder()
        async with NegativeAcksTracker(recorder, config) as tracker:
            tracker.nack_nowait(mid(0), 1.0)
            waiting = [asyncio.create_task(tracker.nack(mid(entry), 1.0)) for entry in (1, 2, 3)]
            await settle(2)
            if rounds:
                tracker.ack(mid(0))
            await settle(rounds - 1)
            waiting[0].cancel()
            await settle()
            assert tracker.statistics().held == tracker.statistics().pending == 1
            assert (mid(1) in tracker) == (waiting[0].done() and not waiting[0].cancelled())
            await asyncio.sleep(10)
            assert tracker.statistics().waiting == tracker.statistics().held == 0
            assert [task.done() for task in waiting] == [True] * 3
        assert {mid(2), mid(3)} <= set(recorder.ids)
        assert (mid(1) in recorder.ids) == (not waiting[0].cancelled())


@virtual_time
async def test_cancelling_while_a_place_is_handed_over_passes_it_on() -> None:
    """N23: the call that got the place is cancelled in the same moment: the next in line gets it."""
    config = NackConfig(negative_ack_precision_bit_cnt=0, max_held=1)
    async with NegativeAcksTracker(Recorder(), config) as tracker:
        tracker.nack_nowait(mid(0), 100.0)
        first, second = (asyncio.create_task(tracker.nack(mid(entry), 100.0)) for entry in (1, 2))
        await settle()
        tracker.ack(mid(0))
        first.cancel()
        await settle()
        assert first.cancelled()
        assert second.done()
        assert mid(2) in tracker
        third, fourth = (asyncio.create_task(tracker.nack(mid(entry), 100.0)) for entry in (3, 4))
        await settle()
        third.cancel()
        tracker.ack(mid(2))
        await settle()
        assert third.cancelled()
        assert fourth.done()
        assert tracker.statistics().held == 1


@virtual_time
async def test_a_callback_whose_task_is_cancelled_has_failed() -> None:
    """N16: cancelling the task of one callback, from inside or outside, is one failure and not the tracker's end."""
    seen: list[list[MessageId]] = []

    async def redeliver(ids: Sequence[MessageId]) -> None:
        seen.append(list(ids))
        if len(seen) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)

    async with NegativeAcksTracker(redeliver) as tracker:
        tracker.nack_nowait(mid(1), 0)
        tracker.nack_nowait(mid(2), 5)
        await asyncio.sleep(10)
        assert seen == [[mid(1)], [mid(1)], [mid(2)]]
        assert tracker.statistics().failed_commands == 1
        assert tracker.statistics().held == 0


@virtual_time
async def test_a_million_due_ids_leave_the_loop_alone() -> None:
    """The loop runs between requests: other tasks run once per request."""
    sizes: list[int] = []
    rounds: list[int] = []
    task: asyncio.Task[None] | None = None

    async def count() -> None:
        while sum(sizes) < 200_000:
            rounds.append(len(sizes))
            await asyncio.sleep(0)

    def redeliver(ids: Sequence[MessageId]) -> None:
        nonlocal task
        task = task or asyncio.create_task(count())
        sizes.append(len(ids))

    async with NegativeAcksTracker(redeliver) as tracker:
        tracker.nack_entries(3, range(200_000), 1.0)
        await asyncio.sleep(2)
    assert sizes == [1000] * 200
    assert max(later - earlier for earlier, later in itertools.pairwise(rounds)) <= 2


@virtual_time
async def test_delays_come_from_the_argument_then_backoff_then_configuration() -> None:
    """N30, N31: the call's delay has priority, then the backoff with the count, then the configured delay."""
    clock = ManualClock()
    counts: list[int] = []

    def by_count(count: int) -> float:
        counts.append(count)
        return float(count)

    config = NackConfig(negative_ack_redelivery_delay=7, negative_ack_precision_bit_cnt=0)
    async with NegativeAcksTracker(Recorder(clock.now_ms), config, clock=clock, backoff=by_count) as tracker:
        tracker.nack_nowait(mid(1), redelivery_count=3)
        await tracker.nack(mid(2), redelivery_count=3)
        tracker.nack_nowait(mid(3), 5, redelivery_count=3)
        assert counts == [3, 3]
        assert tracker._schedule.next_at() == 3000
        assert tracker.statistics().buckets == 2
    recorder = Recorder()
    async with NegativeAcksTracker(recorder, config, backoff=[0.2, 0.5, 1]) as tracker:
        for count in range(4):
            tracker.nack_nowait(mid(count), redelivery_count=count)
        await asyncio.sleep(2)
    assert recorder.times == [200, 500, 1000]
    recorder = Recorder()
    async with NegativeAcksTracker(recorder, config) as tracker:
        for entry, delay in enumerate((None, 0.5, None, 0.5, 0.25, None, timedelta(seconds=3), 0.25, 0)):
            tracker.nack_nowait(mid(entry), delay)
        await asyncio.sleep(10)
    start = recorder.times[0]
    assert [(at - start, sorted(ids)) for at, ids in recorder.commands] == [
        (0, [mid(8)]),
        (250, [mid(4), mid(7)]),
        (500, [mid(1), mid(3)]),
        (3000, [mid(6)]),
        (7000, [mid(0), mid(2), mid(5)]),
    ]
