"""The time tables of ``timebucket.py``: adding, draining and sealing, compared with heaps, a dict and Java."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import _java
from _heaps import TripleHeap
from _report import Report
from _streams import STREAMS, over_a_minute, over_an_hour, random_share
from _targets import Targets, ratio
from _timebucket_memory import BITS, PLAIN
from _timing import best, no_collector, thread_ns
from pyroaring import BitMap

from pulsar_nack import MessageId, NackSchedule
from pulsar_nack.index._chunks import seal, unseal
from pulsar_nack.index._id_ranges import IdRanges
from pulsar_nack.index._sealer import Sealer

FAR = 1 << 50
_MASK = -1 << BITS
_MIX = 0x9E37_79B9_7F4A_7C15
_MIX_AGAIN = 0xD6E8_FEB8_6659_FD93
_ALL = 0xFFFF_FFFF_FFFF_FFFF


class Nacks(NamedTuple):
    """A stream, created before the measurement."""

    ids: list[MessageId]
    nows: list[int]
    delays: list[int]

    def first(self, count: int) -> Nacks:
        """Return the first ``count`` nacks."""
        return Nacks(self.ids[:count], self.nows[:count], self.delays[:count])


def made(stream: str, count: int) -> Nacks:
    """Create a stream."""
    nacks = list(STREAMS[stream](count))
    ids = [MessageId(ledger, entry) for ledger, entry, _, _ in nacks]
    return Nacks(ids, [nack[2] for nack in nacks], [nack[3] for nack in nacks])


def filled(nacks: Nacks) -> NackSchedule:
    """Return a schedule that contains a stream."""
    schedule = NackSchedule(PLAIN)
    for message_id, now_ms, delay_ms in zip(*nacks, strict=True):
        schedule.add(message_id, now_ms, delay_ms)
    return schedule


# -- adding ----------------------------------------------------------------------------------------------------------


def add_single(nacks: Nacks) -> float:
    """Ns of ``NackSchedule.add``, including the loop around it."""

    def measure() -> float:
        add = NackSchedule(PLAIN).add
        began = thread_ns()
        for message_id, now_ms, delay_ms in zip(*nacks, strict=True):
            add(message_id, now_ms, delay_ms)
        return (thread_ns() - began) / len(nacks.ids)

    return best(measure, 3)


def add_many(nacks: Nacks, each: int = 500) -> float:
    """Ns per id of ``NackSchedule.add_many``."""
    parts = [(nacks.ids[at : at + each], nacks.nows[at]) for at in range(0, len(nacks.ids), each)]

    def measure() -> float:
        schedule = NackSchedule(PLAIN)
        began = thread_ns()
        for ids, now_ms in parts:
            schedule.add_many(ids, now_ms, 60_000)
        return (thread_ns() - began) / len(nacks.ids)

    return best(measure, 3)


def parts_of(nacks: Nacks, make: Callable[[list[int]], Any], each: int = 500) -> list[tuple[int, Any, int, int]]:
    """Divide a stream into calls for several entries of one ledger, with the time and delay of the first entry."""
    parts = []
    at = 0
    while at < len(nacks.ids):
        ledger = nacks.ids[at].ledger
        end = min(at + each, len(nacks.ids))
        while nacks.ids[end - 1].ledger != ledger:
            end -= 1
        parts.append((ledger, make([nacks.ids[one].entry for one in range(at, end)]), nacks.nows[at], nacks.delays[at]))
        at = end
    return parts


def add_entries(nacks: Nacks, make: Callable[[list[int]], Any], each: int = 500) -> float:
    """Ns per entry of ``NackSchedule.add_entries``."""
    parts = parts_of(nacks, make, each)

    def measure() -> float:
        add = NackSchedule(PLAIN).add_entries
        began = thread_ns()
        for ledger, entries, now_ms, delay_ms in parts:
            add(ledger, entries, now_ms, delay_ms)
        return (thread_ns() - began) / len(nacks.ids)

    return best(measure, _java.rounds(len(nacks.ids)))


def as_range(entries: list[int]) -> range:
    """Return consecutive entries as a range."""
    return range(entries[0], entries[-1] + 1)


def as_array(entries: list[int]) -> array[int]:
    """Return entries as an array of 32-bit numbers."""
    return array("I", entries)


def add_peers(nacks: Nacks) -> tuple[float, float, float]:
    """Ns of an add to a triple heap, ``heapq`` and a dict."""
    triples = [
        ((now_ms + delay_ms), message_id.ledger, message_id.entry)
        for message_id, now_ms, delay_ms in zip(*nacks, strict=True)
    ]

    def triple_heap() -> float:
        push = TripleHeap().push
        began = thread_ns()
        for at, ledger, entry in triples:
            push(at, ledger, entry)
        return (thread_ns() - began) / len(triples)

    def heap() -> float:
        kept: list[tuple[int, MessageId]] = []
        push = heapq.heappush
        began = thread_ns()
        for message_id, now_ms, delay_ms in zip(*nacks, strict=True):
            push(kept, (now_ms + delay_ms, message_id))
        return (thread_ns() - began) / len(triples)

    def dictionary() -> float:
        kept: dict[MessageId, int] = {}
        began = thread_ns()
        for message_id, now_ms, delay_ms in zip(*nacks, strict=True):
            kept[message_id] = now_ms + delay_ms
        return (thread_ns() - began) / len(triples)

    return best(triple_heap, 2), best(heap, 2), best(dictionary, 2)


def single_table(report: Report, targets: Targets, count: int) -> None:
    """Print ns of a single add for each stream."""
    rows = []
    for stream in STREAMS:
        nacks = made(stream, count)
        ours = add_single(nacks)
        peer = _java.figure(stream, count, BITS, _java.rounds(count), "add")
        cold = _java.figure(stream, count, BITS, _java.rounds(count), "add_cold")
        by_java = ratio(ours, peer)
        target = targets.check(f"single add, {stream}, times Java", by_java, 10)
        few = nacks.first(100_000)
        rows.append([stream, ours, peer, by_java, None if by_java is None else target, cold, *add_peers(few)])
    columns = ["ns an id", "add(id)", "Java", "ratio", "target (ratio)", "Java, cold"]
    columns += ["triple heap", "heapq", "dict"]
    report.table(f"Single adds, {count:,} ids (heaps and dict with 100,000)", columns, rows)


def bulk_table(report: Report, targets: Targets, count: int) -> None:
    """Print ns per id of bulk adds, mostly of 500 ids per call."""
    rows = []
    cases: list[tuple[str, str, Callable[[list[int]], Any], int]] = [
        ("in order", "range", as_range, 500),
        ("in order", "array", as_array, 500),
        ("in order", "list", list, 500),
        ("in order", "array", as_array, 5_000),
        ("random 30 %", "array", as_array, 500),
        ("random 30 %", "list", list, 500),
        ("random 30 %", "array", as_array, 5_000),
        ("four delays", "array, a delay a call", as_array, 500),
        ("scattered over 60 s", "array, a delay a call", as_array, 500),
        ("scattered over an hour", "array, a delay a call", as_array, 500),
    ]
    for stream, name, make, each in cases:
        nacks = made(stream, count)
        rows.append(_bulk_row(targets, stream, f"{name}, {each:,}", add_entries(nacks, make, each), count))
    nacks = made("in order", count)
    rows.append(_bulk_row(None, "in order", "MessageIds, 500", add_many(nacks), count))
    columns = ["stream", "how", "ns an id", "Java, single add", "ratio", "target (ratio)"]
    report.table("Adding in bulk", columns, rows)


def _bulk_row(targets: Targets | None, stream: str, how: str, ours: float, count: int) -> list[object]:
    peer = _java.figure(stream, count, BITS, _java.rounds(count), "add")
    by_java = ratio(ours, peer)
    target = targets and targets.check(f"bulk add, {stream}, {how}, times Java", by_java, 1)
    return [stream, how, ours, peer, by_java, None if by_java is None else target]


# -- draining --------------------------------------------------------------------------------------------------------


def drain(nacks: Nacks, by: Callable[[NackSchedule], int], rounds: int = 3) -> float:
    """Ns per id of draining a full schedule."""

    def measure() -> float:
        schedule = filled(nacks)
        began = thread_ns()
        count = by(schedule)
        took = thread_ns() - began
        assert count == len(nacks.ids)
        return took / count

    return best(measure, rounds)


def by_runs(schedule: NackSchedule) -> int:
    """Drain everything in one call, as arrays."""
    return sum(len(run.entries) for run in schedule.pop_due_runs(FAR))


def by_objects(schedule: NackSchedule) -> int:
    """Drain as objects, 1 000 at a time."""
    count = 0
    while ids := list(schedule.pop_due(FAR, 1_000)):
        count += len(ids)
    return count


def drain_heaps(nacks: Nacks) -> tuple[float, float]:
    """Ns per id popped from a triple heap and from ``heapq``."""

    def triple_heap() -> float:
        heap = TripleHeap()
        for message_id, now_ms, delay_ms in zip(*nacks, strict=True):
            heap.push(now_ms + delay_ms, message_id.ledger, message_id.entry)
        began = thread_ns()
        while len(heap):
            heap.pop()
        return (thread_ns() - began) / len(nacks.ids)

    def heap() -> float:
        kept = [(now_ms + delay_ms, message_id) for message_id, now_ms, delay_ms in zip(*nacks, strict=True)]
        heapq.heapify(kept)
        pop = heapq.heappop
        began = thread_ns()
        while kept:
            pop(kept)
        return (thread_ns() - began) / len(nacks.ids)

    return best(triple_heap, 1), best(heap, 2)


_BY_RUNS = {"in order": 3.0, "random 30 %": 6.0, "scattered over 60 s": 10.0, "scattered over an hour": 10.0}
_BY_OBJECTS = {"in order": 300.0, "scattered over 60 s": 850.0, "scattered over an hour": 850.0}


def drain_table(report: Report, targets: Targets, count: int) -> None:
    """Print ns per drained id, as arrays and as objects."""
    runs, objects = [], []
    for stream in STREAMS:
        nacks = made(stream, count)
        ours = drain(nacks, by_runs)
        peers = [
            _java.figure(stream, count, BITS, _java.rounds(count), name)
            for name in ("drain", "drain_optimized", "objects", "optimize")
        ]
        by_java = ratio(ours, peers[0])
        target = targets.check(f"pop_due_runs, {stream}, times Java", by_java, _BY_RUNS.get(stream))
        runs.append([stream, ours, peers[0], by_java, None if by_java is None else target, peers[1], peers[3]])
        ours = drain(nacks, by_objects)
        target = targets.check(f"as objects, {stream}, ns", ours, _BY_OBJECTS.get(stream))
        few = nacks.first(100_000)
        objects.append([stream, ours, target, peers[2], ratio(ours, peers[2]), *drain_heaps(few)])
    columns = ["ns an id", "pop_due_runs", "Java", "ratio", "target (ratio)", "Java, run-optimized", "optimizing it"]
    report.table(f"Draining {count:,} ids as arrays", columns, runs)
    columns = ["ns an id", "pop_due(limit=1000)", "target", "Java", "ratio", "triple heap", "heapq"]
    report.table(f"Draining {count:,} ids as objects (heaps: 100,000)", columns, objects)


# -- the same streams, the same answers ------------------------------------------------------------------------------


def mix(ledger: int, entry: int) -> int:
    """Return the hash of a position, as ``Peer.java`` computes it."""
    value = (ledger * _MIX + entry) & _ALL
    value = ((value ^ (value >> 32)) * _MIX_AGAIN) & _ALL
    return value ^ (value >> 32)


def proof_table(report: Report, count: int) -> None:
    """Drain both sides in two halves; print counts, and whether the sums of hashes agree."""
    if (reason := _java.why_not()) is not None:
        report.note(reason)
        return
    rows = []
    for stream in STREAMS:
        nacks = made(stream, count)
        deadlines = [now_ms + delay_ms for now_ms, delay_ms in zip(nacks.nows, nacks.delays, strict=True)]
        schedule = filled(nacks)
        row: list[object] = [stream]
        said = _java.run(stream, count, BITS, _java.rounds(count))
        for when, until in (("early", (min(deadlines) + max(deadlines)) // 2), ("late", FAR)):
            runs = schedule.pop_due_runs(until)
            total = sum(mix(run.ledger, entry) for run in runs for entry in run.entries) & _ALL
            drained = sum(len(run.entries) for run in runs)
            is_same = said[f"{when}_count"] == str(drained) and said[f"{when}_sum"] == str(total)
            row += [drained, int(said[f"{when}_count"]), "equal" if is_same else "DIFFERENT"]
        rows.append(row)
    columns = ["stream", "due by halfway", "Java", "sums", "the rest", "Java", "sums"]
    report.table("Python and Java drain the same ids at the same times", columns, rows)


# -- sealing ---------------------------------------------------------------------------------------------------------


def seal_one(numbers: list[int]) -> tuple[str, float, float]:
    """Seal one set many times; return the kind, ns per number, and bytes per number."""
    wanted = max(200_000 // len(numbers), 20)
    packed = seal(BitMap(numbers))

    def measure() -> float:
        copies = [BitMap(numbers) for _ in range(wanted)]
        began = thread_ns()
        for copy in copies:
            seal(copy)
        return (thread_ns() - began) / (wanted * len(numbers))

    return chr(packed[0]), best(measure), len(packed) / len(numbers)


_KINDS = {"R": "roaring", "W": "roaring, 64 bits", "G": "gaps", "I": "plain", "Q": "plain, 64 bits"}
_PACKED_BYTES = 1
"""An encoding that takes at least this many bytes per entry has stored each entry separately."""
_QUICK_NS, _PACKED_NS = 30, 150


def _bucket_of(stream: Any, count: int) -> list[int]:
    """Return the largest bucket of a stream, as numbers with a block for each ledger."""
    buckets: dict[int, list[int]] = {}
    for ledger, entry, now_ms, delay_ms in stream(count):
        buckets.setdefault((now_ms + delay_ms) & _MASK, []).append(ledger << 16 | entry)
    return max(buckets.values(), key=len)


def seal_table(report: Report, targets: Targets, count: int) -> None:
    """Print ns per entry of encoding a bucket, and of folding open buckets."""
    rows: list[list[object]] = []
    samples: list[tuple[str, list[int]]] = [
        ("a run of 2,560", list(range(2_560))),
        ("random 30 % of 2,560", [nack[1] for nack in random_share(768)]),
        ("random 30 % of a ledger", [nack[1] for nack in random_share(15_000)]),
        ("a bucket of 60 s", _bucket_of(over_a_minute, count)),
        ("a bucket of an hour", _bucket_of(over_an_hour, count)),
    ]
    for name, numbers in samples:
        kind, took, size = seal_one(numbers)
        target = targets.check(f"sealing {name}, ns an entry", took, _target_ns(size))
        rows.append([f"seal: {name}", _KINDS[kind], took, target, size])
    for stream in STREAMS:
        kinds, took, size = fold_all(stream, count)
        target = targets.check(f"folding {stream}, ns an entry", took, _target_ns(size))
        shares = ", ".join(f"{_KINDS.get(kind, kind)} {share:.0%}" for kind, share in kinds.most_common())
        rows.append([f"fold: {stream}", shares, took, target, size])
    columns = ["ns an entry", "sealed as (share of entries)", "ours", "target", "bytes an entry"]
    report.table("Sealing", columns, rows)


def _target_ns(size: float) -> int:
    return _PACKED_NS if size >= _PACKED_BYTES else _QUICK_NS


def fold_all(stream: str, count: int) -> tuple[Counter[str], float, float]:
    """Fill a schedule and fold every bucket; return the share of each encoding, and ns and bytes per entry."""
    nacks = made(stream, count)

    def measure() -> tuple[Counter[str], float, float]:
        watch = _FoldWatch()
        with watch, no_collector():
            buckets = filled(nacks).buckets
            for start in list(buckets._store.open):
                buckets._sealer.fold(start)
        for chunk in watch.chunks:
            watch.sealed[chr(chunk[0])] += len(unseal(chunk))
        total = sum(watch.sealed.values())
        kinds = Counter({kind: sealed / total for kind, sealed in watch.sealed.items()})
        return kinds, watch.took / watch.entries, sum(map(len, watch.chunks)) / total

    return min((measure() for _ in range(3)), key=lambda found: found[1])


class _FoldWatch:
    """Times every fold of every sealer inside its ``with`` block, and counts entries by their encoding."""

    def __init__(self) -> None:
        self.took = 0
        self.entries = 0
        self.sealed: Counter[str] = Counter()
        self.chunks: list[bytes] = []
        wrapped = ((Sealer, "fold"), (IdRanges, "try_add"), (Sealer, "_add_chunk"))
        self._originals = {(kind, name): getattr(kind, name) for kind, name in wrapped}

    def __enter__(self) -> None:
        fold, try_add, add_chunk = self._originals.values()
        watch = self

        def timed_fold(sealer: Sealer, start: int) -> None:
            watch.entries += len(sealer._store.open[start])
            began = thread_ns()
            fold(sealer, start)
            watch.took += thread_ns() - began

        def counted_range(ranges: IdRanges, start: int, low: int, high: int, count: int, pending: Any) -> bool:
            is_range: bool = try_add(ranges, start, low, high, count, pending)
            watch.sealed["id range"] += count if is_range else 0
            return is_range

        def kept_chunk(sealer: Sealer, start: int, chunk: bytes) -> None:
            add_chunk(sealer, start, chunk)
            watch.chunks.append(chunk)

        for (kind, name), wrapper in zip(self._originals, (timed_fold, counted_range, kept_chunk), strict=True):
            setattr(kind, name, wrapper)

    def __exit__(self, *_: object) -> None:
        for (kind, name), original in self._originals.items():
            setattr(kind, name, original)
