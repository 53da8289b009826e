"""The tracker with random calls, against a simple reference, on virtual time and with a manual clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_nack import Clock, MessageId, NackConfig, NegativeAcksTracker, RedeliveryError, WouldBlockError
from pulsar_nack.nack import RedeliveryCallback
from pulsar_nack.testing import ManualClock, run
from tests.nack._harness import Recorder, bucket_width, loop_ms, settle
from tests.tiers import examples


class Nack(NamedTuple):
    """Nack an id with a delay in ms."""

    id: MessageId
    delay_ms: int


class Ack(NamedTuple):
    """Acknowledge an id."""

    id: MessageId


class Pass(NamedTuple):
    """Let time pass, in ms."""

    ms: int


Step = Nack | Ack | Pass

IDS = st.builds(
    MessageId, st.integers(0, 1), st.integers(0, 6), st.sampled_from([-1, 2]), st.sampled_from([-1, -1, 0, 1])
)
STEPS = st.lists(
    st.one_of(
        st.builds(Nack, IDS, st.one_of(st.integers(0, 5000), st.sampled_from([0, 1, 100, 1000, 60_000]))),
        st.builds(Nack, IDS, st.integers(0, 3000)),
        st.builds(Ack, IDS),
        st.builds(Pass, st.one_of(st.integers(0, 50), st.integers(0, 3000))),
    ),
    max_size=60,
)
HURRIED: list[Step] = [
    Nack(MessageId(1, 1), 5000),
    Nack(MessageId(1, 1), 100),
    Ack(MessageId(1, 1)),
    Pass(6000),
]
CONFIGS = st.builds(
    NackConfig,
    negative_ack_precision_bit_cnt=st.integers(0, 12),
    precision_ratio=st.sampled_from([None, 0.125, 1.0, 0.001]),
    max_batch=st.sampled_from([1, 2, 1000]),
)


class Reference:
    """What should be sent when: for each pending id the start of its bucket, found by scanning."""

    def __init__(self, config: NackConfig) -> None:
        self.config = config
        self.pending: dict[MessageId, int] = {}
        self.sent: list[tuple[int, MessageId]] = []
        self.instants: set[int] = set()

    def nack(self, message_id: MessageId, now_ms: int, delay_ms: int) -> None:
        """Note a nack."""
        size = bucket_width(self.config, delay_ms)
        start = (now_ms + delay_ms) // size * size
        assert now_ms + delay_ms - size + 1 <= start <= now_ms + delay_ms
        self.pending[message_id] = min(self.pending.get(message_id, start), start)
        self.pass_to(now_ms, at_once=now_ms)

    def pass_to(self, now_ms: int, at_once: int | None = None) -> None:
        """Note what is sent until now."""
        for message_id, start in list(self.pending.items()):
            if start <= now_ms:
                del self.pending[message_id]
                self.sent.append((start if at_once is None else at_once, message_id))
                if at_once is None:
                    self.instants.add(start)


async def play(steps: Sequence[Step], config: NackConfig, clock: ManualClock | None, *, is_plain: bool) -> None:
    """Run the steps, and compare after each."""

    async def pass_ms(ms: int) -> None:
        target = now() + ms
        while clock is not None and (starts := [at for at in reference.pending.values() if at <= target]):
            clock.set(min(starts))
            await settle(40)
            reference.pass_to(clock.now_ms())
        if clock is None:
            await asyncio.sleep((target - now()) / 1000)
        else:
            clock.set(target)
        await settle(40)
        reference.pass_to(target)

    now = loop_ms if clock is None else clock.now_ms
    recorder = Recorder(now)
    reference = Reference(config)
    given_clock: Clock | None = clock
    callback: RedeliveryCallback = recorder.take if is_plain else recorder
    async with NegativeAcksTracker(callback, config, clock=given_clock) as tracker:
        for step in steps:
            if isinstance(step, Nack):
                tracker.nack_nowait(step.id, step.delay_ms / 1000)
                reference.nack(step.id, now(), step.delay_ms)
                await settle(40)
            elif isinstance(step, Ack):
                assert tracker.ack(step.id) == (reference.pending.pop(step.id, None) is not None)
            else:
                await pass_ms(step.ms)
            statistics = tracker.statistics()
            assert statistics.pending == statistics.held == len(reference.pending)
        await pass_ms(100_000)
        statistics = tracker.statistics()
        assert statistics.pending == statistics.held == statistics.buckets == 0
        assert statistics.early_wakeups == 0
        assert statistics.wakeups == len(reference.instants)
    sent = [(at, message_id) for at, ids in recorder.commands for message_id in ids]
    assert sorted(sent) == sorted(reference.sent)
    assert all(0 < len(ids) <= config.max_batch for _, ids in recorder.commands)


@examples(150)
@given(steps=STEPS, config=CONFIGS, is_plain=st.booleans())
@example(steps=HURRIED, config=NackConfig(), is_plain=False)
@example(steps=HURRIED, config=NackConfig(), is_plain=True)
def test_each_id_is_sent_at_the_start_of_its_bucket(steps: list[Step], config: NackConfig, *, is_plain: bool) -> None:
    """Each id is sent in [deadline - bucket + 1, deadline], once; one wake-up per moment with something due."""
    run(play(steps, config, None, is_plain=is_plain))


@examples(75)
@given(steps=STEPS, config=CONFIGS, is_plain=st.booleans())
def test_the_same_with_a_clock_moved_by_hand(steps: list[Step], config: NackConfig, *, is_plain: bool) -> None:
    """The same traces with a manual clock: the same ids at the same times, and no wake-up without cause."""
    run(play(steps, config, ManualClock(), is_plain=is_plain))


class Chaos(NamedTuple):
    """How each call of the callback ends, and what else is called when."""

    ends: list[tuple[int, int]]
    actions: list[tuple[int, int, int]]
    close_at: int


CHAOS = st.builds(
    Chaos,
    ends=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1500)), max_size=12),
    actions=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7), st.integers(0, 900)), max_size=40),
    close_at=st.integers(0, 6000),
)


@examples(200)
@example(
    Chaos(ends=[(0, 703), (0, 0), (1, 0)], actions=[(0, 0, 1), (0, 2, 0), (4, 0, 0), (0, 2, 1)], close_at=2),
    2,
    2,
    "coroutine",
)
@given(CHAOS, st.integers(1, 3), st.sampled_from([None, 2, 5]), st.sampled_from(["coroutine", "plain", "returning"]))
def test_nothing_is_lost_when_callbacks_fail(chaos: Chaos, in_flight: int, max_held: int | None, kind: str) -> None:
    """Failing, slow, self-cancelling callbacks, acks, nacks, a close at any time: a nack is sent, acked or returned."""
    run(disturb(chaos, in_flight, max_held, kind))


async def disturb(chaos: Chaos, in_flight: int, max_held: int | None, callback: str) -> None:
    """Run one random sequence and balance the books."""
    ends = iter(chaos.ends)
    owed: set[MessageId] = set()
    running: list[MessageId] = []
    config = NackConfig(
        negative_ack_precision_bit_cnt=3, max_batch=2, max_in_flight=in_flight, max_held=max_held, close_timeout=0.7
    )

    async def redeliver(ids: Sequence[MessageId]) -> None:
        taken = list(ids)
        assert 0 < len(taken) <= 2
        assert len(set(taken)) == len(taken)
        running.extend(taken)
        renewed_before = {message_id: renewals.get(message_id, 0) for message_id in taken}
        kind, ms = next(ends, (0, 0))
        failed: set[MessageId] = set(taken)
        try:
            await asyncio.sleep(ms / 1000)
            if kind == 1:
                raise OSError("all failed")
            if kind == 2:
                failed = set(taken[:1])
                raise RedeliveryError("some failed", failed=failed)
            if kind == 3:
                raise asyncio.CancelledError
            failed = set()
        finally:
            for message_id in taken:
                running.remove(message_id)
                if message_id not in failed and renewals.get(message_id, 0) == renewed_before[message_id]:
                    owed.discard(message_id)

    def redeliver_plainly(ids: Sequence[MessageId]) -> None:
        """Redeliver as a plain function, and now and then nack or acknowledge one of the ids."""
        taken = list(ids)
        assert 0 < len(taken) <= 2
        kind, ms = next(ends, (0, 0))
        if ms % 3 == 1:
            with contextlib.suppress(WouldBlockError):
                tracker.nack_nowait(taken[-1], ms / 1000)
                owed.add(taken[-1])
                taken.pop()
        elif ms % 3 == 2:
            tracker.ack(taken[0])
            owed.discard(taken[0])
        if kind == 1:
            raise OSError("all failed")
        if kind == 2:
            owed.difference_update(taken[1:])
            raise RedeliveryError("some failed", failed=taken[:1])
        if kind == 3:
            raise asyncio.CancelledError
        owed.difference_update(taken)

    def redeliver_returning(ids: Sequence[MessageId]) -> Awaitable[None]:
        return redeliver(ids)

    callbacks: dict[str, RedeliveryCallback] = {
        "coroutine": redeliver,
        "plain": redeliver_plainly,
        "returning": redeliver_returning,
    }
    renewals: dict[MessageId, int] = {}
    tracker: NegativeAcksTracker

    async def act(tracker: NegativeAcksTracker) -> None:
        for kind, entry, ms in chaos.actions:
            message_id = MessageId(1, entry)
            if kind <= 2:
                await tracker.nack(message_id, ms / 1000)
                owed.add(message_id)
                renewals[message_id] = renewals.get(message_id, 0) + 1
            elif kind == 3:
                tracker.ack(message_id)
                owed.discard(message_id)
            else:
                await asyncio.sleep(ms / 1000)
            statistics = tracker.statistics()
            assert statistics.held >= statistics.pending + statistics.in_flight
            assert max_held is None or statistics.held <= max_held

    async with NegativeAcksTracker(callbacks[callback], config) as tracker:
        acting = asyncio.create_task(act(tracker))
        await asyncio.sleep(chaos.close_at / 1000)
        acting.cancel()
        await asyncio.wait([acting])
        assert acting.cancelled() or acting.exception() is None
        left = await tracker.aclose()
        assert not running
    assert len(set(left)) == len(left)
    assert owed <= set(left)
    assert asyncio.all_tasks() == {asyncio.current_task()}
