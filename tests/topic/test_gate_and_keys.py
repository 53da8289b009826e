"""The gate on Key_Shared subscriptions: held entries block later ones of their key, and nothing spins."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any, cast

import pytest

from pulsar_nack import Delivery, Position
from pulsar_nack.config import CursorConfig, TopicConfig
from pulsar_nack.cursor import Cursor
from pulsar_nack.testing import FaultyPort, LocalBroker, ManualClock, virtual_time
from pulsar_nack.topic import LocalTopic
from pulsar_nack.topic._delivery_loop import AdmissionControl, DeliveryLoop
from pulsar_nack.topic._dispatch_queue import EntryInfo
from pulsar_nack.topic._dispatcher import Dispatcher, SubscriptionType
from tests.tiers import seeds, size

from .test_gate_on_topics import LIMIT, TICK

KEYS = 6
MAX_ROUNDS = 100


class KeyedLife:
    """Some consumers of a subscription that acknowledge each key in order, and delay some keys for long.

    Wherever a message arrives, every lower one of its key must be acknowledged, or in flight at the same consumer.
    Delayed messages have no order, and block nothing.
    """

    def __init__(self, seed: int, broker: LocalBroker, topic: LocalTopic) -> None:
        self.random = Random(seed)
        self.broker = broker
        self.topic = topic
        self.keys: list[str] = []
        """The key of each entry, by its number."""
        self.left: dict[str, dict[int, set[int]]] = {f"key-{number}": {} for number in range(KEYS)}
        """The unacknowledged messages of each key's entries, except delayed ones, by number."""
        self.paused = 0
        self.checked = 0

    async def publish(self, count: int) -> None:
        """Publish entries of few keys, some of them batches or delayed."""
        random = self.random
        for number in range(count):
            size = random.choice([1, 1, 1, 2, 40])
            key, delay = f"key-{random.randrange(KEYS)}", random.randrange(90) if random.random() < 0.1 else None
            self.keys.append(key)
            if delay is None:
                self.left[key][number] = set(range(size))
            await self.topic.publish([b"%d" % number] * size, key=key, batch=size > 1, deliver_after=delay)
            if random.random() < 0.1:
                await asyncio.sleep(random.random())

    async def consume(self, lifetime: float, laziness: float = 0.6) -> None:
        """Consume for a while."""
        random = self.random
        options: dict[str, Any] = {
            "receiver_queue_size": random.choice([1, 4, 30]),
            "unacked_limit": random.choice([None, None, 90]),
        }
        port: FaultyPort = await self.broker.subscribe("s", "key_shared", **options)
        held: dict[int, list[Delivery]] = {}
        lazy = [f"key-{number}" for number in range(KEYS) if random.random() < laziness]
        end = asyncio.get_running_loop().time() + lifetime
        while asyncio.get_running_loop().time() < end:
            try:
                delivery = await asyncio.wait_for(port.receive(), 0.5)
            except TimeoutError:
                lazy = [key for key in lazy if random.random() < 0.9]
            else:
                self.check(int(delivery.data), held)
                held.setdefault(int(delivery.data), []).append(delivery)
            self.paused += self.topic.statistics().subscriptions["s"].is_paused
            if random.random() < 0.7:
                await self.acknowledge(port, held, lazy)
        await port.close()

    async def acknowledge(self, port: FaultyPort, held: dict[int, list[Delivery]], lazy: list[str]) -> None:
        """Acknowledge the lowest of each key, whole or in part."""
        firsts: dict[str, int] = {}
        for number in sorted(held):
            firsts.setdefault(self.keys[number], number)
        for number in [each for key, each in firsts.items() if key not in lazy]:
            part = held[number][: self.random.randint(1, len(held[number]))]
            del held[number][: len(part)]
            if not held[number]:
                del held[number]
            await port.acknowledge([each.id for each in part])
            left = self.left[self.keys[number]]
            if number in left:
                left[number] -= {max(each.id.batch_index, 0) for each in part}
                if not left[number]:
                    del left[number]
            assert self.topic.cursor("s").metadata_size_bytes <= LIMIT

    def check(self, number: int, held: dict[int, list[Delivery]]) -> None:
        """Assert that a message does not overtake another one of its key."""
        left = self.left[self.keys[number]]
        if number in left:
            early = [other for other in left if other < number and other not in held]
            assert not early, f"{number} of {self.keys[number]} came before {early}"
            self.checked += 1

    async def break_reads(self) -> None:
        """Make reads fail now and then."""
        while True:
            await asyncio.sleep(self.random.random() * 5)
            self.broker.fail_reads(self.random.randint(1, 3))

    async def drain(self) -> None:
        """Receive everything with one consumer alone."""
        async with asyncio.timeout(3_600):
            while self.topic.backlog("s"):
                await self.consume(20, laziness=0)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a subscription's task keeps looking and delivers nothing."""
    look, idle = DeliveryLoop._round, Counter[str]()

    async def counted(self: DeliveryLoop) -> bool:
        before = self._read_at, set(self._dispatcher.in_flight)
        goes_on = await look(self)
        is_idle = goes_on and before == (self._read_at, set(self._dispatcher.in_flight))
        idle[self._name] = idle[self._name] + 1 if is_idle else 0
        assert idle[self._name] < MAX_ROUNDS, "it spins"
        return goes_on

    monkeypatch.setattr(DeliveryLoop, "_round", counted)


@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize("seed", seeds([9, 1, 7, 14, *range(20, 60)]))
@virtual_time
async def test_keys_stay_in_order(seed: int) -> None:
    """K42: while the gate holds some messages, and others pass, no message overtakes one of its key; all come."""
    random = Random(seed)
    config = TopicConfig(
        cache_bytes=random.choice([0, 1 << 20]),
        max_entries_per_ledger=random.choice([7, 1_000]),
        cursor=CursorConfig(max_per_cursor_metadata_size_in_bytes=LIMIT),
    )
    async with LocalBroker(config, delayed=TICK) as broker:
        topic = await broker.topic()
        await topic.create_subscription("s", initial_position="earliest")
        life = KeyedLife(seed, broker, topic)
        breaking = asyncio.create_task(life.break_reads())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(life.publish(size(200, fast=100)))
            for _ in range(3):
                tasks.create_task(life.consume(random.randint(20, 120)))
        breaking.cancel()
        await life.drain()
        assert life.checked > 300
        assert life.paused or seed >= 20


def test_what_is_held_keeps_its_key_back() -> None:
    """K42: a held entry blocks later ones of its key, or everything if its key is unknown."""
    cursor = FakeCursor()
    config = TopicConfig(cursor=CursorConfig(max_per_cursor_metadata_size_in_bytes=LIMIT))
    dispatcher = Dispatcher(SubscriptionType.KEY_SHARED)
    admission = AdmissionControl(cast("Cursor", cursor), dispatcher, config, "s", ManualClock())
    first, second, third, fourth = (Position(1, entry) for entry in (10, 20, 30, 40))
    known = {first: EntryInfo(1), second: EntryInfo(2), third: EntryInfo(1), fourth: EntryInfo(2)}

    def chosen(*, in_order: bool, without: Position | None = None) -> list[Position]:
        for position, info in known.items():
            dispatcher.queue.add(position, info)
        if without is not None:
            dispatcher.queue._forget(without)
        return admission.choose(known, are_queued=True, in_order=in_order)

    cursor.free = {second, third, fourth}
    assert chosen(in_order=False) == [second, third, fourth]
    assert chosen(in_order=True) == [second, fourth]
    assert chosen(in_order=True, without=first) == []
    dispatcher.queue.due.add(first)
    assert chosen(in_order=True, without=first) == [second, third, fourth]
    cursor.free = {first, third, fourth}
    assert chosen(in_order=True, without=first) == [first, third]
    assert chosen(in_order=True, without=third) == [first, third]


class FakeCursor:
    """A cursor whose state has its maximum size; some entries add nothing to it."""

    metadata_size_bytes = LIMIT
    highest_acked = Position(9, 9)
    next_position = Position(1, 1)
    free: set[Position] = set()  # noqa: RUF012 - each test sets it

    def acked_entries(self, ledger: int) -> int:
        """Return how many entries of a ledger are acknowledged."""
        return ledger

    def adds_range(self, position: Position) -> bool:
        """Return whether an entry may add a range."""
        return position not in self.free
