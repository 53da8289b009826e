"""From entries to deliveries: which messages are delivered, with which fields, and how many the broker counted."""

from __future__ import annotations

import copy
import pickle
import random
import sys
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, Final, NamedTuple

import pytest

from pulsar_nack import MessageId
from pulsar_nack.consumer import Delivery
from pulsar_nack.errors import MissingExtraError, ProtocolError, UndecodableMessageError
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._consumer._acknowledger import AckSets
from pulsar_nack.wire._consumer._deliveries import DeliveryFactory, PlainDelivery
from pulsar_nack.wire._consumer._entry_reader import EntryReader, UnreadEntry
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._batches import all_of, encode_batch, words_of
from pulsar_nack.wire._protocol._chunks import ChunkAssembler
from pulsar_nack.wire._protocol._compression import compress
from pulsar_nack.wire._protocol._frames import FrameDecoder, MessageCommand, encode_headers_and_payload
from tests.tiers import seeds
from tests.wire.mutations import LIMIT, mutations

TOPIC = "persistent://public/default/orders-partition-2"
SIZE = 130
OPTIONS: Final = ClientOptions(max_frame_bytes=LIMIT)


class Read(NamedTuple):
    """The outcome of an entry, with all of its messages."""

    permits: int
    deliveries: list[Delivery]


class Reader:
    """An entry reader with its ack sets."""

    def __init__(self) -> None:
        self.ack_sets = AckSets()
        self.factory = DeliveryFactory(TOPIC, 2, self.ack_sets, options=OPTIONS, threads=None)
        self.reader = EntryReader(self.factory, ChunkAssembler(4, LIMIT, 1_000), lambda: 0)

    def read(self, rest: bytes, *, entry: int = 7, count: int = 0, remaining: int | None = None) -> Read:
        """Read an entry of ledger 3; ``remaining`` is the broker's ack set of its batch."""
        words = () if remaining is None else words_of(remaining)
        command = MessageCommand(1, 3, entry, count, words)
        if (plain := self.reader.plain(command, rest)) is not None:
            return Read(1, [self.factory.delivery_of(plain)])
        permits, found = self.reader.read_other(command, rest)
        if not isinstance(found, UnreadEntry):
            return Read(permits, [] if found is None else [found])
        deliveries: list[Delivery] = []
        while found.messages:
            before = found.messages
            deliveries += found.take(7)
            assert found.messages < before or found.messages
        return Read(permits, deliveries)


def metadata(**fields: Any) -> pb.MessageMetadata:
    """Return the metadata that every entry has, and ``fields``."""
    return pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=9, **fields)


def batch(size: int = SIZE, *, compacted: frozenset[int] = frozenset(), **fields: Any) -> bytes:
    """Return an entry of ``size`` messages, each with its index as payload."""
    messages = ((pb.SingleMessageMetadata(compacted_out=index in compacted), b"%d" % index) for index in range(size))
    return encode_headers_and_payload(metadata(num_messages_in_batch=size, **fields), encode_batch(messages))


def indexes(arrival: Read) -> list[int]:
    """Return the batch indexes of the deliveries; each payload is its index."""
    for delivery in arrival.deliveries:
        assert delivery.data == b"%d" % delivery.id.batch_index
        assert (delivery.id.batch_size, delivery.id.topic, delivery.topic) == (SIZE, TOPIC, TOPIC)
    return [delivery.id.batch_index for delivery in arrival.deliveries]


def test_a_plain_message() -> None:
    """It has its id, payload, count and time, and nothing else."""
    permits, (delivery,) = Reader().read(encode_headers_and_payload(metadata(), b"hello"), count=4)
    assert permits == 1
    assert (delivery.id, delivery.id.topic, delivery.id.batch_size) == (MessageId(3, 7, 2), TOPIC, 0)
    assert (delivery.data, delivery.redelivery_count, delivery.publish_time_ms) == (b"hello", 4, 9)
    assert (delivery.properties, delivery.key, delivery.ordering_key, delivery.event_time_ms) == ({}, None, None, 0)
    assert (delivery.topic, delivery.error) == (TOPIC, None)


def test_a_plain_delivery_is_like_any_other() -> None:
    """It can be printed, copied, pickled and changed in a copy; its properties are not shared."""
    _, (delivery,) = Reader().read(encode_headers_and_payload(metadata(), b"hello"), count=4)
    assert type(delivery) is PlainDelivery
    told: dict[str, Any] = {"publish_time_ms": 9, "topic": TOPIC, "producer_name": "p", "sequence_id": 7}
    ordinary = Delivery(MessageId(3, 7, 2, topic=TOPIC), b"hello", redelivery_count=4, **told)
    assert repr(delivery) == repr(ordinary).replace("Delivery(", "PlainDelivery(")
    assert copy.copy(delivery) == pickle.loads(pickle.dumps(delivery)) == ordinary
    assert copy.deepcopy(delivery) == ordinary
    assert replace(delivery, data=b"x", key="k") == replace(ordinary, data=b"x", key="k")
    assert asdict(delivery) == asdict(ordinary)
    delivery.properties["a"] = "1"  # type: ignore[index]
    assert delivery.properties == {}


def test_who_sent_a_message() -> None:
    """O15: producer, sequence id, schema version and cluster, of single messages and of each member of a batch."""
    lone = encode_headers_and_payload(metadata(schema_version=b"\x01", replicated_from="east"), b"hello")
    _, (delivery,) = Reader().read(lone)
    assert (delivery.producer_name, delivery.sequence_id) == ("p", 7)
    assert (delivery.schema_version, delivery.replicated_from) == (b"\x01", "east")
    members = [
        (pb.SingleMessageMetadata(sequence_id=9), b"plain"),
        (pb.SingleMessageMetadata(), b"without an id"),
        (pb.SingleMessageMetadata(sequence_id=11, null_value=True), b""),
    ]
    of_batch = metadata(num_messages_in_batch=3, schema_version=b"\x02", replicated_from="west")
    _, deliveries = Reader().read(encode_headers_and_payload(of_batch, encode_batch(members)))
    assert [each.sequence_id for each in deliveries] == [9, 7, 11]
    assert {each.producer_name for each in deliveries} == {"p"}
    assert {(each.schema_version, each.replicated_from) for each in deliveries} == {(b"\x02", "west")}
    assert [each.is_null for each in deliveries] == [False, False, True]
    first = deliveries[0]
    assert type(first) is PlainDelivery
    assert copy.copy(first) == pickle.loads(pickle.dumps(first)) == replace(first)


def test_a_message_with_all_there_is() -> None:
    """Properties, both keys and the event time."""
    of_message = metadata(
        properties=[pb.KeyValue(key="a", value="1")], partition_key="k", ordering_key=b"o", event_time=5
    )
    _, (delivery,) = Reader().read(encode_headers_and_payload(of_message, b"hello"))
    assert (delivery.properties, delivery.key, delivery.ordering_key) == ({"a": "1"}, "k", "o")
    assert (delivery.event_time_ms, delivery.publish_time_ms) == (5, 9)


def test_a_whole_batch() -> None:
    """All its messages are delivered, and nothing has to be remembered of them."""
    reader = Reader()
    arrival = reader.read(batch())
    assert arrival.permits == SIZE
    assert indexes(arrival) == list(range(SIZE))
    assert len(reader.ack_sets) == 0


@pytest.mark.parametrize("remaining", [1, 1 << SIZE - 1, 0b1011 << 62, all_of(SIZE), all_of(200)])
def test_a_batch_of_which_some_are_acknowledged(remaining: int) -> None:
    """The broker counts the unacknowledged ones, and only they are delivered; bits beyond the batch have no meaning."""
    reader = Reader()
    arrival = reader.read(batch(), remaining=remaining)
    expected = [index for index in range(SIZE) if remaining >> index & 1]
    assert indexes(arrival) == expected
    assert arrival.permits == len(expected)
    assert len(reader.ack_sets) == (len(expected) < SIZE)


def test_compacted_members_are_counted_and_not_delivered() -> None:
    """A compacted member counts as acknowledged from then on, so that the others complete the entry."""
    reader = Reader()
    arrival = reader.read(batch(compacted=frozenset({0, 64, 129})))
    assert arrival.permits == SIZE
    assert indexes(arrival) == [index for index in range(SIZE) if index not in (0, 64, 129)]
    assert reader.ack_sets.intersect((3, 7), all_of(SIZE)) == all_of(SIZE) & ~(1 | 1 << 64 | 1 << 129)


def test_nothing_before_the_first_wanted_message_of_its_batch() -> None:
    """A subscription that begins inside a batch receives all of it, and delivers the later members."""
    reader = Reader()
    reader.reader.begin_at(MessageId(3, 7, 2, 100, batch_size=SIZE))
    arrival = reader.read(batch())
    assert (arrival.permits, indexes(arrival)) == (SIZE, list(range(100, SIZE)))
    assert indexes(reader.read(batch(), entry=8)) == list(range(SIZE))


@pytest.mark.parametrize(
    ("rest", "permits"),
    [
        (b"", 1),
        (encode_headers_and_payload(metadata(), b"hello")[:-1], 1),
        (batch()[:-1], SIZE),
        (encode_headers_and_payload(metadata(compression=9), b"hello"), 1),
        (encode_headers_and_payload(metadata(compression=9, num_messages_in_batch=5), b"hello"), 5),
        (encode_headers_and_payload(metadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]), b"?"), 1),
    ],
)
def test_what_cannot_be_read_is_one_delivery_that_says_so(rest: bytes, permits: int) -> None:
    """It has an id, so that it can be dead-lettered, and gives back as many permits as it took."""
    arrival = Reader().read(rest, count=2)
    (delivery,) = arrival.deliveries
    assert arrival.permits == permits
    assert (delivery.id, delivery.redelivery_count, delivery.data) == (MessageId(3, 7, 2), 2, rest)
    assert isinstance(delivery.error, UndecodableMessageError)


def test_readable_fields_of_an_unreadable_message_are_delivered() -> None:
    """Properties, keys and times of an encrypted message are delivered; those of a batch are encrypted too."""
    about: dict[str, Any] = {
        "encryption_keys": [pb.EncryptionKeys(key="k", value=b"v")],
        "properties": [pb.KeyValue(key="colour", value="red")],
        "partition_key": "a2V5",
        "partition_key_b64_encoded": True,
        "ordering_key": b"o",
        "event_time": 5,
    }
    (delivery,) = Reader().read(encode_headers_and_payload(metadata(**about), b"?")).deliveries
    assert delivery.properties == {"colour": "red"}
    assert (delivery.key, delivery.is_key_encoded, delivery.ordering_key) == ("a2V5", True, "o")
    assert (delivery.event_time_ms, delivery.publish_time_ms) == (5, metadata().publish_time)
    (delivery,) = Reader().read(encode_headers_and_payload(metadata(**about, num_messages_in_batch=5), b"?")).deliveries
    assert (delivery.properties, delivery.key, delivery.event_time_ms) == ({}, None, 0)


def test_nothing_is_believed_of_what_is_damaged() -> None:
    """If the checksum is wrong the properties may be wrong too: none are delivered."""
    rest = encode_headers_and_payload(metadata(properties=[pb.KeyValue(key="colour", value="red")]), b"hello")[:-1]
    (delivery,) = Reader().read(rest).deliveries
    assert isinstance(delivery.error, UndecodableMessageError)
    assert (delivery.properties, delivery.publish_time_ms) == ({}, 0)


def test_keys_of_bytes_differ_from_text() -> None:
    """A key that the producer made of bytes arrives as base64 with a flag; similar text has no flag."""
    (delivery,) = Reader().read(encode_headers_and_payload(metadata(partition_key="a2V5"), b"")).deliveries
    assert (delivery.key, delivery.is_key_encoded) == ("a2V5", False)
    encoded = metadata(partition_key="a2V5", partition_key_b64_encoded=True)
    (delivery,) = Reader().read(encode_headers_and_payload(encoded, b"")).deliveries
    assert (delivery.key, delivery.is_key_encoded) == ("a2V5", True)


def test_a_batch_that_is_damaged_in_the_middle() -> None:
    """Members before the damage are delivered, and the rest as unreadable messages that can be settled."""
    payload = encode_batch((pb.SingleMessageMetadata(), b"%d" % index) for index in range(3)) + b"\xff" * 20
    arrival = Reader().read(encode_headers_and_payload(metadata(num_messages_in_batch=5), payload), remaining=0b11101)
    assert arrival.permits == 4
    assert [delivery.id.batch_index for delivery in arrival.deliveries] == [0, 2, 3, 4]
    assert [delivery.error is None for delivery in arrival.deliveries] == [True, True, False, False]
    assert [len(delivery.data) for delivery in arrival.deliveries] == [1, 1, len(payload), 0]


@pytest.mark.parametrize(
    "rest", [encode_headers_and_payload(metadata(), b"hello"), b"", batch()], ids=["plain", "unreadable", "batch"]
)
def test_an_id_that_is_none(rest: bytes) -> None:
    """Ids of brokers are below 2**63; any other id is a fault of the protocol."""
    with pytest.raises(ProtocolError, match=r"command MESSAGE: entry: expected .*18446744073709551615"):
        Reader().read(rest, entry=2**64 - 1)


def test_chunks_that_are_not_in_the_order_of_the_message() -> None:
    """They are assembled in the message's order; their ids are sorted, so that all can be acknowledged."""
    reader, deliveries = Reader(), []
    for index, entry in ((0, 9), (1, 4), (2, 6)):
        of_chunk = metadata(num_chunks_from_msg=3, chunk_id=index, uuid="u", total_chunk_msg_size=3)
        deliveries += reader.read(encode_headers_and_payload(of_chunk, b"%d" % index), entry=entry).deliveries
    (delivery,) = deliveries
    assert (delivery.data, delivery.id) == (b"012", MessageId(3, 9, 2))
    assert [part.entry for part in delivery.id.parts] == [4, 6, 9]


def test_chunks_are_one_message() -> None:
    """It is decompressed when complete; its id is that of the last chunk, with the first one's."""
    packed = compress(pb.ZLIB, bytes(5_000))
    reader, deliveries = Reader(), []
    for index in range(3):
        of_chunk = metadata(
            compression=pb.ZLIB,
            uncompressed_size=5_000,
            num_chunks_from_msg=3,
            chunk_id=index,
            uuid="u",
            total_chunk_msg_size=len(packed),
            partition_key="k",
        )
        part = packed[index * 9 :] if index == 2 else packed[index * 9 : index * 9 + 9]
        arrival = reader.read(encode_headers_and_payload(of_chunk, part), entry=index)
        assert arrival.permits == 1
        deliveries += arrival.deliveries
    (delivery,) = deliveries
    assert (delivery.data, delivery.key, delivery.id) == (bytes(5_000), "k", MessageId(3, 2, 2))
    assert delivery.id.first_chunk == MessageId(3, 0, 2)


def test_a_codec_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """O12: the error names what to install, and does not blame the message; the broker has counted its whole batch."""
    rest = batch(4, compression=pb.LZ4, uncompressed_size=90)
    monkeypatch.setitem(sys.modules, "cramjam", None)
    permits, (delivery,) = Reader().read(rest)
    assert permits == 4
    assert isinstance(delivery.error, MissingExtraError)
    assert "pulsar-nack[compression]" in str(delivery.error)


def test_a_batch_of_very_many_takes_linear_time() -> None:
    """Of 60 000 messages every second is acknowledged, others are compacted; quadratic work would take minutes."""
    count = 60_000
    rest = batch(count, compacted=frozenset(range(0, count, 4)))
    arrival = Reader().read(rest, remaining=int("01" * (count // 2), 2))
    assert arrival.permits == count // 2
    assert [delivery.id.batch_index for delivery in arrival.deliveries] == list(range(2, count, 4))


@pytest.mark.parametrize("frames_count", seeds([2_000, 10_000]))
def test_mutations_of_recorded_entries_never_raise(frames_count: int) -> None:
    """Every mutation gives permits and deliveries; a message never ends a connection."""
    reader, count = Reader(), 0
    for data in islice(mutations(seed=99), frames_count):
        try:
            frames = FrameDecoder(LIMIT).feed(data)
        except ProtocolError:
            continue
        for frame in frames:
            if frame[1]:
                remaining = random.Random(count).choice((None, None, 5, 2**70 - 2))
                arrival = reader.read(frame[1], entry=count, remaining=remaining)
                assert arrival.permits >= 0
                count += len(arrival.deliveries)
    assert count > frames_count // 10
