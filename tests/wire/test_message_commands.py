"""Message commands, read without a parser: equal to what a parser reads, or left to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._frames import (
    FrameDecoder,
    MessageCommand,
    MessageCommandReader,
    encode_command,
    to_message_command,
)
from tests.wire.recorded import recorded

NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.sampled_from([127, 128, 2**14, 2**21, 2**63]))


def command(consumer_id: int, ledger: int, entry: int, **fields: Any) -> pb.BaseCommand:
    """Return a MESSAGE; ``fields`` of the id go there."""
    made = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    made.message.consumer_id = consumer_id
    made.message.message_id.ledgerId = ledger
    made.message.message_id.entryId = entry
    for name, value in fields.items():
        if name in {"partition", "batch_index"}:
            setattr(made.message.message_id, name, value)
        elif name == "ack_set":
            made.message.ack_set.extend(value)
        else:
            setattr(made.message, name, value)
    return made


MANY = st.lists(
    st.builds(
        command,
        st.integers(0, 200),
        NUMBERS,
        NUMBERS,
    )
    | st.builds(
        command,
        st.integers(0, 2),
        st.sampled_from([5, 700]),
        st.integers(0, 2**22),
        partition=st.sampled_from([-1, 0, 3, 127, 128, 2**31 - 1, -(2**31)]),
        redelivery_count=st.integers(0, 300),
    ),
    min_size=1,
    max_size=20,
)


@given(MANY)
@example([command(1, 700, entry, partition=-1) for entry in (126, 127, 128, 129, 16_383, 16_384, 2**21 - 1, 2**21)])
def test_reads_what_a_parser_reads(commands: list[pb.BaseCommand]) -> None:
    """Whatever command came before, each one is read as the parser reads it."""
    reader = MessageCommandReader()
    for each in commands:
        data = each.SerializeToString()
        read = reader.read(b"xx" + data + b"rest", 2, 2 + len(data))
        assert read in {None, to_message_command(each.message)}
        usual = each.message.message_id.partition in range(-1, 128)
        assert (read is not None) or not usual


@given(MANY, st.data())
def test_changed_bytes_are_read_as_a_parser_reads_them(commands: list[pb.BaseCommand], data: st.DataObject) -> None:
    """A command with one byte changed or cut off is left to the parser, or read as the parser reads it."""
    reader = MessageCommandReader()
    for each in commands:
        reader.read(each.SerializeToString(), 0, each.ByteSize())
    changed = bytearray(commands[-1].SerializeToString())
    at = data.draw(st.integers(0, len(changed) - 1))
    if data.draw(st.booleans()):
        changed[at] = data.draw(st.integers(0, 255))
    else:
        del changed[at:]
    read = reader.read(bytes(changed), 0, len(changed))
    if read is not None:
        assert read == to_message_command(pb.BaseCommand.FromString(bytes(changed)).message)


@pytest.mark.parametrize(
    "fields", [{"ack_set": [5]}, {"consumer_epoch": 3}, {"batch_index": 1}], ids=lambda fields: next(iter(fields))
)
def test_the_parser_reads_what_is_not_usual(fields: dict[str, Any]) -> None:
    """A command with more than the usual fields is read completely, also between usual ones."""
    usual = command(1, 7, 9, partition=-1)
    stream = b"".join(encode_command(each) for each in (usual, command(1, 7, 10, **fields), usual))
    heads = [frame[0] for frame in FrameDecoder().feed(stream)]
    assert heads[0] == heads[2] == MessageCommand(1, 7, 9)
    assert heads[1] == MessageCommand(1, 7, 10, 0, tuple(fields.get("ack_set", ())), fields.get("consumer_epoch"))


def test_recorded_heads_are_usual() -> None:
    """Commands that brokers sent to clients are read without a parser, except for ack sets."""
    messages = [each for each in recorded() if each.command.type == pb.BaseCommand.MESSAGE]
    assert messages
    reader = MessageCommandReader()
    for each in messages:
        data = each.command.SerializeToString()
        is_usual = not each.command.message.ack_set and not each.command.message.HasField("consumer_epoch")
        assert (reader.read(data, 0, len(data)) == to_message_command(each.command.message)) is is_usual
