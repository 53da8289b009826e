"""Internal statistics of brokers become rows; the samples are in the form that Apache Pulsar's admin API gives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_nack.pipeline._hole_readers import HoleRow, read_stats

STATS: dict[str, Any] = {
    "entriesAddedCounter": 15,
    "numberOfEntries": 15,
    "totalSize": 900,
    "currentLedgerEntries": 5,
    "currentLedgerSize": 300,
    "lastLedgerCreatedTimestamp": "2026-11-28T10:00:00Z",
    "waitingCursorsCount": 1,
    "pendingAddEntriesCount": 0,
    "lastConfirmedEntry": "4:4",
    "state": "LedgerOpened",
    "ledgers": [
        {"ledgerId": 3, "entries": 10, "size": 600, "offloaded": False, "underReplicated": False},
        {"ledgerId": 4, "entries": 0, "size": 0, "offloaded": False, "underReplicated": False},
    ],
    "cursors": {
        "work": {
            "markDeletePosition": "3:0",
            "readPosition": "4:5",
            "waitingReadOp": True,
            "pendingReadOps": 0,
            "messagesConsumedCounter": 9,
            "cursorLedger": -1,
            "cursorLedgerLastEntry": -1,
            "individuallyDeletedMessages": "[(3:1..3:5],(3:7..4:2]]",
            "state": "NoLedger",
            "numberOfEntriesSinceFirstNotAckedMessage": 14,
            "totalNonContiguousDeletedMessagesRange": 2,
            "properties": {},
        }
    },
    "schemaLedgers": [],
    "compactedLedger": {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False},
}
TOPIC = "persistent://public/default/orders"


def rows_of(topic: str, at_ms: int) -> list[HoleRow]:
    """Return the rows of the sample."""
    return [
        HoleRow(topic, "work", at_ms, "cursor", 3, 0, 0),
        HoleRow(topic, "work", at_ms, "ledger", 3, 0, 9, 600),
        HoleRow(topic, "work", at_ms, "ledger", 4, 0, 4, 300),
        HoleRow(topic, "work", at_ms, "acked", 3, 2, 5),
        HoleRow(topic, "work", at_ms, "acked", 3, 8, 9),
        HoleRow(topic, "work", at_ms, "acked", 4, 0, 2),
    ]


def with_deleted(text: object) -> dict[str, Any]:
    """Return the sample with other ranges."""
    return {**STATS, "cursors": {"work": {**STATS["cursors"]["work"], "individuallyDeletedMessages": text}}}


def test_topic_and_time_of_the_name() -> None:
    """Plain statistics have the topic and time of the file's name."""
    path = "/some/persistent%3A%2F%2Fpublic%2Fdefault%2Forders@1763990000000.json"
    assert list(read_stats(path, json.dumps(STATS, indent=2), 5)) == rows_of(TOPIC, 1_763_990_000_000)


def test_names_with_other_ends_of_lines() -> None:
    """Only a line feed ends a line; names may contain other characters that Unicode counts as line ends."""
    named = {**STATS, "cursors": {"a\u2028b\x85": STATS["cursors"]["work"]}}
    lines = [json.dumps({"topic": TOPIC, "time_ms": at_ms, "stats": named}, ensure_ascii=False) for at_ms in (1, 2)]
    found = list(read_stats("a.jsonl", "\r\n".join(lines), 0))
    assert [row.reason for row in found if row.reason is not None] == []
    assert {(row.subscription, row.at_ms) for row in found} == {("a\u2028b\x85", 1), ("a\u2028b\x85", 2)}


def test_name_without_a_time() -> None:
    """Without a time in the name, it is when the file was written."""
    assert list(read_stats("orders.json", json.dumps(STATS), 5)) == rows_of("orders", 5)


def test_wrapped_one_a_line() -> None:
    """Objects that name topic and time may be one per line; a broken line is refused with its number."""
    lines = [json.dumps({"topic": TOPIC, "time_ms": at_ms, "stats": STATS}) for at_ms in (1, 2)]
    found = list(read_stats("a.jsonl", "\n".join([lines[0], lines[1][:-5], lines[1]]), 0))
    (refused,) = [each for each in found if each.reason is not None]
    assert refused.path == "a.jsonl"
    assert refused.reason is not None
    assert refused.reason.startswith("line 2: not JSON: ")
    assert [each for each in found if each is not refused] == rows_of(TOPIC, 1) + rows_of(TOPIC, 2)


def test_partitioned() -> None:
    """Statistics of a partitioned topic name their partitions."""
    whole = {"metadata": {"partitions": 2}, "partitions": {f"{TOPIC}-partition-{n}": STATS for n in (0, 1)}}
    found = list(read_stats("x.json", json.dumps(whole), 7))
    assert found == rows_of(f"{TOPIC}-partition-0", 7) + rows_of(f"{TOPIC}-partition-1", 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", []),
        ("[ ]", []),
        ("[(3:1..3:5]]", [(3, 2, 5)]),
        ("[(3:1\u20253:5]]", [(3, 2, 5)]),
        ("[(3:1..3:5], [3:7..3:9)]", [(3, 2, 5), (3, 7, 8)]),
        ("[(3:-1..3:5]]", [(3, 0, 5)]),
        ("[(3:9..4:2]]", [(4, 0, 2)]),
        ("[(1:5..9:2]]", [(3, 0, 9), (4, 0, 4), (9, 0, 2)]),
        ("[(3:4..3:4]]", []),
    ],
)
def test_ranges(text: str, expected: list[tuple[int, int, int]]) -> None:
    """Ranges in all forms that brokers print; one over several ledgers is cut by their sizes."""
    found = read_stats("x.json", json.dumps(with_deleted(text)), 0)
    assert [each[4:7] for each in found if each.kind == "acked"] == expected


DIGITS = "1" * 5_000
"""More digits than Python converts to an int."""


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        (
            with_deleted("[(3:1..3:5]"),
            "cursors.work.individuallyDeletedMessages: expected a range, got '(3:1..3:5'",
        ),
        (with_deleted("[(3:1..3:5],]"), "cursors.work.individuallyDeletedMessages: expected a range, got ''"),
        (with_deleted("[(3:5..3:1]]"), "cursors.work.individuallyDeletedMessages: expected a range, got (3:5..3:1]"),
        (with_deleted("[(3:1..3:5],x]"), "cursors.work.individuallyDeletedMessages: expected a range, got 'x'"),
        (
            with_deleted("none"),
            "cursors.work.individuallyDeletedMessages: expected ranges in brackets, got 'none'",
        ),
        (with_deleted(5), "cursors.work.individuallyDeletedMessages: expected a str, got 5"),
        ({**STATS, "ledgers": {}}, "ledgers: expected a list, got {}"),
        (
            {**STATS, "ledgers": [{"ledgerId": -3}]},
            "ledgers[0].ledgerId: expected a whole number from 0 on, got -3",
        ),
        ({**STATS, "cursors": {"a": {}}}, "cursors.a.markDeletePosition: expected a str, got None"),
        (
            {**STATS, "cursors": {"a": {"markDeletePosition": "3"}}},
            "cursors.a.markDeletePosition: expected LEDGER:ENTRY, got '3'",
        ),
        (
            {**STATS, "cursors": {"a": {"markDeletePosition": f"{DIGITS}:0"}}},
            f"cursors.a.markDeletePosition: expected LEDGER:ENTRY, got '{DIGITS[:59]}",
        ),
        (
            with_deleted(f"[(3:1..{DIGITS}:5]]"),
            f"cursors.work.individuallyDeletedMessages: expected a range, got '(3:1..{DIGITS[:34]}'",
        ),
        ({"status": 404}, "expected cursors and ledgers, got status"),
        ([], "statistics: expected a dict, got []"),
    ],
)
def test_what_is_wrong_is_named(stats: object, reason: str) -> None:
    """A foreign file, or one that contradicts itself, is refused as a whole, with what and where."""
    assert list(read_stats("/a/x.json", json.dumps(stats), 0)) == [HoleRow(path="/a/x.json", reason=reason)]


@pytest.mark.parametrize("text", ["", "{", "not JSON\nat all", "[" * 100_000])
def test_no_json(text: str) -> None:
    """Text that is not JSON is refused once."""
    (found,) = read_stats("x.json", text, 0)
    assert found.reason is not None
    assert found.reason.startswith("not JSON: ")
