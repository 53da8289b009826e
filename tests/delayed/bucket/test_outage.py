"""Storage that fails or hangs as a whole, or for some of many buckets: no other message is late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pulsar_nack import BucketDelayedDeliveryTracker, Position
from pulsar_nack.delayed.bucket._snapshots import MAX_READS
from pulsar_nack.errors import InjectedError
from pulsar_nack.testing import ManualClock, MemoryDelayedCursor, MemorySnapshotStorage
from tests.patience import patience
from tests.tiers import size

from .stage import Stage, config_of

FIRST_AT = 1_000_000
LATEST = 1_500


class Ailing(MemorySnapshotStorage):
    """A storage whose reads of some snapshots fail or hang."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.ill: set[int] = set()

    async def get_bucket_snapshot_segment(self, snapshot_id: int, first: int, last: int) -> Sequence[bytes]:
        """Return the entries of a readable snapshot."""
        await self._suffer(snapshot_id)
        return await super().get_bucket_snapshot_segment(snapshot_id, first, last)

    async def get_bucket_snapshot_metadata(self, snapshot_id: int) -> bytes:
        """Return the first entry of a readable snapshot."""
        if self.how == "hang at once":
            await self._suffer(snapshot_id)
        return await super().get_bucket_snapshot_metadata(snapshot_id)

    async def _suffer(self, snapshot_id: int) -> None:
        if snapshot_id not in self.ill:
            return
        if self.how == "fail":
            raise InjectedError("segment")
        await asyncio.Event().wait()


class Outage:
    """``count`` buckets of two messages each, ``apart`` ms from one to the next, and a new tracker."""

    def __init__(self, buckets: int, how: str, *, apart: int = 1, prefetch: float = 2) -> None:
        self.count, self.apart, self.prefetch = buckets, apart, prefetch
        self.clock, self.storage, self.cursor = ManualClock(), Ailing(how), MemoryDelayedCursor()
        self.came: dict[Position, int] = {}

    def due_at(self, bucket: int) -> int:
        """Return when the first message of a bucket is due."""
        return FIRST_AT + bucket * self.apart

    async def open(self) -> BucketDelayedDeliveryTracker:
        """Open the tracker."""
        config = config_of(least=2, step=300_000, most_buckets=-1, prefetch=self.prefetch, recovery_timeout=30)
        return await BucketDelayedDeliveryTracker.open(self.storage, self.cursor, config, clock=self.clock)

    async def start(self) -> None:
        """Fill the buckets, and restart."""
        async with await self.open() as tracker:
            for bucket in range(self.count):
                tracker.add_message(bucket, 0, self.due_at(bucket))
                tracker.add_message(bucket, 1, self.due_at(bucket) + 1)
            tracker.add_message(self.count, 0, 10**9)
            await tracker.wait_until_idle()
            assert len(self.storage.snapshots) == self.count
        self.tracker = await self.open()

    async def go_on(self, until: int) -> None:
        """Advance the time, and take due messages."""
        self.clock.set(FIRST_AT - 5_000)
        while self.clock.now_ms() < until:
            self.clock.advance(50)
            for _ in range(20):
                await asyncio.sleep(0)
            self.came |= dict.fromkeys(self.tracker.get_scheduled_messages(10_000), self.clock.now_ms())


@pytest.mark.parametrize("how", ["fail", "hang"])
@pytest.mark.parametrize(("apart", "prefetch"), [(1, 2), (1, 0.001), (100, 0.001)])
async def test_what_is_in_memory(how: str, apart: int, prefetch: float) -> None:
    """O21: while no segment of many buckets can be read, messages that were never sealed come in time."""
    for buckets in (40, size(200, fast=80), *([size(1_000, fast=120)] if apart == 1 else [])):
        outage = Outage(buckets, how, apart=apart, prefetch=prefetch)
        await outage.start()
        outage.storage.ill = set(outage.storage.snapshots)
        due = {Position(10_000 + number, 0): outage.due_at(buckets * number // 4) + 100 for number in range(5)}
        for position, at in due.items():
            assert outage.tracker.add_message(*position, at)
        await outage.go_on(max(due.values()) + LATEST)
        assert set(outage.came) == set(due)
        assert max(outage.came[each] - at for each, at in due.items()) <= LATEST
        await outage.tracker.aclose()


@pytest.mark.parametrize("how", ["fail", "hang"])
@pytest.mark.parametrize("prefetch", [2, 0.001])
async def test_what_can_be_read(how: str, prefetch: float) -> None:
    """O21: half of many buckets cannot be read, the first ones or every second one: the others come in time."""
    buckets = size(400, fast=80)
    for ill in (range(0, buckets, 2), range(buckets // 2)):
        outage = Outage(buckets, how, prefetch=prefetch)
        await outage.start()
        outage.storage.ill = {list(outage.storage.snapshots)[bucket] for bucket in ill}
        await outage.go_on(outage.due_at(buckets) + LATEST)
        well = set(range(buckets)) - set(ill)
        assert set(outage.came) == {Position(bucket, entry) for bucket in well for entry in (0, 1)}
        assert max(at - outage.due_at(each.ledger) - each.entry for each, at in outage.came.items()) <= LATEST
        await outage.tracker.aclose()


@pytest.mark.slow
async def test_snapshots_that_hang_when_the_tracker_starts() -> None:
    """All readable snapshots are recovered, and the others later, however many hang."""
    outage = Outage(40, "hang at once")
    await outage.start()
    await outage.tracker.aclose()
    outage.storage.ill = set(list(outage.storage.snapshots)[:20])
    async with await outage.open() as tracker:
        async with asyncio.timeout(patience(10)):
            while tracker.number_of_delayed_messages < 40:
                await asyncio.sleep(0.01)
        assert tracker.statistics().is_recovering
        outage.storage.ill.clear()
        outage.clock.advance(1_000)
        await tracker.wait_until_recovered()
        assert tracker.number_of_delayed_messages == 80


async def test_a_list_that_hangs_when_the_tracker_starts() -> None:
    """Looking for orphans delays nothing, and does not count snapshots being stored as such."""
    outage = Outage(3, "fail")
    await outage.start()
    await outage.tracker.aclose()
    gate = outage.storage.faults.hold("list")
    async with await outage.open() as tracker:
        assert tracker.number_of_delayed_messages == 6
        created = outage.storage.faults.hold("create")
        tracker.add_message(20, 0, FIRST_AT)
        tracker.add_message(20, 1, FIRST_AT)
        tracker.add_message(21, 0, FIRST_AT)
        for _ in range(20):
            await asyncio.sleep(0)
        assert outage.storage.faults.calls["create"] == 4
        gate.set()
        created.set()
        await tracker.wait_until_idle()
        assert len(outage.storage.snapshots) == len(outage.cursor.held) == 4


async def test_a_backlog_on_slow_storage() -> None:
    """Of a backlog only the next segments are loaded; while that takes long, nothing waits behind it."""
    async with Stage(least=10, step=10**6, most_indexes=5, prefetch=0.1).run() as stage:
        for ledger in range(1, 21):
            stage.tracker.add_entries(ledger, range(10), [ledger * 1_000 + entry for entry in range(10)])
        stage.add(21, 0, 10**6)
        await stage.idle()
        reads = stage.storage.faults.calls
        gate = stage.storage.faults.hold("segment")
        stage.clock.set(100_000)
        await stage.idle_except("segment")
        stage.clock.advance(299)
        await stage.idle_except("segment")
        assert reads["segment"] == 1
        stage.clock.advance(1)
        await stage.idle_except("segment")
        assert reads["segment"] == 2 + MAX_READS
        gate.set()
        await stage.idle()
        assert reads["segment"] == 20
