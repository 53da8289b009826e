"""The wire form of ids: equal to the official client's, and safe against any bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError, MessageId
from tests.cursor.wire_bytes import varint
from tests.for_each import for_each

INT64 = st.integers(-1, 2**63 - 1)
INT32 = st.integers(-1, 2**31 - 1)
SIZES = st.integers(0, 2**31 - 1)
PLAIN = st.builds(MessageId, INT64, INT64, INT32, INT32, batch_size=SIZES)


@st.composite
def chunked(draw: st.DrawFn) -> MessageId:
    """Draw an id whose first chunk lies in an earlier ledger."""
    last = draw(PLAIN.filter(lambda message_id: message_id.ledger > 0))
    first = draw(st.builds(MessageId, st.integers(-1, last.ledger - 1), INT64, INT32, INT32, batch_size=SIZES))
    return last._replace(first_chunk=first)


@given(PLAIN | chunked(), st.none() | st.text())
def test_round_trip(message_id: MessageId, topic: str | None) -> None:
    """A written id is read with every field; the caller supplies the topic."""
    again = MessageId.from_bytes(message_id.to_bytes(), topic)
    assert again == message_id
    assert (again.batch_size, again.topic) == (message_id.batch_size, topic)
    assert again.first_chunk == message_id.first_chunk
    if again.first_chunk is not None and message_id.first_chunk is not None:
        assert (again.first_chunk.batch_size, again.first_chunk.topic) == (message_id.first_chunk.batch_size, topic)


@given(st.binary(max_size=80))
def test_garbage(data: bytes) -> None:
    """Any bytes are an id or a clear error, never another exception."""
    try:
        message_id = MessageId.from_bytes(data)
    except InvalidArgumentError:
        return
    assert MessageId.from_bytes(message_id.to_bytes()) == message_id


@given(PLAIN | chunked(), st.data())
def test_damage(message_id: MessageId, data: st.DataObject) -> None:
    """A valid id with a byte changed, or cut short, is an id or a clear error."""
    good = bytearray(message_id.to_bytes())
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] = data.draw(st.integers(0, 255))
    for damaged in (bytes(good), bytes(good[:at])):
        try:
            read = MessageId.from_bytes(damaged)
        except InvalidArgumentError:
            continue
        assert MessageId.from_bytes(read.to_bytes()) == read


@for_each(
    "message_id",
    [
        MessageId(3, 7),
        MessageId(0, 0),
        MessageId(-1, -1),
        MessageId(2**62, 300, 5),
        MessageId(1, 2, 3, 4),
        MessageId(1, 2, -1, 0),
        MessageId(1, 2, 0, 127),
    ],
)
def test_equals_the_official_client(message_id: MessageId) -> None:
    """The bytes are those of the official client's ``serialize()``, and it reads ours."""
    pulsar = pytest.importorskip("pulsar")
    native = pulsar.MessageId(message_id.partition, message_id.ledger, message_id.entry, message_id.batch_index)
    assert message_id.to_bytes() == native.serialize()
    assert MessageId.from_bytes(native.serialize()) == message_id
    read = pulsar.MessageId.deserialize(message_id._replace(batch_size=9).to_bytes())
    assert (read.ledger_id(), read.entry_id(), read.partition(), read.batch_index()) == tuple(message_id)


@for_each(
    ("message_id", "data"),
    [
        (MessageId(1, 300), "0801 10ac02"),
        (MessageId(1, 2, 3, 4, batch_size=5), "0801 1002 1803 2004 3005"),
        (MessageId(5, 9, first_chunk=MessageId(5, 7)), "0805 1009 3a04 0805 1007"),
        (MessageId(-1, 0), "08ffffffffffffffffff01 1000"),
    ],
)
def test_known_bytes(message_id: MessageId, data: str) -> None:
    """The wire form is that of ``MessageIdData`` in Pulsar's protobuf file, the first chunk nested."""
    assert message_id.to_bytes() == bytes.fromhex(data)
    again = MessageId.from_bytes(bytes.fromhex(data))
    assert (again, again.batch_size, again.first_chunk) == (message_id, message_id.batch_size, message_id.first_chunk)


@for_each(
    ("data", "message_id"),
    [
        ("1002 0801", MessageId(1, 2)),
        ("0801 0807 1002", MessageId(7, 2)),
        ("0801 1002 18ffffffffffffffffff01", MessageId(1, 2, -1)),
        ("0801 1002 18ffffffff0f", MessageId(1, 2, -1)),
        ("0801 1002 2803 2a020102", MessageId(1, 2)),
        ("0801 1002 9a0603616263 a10601020304050607 08 ad0601020304", MessageId(1, 2)),
    ],
)
def test_foreign_bytes(data: str, message_id: MessageId) -> None:
    """As with protobuf: any order, the last of a repeated field, both forms of -1, unknown fields skipped."""
    assert MessageId.from_bytes(bytes.fromhex(data)) == message_id


@for_each(
    "data",
    ["", "08", "0801", "1002", "0801 10", "0801 1002 18fdffffffffffffffff01", "0801 1002 0b 0c", "0801 1002 3a05 0801",
     "0801 1002 3a02 0801", "0801 1002 10ffffffffffffffffffff01", "08feffffffffffffffff01 1002"],
)  # fmt: skip
def test_refused_bytes(data: str) -> None:
    """Truncated bytes, missing fields, groups, values out of range: the error names a field."""
    with pytest.raises(InvalidArgumentError):
        MessageId.from_bytes(bytes.fromhex(data))


def test_nesting_is_refused() -> None:
    """A first chunk inside a first chunk is refused, however deep: no input can exhaust the stack."""
    data = MessageId(1, 2).to_bytes()
    for _ in range(3000):
        data = MessageId(1, 2).to_bytes() + b"\x3a" + varint(len(data)) + data
    with pytest.raises(InvalidArgumentError, match="data"):
        MessageId.from_bytes(data)


@for_each("wrong", ["text", None, 5, [1, 2]])
def test_only_bytes(wrong: Any) -> None:
    """Other types than bytes, bytearray and memoryview are refused."""
    with pytest.raises(InvalidArgumentError, match="data"):
        MessageId.from_bytes(wrong)
    assert MessageId.from_bytes(bytearray(b"\x08\x01\x10\x02")) == MessageId(1, 2)
    assert MessageId.from_bytes(memoryview(b"\x08\x01\x10\x02")) == MessageId(1, 2)


def test_topic_is_checked() -> None:
    """A topic that is not a str is refused by its name."""
    wrong: Any = 5
    with pytest.raises(InvalidArgumentError, match="topic"):
        MessageId.from_bytes(MessageId(1, 2, first_chunk=MessageId(1, 1)).to_bytes(), wrong)
