"""Every state that consists of several logs, on object storage, taken over in every order of requests."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest

from pulsar_nack import BucketConfig, Cursor, LocalTopic, MessageId, Position
from pulsar_nack.config import CursorConfig, TopicConfig
from pulsar_nack.consumer.durable import DurableNacks
from pulsar_nack.delayed.bucket import LogBucketTracker, LogDelayedCursor
from pulsar_nack.errors import LogSealedError, LogStorageError
from pulsar_nack.ledger import ObjectLogStore
from pulsar_nack.testing import ManualClock
from tests.takeovers import Confirmed, State, begun, doubts, orders, random_orders, run
from tests.tiers import SEED, sample, size

LONG = 86_400


class Durable:
    """The durable state of a consumer: nacks, and a compaction."""

    async def live(self, store: ObjectLogStore, name: str, confirmed: Confirmed) -> None:
        """Nack before the compaction, during it, and after it."""
        durable = await self._open(store)
        running = asyncio.create_task(durable.run())
        try:
            for turn in range(4):
                if turn == 1:
                    durable.journal._must_compact = True
                entry = turn + FIRST[name]
                error = await durable.nacked(MessageId(1, entry), 60_000, 1)
                if error is None:
                    confirmed.done.add(f"1:{entry}")
                elif not isinstance(error, LogStorageError | LogSealedError):
                    raise error
                durable.journal._compact_at = 0
                while turn > 1 and durable.journal._is_compacting:
                    await asyncio.sleep(0)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await durable.aclose()

    async def find(self, store: ObjectLogStore) -> set[str]:
        """Return which changes are there."""
        durable = await self._open(store)
        await durable.aclose()
        assert len([name for name in await store.names() if name.startswith("nacks-0")]) <= 3
        return {f"1:{entry}" for entry in range(30) if durable.state.pending.find(MessageId(1, entry)) is not None}

    @staticmethod
    async def _open(store: ObjectLogStore) -> DurableNacks:
        return await DurableNacks(memory_ms=1_000, ttl_ms=10**9, clock=ManualClock(1_000)).open(store)


class OfCursor:
    """A cursor that rolls over at each second flush."""

    async def live(self, store: ObjectLogStore, name: str, confirmed: Confirmed) -> None:
        """Acknowledge, and flush."""
        cursor = await Cursor.open(store, {1: 40}, ROLLING)
        try:
            for turn in range(2):
                entry = FIRST[name] + 2 * turn + 1
                await cursor.acknowledge([Position(1, entry)])
                with suppress(LogStorageError):
                    await cursor.flush()
                    confirmed.done.add(f"1:{entry}")
        finally:
            await cursor.aclose()

    async def find(self, store: ObjectLogStore) -> set[str]:
        """Return which changes are there."""
        async with await Cursor.open(store, {1: 40}, ROLLING) as cursor:
            found = {f"1:{entry}" for entry in range(40) if await cursor.is_acked((1, entry))}
        assert len([name for name in await store.names() if not name.endswith("-snapshot")]) == 1
        return found


class OfDelayedCursor:
    """The cursor of a bucket tracker, which rolls over at each second change."""

    async def live(self, store: ObjectLogStore, name: str, confirmed: Confirmed) -> None:
        """Set properties, and forget one."""
        async with await LogDelayedCursor.open(store, compact_at=1) as cursor:
            with suppress(LogStorageError):
                await cursor.put_property(name, "x" * 500)
            for turn in range(3):
                with suppress(LogStorageError):
                    await cursor.put_property(name, str(turn))
                    confirmed.done.add(f"{name} {turn}")
            with suppress(LogStorageError):
                await cursor.forget(1)

    async def find(self, store: ObjectLogStore) -> set[str]:
        """Return which changes are there; an older value was there too."""
        async with await LogDelayedCursor.open(store, compact_at=1) as cursor:
            held = {name: value for name, value in cursor.properties().items() if len(value) < 5}
        assert len(await store.names()) == 1
        return {f"{name} {turn}" for name, last in held.items() for turn in range(int(last) + 1)}


class OfTracker:
    """A bucket tracker: snapshots, their names, merging, and messages that are acknowledged."""

    async def live(self, store: ObjectLogStore, name: str, confirmed: Confirmed) -> None:
        """Let buckets be sealed and merged; sealed messages are there from then on."""
        clock = ManualClock(0)
        async with await LogBucketTracker.open_store(store, BUCKETS, clock=clock) as tracker:
            await tracker.wait_until_idle()
            for at in range(FIRST[name], FIRST[name] + 3):
                assert tracker.add_message(at, at, 10_000)
                await tracker.wait_until_idle()
            await tracker.cursor.put_property("last", name)  # refused, if it was taken over and found snapshots gone
            if isinstance(error := tracker.statistics().last_error, Exception):
                raise error
            confirmed.done |= {f"{at}" for at in range(FIRST[name], FIRST[name] + 2)}

    async def find(self, store: ObjectLogStore) -> set[str]:
        """Return which messages are there."""
        async with await LogBucketTracker.open_store(store, BUCKETS, clock=ManualClock(0)) as tracker:
            await tracker.wait_until_idle()
            assert tracker.statistics().last_error is None
            found = {f"{at}" for at in range(40) if tracker.contains_message(at, at)}
            buckets = tracker.statistics().buckets
        assert len([name for name in await store.names() if name.startswith("snapshot-")]) == buckets
        return found


class OfTopic:
    """A local topic: ledgers, and the cursor of a subscription."""

    async def live(self, store: ObjectLogStore, name: str, confirmed: Confirmed) -> None:
        """Publish into a new ledger at each second message."""
        async with await LocalTopic.open(store, TOPIC) as topic:
            await topic.subscribe("s", initial_position="earliest")
            for turn in range(3):
                what = f"{name} {turn}"
                with suppress(LogStorageError):
                    await topic.publish(what.encode())
                    confirmed.done.add(what)

    async def find(self, store: ObjectLogStore) -> set[str]:
        """Receive all messages."""
        async with await LocalTopic.open(store, TOPIC) as topic:
            port = await topic.subscribe("s", initial_position="earliest")
            count = topic.backlog("s")
            return {(await port.receive()).data.decode() for _ in range(count)}


FIRST = {"first": 0, "A": 10, "B": 20}
ROLLING = CursorConfig(managed_ledger_cursor_max_entries_per_ledger=2, rollover_bytes=0, flush_interval=LONG)
BUCKETS = BucketConfig(
    delayed_delivery_min_index_count_per_bucket=1, max_indexes_per_bucket=1, delayed_delivery_max_num_buckets=1
)
TOPIC = TopicConfig(max_entries_per_ledger=2, cursor=ROLLING)
STATES: dict[str, tuple[State, int]] = {
    "durable": (Durable(), 6),
    "cursor": (OfCursor(), 12),
    "delayed cursor": (OfDelayedCursor(), 6),
    "tracker": (OfTracker(), 16),
    "topic": (OfTopic(), 6),
}
"""The states, and which share of all orders is tried: every sixth, ...; with ``ORDERS=all`` each one."""


def chosen_state(name: str) -> tuple[State, int]:
    """Return a state, and which share of all orders is tried."""
    state, share = STATES[name]
    return state, 1 if os.environ.get("ORDERS") == "all" else share


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STATES)
def test_in_every_order(name: str) -> None:
    """O47: whichever machine is paused at any request, confirmed data survives, and its owner continues."""
    state, share = chosen_state(name)
    begin = begun(state)
    every = orders(state, begin, share=share)
    chosen = sample(every, most=6)
    print(f"{name}: {len(chosen)} of {len(every)} orders")
    for order in chosen:
        run(state, begin, order)


@pytest.mark.parametrize("name", STATES)
def test_in_turns(name: str) -> None:
    """O47: the same when both machines are paused repeatedly."""
    state, _ = STATES[name]
    begin = begun(state)
    for order in random_orders(state, begin, size(20, fast=4), SEED):
        run(state, begin, order)


@pytest.mark.parametrize("name", STATES)
def test_after_a_doubt(name: str) -> None:
    """O47: the same when the request before the pause fails, or its answer is lost: no name is deleted on a guess."""
    state, share = chosen_state(name)
    begin = begun(state)
    every = doubts(state, begin, share=1 if share == 1 else 2 * share + 1)  # odd, or all of them fail alike
    chosen = sample(every, most=6)
    print(f"{name}: {len(chosen)} of {len(every)} orders with a doubt")
    for order in chosen:
        run(state, begin, order)
