"""Objects that are dropped without being closed close with a warning; those of one loop refuse another."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import importlib
import inspect
import logging
import pickle
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import (
    BucketDelayedDeliveryTracker,
    ClosedError,
    Consumer,
    Cursor,
    InMemoryDelayedDeliveryTracker,
    MessageId,
    NegativeAcksTracker,
)
from pulsar_nack.consumer import Message
from pulsar_nack.delayed import DelayedDeliveryTrackerFactory
from pulsar_nack.delayed.bucket import (
    LogBucketTracker,
    LogDelayedCursor,
    LogSnapshotStorage,
    SharedDelayedIndex,
    SharedSubscription,
)
from pulsar_nack.errors import WrongLoopError
from pulsar_nack.ids import Position
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.testing import FakePort, MemoryDelayedCursor, MemorySnapshotStorage, virtual_time
from pulsar_nack.topic import LocalTopic
from pulsar_nack.wire import Client
from tests.consumer.nowait_port import NowaitPort
from tests.test_public_names import PUBLIC
from tests.wire.fake_broker import FakeBroker, later

TOPIC = "persistent://public/default/t"
NEVER = 2**60


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    """Note the beginnings of warnings, without their objects, which have to be freed."""
    begin: list[str] = []

    def note(message: Warning | str, *_: object, **__: object) -> None:
        begin.append(" ".join(str(message).split()[:2]).rstrip(","))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield begin


# -- dropped --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FakePort, NowaitPort])
@virtual_time
async def test_a_consumer_that_is_dropped(kind: type[FakePort], caplog: pytest.LogCaptureFixture) -> None:
    """O40: it warns and closes: prefetched messages go back, and nothing more is prefetched."""
    port = kind()
    for number in range(3):
        port.topic.publish(b"%d" % number)
    consumer = await Consumer(port).open()
    await (await consumer.receive()).ack()
    waiting = asyncio.create_task(consumer.receive(timeout=100))
    await waiting
    del waiting
    await asyncio.sleep(1)
    with warned() as heard:
        del consumer
        gc.collect()
    assert heard == ["unclosed <Consumer"]
    await asyncio.sleep(1)
    assert port.is_closed
    assert len(asyncio.all_tasks()) == 1
    assert [record.levelno for record in caplog.records if "dropped without being closed" in record.message] == [
        logging.WARNING
    ]


@pytest.mark.parametrize("kind", [FakePort, NowaitPort])
@virtual_time
async def test_messages_in_use_keep_their_consumer(kind: type[FakePort]) -> None:
    """A message can be settled although its consumer was dropped; the consumer closes afterwards."""
    port = kind()

    async def first() -> list[Message]:
        consumer = await Consumer(port).open()
        waits = asyncio.create_task(consumer.receive())
        await asyncio.sleep(1)
        port.topic.publish(b"x")
        port.topic.publish(b"y")
        return [await waits, await consumer.receive()]

    messages = await first()
    gc.collect()
    await asyncio.sleep(1)
    assert not port.is_closed
    for message in messages:
        await message.ack()
    with warned() as heard:
        del messages, message
        gc.collect()
    assert heard == ["unclosed <Consumer"]
    await asyncio.sleep(1)
    assert port.is_closed


@virtual_time
async def test_a_call_that_waits_keeps_its_consumer() -> None:
    """A waiting receive keeps the consumer open; a cancelled one does not, nor the message that it gave back."""
    port = NowaitPort()
    consumer = await Consumer(port).open()
    is_gone = weakref.ref(consumer)
    waiting = asyncio.create_task(consumer.receive())
    del consumer
    await asyncio.sleep(1)
    gc.collect()
    assert is_gone() is not None
    with warned() as heard:
        port.topic.publish(b"x")
        waiting.cancel()
        await asyncio.wait([waiting])
        del waiting
        gc.collect()
    assert heard == ["unclosed <Consumer"]
    assert is_gone() is None
    await asyncio.sleep(1)
    assert port.is_closed


@virtual_time
async def test_what_is_closed_is_dropped_in_silence() -> None:
    """No warning, which would be an error here."""
    for leave in (Consumer.aclose, None):
        consumer = await Consumer(FakePort()).open()
        if leave is None:
            async with consumer:
                pass
        else:
            await leave(consumer)
        del consumer
        gc.collect()
    Consumer(FakePort())  # never opened
    gc.collect()


@virtual_time
async def test_over_the_native_client() -> None:
    """O40: a consumer, a producer and their client are dropped: each warns, the broker is notified, nothing is left."""
    broker = FakeBroker()
    for _ in range(2):
        broker.topic(TOPIC).publish(b"x")
    broker.next("ACK", later(3))  # the client has to live until then

    async def forget() -> None:
        client = Client(broker.url, dial=broker.dial)
        consumer = await client.subscribe("t", "s", initial_position="earliest")
        producer = await client.producer("t")
        del client
        gc.collect()
        (await consumer.receive()).ack_soon()
        await (await consumer.receive()).nack(100)
        producer.send_nowait(b"y")

    with warned() as heard:
        await forget()
        for seconds in (1, 30, 1):
            gc.collect()
            await asyncio.sleep(seconds)
    assert sorted(heard) == ["unclosed <Client", "unclosed <Consumer", "unclosed <Producer"]
    assert len(broker.commands("CLOSE_CONSUMER")) == len(broker.commands("CLOSE_PRODUCER")) == 1
    assert len(broker.commands("SEND")) == 1  # earlier messages are stored
    assert broker.topic(TOPIC).subscriptions["s"].acked == {(7, 0)}
    assert len(asyncio.all_tasks()) == 1


@virtual_time
async def test_a_repr_that_fails_keeps_nothing_open(caplog: pytest.LogCaptureFixture) -> None:
    """A subclass whose ``repr`` fails is closed when it is dropped, with a warning, like every other."""

    class Mine(Consumer):
        def __repr__(self) -> str:
            raise RuntimeError("no name")

    class Ours(Client):
        def __repr__(self) -> str:
            raise RuntimeError("no name")

    port, broker = FakePort(), FakeBroker()
    consumer, client = await Mine(port).open(), Ours(broker.url, dial=broker.dial)
    async with client.producer("t"):
        pass
    with warned() as heard:
        del consumer, client
        gc.collect()
        await asyncio.sleep(1)
    assert len(heard) == 2
    assert port.is_closed
    assert len(asyncio.all_tasks()) == 1
    assert len([record for record in caplog.records if "dropped without being closed" in record.getMessage()]) == 2


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
@virtual_time
async def test_what_runs_is_not_copied(make: Callable[[Any], object]) -> None:
    """A copy would close the original when dropped: a TypeError names the class, and work continues."""
    broker = FakeBroker()
    broker.topic(TOPIC).publish(b"x")
    async with (
        Client(broker.url, dial=broker.dial) as client,
        client.producer("t") as producer,
        client.subscribe("t", "s", initial_position="earliest") as consumer,
    ):
        for it in (consumer, producer, client):
            with pytest.raises(TypeError, match=f"a {type(it).__name__} cannot be copied"):
                make(it)
        gc.collect()
        await asyncio.sleep(1)
        assert (await consumer.receive()).data == b"x"
        await producer.send(b"y")


def test_closed_already_in_another_loop() -> None:
    """Closing again does nothing in any loop; an open object still refuses another loop."""
    kept: list[Any] = []

    async def main() -> None:
        broker = FakeBroker()
        client = Client(broker.url, dial=broker.dial)
        kept.extend([await client.subscribe("t", "s"), await client.producer("t"), client])
        for it in kept:
            with pytest.raises(WrongLoopError):
                await asyncio.to_thread(asyncio.run, it.aclose())
            await it.aclose()

    async def again() -> None:
        for it in kept:
            await it.aclose()

    asyncio.run(main())
    asyncio.run(again())


def test_a_loop_that_is_over() -> None:
    """Dropped after its loop was closed: nothing is called in that loop."""
    kept: list[Any] = []

    async def main() -> None:
        kept.append(await Consumer(FakePort()).open())

    asyncio.run(main())
    kept.clear()
    gc.collect()


# -- another loop ---------------------------------------------------------------------------------------------------

Open = Callable[[Path], contextlib.AbstractAsyncContextManager[Any]]


def of_client(opening: Callable[[Client], contextlib.AbstractAsyncContextManager[Any]]) -> Open:
    """Return how to open and close each object of a client, and the client."""

    @contextlib.asynccontextmanager
    async def entered(_: Path) -> AsyncIterator[Any]:
        broker = FakeBroker()
        async with Client(broker.url, dial=broker.dial) as client, opening(client) as it:
            yield it

    return entered


@contextlib.asynccontextmanager
async def _message(_: Path) -> AsyncIterator[Message]:
    port = FakePort()
    port.topic.publish(b"x")
    async with Consumer(port) as consumer:
        yield await consumer.receive()


@contextlib.asynccontextmanager
async def _tracker(_: Path) -> AsyncIterator[NegativeAcksTracker]:
    async with NegativeAcksTracker(lambda _: None) as tracker:
        tracker.nack_nowait(MessageId(1, 1))  # opens the fast path
        yield tracker


@contextlib.asynccontextmanager
async def _in_memory(_: Path) -> AsyncIterator[InMemoryDelayedDeliveryTracker]:
    async with InMemoryDelayedDeliveryTracker(on_due=lambda: None) as tracker:
        tracker.add_message(2, 1, NEVER)  # opens the fast path
        yield tracker


@contextlib.asynccontextmanager
async def _buckets(_: Path) -> AsyncIterator[BucketDelayedDeliveryTracker]:
    async with await BucketDelayedDeliveryTracker.open(MemorySnapshotStorage(), MemoryDelayedCursor()) as tracker:
        tracker.add_message(2, 1, NEVER)  # opens the fast path
        yield tracker


@contextlib.asynccontextmanager
async def _of_shared(_: Path) -> AsyncIterator[SharedSubscription]:
    async with await SharedDelayedIndex.open(MemorySnapshotStorage(), MemoryDelayedCursor()) as index:
        yield index.subscribe("s", mark_delete=lambda: Position(-1, -1))


@contextlib.asynccontextmanager
async def _log(path: Path) -> AsyncIterator[Any]:
    async with await LocalLogStore.open(path) as store:
        yield await store.create("log")


@contextlib.asynccontextmanager
async def _snapshots(path: Path) -> AsyncIterator[LogSnapshotStorage]:
    async with await LocalLogStore.open(path) as store, LogSnapshotStorage(store) as storage:
        yield storage


@contextlib.asynccontextmanager
async def _delayed_cursor(path: Path) -> AsyncIterator[LogDelayedCursor]:
    async with await LocalLogStore.open(path) as store, await LogDelayedCursor.open(store, "c") as cursor:
        yield cursor


def opened(opening: Callable[[Path], Awaitable[Any]]) -> Open:
    """Return how to open and close what a coroutine function of a folder returns."""

    @contextlib.asynccontextmanager
    async def entered(path: Path) -> AsyncIterator[Any]:
        async with await opening(path) as it:
            yield it

    return entered


KINDS: dict[str, Open] = {
    "Consumer": opened(lambda _: Consumer(FakePort()).open()),
    "Message": _message,
    "Client": of_client(contextlib.nullcontext),
    "Producer": of_client(lambda client: client.producer("t")),
    "Reader": of_client(lambda client: client.reader("t")),
    "TableView": of_client(lambda client: client.table_view("t")),
    "NegativeAcksTracker": _tracker,
    "InMemoryDelayedDeliveryTracker": _in_memory,
    "BucketDelayedDeliveryTracker": _buckets,
    "LogBucketTracker": opened(LogBucketTracker.open_local),
    "DelayedDeliveryTrackerFactory": lambda _: DelayedDeliveryTrackerFactory(),
    "SharedDelayedIndex": opened(lambda _: SharedDelayedIndex.open(MemorySnapshotStorage(), MemoryDelayedCursor())),
    "SharedSubscription": _of_shared,
    "Cursor": opened(lambda path: Cursor.open_local(path, {1: 10})),
    "LocalTopic": opened(LocalTopic.open),
    "LocalLogStore": opened(LocalLogStore.open),
    "LocalLog": _log,
    "LogSnapshotStorage": _snapshots,
    "LogDelayedCursor": _delayed_cursor,
}

FREE: dict[str, str] = {
    "BasicAuthentication": "waits for nothing",
    "CursorLog": "driven by a cursor, which checks",
    "NoAuthentication": "waits for nothing",
    "TlsAuthentication": "waits for nothing",
    "TokenAuthentication": "keeps nothing between calls",
    "OAuth2Authentication": "asks for itself in each loop",
    "DeadLetterProducers": "driven by a publisher of a Consumer, which checks",
    "DisabledDelayedDeliveryTracker": "waits for nothing",
    "DurableNacks": "used by a Consumer, which checks",
    "FakePublisher": "waits for nothing",
    "MemoryDelayedCursor": "waits for nothing",
    "MemorySnapshotStorage": "waits for nothing",
    "StorageFaults": "keeps nothing of a loop",
    "FakePort": "driven by a Consumer, which checks",
    "FaultyPort": "driven by a Consumer, which checks",
    "LocalPort": "driven by a Consumer, which checks",
    "WirePort": "driven by a Consumer, which checks",
    "EmbeddedBroker": "a process",
    "LocalBroker": "its topics check",
    "NackRetryMiddleware": "keeps nothing of a loop",
    "PulsarBroker": "its client checks",
    "ObjectLog": "is an AsyncLog, as LocalLog",
    "ObjectLogStore": "is an AsyncLogStore, as LocalLogStore",
    "TraceWriter": "a thread writes",
    "VirtualClockEventLoop": "a loop",
}

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "acknowledge": ((1, 1),),
    "acknowledge_cumulative": ((1, 1),),
    "acknowledge_entries": (1, [1]),
    "add_entries": (1, [1], 1),
    "add_message": (1, 1, 1),
    "append": (b"x",),
    "append_many": ([b"x"],),
    "batch_set": ((1, 1),),
    "clear_backlog": ("s",),
    "contains_message": (1, 1),
    "create": ("x",),
    "create_bucket_snapshot": (b"x", [b"y"], "k", "t", "c"),
    "create_subscription": ("s",),
    "dead_letter": ("why",),
    "defer": (1,),
    "delete": (),
    "delete_bucket_snapshot": (1,),
    "forget": (),
    "get_bucket_snapshot_length": (1,),
    "get_bucket_snapshot_metadata": (1,),
    "get_bucket_snapshot_segment": (1, 1, 1),
    "get_scheduled_messages": (1,),
    "individually_deleted": (1,),
    "is_acked": ((1, 1),),
    "lru_switch": (1,),
    "mark_delete": (Position(1, 1),),
    "nack": (),
    "nack_entries": (1, [1]),
    "nack_many": ([MessageId(1, 1)],),
    "nack_nowait": (MessageId(1, 1),),
    "negative_acknowledge": (MessageId(1, 1),),
    "new_tracker": (),
    "list_bucket_snapshots": ("t", "c"),
    "open_damaged": ("x",),
    "open_log": ("x",),
    "partitions": ("t",),
    "publish": (b"x",),
    "put_property": ("k", "v"),
    "read": (0, 0),
    "remove_property": ("k",),
    "schema": ("t",),
    "seek": (0,),
    "send": (b"x",),
    "send_nowait": (b"x",),
    "skip": ("s", 1),
    "subscribe": ("s",),
    "take_ownership": ("x",),
    "unsubscribe": ("s",),
}
OF: dict[tuple[str, str], tuple[Any, ...]] = {
    ("Cursor", "acknowledge"): ([(1, 1)],),
    ("Cursor", "forget"): (1,),
    ("Cursor", "individually_deleted"): (),
    ("Cursor", "reset"): ((1, 1),),
    ("Cursor", "unacked"): (1, 0, 1),
    ("Consumer", "acknowledge"): (MessageId(1, 1),),
    ("Consumer", "acknowledge_cumulative"): (MessageId(1, 1),),
    ("Consumer", "defer"): (MessageId(1, 1), 1),
    ("Consumer", "run"): (print,),
    ("Consumer", "reconsume_later"): (MessageId(1, 1),),  # without a message, which is checked last
    ("Consumer", "unsubscribe"): (),
    ("LocalLogStore", "delete"): ("x",),
    ("LocalTopic", "seek"): ("s", 0),
    ("LogDelayedCursor", "forget"): (1,),
    ("NegativeAcksTracker", "ack"): (MessageId(1, 1),),
    ("NegativeAcksTracker", "nack"): (MessageId(1, 1),),
    ("Reader", "read"): (),
    ("SharedSubscription", "acknowledge"): ((1, 1),),
}
SYNCHRONOUS = {
    "Consumer": ["pause", "resume"],
    "NegativeAcksTracker": ["nack_nowait", "nack_many", "nack_entries", "ack", "clear"],
    "InMemoryDelayedDeliveryTracker": ["add_message", "get_scheduled_messages", "contains_message"],
    "BucketDelayedDeliveryTracker": ["add_message", "get_scheduled_messages", "contains_message"],
    "SharedSubscription": ["add_message", "get_scheduled_messages"],
    "Producer": ["send_nowait"],
    "TableView": ["changes"],
    "Message": ["ack_soon"],
}


def calls(kind: str, it: object) -> list[str]:
    """Return the names of an object's calls: all that are awaited, and others that change it."""
    names = [
        name
        for name, call in inspect.getmembers(type(it), inspect.iscoroutinefunction)
        if not name.startswith("_") and inspect.isfunction(inspect.getattr_static(type(it), name))
    ]
    return [*names, *SYNCHRONOUS.get(kind, [])]


@pytest.mark.parametrize("kind", KINDS)
async def test_another_loop_is_refused(kind: str, tmp_path: Path) -> None:
    """O40: each call from another thread's loop raises WrongLoopError; then work continues in the object's own loop."""
    async with KINDS[kind](tmp_path) as it:
        for name in calls(kind, it):
            arguments = OF.get((kind, name), ARGUMENTS.get(name, ()))

            async def elsewhere(name: str = name, arguments: tuple[Any, ...] = arguments) -> None:
                found = getattr(it, name)(*arguments)
                if inspect.isawaitable(found):
                    await found

            try:
                with pytest.raises(WrongLoopError):
                    await asyncio.to_thread(asyncio.run, elsewhere())
            except BaseException as error:
                raise AssertionError(f"{kind}.{name}{arguments}") from error
        closing = getattr(it, "aclose", None) or getattr(it, "close", None)
        if closing is not None:
            await closing()


@pytest.mark.parametrize("kind", KINDS)
def test_another_loop_of_the_thread_is_refused(kind: str, tmp_path: Path) -> None:
    """Each call in a second loop of the same thread raises WrongLoopError; then the object closes in its own loop."""
    opening = KINDS[kind](tmp_path)
    with contextlib.closing(asyncio.new_event_loop()) as one, contextlib.closing(asyncio.new_event_loop()) as two:
        it = one.run_until_complete(opening.__aenter__())

        async def elsewhere(name: str) -> None:
            found = getattr(it, name)(*OF.get((kind, name), ARGUMENTS.get(name, ())))
            if inspect.isawaitable(found):
                await found

        for name in calls(kind, it):
            try:
                with pytest.raises(WrongLoopError):
                    two.run_until_complete(elsewhere(name))
            except BaseException as error:
                raise AssertionError(f"{kind}.{name}") from error
        one.run_until_complete(opening.__aexit__(None, None, None))
        one.run_until_complete(one.shutdown_default_executor())


@pytest.mark.parametrize("kind", ["Cursor", "InMemoryDelayedDeliveryTracker", "NegativeAcksTracker"])
def test_loops_that_do_not_show_their_thread(kind: str, tmp_path: Path) -> None:
    """On uvloop too, hot calls work in the object's loop, and in no other."""
    uvloop = pytest.importorskip("uvloop")
    opening, name = KINDS[kind](tmp_path), SYNCHRONOUS.get(kind, ["acknowledge"])[0]
    with contextlib.closing(uvloop.new_event_loop()) as one, contextlib.closing(uvloop.new_event_loop()) as two:
        it = one.run_until_complete(opening.__aenter__())
        assert not hasattr(one, "_thread_id")

        async def call() -> None:
            found = getattr(it, name)(*OF.get((kind, name), ARGUMENTS.get(name, ())))
            if inspect.isawaitable(found):
                await found

        with pytest.raises(WrongLoopError):
            two.run_until_complete(call())
        one.run_until_complete(call())
        one.run_until_complete(opening.__aexit__(None, None, None))
        one.run_until_complete(one.shutdown_default_executor())


async def test_nothing_was_changed() -> None:
    """O40: a refused call has changed nothing."""
    port = FakePort()
    port.topic.publish(b"x")
    async with Consumer(port) as consumer:
        message = await consumer.receive()
        for call in (consumer.aclose, message.ack, message.nack):
            with pytest.raises(WrongLoopError):
                await asyncio.to_thread(asyncio.run, call())
        for at_once in (message.ack_soon, consumer.pause):
            with pytest.raises(WrongLoopError):
                await asyncio.to_thread(at_once)
        assert (consumer.statistics().in_work, consumer.statistics().held) == (1, 0)
        await message.ack()
        port.topic.publish(b"y")
        assert (await consumer.receive()).data == b"y"
    with pytest.raises(ClosedError):
        await consumer.receive()


def test_no_public_class_is_forgotten() -> None:
    """O40: each public class with awaited calls is tested above, or listed with the reason why not."""
    found = set()
    for module in PUBLIC - {"pulsar_nack.cli"}:
        imported = importlib.import_module(module)
        for name in getattr(imported, "__all__", ()):
            kind = getattr(imported, name)
            if not inspect.isclass(kind) or getattr(kind, "_is_protocol", False):
                continue
            is_awaited = inspect.getmembers(kind, inspect.iscoroutinefunction)
            if any(not method.startswith("_") or method == "__aenter__" for method, _ in is_awaited):
                found.add(kind.__name__)
    assert found == KINDS.keys() | FREE.keys()
