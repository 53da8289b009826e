"""The form of an entry: encoding, decoding, refusing other bytes, and what those mean for delivery."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.errors import LogLockedError, TopicFormatError
from pulsar_nack.ledger import LocalLogStore, ObjectLogStore
from pulsar_nack.topic import LocalTopic, open_local
from pulsar_nack.topic._entry import Entry, EntryMessage, decode_entry, encode_entry, hash_of
from tests.topic.using import nothing_comes, numbered, payloads, take

TIMES = st.integers(0, 2**63 - 1)
MESSAGES = st.builds(
    EntryMessage,
    payload=st.binary(max_size=50),
    key=st.none() | st.text(max_size=5),
    properties=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    event_time_ms=TIMES,
)
BATCHES = st.lists(MESSAGES, min_size=1, max_size=4).map(tuple)
ENTRIES = st.one_of(
    st.builds(Entry, TIMES, st.tuples(MESSAGES), st.none() | TIMES),
    st.builds(Entry, TIMES, BATCHES, st.none() | TIMES, is_batch=st.just(value=True)),
)


@st.composite
def cut_entries(draw: st.DrawFn) -> bytes:
    """Return the beginning of an entry."""
    data = encode_entry(draw(ENTRIES))
    return data[: draw(st.integers(0, len(data)))]


@given(ENTRIES)
def test_what_is_written_is_read(entry: Entry) -> None:
    """A decoded entry equals the encoded one in every field."""
    assert decode_entry(encode_entry(entry)) == entry


@given(st.binary(max_size=60) | cut_entries())
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    """Foreign and truncated bytes are refused, or are an entry that can be encoded again."""
    try:
        entry = decode_entry(data)
    except TopicFormatError:
        return
    assert decode_entry(encode_entry(entry)) == entry


def test_hashes_of_keys() -> None:
    """A key's hash is the same in every process, and there are 65 536 of them."""
    assert {0 <= hash_of(f"{number}") < 65_536 for number in range(1_000)} == {True}
    assert hash_of("key") == hash_of("key")
    assert len({hash_of(f"{number}") for number in range(1_000)}) > 950


async def test_a_foreign_entry_is_waited_for_and_can_be_skipped(tmp_path: Path) -> None:
    """Delivery stops before an unreadable entry, as statistics say; after a skip the following ones come."""
    async with open_local(tmp_path) as topic:
        await topic.create_subscription("s")
        await topic.publish(b"0")
    async with await LocalLogStore.open(tmp_path) as store, await store.open_log("ledger-00000000000000000001") as log:
        await log.append(b"\xff foreign")
    async with open_local(tmp_path) as topic:
        await topic.publish(b"2")
        port = await topic.subscribe("s")
        await asyncio.sleep(0.2)
        assert topic.statistics().subscriptions["s"].failed_reads > 0
        got = await take(port, 1)
        assert payloads(got) == [b"0"]
        assert await nothing_comes(port)
        await port.acknowledge([got[0].id])
        assert await topic.skip("s", 1) == 1
        assert payloads(await take(port, 1)) == [b"2"]


async def test_one_at_a_time_has_a_topic_open(tmp_path: Path) -> None:
    """A second opening is refused while the first is open, and changes nothing."""
    async with open_local(tmp_path) as topic:
        with pytest.raises(LogLockedError):
            await LocalTopic.open(tmp_path)
        port = await topic.subscribe("s")
        await topic.publish(b"m")
        assert payloads(await take(port, 1)) == [b"m"]
    topic = await open_local(tmp_path)
    assert topic.backlog("s") == 1
    await topic.aclose()
    await topic.aclose()


async def test_on_object_storage() -> None:
    """On object storage a topic keeps entries, acknowledgements and positions over a restart too."""
    memory = pytest.importorskip("obstore.store").MemoryStore()
    for index in range(2):
        async with await ObjectLogStore.open(memory, prefix="topic") as store, open_local(store) as topic:
            port = await topic.subscribe("s", initial_position="earliest")
            if not index:
                await topic.publish(numbered(6))
                got = await take(port, 6)
                await port.acknowledge([each.id for each in got if int(each.data) % 2])
            else:
                assert payloads(await take(port, 3)) == [b"0", b"2", b"4"]
