"""The native, the official and the Java client on a real broker: each reads what the others send."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

import pulsar_nack
from tests.broker._admin import Admin
from tests.broker._java_client import JavaClient
from tests.broker._peers import Got, Java, Official, Out, Peer, Place, Reader, Wire
from tests.broker.conftest import fresh_topic
from tests.consumer.official import official_client
from tests.patience import patience

COMPRESSIONS = ("none", "lz4", "zlib", "zstd", "snappy")
PAIRS = [("official", "wire"), ("java", "wire"), ("wire", "official"), ("wire", "java"), ("wire", "wire")]
Peers = dict[str, Peer]


@pytest.fixture
async def peers(service_url: str, java: JavaClient) -> AsyncIterator[Peers]:
    """All three clients by their names."""
    async with official_client(service_url) as official, pulsar_nack.connect(service_url) as wire:
        made: list[Peer] = [Official(official), Wire(wire), Java(java)]
        yield {each.name: each for each in made}


def as_sent(messages: list[Out], places: list[Place]) -> list[Got]:
    """Return the messages as they are to be received."""
    return [
        Got(place, each.payload, dict(each.properties), each.key, each.ordering_key, each.event_time_ms)
        for each, place in zip(messages, places, strict=True)
    ]


def some(count: int, seed: int = 0, **about: object) -> list[Out]:
    """Return messages with payloads of various sizes and two properties."""
    chance = random.Random(seed)
    return [
        Out(
            b"%d " % number + bytes(chance.choices(b"abcde", k=chance.choice((0, 1, 30, 3_000)))),
            {"number": str(number), "grüße": "☀"},
            **about,  # type: ignore[arg-type]
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(("producing", "consuming"), PAIRS)
async def test_batches_and_compression(peers: Peers, topic: str, producing: str, consuming: str) -> None:
    """Single messages and batches, with each codec, have equal bytes, properties and ids when received, in order."""
    reader = await peers[consuming].subscribe(topic, "s")
    for seed, (compression, batching) in enumerate((each, on) for each in COMPRESSIONS for on in (False, True)):
        messages = some(20, seed, event_time_ms=1_700_000_000_123 + seed)
        places = await peers[producing].produce(topic, messages, batching=batching, compression=compression)
        assert (max(place[3] for place in places) > 0) == batching
        assert await reader.read(20) == as_sent(messages, places), (compression, batching)
    await reader.close()


@pytest.mark.parametrize(("producing", "consuming"), PAIRS)
async def test_chunks(peers: Peers, topic: str, producing: str, consuming: str) -> None:
    """A message larger than the broker's limit arrives whole, compressed or not, under the id that was returned."""
    reader = await peers[consuming].subscribe(topic, "s")
    data = random.Random(1).randbytes(11 << 20)
    for compression in ("none", "zlib"):
        messages = [Out(data, {"a": "b"}), Out(b"small")]
        places = await peers[producing].produce(topic, messages, chunking=True, compression=compression)
        found = await reader.read(2)
        assert [len(each.payload) for each in found] == [len(data), 5]
        assert found == as_sent(messages, places)
        assert places[1][1] - places[0][1] == 1
        assert places[0][1] >= 2
    await reader.close()


@pytest.mark.parametrize(("producing", "consuming"), PAIRS)
async def test_keys_and_partitions(
    peers: Peers, partitioned_topic: Callable[[int], str], producing: str, consuming: str
) -> None:
    """Keys and ordering keys arrive, in batches by key too; the native client routes keys as the Java client does."""
    topic = partitioned_topic(5)
    keys = ["", "order-17", "schlüssel", "☀", "\U0001f600", *map(str, range(20))]
    reader = await peers[consuming].subscribe(topic, "s", "key_shared")
    keyed = [Out(b"%d" % number, key=key) for number, key in enumerate(keys) if key or producing != "official"]
    by_java = await peers["java"].produce(topic, keyed)
    places = await peers[producing].produce(topic, keyed, batching=True, by_key=True)
    if producing != "official":  # its hash of keys is another one
        assert [place[2] for place in places] == [place[2] for place in by_java]
    ordered = [Out(b"ordered", key="k", ordering_key="o")]
    places += await peers[producing].produce(topic, ordered)
    found = {each.place: each for each in await reader.read(2 * len(keyed) + 1)}
    expected = as_sent(keyed * 2 + ordered, by_java + places)
    if consuming == "official":  # it cannot distinguish an empty key from none
        expected = [each._replace(key=each.key or None) for each in expected]
    assert found == {each.place: each for each in expected}
    await reader.close()


async def test_delayed_messages(peers: Peers, request: pytest.FixtureRequest) -> None:
    """The others receive the native client's delayed messages at most a tick of the broker early, and not much late."""

    async def one(number: int, producing: str, consuming: str) -> None:
        topic = f"{fresh_topic(request)}-{number}"
        reader = await peers[consuming].subscribe(topic, "s")
        messages = [Out(b"later", deliver_after=2.5), Out(b"now")]
        places = await peers[producing].produce(topic, messages)
        began = time.monotonic()
        later, now = as_sent(messages, places)
        assert await reader.read(1) == [now]
        assert await reader.read(1) == [later]
        assert 1 < time.monotonic() - began < patience(4)
        await reader.close()

    await asyncio.gather(*(one(number, *pair) for number, pair in enumerate(PAIRS)))


def mixed(count: int, name: str) -> list[Out]:
    """Return messages that name their sender, for 40 keys."""
    return [Out(b"%s %d" % (name.encode(), number), key=f"{name}-{number % 40}") for number in range(count)]


async def read_all(readers: dict[str, Reader], expected: set[bytes]) -> dict[str, list[Got]]:
    """Read until one of them has received each expected message, and then nothing more."""
    found: dict[str, list[Got]] = {name: [] for name in readers}
    async with asyncio.timeout(patience(10)):
        is_complete = False
        while not is_complete:
            is_complete = expected <= {each.payload for got in found.values() for each in got}
            some = await asyncio.gather(*(reader.read(1_000_000, 0.5) for reader in readers.values()))
            for name, got in zip(readers, some, strict=True):
                found[name] += got
    return found


@pytest.mark.both_lines
@pytest.mark.parametrize("kind", ["shared", "key_shared"])
async def test_mixed_consumers(peers: Peers, admin: Admin, topic: str, kind: str) -> None:
    """Three kinds of consumers of one subscription get all that three kinds of producers sent, each message once.

    On Key_Shared a key's messages go to one consumer, in the order of sending.
    """
    readers = {name: await peer.subscribe(topic, "s", kind) for name, peer in peers.items()}
    for name, peer in peers.items():
        for batching in (False, True):
            messages = mixed(400, f"{name}{batching}")
            await peer.produce(topic, messages, batching=batching, by_key=batching, compression="lz4")
    expected = Counter(each.payload for name in peers for on in (False, True) for each in mixed(400, f"{name}{on}"))
    found = await read_all(readers, set(expected))
    assert all(found.values())
    assert Counter(each.payload for got in found.values() for each in got) == expected
    if kind == "key_shared":
        assert_keys_in_order(found)
    for reader in readers.values():
        await reader.close()
    assert admin.backlog(topic, "s") == 0


def assert_keys_in_order(found: dict[str, list[Got]]) -> None:
    """Check that each key was at one consumer, in the order of sending."""
    owners: dict[str | None, set[str]] = {}
    for name, got in found.items():
        for each in got:
            owners.setdefault(each.key, set()).add(name)
        for key in {each.key for each in got}:
            numbers = [int(each.payload.split()[1]) for each in got if each.key == key]
            assert numbers == sorted(numbers)
    assert {len(names) for names in owners.values()} == {1}


async def test_mixed_consumers_that_fail(peers: Peers, admin: Admin, service_url: str, topic: str) -> None:
    """Messages that a native consumer nacks, or has in flight when closed, go to any consumer: none is lost."""
    async with pulsar_nack.connect(service_url) as client:
        failing = await client.subscribe(topic, "s", receiver_queue_size=100)
        readers = {name: await peer.subscribe(topic, "s") for name, peer in peers.items()}
        for name, peer in peers.items():
            await peer.produce(topic, mixed(300, name), batching=name == "wire")
        done: list[bytes] = []
        for number in range(90):
            message = await failing.receive(timeout=patience(3))
            if number % 3 == 0:
                await message.ack()
                done.append(message.data)
            elif number % 3 == 1:
                await message.nack(delay=0.01)
        await asyncio.sleep(0.1)
        await failing.aclose()
    expected = {each.payload for name in peers for each in mixed(300, name)}
    found = await read_all(readers, expected - set(done))
    assert {each.payload for got in found.values() for each in got} | set(done) == expected
    for reader in readers.values():
        await reader.close()
    assert admin.backlog(topic, "s") == 0
