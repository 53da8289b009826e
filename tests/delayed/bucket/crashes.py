"""Random runs of the bucket tracker with crashes, beside a model that knows what must be found afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from copy import copy
from random import Random

from pulsar_nack import BucketDelayedDeliveryTracker, Position
from pulsar_nack.delayed import LogDelayedCursor, LogSnapshotStorage
from pulsar_nack.delayed.format import named_snapshots
from pulsar_nack.errors import LedgerError
from pulsar_nack.testing import ManualClock
from tests.crash_homes import AnyHome

from .stage import config_of


class Model:
    """What outlives the crashes: the topic, the delivered messages, and what is known of index and cursor."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.clock = ManualClock(0)
        self.times: dict[Position, int] = {}
        self.delivered: set[Position] = set()
        self.cleared: set[Position] = set()
        self.maybe_cleared: set[Position] = set()
        self.sealed: set[Position] = set()
        self.marked = Position(0, -1)
        self.marking = Position(0, -1)
        self._ledger = 1

    def fork(self) -> Model:
        """Return a copy."""
        copied = copy(self)
        copied.clock = ManualClock(self.clock.now_ms())
        copied.times = dict(self.times)
        copied.delivered, copied.cleared = set(self.delivered), set(self.cleared)
        copied.maybe_cleared, copied.sealed = set(self.maybe_cleared), set(self.sealed)
        return copied

    @property
    def wanted(self) -> list[Position]:
        """Return what a dispatcher reads again after a restart, in order."""
        done = self.delivered | self.cleared | self.maybe_cleared
        return [each for each in sorted(self.times) if each not in done]

    def publish(self, random: Random) -> Position:
        """Write a message with some delay."""
        if random.random() < 0.25:
            self._ledger += 1
        position = Position(self._ledger, sum(each.ledger == self._ledger for each in self.times))
        self.times[position] = self.clock.now_ms() + random.choice([3, 20, 50, 51, 400, 2_000])
        return position

    def deliver(self, positions: Iterable[Position]) -> None:
        """Take messages out of the tracker: due, and never early."""
        for position in positions:
            assert self.times[position] <= self.clock.now_ms()
            assert position not in self.delivered
            assert position not in self.cleared
            self.delivered.add(position)

    def passed(self) -> Position | None:
        """Return the position up to which all is delivered or cleared."""
        missing = min(self.wanted, default=None)
        done = [each for each in self.times if missing is None or each < missing]
        return max(done, default=None)

    def check(self, held: set[Position], mark: Position) -> None:
        """Compare with what was found when the tracker was opened."""
        assert self.marked <= mark <= self.marking
        self.marked = self.marking = mark
        now = self.clock.now_ms()
        needed = {each for each in self.sealed if self.times[each] > now and each > mark}
        assert needed - self.delivered - self.cleared - self.maybe_cleared <= held
        assert held <= self.times.keys() - self.delivered - self.cleared
        assert all(self.times[each] > now and each > mark for each in held)


class Run:
    """One process: opens the tracker a few times, performs random operations, and ends in order or in a crash."""

    def __init__(self, home: AnyHome, model: Model, seed: int) -> None:
        self.home = home
        self.model = model
        self.random = Random(seed)
        chance = Random(model.seed)
        self.config = config_of(
            least=chance.choice([1, 2, 4]),
            step=chance.choice([1, 30, 10_000]),
            most_indexes=chance.choice([-1, 1, 3]),
            most_buckets=chance.choice([1, 2, 3]),
            prefetch=chance.choice([0, 0.02, 1]),
            max_indexes_per_bucket=chance.choice([None, 6]),
        )
        self.tracker: BucketDelayedDeliveryTracker
        self.cursor: LogDelayedCursor
        self.storage: LogSnapshotStorage

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open everything, compare with the model, and offer what a dispatcher reads again."""
        async with (
            await self.home.open() as store,
            await LogDelayedCursor.open(store, compact_at=300) as self.cursor,
            LogSnapshotStorage(store, max_open=2, max_append=150) as self.storage,
            await BucketDelayedDeliveryTracker.open(
                self.storage, self.cursor, self.config, clock=self.model.clock
            ) as self.tracker,
        ):
            held = self._held()
            self.model.check(held, self.cursor.mark_delete_position)
            await self.idle()
            for position in self.model.wanted:
                self._offer(position)
            yield
            self._note()

    async def live(self) -> None:
        """Run over restarts; the last two runs are short."""
        await self.play(2, 14)
        await self.play(2, 1)

    async def live_on(self) -> None:
        """Run on for a while."""
        await self.play(1, 4)

    async def recover(self, random: Random) -> None:
        """Open what a crash left, perhaps some time later, run on for a while, and take everything out."""
        self.model.clock.advance(random.choice([0, 0, 10, 200]))
        if random.random() < 0.3:
            await self.live_on()
        await self.finish(4)

    async def play(self, restarts: int, steps: int) -> None:
        """Run; if it cannot be opened, nothing fails from then on."""
        for _ in range(restarts):
            try:
                await self._play(steps)
            except LedgerError:
                self.home.faults.heal()
                await self._play(steps)

    async def _play(self, steps: int) -> None:
        async with self.opened():
            for _ in range(steps):
                await self._step()
                self._note()

    async def finish(self, steps: int = 0) -> None:
        """Run some more steps, and take everything out; then nothing is left of the index."""
        async with self.opened():
            for _ in range(steps):
                await self._step()
            for span in [300] * 8 + [60_000] * 2:
                self.model.clock.advance(span)
                await self._drain()
            assert set(self.model.wanted) == set()
            assert self.tracker.number_of_delayed_messages == 0
            await self.check_storage()
            assert not named_snapshots(self.cursor.properties())
        async with await self.home.open() as store:
            names = set(await store.names())
        self.home.check_clean(names)

    async def _drain(self) -> None:
        """Take out all due messages, and wait for storage in between."""
        empty = 0
        while empty < 2:
            await self.idle()
            taken = self.tracker.get_scheduled_messages(1_000)
            self.model.deliver(taken)
            empty = 0 if taken else empty + 1
        await self.idle()

    async def check_storage(self) -> None:
        """Check that stored, named, and known snapshots are the same, and that nothing else is left."""
        await self.cursor._tasks.wait_until_idle()
        ids = {named.snapshot_id for named in named_snapshots(self.cursor.properties())}
        assert {bucket.named.snapshot_id for bucket in self.tracker._index.buckets} == ids
        async with await self.home.open() as store:
            names = await store.names()
        assert {int(name.rpartition("-")[2]) for name in names if name.startswith("snapshot-")} == ids
        cursors = [name for name in names if name.startswith("delayed.cursor-")]
        assert len(cursors) == 1
        assert len(names) == len(ids) + 1

    async def idle(self) -> None:
        """Wait for storage."""
        await self.tracker.wait_until_idle()

    def _held(self) -> set[Position]:
        return {Position(*each) for each in self.tracker._index.pending}

    def _note(self) -> None:
        """Note which indexes are sealed: held, and not in memory only."""
        index = self.tracker._index
        index.queue.change_tail_owner(index.mutable)
        unsealed = index.queue.runs([index.mutable, *index.sealing])
        in_memory = {Position(ledger, entry) for run in unsealed for _, ledger, entry in run.rest()}
        self.model.sealed = self._held() - in_memory

    def _offer(self, position: Position) -> None:
        if not self.tracker.add_message(*position, self.model.times[position]):
            self.model.deliver([position])

    async def _step(self) -> None:
        model = self.model
        match self.random.choices(
            ["publish", "wait", "take", "idle", "mark", "clear"], weights=[8, 3, 3, 4, 2, 0.5], k=1
        )[0]:
            case "publish":
                for _ in range(self.random.choice([1, 3, 6])):
                    self._offer(model.publish(self.random))
            case "wait":
                model.clock.advance(self.random.choice([0, 1, 10, 100]))
            case "take":
                model.deliver(self.tracker.get_scheduled_messages(self.random.choice([1, 3, 100])))
            case "idle":
                await self.idle()
            case "mark" if (position := model.passed()) and position > model.marking:
                await self._mark(position)
            case "clear":
                await self._clear()

    async def _mark(self, position: Position) -> None:
        self.model.marking = position
        try:
            await self.cursor.mark_delete(position)
        except LedgerError:
            return
        self.model.marked = position
        self.tracker.trim()

    async def _clear(self) -> None:
        gone = set(self.model.wanted)
        self.model.maybe_cleared |= gone
        self.model.sealed = set()
        await self.tracker.clear()
        await self.idle()
        with suppress(LedgerError):
            if not await self.storage.list_bucket_snapshots("", ""):  # what could not be deleted may come back
                self.model.cleared |= self.model.maybe_cleared
                self.model.maybe_cleared.clear()
