"""The expected results of the jobs, in plain Python: written from the pipeline's pages, and not from the jobs.

A table is a list of dicts. Events are dicts with the keys of a line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from pulsar_nack import MessageId, NackConfig, NackSchedule
from pulsar_nack.planning import Kind, Workload, make_plan, recommend

from .reference_lines import KINDS, Event

Row = dict[str, Any]

MESSAGE: Final = ("topic", "partition", "subscription", "ledger", "entry", "batch_index")


def by(rows: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Return rows in groups."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


# --- accuracy -------------------------------------------------------------------------------------------------------


def in_order(event: Event) -> tuple[int, int, int, int]:
    """Return the sort key of a message's events."""
    attempt = -1 if event["attempt"] is None else event["attempt"]
    return event["time_ms"], event["mono_ns"], attempt, KINDS.index(event["event"])


def messages(events: Iterable[Event]) -> list[list[Event]]:
    """Return the events of each message, in order."""
    found = by(events, lambda event: tuple(event[name] for name in MESSAGE))
    return [sorted(each, key=in_order) for each in found.values()]


def is_redelivery(event: Event, kind: str) -> bool:
    """Return whether an event is a redelivery, as the page defines it."""
    if kind == "redeliver":
        return bool(event["event"] == "redeliver" and event["reason"] != "asked again")
    return event["event"] == "arrive" and (event["deadline_ms"] is not None or (event["attempt"] or 0) >= 1)


def lateness_of(event: Event) -> int | None:
    """Return actual minus asked time."""
    deadline, actual = event["deadline_ms"], event["actual_ms"]
    return None if deadline is None or actual is None else actual - deadline


def delay_class(delay: int | None) -> str:
    """Return the class of a delay in ms."""
    if delay is None:
        return "unknown"
    low = 0
    for bound in (1, 10, 60, 600, 3_600):
        if delay <= 1_000 * bound:
            return f"{low}-{bound} s"
        low = bound
    return f"over {low} s"


def accuracy(
    events: list[Event],
    *,
    early_ms: int = 1_000,
    late_ms: int = 1_000,
    starvation_ms: int = 1_000,
    kind: str = "arrive",
) -> dict[str, list[Row]]:
    """Return the three tables."""
    arrivals: dict[tuple[Any, ...], list[int | None]] = defaultdict(list)
    for chain in messages(events):
        asked = None
        for event in chain:
            if is_redelivery(event, kind):
                key = event["topic"], event["subscription"], delay_class(asked), event["attempt"]
                arrivals[key].append(lateness_of(event))
            elif event["event"] == "nack" and event["delay_ms"] is not None:
                asked = event["delay_ms"]
    lateness = []
    for key, found in arrivals.items():
        row = dict(zip(("topic", "subscription", "delay_class", "attempt"), key, strict=True))
        ms = sorted(each for each in found if each is not None)
        lateness.append(row | {
            "arrivals": len(found), "invalid": len(found) - len(ms), "early": sum(each < -early_ms for each in ms),
            "late": sum(each > late_ms for each in ms), "min_ms": ms[0] if ms else None,
            "mean_ms": sum(ms) / len(ms) if ms else None, "p50_ms": percentile(ms, 0.5), "p90_ms": percentile(ms, 0.9),
            "p99_ms": percentile(ms, 0.99), "p99_9_ms": percentile(ms, 0.999), "max_ms": ms[-1] if ms else None,
        })  # fmt: skip
    beyond = [
        {name: event[name] for name in (*MESSAGE, "consumer", "attempt", "deadline_ms", "actual_ms")}
        | {"lateness_ms": late}
        for event in events
        if is_redelivery(event, kind) and (late := lateness_of(event)) is not None and not -early_ms <= late <= late_ms
    ]
    return {"lateness": lateness, "starvation": starvation(events, starvation_ms, kind), "beyond": beyond}


def percentile(values: list[int], share: float) -> float | None:
    """Return a percentile of sorted values: between two of them in proportion."""
    if not values:
        return None
    at = share * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


def starvation(events: list[Event], shortest: int, kind: str) -> list[Row]:
    """Return the spans in which a message was due and none was redelivered."""
    last = {name: max(event["time_ms"] for event in each) for name, each in by(events, lambda e: e["consumer"]).items()}
    ends = {"arrive", "nack", "cancel", "ack", kind}
    waits: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)  # from, to, place of the end in KINDS
    for chain in messages(events):
        for place, event in enumerate(chain):
            if event["event"] != "nack" or event["deadline_ms"] is None:
                continue
            later = chain[place + 1 :]
            if kind == "redeliver":
                later = [each for each in later if each["reason"] != "asked again" or each["event"] != "redeliver"]
            end = next((each for each in later if each["event"] in ends), None)
            until = (last[event["consumer"]], -1) if end is None else (end["time_ms"], KINDS.index(end["event"]))
            waits[event["topic"], event["subscription"]].append((event["deadline_ms"], *until))
    redelivered = by(
        (event for event in events if is_redelivery(event, kind)), lambda e: (e["topic"], e["subscription"])
    )
    rows = []
    for group, found in waits.items():
        times = [event["time_ms"] for event in redelivered.get(group, ())]
        for start, stop, due, ended_by in spans(found, times, max(shortest // 8, 1), kind):
            if stop - start >= shortest:
                rows.append({
                    "topic": group[0], "subscription": group[1], "from_ms": start, "to_ms": stop,
                    "length_ms": stop - start, "due": due, "is_over": ended_by is not None, "ended_by": ended_by,
                })  # fmt: skip
    return rows


def spans(
    waits: list[tuple[int, int, int]], redelivered: list[int], width: int, kind: str
) -> Iterator[tuple[int, int, int, str | None]]:
    """Yield from, to, due and what ended it, slice by slice."""
    counted = [wait for wait in waits if wait[1] // width > wait[0] // width]
    begin, stop = by(counted, lambda wait: wait[0] // width), by(counted, lambda wait: wait[1] // width)
    came = by(redelivered, lambda time: time // width)
    due, since, latest = 0, 0, -1
    for each in sorted({*begin, *stop, *came}):
        after = due + len(begin.get(each, ())) - len(stop.get(each, ()))
        if due and each in came:
            yield max(since, latest), min(came[each]), due, kind
        elif due and not after:
            _, at, place = max(stop[each], key=lambda wait: wait[1:])
            yield max(since, latest), at, due, None if place < 0 else KINDS[place]
        if not due and after:
            since = min(wait[0] for wait in begin[each])
        if each in came:
            latest = max(came[each])
        due = after


# --- retries --------------------------------------------------------------------------------------------------------


def retries(
    events: list[Event], *, poison_at: int = 5, window_ms: int = 10_000, baseline: int = 30, factor: float = 5,
    min_nacks: int = 100,
) -> dict[str, list[Row]]:  # fmt: skip
    """Return the six tables."""
    all_chains = [chain_of(chain) for chain in messages(events)]
    chains = [{name: chain[name] for name in chain if name not in {"useful", "why"}}
              for chain in all_chains if chain["nacks"]]  # fmt: skip
    attempts = [
        dict(zip(("topic", "subscription", "outcome", "nacks"), key, strict=True))
        | {"messages": len(each), "span_ms": sum(chain["last_ms"] - chain["first_ms"] for chain in each) / len(each)}
        for key, each in by(chains, lambda c: (c["topic"], c["subscription"], c["outcome"], c["nacks"])).items()
    ]
    dead = Counter((c["topic"], c["subscription"], c["why"][1]) for c in all_chains if c["why"][0])
    waste = []
    for key, each in by(all_chains, lambda c: (c["topic"], c["subscription"])).items():
        arrivals = sum(chain["arrivals"] for chain in each)
        waste.append({
            "topic": key[0], "subscription": key[1], "arrivals": arrivals,
            "acked": sum(chain["outcome"] == "acked" for chain in each),
            "nacked": sum(chain["nacks"] for chain in each), "held": sum(chain["held"] for chain in each),
            "after_ack": sum(chain["after_ack"] for chain in each),
            "wasted": 1 - sum(chain["useful"] for chain in each) / arrivals if arrivals else None,
        })  # fmt: skip
    return {
        "chains": chains,
        "attempts": attempts,
        "poison": [chain for chain in chains if chain["nacks"] >= poison_at and chain["outcome"] != "acked"],
        "storms": storms(events, window_ms, baseline, factor, min_nacks),
        "dead_letters": [
            {"topic": topic, "subscription": subscription, "reason": reason, "messages": count}
            for (topic, subscription, reason), count in dead.items()
        ],
        "waste": waste,
    }


def chain_of(chain: list[Event]) -> Row:
    """Return the row of a message; ``useful``: arrivals that ended well, ``why``: whether it is dead, and why."""
    kinds = Counter(event["event"] for event in chain)
    asked_again = after_ack = useful = 0
    before, was_acked, is_new = None, False, False
    for event in chain:
        kind = event["event"]
        asked_again += kind == "redeliver" and before == "redeliver"
        after_ack += kind == "arrive" and was_acked
        useful += kind == "ack" and event["reason"] != "dead-letter" and is_new
        is_new = kind == "arrive" or (is_new and kind != "ack")
        was_acked |= kind == "ack"
        if kind in {"arrive", "nack", "redeliver", "ack"}:
            before = kind
    acks = {event["reason"] == "dead-letter" for event in chain if event["event"] == "ack"}
    nacks = [event for event in chain if event["event"] == "nack"]
    return {name: chain[0][name] for name in MESSAGE} | {
        "outcome": "acked" if False in acks else "dead letter" if True in acks else "open",
        "nacks": len(nacks),
        "redeliveries": kinds["redeliver"] - asked_again,
        "asked_again": asked_again,
        "arrivals": kinds["arrive"],
        "held": sum(e["event"] == "hold" and e["reason"] not in {"busy batch mates", "no room"} for e in chain),
        "after_ack": after_ack,
        "asked_ms": sum(event["delay_ms"] or 0 for event in nacks),
        "first_ms": min(event["time_ms"] for event in chain),
        "last_ms": max(event["time_ms"] for event in chain),
        "useful": useful,
        "why": (True in acks, nacks[-1]["reason"] if nacks else None),
    }


def storms(events: list[Event], width: int, baseline: int, factor: float, min_nacks: int) -> list[Row]:
    """Return the storms of each subscription."""
    rows = []
    nacks = (event for event in events if event["event"] == "nack")
    for (topic, subscription), each in by(nacks, lambda e: (e["topic"], e["subscription"])).items():
        counts = Counter(event["time_ms"] // width for event in each)
        first = min(counts)

        def mean(numbers: range, counts: Counter[int] = counts) -> float:
            return sum(counts[number] for number in numbers) / len(numbers)

        leading, number = set(), first
        while counts[number] >= min_nacks and counts[number] >= factor * mean(range(number + 1, number + 1 + baseline)):
            leading.add(number)
            number += 1
        before = {number: mean(range(max(number - baseline, first), number)) for number in counts if number > first}
        high = leading | {
            number for number in before if counts[number] >= min_nacks and counts[number] >= factor * before[number]
        }
        for start in sorted(number for number in high if number - 1 not in high):
            stop = next(number for number in range(start, max(high) + 2) if number not in high)
            within = [counts[number] for number in range(start, stop)]
            rows.append({
                "topic": topic, "subscription": subscription, "from_ms": start * width, "to_ms": stop * width,
                "nacks": sum(within), "peak": max(within), "baseline": before.get(start),
                "began_before_trace": start in leading,
            })  # fmt: skip
    return rows


# --- plan -----------------------------------------------------------------------------------------------------------


def plan(events: list[Event], *, max_bits: int) -> list[Row]:
    """Return the plan of the nacks."""
    nacks = [event for event in events if event["event"] == "nack" and (event["delay_ms"] or 0) > 0]
    rows: list[Row] = []
    for (topic, subscription), found in by(nacks, lambda e: (e["topic"], e["subscription"])).items():
        step = min(max(int(sum(event["delay_ms"] for event in found) / len(found) / 8), 1), 1_000)
        changes: Counter[int] = Counter()
        for event in found:
            changes[event["time_ms"] // step + 1] += 1
            changes[(event["time_ms"] + event["delay_ms"]) // step + 1] -= 1
        most = waiting = moment = 0
        for at in sorted(changes):
            waiting += changes[at]
            if waiting > most:
                most, moment = waiting, at * step
        here = [e for e in found if e["time_ms"] < moment <= e["time_ms"] + e["delay_ms"]]
        order = ("time_ms", "ledger", "entry", "batch_index", "partition", "delay_ms")
        here.sort(key=lambda event: tuple(event[name] for name in order))
        if here:
            stream = {"topic": topic, "partition": -1, "subscription": subscription, "kind": "nack", "at_ms": moment}
            rows += [stream | row for row in planned(here, moment, max_bits)]
    return rows


def planned(here: list[Event], moment: int, max_bits: int) -> list[Row]:
    """Return the rows of a stream, computed from what waits at a moment."""
    measured = []
    for bits in range(max_bits + 1):
        schedule, early = NackSchedule(NackConfig(negative_ack_precision_bit_cnt=bits)), 0
        for event in here:
            time, delay = event["time_ms"], event["delay_ms"]
            message = MessageId(event["ledger"], event["entry"], event["partition"], event["batch_index"])
            schedule.add(message, time, delay)
            early += time + delay - schedule.bucket_start(time, delay)
        measured.append((schedule, early / len(here)))
    pending = len(measured[0][0])
    delay_ms = sum(event["delay_ms"] for event in here) / len(here)
    last_ms = max(event["time_ms"] + event["delay_ms"] for event in here) - moment
    ledgers = by(here, lambda e: (e["partition"], e["ledger"]))
    entries = sum(max(e["entry"] for e in each) - min(e["entry"] for e in each) + 1 for each in ledgers.values())
    members = max(1, *(event["batch_index"] + 1 for event in here))
    share = min(pending / (entries * members), 1)
    workload = Workload(
        kind=Kind.NACK, rate=pending / share / (max(delay_ms, 1) / 1_000), delay=max(delay_ms, 1) / 1_000, share=share,
        entries_per_ledger=-(-entries // len(ledgers)), batch_size=members,
    )  # fmt: skip
    formulas = make_plan(workload, max_bits).rows[: max_bits + 1]
    built = tuple(
        replace(
            formula, buckets=schedule.bucket_count, messages_per_bucket=len(schedule) / max(schedule.bucket_count, 1),
            wake_ups_per_second=schedule.bucket_count / (max(last_ms, formula.width_ms) / 1_000), bytes=schedule.bytes,
            bytes_per_message=schedule.bytes / len(schedule),
        )
        for formula, (schedule, _) in zip(formulas, measured, strict=True)
    )  # fmt: skip
    best = recommend(workload, built)
    return [
        {
            "pending": len(schedule), "delay_ms": delay_ms, "bits": row.bits,
            "width_ms": 1 << row.bits, "buckets": row.buckets, "wake_ups_per_second": row.wake_ups_per_second,
            "early_ms": early, "bytes": row.bytes, "bytes_per_message": row.bytes_per_message,
            "predicted_bytes": formula.bytes, "proposal_bytes": formula.proposal_bytes,
            "is_recommended": row.bits == best.bits, "reason": best.reason if row.bits == best.bits else None,
        }
        for row, formula, (schedule, early) in zip(built, formulas, measured, strict=True)
    ]  # fmt: skip
