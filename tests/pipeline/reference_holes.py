"""The expected results of ``holes``, with plain sets of entries: written from its page, and not from the job."""

from __future__ import annotations

import math
from collections import defaultdict
from random import Random
from typing import Any, Final

from pulsar_nack.cursor.format._ledger import LedgerAcks, ledger_size
from pulsar_nack.cursor.format._legacy import LegacyRecord, encode_legacy
from pulsar_nack.cursor.format._marker import MarkerContents, marker_size
from pulsar_nack.ids import Position
from pulsar_nack.index import EntryRanges

Fact = tuple[str, int | None, int | None, int | None, int | None]
Row = dict[str, Any]
LIMIT: Final = 2_048
SENSELESS: Final[tuple[Fact, ...]] = (
    ("acked", 1, 5, 4, None), ("acked", 1, -1, 4, None), ("acked", None, 0, 4, None), ("acked", -1, 0, 1, None),
    ("acked", 1, 0, None, None), ("something", 1, 0, 1, None), ("ledger", 1, 0, -2, None), ("batch", 2, None, 3, None),
)  # fmt: skip


def random_states(random: Random, subscriptions: int) -> list[tuple[Any, ...]]:
    """Return rows of several subscriptions, each at several times."""
    rows = []
    for number in range(subscriptions):
        for at in random.sample(range(1_000, 60_000), random.choice((1, 1, 2, 4))):
            facts = random_facts(random)
            random.shuffle(facts)
            rows += [(f"t{number % 3}", f"s{number}", at, *fact) for fact in facts]
    return rows


def random_facts(random: Random) -> list[Fact]:
    """Return random figures of a state."""
    lengths = {ledger: random.choice((0, 1, 10, 30)) for ledger in random.sample(range(1, 9), random.randrange(1, 6))}
    facts: list[Fact] = []
    if random.random() < 0.9:
        ledger = random.choice(sorted(lengths))
        at = random.randrange(-1, lengths[ledger])
        size = random.choice((None, None, 20, 900))
        facts.append(("cursor", ledger, at, at, size))
        facts += [("state", each, None, None, random.choice((9, 400, 700))) for each in lengths if size is not None]
    for ledger, length in lengths.items():
        for _ in range(random.randrange(4) if length else 0):
            first = random.randrange(length)
            facts.append(("acked", ledger, first, min(first + random.choice((0, 1, 5)), length - 1), None))
        if length and random.random() < 0.4:
            first = random.randrange(length)
            facts.append(("batch", ledger, first, first, None))
    if random.random() < 0.7:
        facts += [("ledger", ledger, 0, length - 1, 100 * length) for ledger, length in lengths.items()]
    facts += random.sample(SENSELESS, random.choice((0, 0, 0, 2)))
    return facts or [("state", 1, None, None, 5)]


def makes_sense(kind: str, ledger: int | None, first: int | None, last: int | None) -> bool:
    """Return whether a row is valid."""
    if ledger is None or (ledger < 0 and kind != "cursor"):
        return False
    if kind == "state":
        return True
    if last is None or last < -1:
        return False
    return kind in {"cursor", "ledger"} or (kind in {"acked", "batch"} and first is not None and 0 <= first <= last)


def runs(entries: set[int]) -> int:
    """Return how many runs the entries form."""
    return sum(each - 1 not in entries for each in entries)


def figures(facts: list[Fact]) -> Row:
    """Return the figures of one state."""
    good = [fact for fact in facts if makes_sense(*fact[:4])]
    of: dict[str, list[Any]] = defaultdict(list)
    for kind, *fact in good:
        of[kind].append(fact)
    marks = [(ledger, last) for ledger, _, last, _ in of["cursor"]]
    mark = marks[0] if marks else None
    at = mark or (-1, -1)
    acked: dict[int, set[int]] = defaultdict(set)
    for ledger, first, last, _ in of["acked"]:
        acked[ledger] |= {each for each in range(first, last + 1) if (ledger, each) > at}
    acked = {ledger: entries for ledger, entries in acked.items() if entries}
    lengths = {ledger: last + 1 for ledger, _, last, _ in of["ledger"]}
    known = sorted(ledger for ledger in lengths if ledger >= at[0])

    def unacked(ledger: int, end: int) -> set[int]:
        return set(range(at[1] + 1 if ledger == at[0] else 0, end)) - acked.get(ledger, set())

    below = []
    for ledger in {*known, *acked}:
        if acked and ledger <= max(acked):
            last = max(acked.get(ledger, {-1})) + 1
            below.append(unacked(ledger, last if ledger == max(acked) else max(last, lengths.get(ledger, 0))))
    left = {ledger: unacked(ledger, lengths[ledger]) for ledger in known}
    if lengths:
        oldest = min(((ledger, min(each)) for ledger, each in left.items() if each), default=None)
    else:
        own = acked.get(at[0], set())
        oldest = None if mark is None else (at[0], next(e for e in range(at[1] + 1, 10**6) if e not in own))
    pinned = [ledger for ledger in known[:-1] if oldest is not None and ledger >= oldest[0]]
    sizes = {ledger: size for ledger, _, _, size in of["ledger"]}
    states = {ledger: LedgerAcks(EntryRanges.from_ranges((e, e) for e in each)) for ledger, each in acked.items()}
    computed = sum(ledger_size(state, ledger) for ledger, state in states.items()) + marker_size(Position(*at), states)
    stored = next((size for *_, size in of["cursor"] if size is not None), None)
    plain = len(encode_legacy(LegacyRecord(MarkerContents(Position(1, 0), {}, {}))).record) - 4
    return {
        "mark_delete_ledger": None if mark is None else mark[0], "mark_delete_entry": None if mark is None else mark[1],
        "ledgers": len(acked), "ranges": sum(map(runs, acked.values())), "acked": sum(map(len, acked.values())),
        "holes": sum(map(runs, below)), "unacked_below": sum(map(len, below)),
        "batches": len({(ledger, first) for ledger, first, _, _ in of["batch"]
                        if (ledger, first) > at and first not in acked.get(ledger, ())}),
        "backlog": sum(map(len, left.values())) if lengths else None,
        "bytes": computed if stored is None else stored + sum(size for *_, size in of["state"]),
        "is_stored": stored is not None, "ranges_lost": 0,
        "single_bytes": len(encode_legacy(LegacyRecord(MarkerContents(Position(*at), {}, {}), states)).record) - plain,
        "oldest_ledger": None if oldest is None else oldest[0], "oldest_entry": None if oldest is None else oldest[1],
        "pinned_ledgers": len(pinned) if lengths else None,
        "pinned_bytes": sum(sizes[ledger] for ledger in pinned) if lengths else None,
        "pinned_done": sum(lengths[e] > 0 and not left[e] for e in pinned) if lengths else None,
        "ignored_rows": len(facts) - len(good),
    }  # fmt: skip


def holes(rows: list[tuple[Any, ...]]) -> list[Row]:
    """Return the table, with a limit of ``LIMIT`` bytes."""
    states: dict[tuple[str, str], dict[int, list[Fact]]] = defaultdict(lambda: defaultdict(list))
    for topic, subscription, at, *fact in rows:
        states[topic, subscription][at].append(tuple(fact))
    found: list[Row] = []
    for (topic, subscription), times in states.items():
        before: Row | None = None
        for at in sorted(times):
            row: Row = {"topic": topic, "subscription": subscription, "at_ms": at} | figures(times[at])
            oldest = row["oldest_ledger"], row["oldest_entry"]
            seconds = 0.0 if before is None else (at - before["at_ms"]) / 1_000
            same = before is not None and oldest == (before["oldest_ledger"], before["oldest_entry"])
            since = before["since"] if same and before is not None else at
            rate = None if before is None else (row["bytes"] - before["bytes"]) / seconds
            share = row["bytes"] / LIMIT
            row |= {
                "bytes_per_s": rate,
                "ranges_per_s": None if before is None else (row["ranges"] - before["ranges"]) / seconds,
                "is_latest": at == max(times), "oldest_since_ms": None if oldest[0] is None else since, "since": since,
                "limit_share": share,
                "risk": "over" if share >= 1 else "paused" if share >= 7 / 8 else "near" if share >= 3 / 4 else "none",
                "limit_at_ms": at + math.ceil((LIMIT - row["bytes"]) / rate * 1_000)
                if rate is not None and rate > 0 and row["bytes"] < LIMIT else None,
            }  # fmt: skip
            found.append(row)
            before = row
    return [{name: row[name] for name in row if name != "since"} for row in found]
