"""The generated classes are those of the .proto file, and its lower fields those of Pulsar."""

from __future__ import annotations

import re
from pathlib import Path

from pulsar_nack.cursor.format import _cursor_pb2 as module

SOURCE = Path(module.__file__).with_name("_cursor.proto").read_text(encoding="utf-8")
PULSAR = {
    "NestedPositionInfo": {"ledgerId": 1, "entryId": 2},
    "MessageRange": {"lowerEndpoint": 1, "upperEndpoint": 2},
    "LongListMap": {"key": 1, "values": 2},
    "BatchedEntryDeletionIndexInfo": {"position": 1, "deleteSet": 2},
    "LongProperty": {"name": 1, "value": 2},
    "StringProperty": {"name": 1, "value": 2},
    "PositionInfo": {
        "ledgerId": 1,
        "entryId": 2,
        "individualDeletedMessages": 3,
        "properties": 4,
        "batchedEntryDeletionIndexInfo": 5,
        "individualDeletedMessageRanges": 6,
    },
}


def generated() -> dict[str, dict[str, int]]:
    """Return the fields of all generated classes."""
    found = module.DESCRIPTOR.message_types_by_name
    return {name: {field.name: field.number for field in message.fields} for name, message in found.items()}


def test_the_classes_are_those_of_the_file() -> None:
    """The classes were generated after the last change of the .proto file (make proto)."""
    written = {
        name: {field: int(number) for field, number in re.findall(r"(\w+) = (\d+)(?: \[.*?\])?;", body)}
        for name, body in re.findall(r"^message (\w+) \{(.*?)^\}", SOURCE, re.MULTILINE | re.DOTALL)
    }
    assert generated() == written


def test_the_lower_fields_are_those_of_pulsar() -> None:
    """Pulsar's messages have its fields, and others only from 1000 on."""
    found = generated()
    for name, fields in PULSAR.items():
        assert {field: number for field, number in found[name].items() if number < 1_000} == fields
