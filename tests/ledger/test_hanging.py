"""Users of logs while storage does not answer, and the effect of late answers on the next owner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Protocol

import pytest

from pulsar_nack import BucketConfig, Consumer, Cursor, LocalTopic, MessageId, NackConfig, Position
from pulsar_nack.config import CursorConfig, TopicConfig
from pulsar_nack.delayed.bucket import LogBucketTracker, LogDelayedCursor
from pulsar_nack.errors import ClosedError, LedgerError, NotDurableError
from pulsar_nack.ledger import LogStore
from pulsar_nack.testing import FakePort, virtual_time
from tests.hanging import Storage

TIMEOUT_S = 7.0


class Kind(Protocol):
    """A part of the library that keeps its state on a log store."""

    async def open(self, store: LogStore) -> Any:
        """Open it."""
        ...

    async def change(self, opened: Any, number: int) -> None:
        """Make a change; it is durable on return."""
        ...

    async def find(self, opened: Any) -> set[int]:
        """Return which changes are there."""
        ...


class OfConsumer:
    """A durable consumer."""

    async def open(self, store: LogStore) -> Any:
        """Open it on a new port."""
        return await Consumer(FakePort(), durable=store, config=NackConfig(close_timeout=TIMEOUT_S)).open()

    async def change(self, opened: Any, number: int) -> None:
        """Nack a message."""
        await opened.negative_acknowledge(MessageId(1, number), 3600)

    async def find(self, opened: Any) -> set[int]:
        """Return the nacks that are there."""
        pending = opened._state.durable.state.pending
        return {number for number in range(10) if pending.find(MessageId(1, number)) is not None}


class OfCursor:
    """A cursor."""

    async def open(self, store: LogStore) -> Any:
        """Open it."""
        return await Cursor.open(store, {1: 40}, CursorConfig(close_timeout=TIMEOUT_S))

    async def change(self, opened: Any, number: int) -> None:
        """Acknowledge an entry."""
        await opened.acknowledge([Position(1, 2 * number + 1)])
        await opened.flush()

    async def find(self, opened: Any) -> set[int]:
        """Return the acknowledgements that are there."""
        return {number for number in range(10) if await opened.is_acked((1, 2 * number + 1))}


class OfDelayedCursor:
    """The cursor of a bucket tracker."""

    async def open(self, store: LogStore) -> Any:
        """Open it."""
        return await LogDelayedCursor.open(store, close_timeout=TIMEOUT_S)

    async def change(self, opened: Any, number: int) -> None:
        """Set a property."""
        await opened.put_property(str(number), "")

    async def find(self, opened: Any) -> set[int]:
        """Return the properties that are there."""
        return set(map(int, opened.properties()))


class OfTracker:
    """A bucket tracker; a message is sealed, and its cursor is checked."""

    async def open(self, store: LogStore) -> Any:
        """Open it."""
        config = BucketConfig(
            close_timeout=TIMEOUT_S, delayed_delivery_min_index_count_per_bucket=1, max_indexes_per_bucket=1
        )
        return await LogBucketTracker.open_store(store, config)

    async def change(self, opened: Any, number: int) -> None:
        """Hold a message, and set a property."""
        opened.add_message(number, number, 1 << 41)
        await opened.cursor.put_property(str(number), "")

    async def find(self, opened: Any) -> set[int]:
        """Return the properties that are there."""
        return {int(key) for key in opened.cursor.properties() if key.isdigit()}


class OfTopic:
    """A local topic."""

    async def open(self, store: LogStore) -> Any:
        """Open it."""
        return await LocalTopic.open(store, TopicConfig(cursor=CursorConfig(close_timeout=TIMEOUT_S)))

    async def change(self, opened: Any, number: int) -> None:
        """Publish."""
        await opened.publish(str(number).encode())

    async def find(self, opened: Any) -> set[int]:
        """Receive everything."""
        port = await opened.subscribe(f"s{opened.last_position}", initial_position="earliest")
        return {int((await port.receive()).data) for _ in range(opened.backlog(f"s{opened.last_position}"))}


KINDS: list[Kind] = [OfConsumer(), OfCursor(), OfDelayedCursor(), OfTracker(), OfTopic()]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
each_storage = pytest.mark.parametrize("storage", ["folder", "objects"])


async def ends_within(seconds: float, work: Awaitable[object]) -> None:
    """Wait for it, at most so long on the loop's clock."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with suppress(TimeoutError, asyncio.CancelledError):
        await work
    assert loop.time() - begun <= seconds + 0.001


async def open_soon(kind: Kind, store: LogStore) -> Any:
    """Open it; in a folder, late answers of storage may hold locks for a moment."""
    for _ in range(50):
        try:
            return await kind.open(store)
        except LedgerError:
            await asyncio.sleep(0.01)
    return await kind.open(store)


@each_storage
@each_kind
@virtual_time
async def test_closing_ends_in_time(kind: Kind, storage: str) -> None:
    """O48: while storage hangs, closing takes ``close_timeout``; late answers release everything and change nothing."""
    place = Storage(storage)
    store, threads = place.store()
    opened = await kind.open(store)
    await kind.change(opened, 1)
    threads.hang()
    change = asyncio.ensure_future(kind.change(opened, 2))
    await asyncio.sleep(0.01)
    assert threads.has_hung
    await ends_within(TIMEOUT_S, opened.aclose())
    if isinstance(opened, Consumer):
        assert isinstance(opened.port, FakePort)
        assert opened.port.is_closed
        assert opened.statistics().durable_failures == 1
    change.cancel()
    with suppress(asyncio.CancelledError, LedgerError, NotDurableError):
        await change
    confirmed = {1}
    if place.is_shared:
        newer = await kind.open(place.store()[0])
        await kind.change(newer, 3)
        threads.answer()
        await asyncio.sleep(1)
        await kind.change(newer, 4)
        await newer.aclose()
        confirmed |= {3, 4}
    threads.answer()
    await asyncio.sleep(1)
    again = await open_soon(kind, place.store()[0])
    assert confirmed <= await kind.find(again)
    await again.aclose()
    await store.aclose()


@each_storage
@each_kind
@virtual_time
async def test_a_cancelled_opening_ends_at_once(kind: Kind, storage: str) -> None:
    """O48: whichever job of an opening hangs, the cancelled opening ends; its late answer changes nothing."""
    for at in range(100):
        place = Storage(storage)
        first = await kind.open(place.store()[0])
        await kind.change(first, 1)
        await first.aclose()
        store, threads = place.store()
        threads.hang(after=at)
        opening = asyncio.ensure_future(kind.open(store))
        await asyncio.sleep(0.01)
        if not threads.has_hung:
            threads.answer()
            await (await opening).aclose()
            break
        opening.cancel()
        await ends_within(0.2, opening)
        confirmed = {1}
        if place.is_shared:
            newer = await kind.open(place.store()[0])
            await kind.change(newer, 2)
            owners = place.owners()
            threads.answer()
            await asyncio.sleep(1)
            assert place.owners() == owners
            await kind.change(newer, 3)
            await newer.aclose()
            confirmed |= {2, 3}
        threads.answer()
        if not opening.cancelled():  # the hanging job was not waited for
            await opening.result().aclose()
        await asyncio.sleep(1)
        again = await open_soon(kind, place.store()[0])
        assert confirmed <= await kind.find(again)
        await again.aclose()
    assert at > 1


@virtual_time
async def test_closing_while_opening_hangs() -> None:
    """O48: a consumer that another task closes while its opening hangs ends too; its opener gets an error."""
    store, threads = Storage("objects").store()
    port = FakePort()
    consumer = Consumer(port, durable=store)
    threads.hang()
    opening = asyncio.ensure_future(consumer.open())
    await asyncio.sleep(0.01)
    await ends_within(0.2, consumer.aclose())
    assert port.is_closed
    with pytest.raises(ClosedError):
        await opening
    threads.answer()
    await store.aclose()
