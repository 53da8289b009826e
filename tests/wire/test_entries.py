"""Entries: headers, checksums, batches, and the errors of unreadable ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.errors import UndecodableMessageError
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._batches import encode_batch
from pulsar_nack.wire._protocol._compression import compress
from pulsar_nack.wire._protocol._entries import plain_parts, unpack
from pulsar_nack.wire._protocol._frames import encode_headers_and_payload
from tests.for_each import for_each
from tests.wire.frames import SingleMessage, decode_entry, messages_of

SIZE = struct.Struct(">I")


def metadata(**fields: Any) -> pb.MessageMetadata:
    """Return the metadata that every entry has, and ``fields``."""
    return pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_700_000_000_000, **fields)


def batch(payloads: Sequence[bytes], **fields: Any) -> bytes:
    """Return the headers and payload of a batch."""
    payload = encode_batch((pb.SingleMessageMetadata(sequence_id=index), data) for index, data in enumerate(payloads))
    kind = fields.get("compression", pb.NONE)
    if kind:
        fields["uncompressed_size"] = len(payload)
    return encode_headers_and_payload(metadata(num_messages_in_batch=len(payloads), **fields), compress(kind, payload))


def delivered(rest: bytes) -> list[tuple[int, bytes]]:
    """Return index and payload of each message."""
    return [(message.index, message.payload) for message in messages_of(decode_entry(rest))]


def checked(body: bytes) -> bytes:
    """Return bytes with magic number and checksum in front."""
    return b"\x0e\x01" + SIZE.pack(google_crc32c.value(body)) + body


def refused(rest: bytes, **limits: int) -> UndecodableMessageError:
    """Return the error that reading all of an entry raises."""
    with pytest.raises(UndecodableMessageError) as caught:
        list(messages_of(decode_entry(rest, **limits)))
    return caught.value


PLAIN = encode_headers_and_payload(metadata(), b"hello")
MESSAGE_OF_ALL = metadata(
    properties=[pb.KeyValue(key="a", value="1"), pb.KeyValue(key="ö", value="")],
    partition_key="k",
    ordering_key=b"\xff1",
    event_time=12,
)


# --- valid entries ---------------------------------------------------------------------------------------------------


def test_an_entry_that_is_one_message() -> None:
    """An entry that is not a batch has no batch index, and its message has the entry's metadata."""
    entry = decode_entry(PLAIN)
    (message,) = messages_of(entry)
    assert (message.index, message.payload) == (-1, b"hello")
    assert message.metadata is entry.metadata
    assert (entry.is_batch, entry.is_chunk, entry.metadata.publish_time) == (False, False, 1_700_000_000_000)
    assert (message.properties, message.key, message.ordering_key, message.event_time_ms) == ({}, None, None, 0)


def test_all_that_a_user_sees_of_a_message() -> None:
    """Properties, keys and the event time are read; an ordering key that is not text can be recovered."""
    (message,) = messages_of(decode_entry(encode_headers_and_payload(MESSAGE_OF_ALL, b"")))
    assert message.properties == {"a": "1", "ö": ""}
    assert (message.key, message.ordering_key, message.event_time_ms) == ("k", "\udcff1", 12)
    assert message.payload == b""


def test_an_empty_key_is_a_key() -> None:
    """An empty key differs from no key."""
    (message,) = messages_of(
        decode_entry(encode_headers_and_payload(metadata(partition_key="", ordering_key=b""), b""))
    )
    assert (message.key, message.ordering_key) == ("", "")


@pytest.mark.parametrize("count", [1, 2, 3, 1_000])
def test_a_batch(count: int) -> None:
    """The messages of a batch have their indexes; a batch may have one message."""
    payloads = [bytes([number % 256]) * (number % 50) for number in range(count)]
    entry = decode_entry(batch(payloads))
    messages = list(messages_of(entry))
    assert entry.is_batch
    assert [(message.index, message.payload) for message in messages] == list(enumerate(payloads))
    assert [message.metadata.sequence_id for message in messages] == list(range(count))


def test_a_member_of_a_batch_has_its_own_properties() -> None:
    """A member of a batch has its own properties, not the entry's."""
    single = pb.SingleMessageMetadata(properties=[pb.KeyValue(key="b", value="2")], partition_key="m", event_time=5)
    out = pb.SingleMessageMetadata(compacted_out=True)
    rest = encode_headers_and_payload(metadata(num_messages_in_batch=2), encode_batch([(single, b"x"), (out, b"")]))
    first, second = messages_of(decode_entry(rest))
    assert (first.properties, first.key, first.event_time_ms) == ({"b": "2"}, "m", 5)
    assert (first.is_compacted_out, second.is_compacted_out) == (False, True)


def test_without_checksum() -> None:
    """Producers of early versions send no checksum."""
    assert delivered(PLAIN[6:]) == [(-1, b"hello")]


def test_broker_entry_metadata() -> None:
    """The broker entry metadata in front of an entry is read, with and without a checksum."""
    added = pb.BrokerEntryMetadata(broker_timestamp=3, index=9).SerializeToString()
    for rest in (PLAIN, PLAIN[6:]):
        entry = decode_entry(b"\x0e\x02" + SIZE.pack(len(added)) + added + rest)
        assert (entry.broker_metadata.broker_timestamp, entry.broker_metadata.index) == (3, 9)
        assert entry.payload == b"hello"
    assert not decode_entry(PLAIN).broker_metadata.HasField("index")


def test_views_are_taken() -> None:
    """A memoryview works like bytes."""
    assert decode_entry(memoryview(bytearray(PLAIN))).payload == b"hello"


def test_a_chunk_is_left_compressed_until_all_are_there() -> None:
    """A message is compressed before it is cut into chunks."""
    whole = bytes(100_000)
    packed = compress(pb.ZLIB, whole)
    of_all = metadata(compression=pb.ZLIB, uncompressed_size=len(whole), num_chunks_from_msg=2, chunk_id=0, uuid="u")
    chunks = [decode_entry(encode_headers_and_payload(of_all, part)) for part in (packed[:50], packed[50:])]
    assert all(chunk.is_chunk for chunk in chunks)
    assert b"".join(chunk.payload for chunk in chunks) == packed
    assert unpack(of_all, packed, 100_000) == whole
    with pytest.raises(UndecodableMessageError, match="100000 bytes before compression, at most 99999"):
        unpack(of_all, packed, 99_999)


def test_text_that_is_no_text_does_not_hide_a_message() -> None:
    """Bytes in a property that are not UTF-8 are replaced, as in other clients."""
    raw = metadata(properties=[pb.KeyValue(key="key", value="value")]).SerializeToString()
    body = raw.replace(b"value", b"v\xfflue")
    (message,) = messages_of(decode_entry(checked(SIZE.pack(len(body)) + body)))
    assert message.properties == {"key": "v\ufffdlue"}


# --- plain messages --------------------------------------------------------------------------------------------------

PLAIN_FIELDS = {"producer_name", "sequence_id", "publish_time", "uncompressed_size"}


@pytest.mark.parametrize("value", [0, 1, 127, 128, 2**32 - 1])
def test_a_message_of_nothing_but_its_payload_is_plain(value: int) -> None:
    """A message with only a payload is plain, whatever the numbers in its metadata are."""
    for of_message in (
        pb.MessageMetadata(producer_name="p", sequence_id=value, publish_time=value),
        pb.MessageMetadata(producer_name="", sequence_id=value << 32, publish_time=5, uncompressed_size=value),
    ):
        assert plain_parts(encode_headers_and_payload(of_message, b"hello")) == (
            of_message.SerializeToString(),
            b"hello",
        )


@given(st.sets(st.sampled_from(sorted(pb.MessageMetadata.DESCRIPTOR.fields_by_name))))
def test_a_message_with_anything_else_is_not_plain(names: set[str]) -> None:
    """Any further metadata field, even with its default value, makes a message not plain."""
    of_message = metadata()
    for name in names - PLAIN_FIELDS - {"encryption_keys", "compression", "num_messages_in_batch"}:
        field = pb.MessageMetadata.DESCRIPTOR.fields_by_name[name]
        if name == "properties":
            of_message.properties.add(key="", value="")
        elif name == "replicate_to":
            of_message.replicate_to.append("")
        else:
            setattr(of_message, name, field.default_value)
    is_plain = plain_parts(encode_headers_and_payload(of_message, b"hello")) is not None
    assert is_plain == ({field.name for field, _ in of_message.ListFields()} <= PLAIN_FIELDS)


def test_mutations_of_plain_messages_are_plain_or_not() -> None:
    """Plain messages have no other fields, whatever bytes they are made of."""
    chance = random.Random(1)
    raw = metadata(uncompressed_size=5).SerializeToString()
    count = 0
    for _ in range(20_000):
        changed = bytearray(raw)
        changed[chance.randrange(len(raw))] = chance.choice((*raw, 0, 0x7F, 0x80, chance.randrange(256)))
        rest = checked(SIZE.pack(len(changed)) + bytes(changed) + b"hello")
        parts = plain_parts(rest)
        if parts is not None:
            entry = decode_entry(rest)
            names = {field.name for field, _ in entry.metadata.ListFields()}
            assert names in (PLAIN_FIELDS, PLAIN_FIELDS - {"uncompressed_size"})
            assert parts == (bytes(changed), entry.payload)
            count += 1
    assert count > 1_000


@for_each("at", range(len(PLAIN)))
def test_a_plain_message_with_a_changed_byte_is_not(at: int) -> None:
    """A message with a changed byte, or one that ends early, is not plain; other tests look at the error."""
    changed = bytearray(PLAIN)
    changed[at] ^= 0x10
    assert plain_parts(bytes(changed)) is None
    assert plain_parts(PLAIN[:at]) is None


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 255, 256, 16_383, 16_384, 70_000])
def test_members_that_are_plain(size: int) -> None:
    """Metadata of up to 16 KiB is not even parsed; larger metadata is, with equal results."""
    payloads = [bytes([1]) * size, b"x", bytes([2]) * size]
    members = list(decode_entry(batch(payloads)).members())
    assert [(index, payload) for index, _, payload in members] == list(enumerate(payloads))
    assert [isinstance(metadata, bytes) for _, metadata, _ in members] == [size < 16_384, True, size < 16_384]


@given(st.sets(st.sampled_from(sorted(pb.SingleMessageMetadata.DESCRIPTOR.fields_by_name))))
def test_members_with_anything_else_are_not_plain(names: set[str]) -> None:
    """Any further field, even with its default value, makes a member not plain."""
    single = pb.SingleMessageMetadata()
    for name in names - {"payload_size"}:
        if name == "properties":
            single.properties.add(key="", value="")
        else:
            setattr(single, name, pb.SingleMessageMetadata.DESCRIPTOR.fields_by_name[name].default_value)
    rest = encode_headers_and_payload(metadata(num_messages_in_batch=1), encode_batch([(single, b"hello")]))
    ((_, found, payload),) = decode_entry(rest).members()
    assert payload == b"hello"
    is_plain = names <= {"payload_size", "sequence_id"}
    assert found == (single.SerializeToString() if is_plain else single)


# --- invalid entries -------------------------------------------------------------------------------------------------


@for_each("at", range(2, len(PLAIN)))
def test_any_changed_byte_is_found(at: int) -> None:
    """After the magic number every byte is under the checksum, or belongs to it."""
    changed = bytearray(PLAIN)
    changed[at] ^= 0x10
    assert "checksum: 0x" in str(refused(bytes(changed)))


def test_a_wrong_checksum_keeps_the_number_of_messages() -> None:
    """The broker has counted them by the metadata, and does not check checksums."""
    damaged = bytearray(batch([b"one", b"two", b"three"]))
    damaged[-1] ^= 1
    assert refused(bytes(damaged)).batch_size == 3
    assert refused(PLAIN[:-1]).batch_size == 0


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        (b"", "metadata: 0 bytes, too few for its size"),
        (b"\x0e\x01\x00", "checksum: 3 bytes, too few"),
        (b"\x0e\x02\x00\x00\x00", "broker entry metadata: 5 bytes, too few"),
        (b"\x0e\x02\x00\x00\x00\x02x", "broker entry metadata: 2 bytes where 1 are left"),
        (b"\x0e\x02\x00\x00\x00\x01\x08", "broker entry metadata: "),
        (b"\x0e\x02\x00\x00\x00\x00", "metadata: 0 bytes, too few"),
        (checked(b"\x00\x00\x00"), "metadata: 3 bytes, too few"),
        (checked(b"\xff\xff\xff\xffxx"), "metadata: 4294967295 bytes where 2 are left"),
        (checked(b"\x00\x00\x00\x01\x08"), "metadata: "),
        (checked(b"\x00\x00\x00\x00"), "metadata: without producer_name"),
        (checked(b"\x00\x00\x00\x05\x0a\x01p\x18\x01"), "metadata: without sequence_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.hex(),
)
def test_headers_that_are_none(rest: bytes, problem: str) -> None:
    """The error names the part."""
    error = refused(rest)
    assert str(error).startswith(problem)
    assert error.batch_size == 0


def test_an_encrypted_message_is_reported_with_its_key() -> None:
    """An encrypted message is reported with its key's name; so is an encrypted chunk, at once."""
    keys = [pb.EncryptionKeys(key="ours", value=b"x"), pb.EncryptionKeys(key="theirs", value=b"y")]
    error = refused(encode_headers_and_payload(metadata(encryption_keys=keys, num_messages_in_batch=4), b"?" * 64))
    assert (str(error), error.batch_size) == ("payload: encrypted with the key ours, theirs", 4)
    assert "encrypted" in str(
        refused(encode_headers_and_payload(metadata(encryption_keys=keys, num_chunks_from_msg=3), b"?"))
    )


def test_an_unknown_codec_is_reported_with_its_number() -> None:
    """The number of a codec of a later version does not count as no compression."""
    error = refused(
        encode_headers_and_payload(metadata(compression=77, uncompressed_size=64, num_messages_in_batch=2), b"?" * 64)
    )
    assert (str(error), error.batch_size) == ("payload: compressed by an unknown codec, number 77", 2)


@pytest.mark.parametrize("count", [0, -1, -(2**31), 2**31 - 1, 3])
def test_a_batch_that_cannot_have_so_many(count: int) -> None:
    """Each message takes at least six bytes."""
    error = refused(encode_headers_and_payload(metadata(num_messages_in_batch=count), b"x" * 17))
    assert str(error) == f"batch: {count} messages in 17 bytes"


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (
            SIZE.pack(2) + b"\x18\x01x" + SIZE.pack(99) + bytes(9),
            "message 1 of 2: metadata of 99 bytes where 9 are left",
        ),
        (SIZE.pack(2) + b"\x18\x09" + bytes(9), "message 1 of 2: nothing at byte 15 of 15"),
        (SIZE.pack(2) + b"\x18\x0a" + bytes(9), "message 0 of 2: 10 bytes where 9 are left"),
        (SIZE.pack(11) + b"\x18" + b"\xff" * 9 + b"\x01" + bytes(9), "message 0 of 2: -1 bytes where 9 are left"),
        (SIZE.pack(1) + b"\x18" + bytes(9), "message 0 of 2: metadata: "),
    ],
    ids=["metadata too long", "missing", "payload too long", "negative", "no metadata"],
)
def test_a_batch_that_is_damaged(payload: bytes, problem: str) -> None:
    """The error names the message; the ones before it can be read."""
    error = refused(encode_headers_and_payload(metadata(num_messages_in_batch=2), payload))
    assert str(error).startswith(f"batch: {problem}")
    assert error.batch_size == 2


def test_limits_of_size() -> None:
    """A payload of exactly the limit is accepted, one byte more is not, compressed or not."""
    packed = encode_headers_and_payload(
        metadata(compression=pb.ZLIB, uncompressed_size=500), compress(pb.ZLIB, bytes(500))
    )
    for rest in (encode_headers_and_payload(metadata(), bytes(500)), packed):
        assert len(decode_entry(rest, max_message_bytes=500).payload) == 500
        assert "500 bytes" in str(refused(rest, max_message_bytes=499))


def test_messages_are_cut_when_they_are_asked_for() -> None:
    """A large batch costs nothing until its messages are read."""
    messages = messages_of(decode_entry(batch([b"x"] * 1_000)))
    assert isinstance(next(messages), SingleMessage)
    assert len(list(messages)) == 999
