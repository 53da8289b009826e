"""Frames of official clients and a real broker: read completely, and written again byte for byte."""

from __future__ import annotations

import pytest

from pulsar_nack import MessageId
from pulsar_nack.errors import UndecodableMessageError
from pulsar_nack.wire._consumer._ack_groups import AckGroup
from pulsar_nack.wire._consumer._consumer_session import (
    ack_command,
    close_command,
    flow_command,
    last_message_id_command,
    redeliver_command,
    seek_command,
    unsubscribe_command,
)
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._batches import encode_batch, remaining_of
from pulsar_nack.wire._protocol._entries import unpack
from pulsar_nack.wire._protocol._frames import encode_command, encode_frame, encode_headers_and_payload
from tests.for_each import for_each
from tests.wire.frames import SingleMessage, decode_entry, messages_of
from tests.wire.recorded import Recorded, of_kind, recorded

TEXT = b"some words, and then some words again. " * 4
PAYLOADS = {b"", b"x", TEXT, TEXT + b"2"}
MESSAGES = [one for one in recorded() if one.rest]


def is_encrypted(one: Recorded) -> bool:
    """Return whether the message is encrypted."""
    return b"ours" in one.rest


@for_each("one", [one for one in recorded() if not one.rest])
def test_commands_are_written_as_they_were(one: Recorded) -> None:
    """Every field is known, and in its place. The Java client writes CONNECT in another order."""
    again = encode_command(one.command)
    if (one.kind, one.sender) == ("CONNECT", "java"):
        assert sorted(again) == sorted(one.frame)
    else:
        assert again == one.frame


def test_messages_are_written_as_they_were() -> None:
    """Their metadata has no unknown field, and checksums are equal."""
    seen = set()
    for one in MESSAGES:
        if is_encrypted(one) or one.rest.startswith(b"\x0e\x02"):
            continue
        (size,) = (int.from_bytes(one.rest[6:10]),)
        metadata = pb.MessageMetadata.FromString(one.rest[10 : 10 + size])
        payload = one.rest[10 + size :]
        assert encode_headers_and_payload(metadata, payload) == one.rest
        assert encode_frame(one.command, encode_headers_and_payload(metadata, payload)) == one.frame
        seen.add((one.sender, one.kind, metadata.compression))
    assert len(seen) == 5 * 3


def test_every_message_is_read_as_it_was_sent() -> None:
    """From both clients, with every compression, alone and in batches, with and without broker entry metadata."""
    found = set()
    for one in MESSAGES:
        if is_encrypted(one):
            continue
        entry = decode_entry(one.rest)
        if entry.is_chunk:
            continue
        for message in messages_of(entry):
            assert message.payload in PAYLOADS
            assert_fields(message, one.client)
        is_marked = entry.broker_metadata.HasField("index")
        assert is_marked == entry.broker_metadata.HasField("broker_timestamp")
        found.add((one.sender, one.client, entry.metadata.compression, entry.is_batch, is_marked))
    for client in ("python", "java"):
        for compression in range(5):
            for is_batch in (False, True):
                assert (client, client, compression, is_batch, False) in found
                assert ("broker", client, compression, is_batch, False) in found
                assert ("broker", client, compression, is_batch, True) in found


def assert_fields(message: SingleMessage, client: str) -> None:
    """Assert the fields of a client's first message."""
    if message.event_time_ms:
        assert message.event_time_ms == 1_234
        assert message.properties == ({"a": "1", "ö": ""} if client == "python" else {"a": "1"})
        assert message.key == ("key" if client == "python" else "Af8=")
        assert message.payload == TEXT
    if message.ordering_key is not None:
        assert message.ordering_key == ("order" if client == "python" else "\udcff\x02")


def test_batches_are_written_as_they_were() -> None:
    """The payload of a batch before compression is made from the metadata and payloads that were read."""
    count = 0
    for one in MESSAGES:
        if is_encrypted(one):
            continue
        entry = decode_entry(one.rest)
        if entry.is_batch:
            messages = [(message.metadata, message.payload) for message in messages_of(entry)]
            singles = [(single, data) for single, data in messages if isinstance(single, pb.SingleMessageMetadata)]
            assert encode_batch(singles) == entry.payload
            count += 1
    assert count >= 20


def test_a_message_in_chunks_is_read() -> None:
    """Its chunks, as the consumer received them, are assembled and then decompressed."""
    parts: dict[int, bytes] = {}
    metadata = pb.MessageMetadata()
    for one in of_kind("MESSAGE", "broker"):
        if not is_encrypted(one) and not one.rest.startswith(b"\x0e\x02"):
            entry = decode_entry(one.rest)
            if entry.is_chunk:
                metadata = entry.metadata
                parts[metadata.chunk_id] = entry.payload
    assert sorted(parts) == list(range(metadata.num_chunks_from_msg))
    whole = b"".join(parts[index] for index in sorted(parts))
    assert len(whole) == metadata.total_chunk_msg_size
    assert metadata.compression == pb.ZLIB
    assert len(unpack(metadata, whole, 200)) == 200


def test_encrypted_messages_are_delivered() -> None:
    """They are delivered, alone and in a batch, and cannot be read."""
    encrypted = [one for one in MESSAGES if is_encrypted(one)]
    assert len(encrypted) >= 2
    for one in encrypted:
        with pytest.raises(UndecodableMessageError, match="encrypted with the key ours"):
            decode_entry(one.rest)


def test_the_broker_answers_as_expected() -> None:
    """The kinds of answers on both clients' connections are as expected."""
    assert {one.kind for one in recorded() if one.sender == "broker"} >= {
        "ACK_RESPONSE",
        "CLOSE_CONSUMER",
        "CONNECTED",
        "GET_LAST_MESSAGE_ID_RESPONSE",
        "LOOKUP_RESPONSE",
        "MESSAGE",
        "PARTITIONED_METADATA_RESPONSE",
        "PRODUCER_SUCCESS",
        "SEND_RECEIPT",
        "SUCCESS",
    }


# --- our commands and those of other clients -------------------------------------------------------------------------


def test_an_acknowledgement_is_that_of_the_official_client() -> None:
    """Without a receipt, as the Python client, and with one, as the Java client: byte for byte."""
    for one in of_kind("ACK"):
        ack = one.command.ack
        group = AckGroup()
        for position in ack.message_id:
            group.entries[position.ledgerId, position.entryId] = remaining_of(position.ack_set)
        made = ack_command(ack.consumer_id, group, ack.request_id if ack.HasField("request_id") else None)
        assert made == one.frame


def test_small_commands_are_those_of_the_official_clients() -> None:
    """Flow, unsubscribe, close, and the request for the last message: byte for byte."""
    for one in of_kind("FLOW"):
        assert flow_command(one.command.flow.consumer_id, one.command.flow.messagePermits) == one.frame
    for one in of_kind("UNSUBSCRIBE", "python"):  # the Java client's says that it does not force
        part = one.command.unsubscribe
        assert encode_command(unsubscribe_command(part.consumer_id, part.request_id)) == one.frame
    for one in of_kind("GET_LAST_MESSAGE_ID"):
        asked = one.command.getLastMessageId
        assert encode_command(last_message_id_command(asked.consumer_id, asked.request_id)) == one.frame
    for one in of_kind("CLOSE_CONSUMER", "java"):
        closed = one.command.close_consumer
        assert encode_command(close_command(closed.consumer_id, closed.request_id)) == one.frame


def test_a_seek_is_that_of_the_official_clients() -> None:
    """To the beginning, and to a time."""
    count = 0
    for one in of_kind("SEEK"):
        part = one.command.seek
        if part.HasField("message_publish_time"):
            made = seek_command(part.consumer_id, part.request_id, part.message_publish_time)
            assert encode_command(made) == one.frame
            count += 1
        else:
            made = seek_command(part.consumer_id, part.request_id, MessageId(-1, -1))
            assert made.seek.message_id.ledgerId == part.message_id.ledgerId == 2**64 - 1
            assert made.seek.message_id.entryId == part.message_id.entryId == 2**64 - 1
            count += 1
    assert count >= 2


def test_a_redelivery_is_that_of_the_official_clients() -> None:
    """Byte for byte."""
    for one in of_kind("REDELIVER_UNACKNOWLEDGED_MESSAGES"):
        part = one.command.redeliverUnacknowledgedMessages
        positions = [(each.ledgerId, each.entryId) for each in part.message_ids]
        assert redeliver_command(part.consumer_id, positions) == one.frame
