"""Handlers run by a consumer on a real broker, beside loops over receive, the official client, and Java's listener.

Run ``python benchmarks/consumer.py``; PULSAR_SERVICE_URL and PULSAR_ADMIN_URL name a broker, otherwise one is started
(Java 17 and Maven). ``--quick`` takes a twentieth of the messages, ``--only NAME`` one case, ``--save`` stores the
tables as ``results/consumer.md``. Processes, turns and ratios are those of ``wire.py``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from typing import Any

import _consumer_side
import _java
from _memory import be_quick
from _report import Report
from wire import Bench, at, beside_a_broker, in_turns, medians, ratios

SIDES = {
    "official": "official client, loops",
    "loop": "native, loops",
    "run": "native, run",
    "java": "Java, listener",
}
MOST_US = 3.0
"""What ``run`` may cost more than a loop, for each message."""


def rates(bench: Bench) -> None:
    """Handle messages of 32 bytes and of 1 KB."""
    rows: list[list[object]] = []
    sides = bench.among(*SIDES)
    for size in (32, 1_024):
        for concurrency in (1, 100):
            count = bench.count(100_000 if concurrency > 1 else 50_000)
            asked: dict[str, Any] = {"tasks": concurrency, "pause": bench.pause(1.0), "size": size}
            rounds = in_turns(bench, "handled", sides, count, **asked)
            found, by_official = medians(rounds), ratios(rounds, "official")
            rows += [
                [f"{size:,} bytes, {concurrency}", SIDES[side], *found[side].values(), *by_official[side].values()]
                for side in sides
            ]
    columns = ("size, concurrency", "side", "messages a second", "us CPU each", "rate by official", "CPU by official")
    bench.report.table("Messages received, handled by a function that does nothing, and acknowledged", columns, rows)
    bench.report.note(
        "The loops are tasks that receive and acknowledge, as many as run has handlers at once. A native"
        " acknowledgement returns when the broker has confirmed it, so with concurrency 1 the round trip is what is"
        " measured. Acknowledgements of the official client and of Java return at once. Java's listener runs in one"
        " thread whatever the concurrency, and its first tenth is left out, while its code is compiled."
    )


def overhead(bench: Bench) -> None:
    """Compare run with a loop on a port in memory, in one process."""
    found = bench.run("run_over_loop", count=bench.count(50_000), rounds=bench.rounds(7))
    loop, run = found["loop"], found["run"]
    more = statistics.median(one - other for one, other in zip(run, loop, strict=True))
    bench.targets.check("run over a loop, us a message", more, MOST_US)
    bench.report.table(
        f"run with one handler at a time, over a loop of receive and ack; a port in memory (target: {MOST_US:g} us)",
        ("us of CPU a message", "median", "least", "most"),
        [
            ["a loop", statistics.median(loop), min(loop), max(loop)],
            ["run", statistics.median(run), min(run), max(run)],
            ["run, more than the loop beside it", more, None, None],
        ],
    )


def deadlines(bench: Bench) -> None:
    """Measure the time from a deadline to the beginning of its handler."""
    count, longest, rows = bench.count(400), 0.5 if bench.is_quick else 3.0, list[list[object]]()
    for side, way in (("over", "auto"), ("native", "auto"), ("native", "local"), ("native", "lease")):
        topic = bench.filled(["sub"], count)
        asked = {"side": side, "topic": topic, "subscription": "sub", "count": count, "way": way, "longest": longest}
        found = bench.run("handled_late", **asked)["ms"]
        away = [abs(one) for one in found]
        middle, last = at(away, 0.5), at(away, 0.99)
        client = "over the official client" if side == "over" else "native"
        rows.append([client, way, middle, last, max(found), max(-min(found), 0.0)])
        if side == "native" and way != "lease":
            bench.targets.check(f"deadline to handler, {way}: median ms", middle, 2.0)
            bench.targets.check(f"deadline to handler, {way}: p99 ms", last, 15.0)
    bench.report.table(
        f"From {count} deadlines within {longest:g} s to the handler, in ms (target: median 2, p99 15)",
        ("client", "redelivery", "median", "p99", "latest", "earliest"),
        rows,
    )
    bench.report.note(
        'The rows "lease" are handlers that hang: their leases all end at about the same time, after which the broker'
        " is asked for all messages at once."
    )


CASES = {"rates": rates, "overhead": overhead, "deadlines": deadlines}


def main() -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few messages, to check that it runs")
    parser.add_argument("--only", choices=CASES, action="append", help="only this case; may be repeated")
    parser.add_argument("--save", action="store_true", help="store the tables in benchmarks/results")
    options = parser.parse_args()
    url = os.environ.get("PULSAR_SERVICE_URL")
    if not url or not os.environ.get("PULSAR_ADMIN_URL"):
        return beside_a_broker(__file__)
    if options.quick:
        be_quick()
    report = Report("Consumers that run handlers")
    sides = [side for side in SIDES if side != "java" or _java.client_jars() is not None]
    bench = Bench(url, report, sides, is_quick=options.quick, program=_consumer_side)
    for name in options.only or CASES:
        CASES[name](bench)
    if len(sides) < len(SIDES):
        report.note("Java's listener is left out: java and mvn are needed.")
    report.note(bench.targets.summary())
    if options.save:
        report.save("consumer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
