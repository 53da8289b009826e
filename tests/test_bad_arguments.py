"""Arguments of a wrong kind are refused by name, with the value, before anything has changed."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import pulsar_nack
from pulsar_nack import (
    BucketConfig,
    BucketDelayedDeliveryTracker,
    Consumer,
    Cursor,
    CursorConfig,
    DeadLetterPolicy,
    DelayedDeliveryConfig,
    InMemoryDelayedDeliveryTracker,
    InvalidArgumentError,
    MessageId,
    NackConfig,
    NackSchedule,
    NegativeAcksTracker,
)
from pulsar_nack.backoff import Exponential, Fixed, Multiplier, Steps
from pulsar_nack.delayed import DelayedDeliveryTrackerFactory, LogDelayedCursor
from pulsar_nack.delayed.bucket import LogBucketTracker, LogSnapshotStorage, SharedDelayedIndex
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.testing import (
    FakePort,
    FakeTopic,
    LocalBroker,
    ManualClock,
    MemoryDelayedCursor,
    MemorySnapshotStorage,
    virtual_time,
)
from pulsar_nack.topic import LocalTopic
from pulsar_nack.wire import BasicAuthentication, Client, OAuth2Authentication, TlsAuthentication, TokenAuthentication
from tests.test_lifetime import ARGUMENTS, KINDS, OF, calls

URL = "pulsar://127.0.0.1:1"
WRONG: list[Any] = [object(), 1 + 2j]
"""Values that are wrong for every argument."""


class NoStore:
    """Looks like a log store; its methods are never called."""

    create = open_log = print


Make = Callable[[Path], tuple[Callable[..., Any], dict[str, Any]]]

ENTRIES: dict[str, Make] = {
    "NegativeAcksTracker": lambda _: (NegativeAcksTracker, {"redeliver": print}),
    "NackSchedule": lambda _: (NackSchedule, {}),
    "Consumer": lambda _: (Consumer, {"port": FakePort()}),
    "InMemoryDelayedDeliveryTracker": lambda _: (InMemoryDelayedDeliveryTracker, {}),
    "BucketDelayedDeliveryTracker.open": lambda _: (
        BucketDelayedDeliveryTracker.open,
        {"storage": MemorySnapshotStorage(), "cursor": MemoryDelayedCursor()},
    ),
    "BucketDelayedDeliveryTracker.open_local": lambda path: (BucketDelayedDeliveryTracker.open_local, {"path": path}),
    "LogBucketTracker.open_local": lambda path: (LogBucketTracker.open_local, {"path": path}),
    "DelayedDeliveryTrackerFactory": lambda _: (DelayedDeliveryTrackerFactory, {}),
    "SharedDelayedIndex.open": lambda _: (
        SharedDelayedIndex.open,
        {"storage": MemorySnapshotStorage(), "cursor": MemoryDelayedCursor()},
    ),
    "Cursor.open_local": lambda path: (Cursor.open_local, {"path": path, "ledgers": {1: 10}}),
    "LocalTopic.open": lambda path: (LocalTopic.open, {"home": path}),
    "LocalLogStore.open": lambda path: (LocalLogStore.open, {"path": path}),
    "LogSnapshotStorage": lambda _: (LogSnapshotStorage, {"store": NoStore()}),
    "Client": lambda _: (Client, {"url": URL}),
    "Client.subscribe": lambda _: (Client(URL).subscribe, {"topic": "t", "subscription": "s"}),
    "Client.producer": lambda _: (Client(URL).producer, {"topic": "t"}),
    "DeadLetterPolicy": lambda _: (DeadLetterPolicy, {"max_redeliveries": 3}),
    "Fixed": lambda _: (Fixed, {"delay": 1}),
    "Multiplier": lambda _: (Multiplier, {}),
    "Exponential": lambda _: (Exponential, {"base": 1, "maximum": 2}),
    "Steps": lambda _: (Steps, {"delays": [1]}),
    "MessageId": lambda _: (MessageId, {"ledger": 1, "entry": 1}),
    "OAuth2Authentication": lambda _: (
        OAuth2Authentication,
        {"issuer_url": "https://x", "client_id": "a", "client_secret": "b"},
    ),
    "TokenAuthentication": lambda _: (TokenAuthentication, {"token": "x"}),
    "BasicAuthentication": lambda _: (BasicAuthentication, {"user": "x", "password": "y"}),
    "TlsAuthentication": lambda _: (TlsAuthentication, {"certificate_file": "x"}),
    "FakePort": lambda _: (FakePort, {}),
    "FakeTopic": lambda _: (FakeTopic, {}),
    "LocalBroker": lambda _: (LocalBroker, {}),
    "ManualClock": lambda _: (ManualClock, {}),
}
FOR_TESTS = {("Client", "dial")}
ALIASES = {
    ("LocalTopic.open", "home"): "path",
    ("LocalTopic.unsubscribe", "name"): "subscription",
    ("LocalLog.read", "last"): "first",  # an empty log has no valid number
    ("Consumer.defer", "delay"): None,  # without a message, which is checked first
    ("Message.dead_letter", "reason"): None,  # without a dead-letter topic, which is checked first
    **dict.fromkeys((("Consumer.reconsume_later", name) for name in ("delay", "properties", "reason")), None),
}
OF_CONSUMER = {"hooks": [print, "ab", 5], "backoff": ["1", True, [], [1, -1]], "config": [CursorConfig(), NackConfig]}


async def refuse(what: str, call: Callable[..., Any], given: dict[str, Any], name: str, wrong: object) -> None:
    """Expect an error that names the argument and its value."""
    expected = ALIASES.get((what, name), name)
    if expected is None:
        return

    async def try_it() -> None:
        made = call(**{**given, name: wrong})
        if inspect.isawaitable(made):
            await asyncio.wait_for(made, 5)

    try:
        with pytest.raises(InvalidArgumentError) as caught:
            await try_it()
    except BaseException as error:
        raise AssertionError(f"{what}({name}={wrong!r})") from error
    assert caught.value.field.split("[")[0].split("(")[0] == expected, what
    assert str(caught.value).startswith(f"{caught.value.field}: expected ")


def parameters(call: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters."""
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    return [name for name, each in inspect.signature(call).parameters.items() if each.kind in kinds]


@pytest.mark.parametrize("entry", ENTRIES)
async def test_each_argument_of_what_is_made(entry: str, tmp_path: Path) -> None:
    """N24: each parameter of each public constructor, also one that is added later; a refusal leaves no file."""
    for number, wrong in enumerate(WRONG):
        path = tmp_path / str(number)
        call, given = ENTRIES[entry](path)
        for name in parameters(call):
            if (entry, name) not in FOR_TESTS:
                await refuse(entry, call, given, name, wrong)
        assert not path.exists()


@pytest.mark.parametrize("kind", KINDS)
async def test_each_argument_of_calls(kind: str, tmp_path: Path) -> None:
    """N24: each parameter of each call on an open object."""
    async with KINDS[kind](tmp_path) as it:
        for call_name, wrong in itertools.product(calls(kind, it), WRONG):
            call = getattr(it, call_name)
            bound = inspect.signature(call).bind(*OF.get((kind, call_name), ARGUMENTS.get(call_name, ())))
            for name in parameters(call):
                await refuse(f"{kind}.{call_name}", call, bound.arguments, name, wrong)


@virtual_time
async def test_settings_of_consumers() -> None:
    """N24: nearly right settings too: a single hook, a class of settings, those of another part."""
    for name, values in OF_CONSUMER.items():
        for wrong in values:
            await refuse("Consumer", Consumer, {"port": FakePort()}, name, wrong)
            client = Client(URL)
            await refuse("subscribe", client.subscribe, {"topic": "t", "subscription": "s"}, name, wrong)
    for wrong in (print, "ab", 5, [5]):
        await refuse("NegativeAcksTracker", NegativeAcksTracker, {"redeliver": print}, "hooks", wrong)


async def test_settings_of_another_class(tmp_path: Path) -> None:
    """A wrong class of settings is refused by each part that has settings, before a file is made."""
    path = tmp_path / "place"
    others: list[Any] = [NackConfig(), DelayedDeliveryConfig(), BucketConfig, {}]
    storage, cursor = MemorySnapshotStorage(), MemoryDelayedCursor()
    for wrong in others:
        for opening in (LogBucketTracker.open_local, BucketDelayedDeliveryTracker.open_local):
            await refuse("open_local", opening, {"path": path}, "config", wrong)
        given: dict[str, Any] = {"storage": storage, "cursor": cursor}
        await refuse("open", BucketDelayedDeliveryTracker.open, given, "config", wrong)
        await refuse("factory", DelayedDeliveryTrackerFactory, {}, "config", wrong)
        await refuse("Cursor", Cursor.open_local, {"path": path, "ledgers": {1: 1}}, "config", wrong)
        await refuse("LocalTopic", LocalTopic.open, {"home": path}, "config", wrong)
        if not isinstance(wrong, NackConfig):
            durable: dict[str, Any] = {"port": FakePort(), "durable": path}
            await refuse("Consumer", lambda **given: Consumer(**given).open(), durable, "config", wrong)
        if not isinstance(wrong, DelayedDeliveryConfig):
            await refuse("InMemory", InMemoryDelayedDeliveryTracker, {}, "config", wrong)
            await refuse("LocalTopic", LocalTopic.open, {"home": path}, "delayed", wrong)
    assert list(tmp_path.iterdir()) == []


async def test_a_tracker_where_a_cursor_lies(tmp_path: Path) -> None:
    """A tracker in a Cursor's folder says what it found, and changes nothing; where both exist, both are left alone."""
    async with await Cursor.open_local(tmp_path, {1: 20}) as cursor:
        await cursor.acknowledge([(1, 3)])
    before = sorted(tmp_path.rglob("*"))
    async with await LocalLogStore.open(tmp_path) as store:
        for opening in (BucketDelayedDeliveryTracker.open_local(tmp_path), LogDelayedCursor.open(store)):
            with pytest.raises(InvalidArgumentError, match="cursor-0000000001 is the acknowledgement state of"):
                await opening
    assert sorted(tmp_path.rglob("*")) == before
    async with await LocalLogStore.open(tmp_path / "other") as store:
        await (await LogDelayedCursor.open(store)).aclose()
        async with await Cursor.open(store, {1: 20}) as cursor:
            await cursor.acknowledge([(1, 3)])
        async with await LogDelayedCursor.open(store) as tracked:
            await tracked.put_property("a", "b")
        async with await Cursor.open(store, {1: 20}) as cursor:
            assert await cursor.is_acked((1, 3))


BAD_DELAYS: list[Any] = [-1, -0.001, timedelta(seconds=-1), float("nan"), float("inf"), True, "5", 6e7, 86_400_000]


@virtual_time
async def test_delays_of_a_nack() -> None:
    """N24: negative, NaN, infinite, a bool, and ms taken for seconds are refused by name in each call with a delay."""
    port = FakePort()
    port.topic.publish(b"x")
    async with Consumer(port) as consumer:
        message = await consumer.receive()
        for wrong in BAD_DELAYS:
            for call in (
                message.nack,
                lambda delay: consumer.negative_acknowledge(message, delay),
                lambda delay: consumer.negative_acknowledge(message.id, delay),
                lambda delay: consumer.negative_acknowledge(MessageId(9, 9), delay),
            ):
                with pytest.raises(InvalidArgumentError) as caught:
                    await call(wrong)
                assert caught.value.field == "delay"
                is_ms = type(wrong) in {int, float} and wrong > 1e6 and wrong != float("inf")
                assert ("most likely meant as ms" in str(caught.value)) == is_ms
            with pytest.raises(InvalidArgumentError, match="timeout"):
                await consumer.receive(timeout=wrong)
        assert (consumer.statistics().held, consumer.statistics().in_work) == (0, 1)
        await message.nack(timedelta(days=800))  # deliberately
        assert consumer.statistics().held == 1
        await asyncio.sleep(799.9 * 86_400)
        assert consumer.statistics().held == 1
        await asyncio.sleep(0.2 * 86_400)
        assert (await consumer.receive()).redelivery_count == 1


def test_the_way_over_the_official_client() -> None:
    """N24: if something else is passed instead of an official client, the error names it."""
    for wrong in WRONG:
        with pytest.raises(InvalidArgumentError, match=r"^client: "):
            pulsar_nack.subscribe(wrong, "t", "s")
