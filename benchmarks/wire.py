"""The native client on a real broker, compared with the official asyncio client and pulsar-nack over it.

Run ``python benchmarks/wire.py``; PULSAR_SERVICE_URL and PULSAR_ADMIN_URL name a broker, otherwise one is started
(Java 17 and Maven). ``--quick`` takes a twentieth of the messages, ``--only NAME`` one case, ``--save`` stores the
tables as ``results/wire.md``. Each case of each side runs in a separate process; CPU time is that of all its threads.
Sides take turns, each round begins with another side, and the median of the rounds counts. Ratios are taken within a
round, because machines drift, and their median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _wire_side
from _memory import be_quick, in_fresh_process
from _report import Report
from _targets import Targets, ratio
from _wire_blocks import ROWS, TARGET_MS, measured

HERE = Path(__file__).parent
SIDES = {
    "official": "official client",
    "over": "pulsar-nack over it",
    "native": "pulsar-nack native",
    "soon": "native, ack_soon()",
    "port": "its port alone",
    "bare": "bare socket",
}
LONGEST_S = 600
QUIET_S = 2.0


class Bench:
    """Runs cases on one broker, and compares figures with targets.

    :param program: the module that runs one case
    """

    def __init__(
        self, url: str, report: Report, sides: Sequence[str], *, is_quick: bool, program: Any = _wire_side
    ) -> None:
        self.url = url
        self._program = program
        self.report = report
        self.is_quick = is_quick
        self.sides = sides
        self.targets = Targets()
        self._topics = 0

    def count(self, full: int) -> int:
        """Return the number of messages: all, or a twentieth with --quick."""
        return max(full // 20, 20) if self.is_quick else full

    def pause(self, full: float) -> float:
        """Return how long to wait for prefetched messages, in seconds."""
        return full / 4 if self.is_quick else full

    def rounds(self, full: int) -> int:
        """Return the number of rounds."""
        return 1 if self.is_quick else full

    def among(self, *sides: str) -> list[str]:
        """Return the sides to measure."""
        return [side for side in sides if side in self.sides]

    def topic(self) -> str:
        """Return the full name of a fresh topic."""
        self._topics += 1
        return f"persistent://public/default/bench-{self._topics}-{uuid.uuid4().hex[:8]}"

    def run(self, case: str, **options: Any) -> dict[str, Any]:
        """Run a case in a separate process, or in a fork with --quick; return its figures."""
        if self.is_quick:
            quick: dict[str, Any] = in_fresh_process(self._program.work, case, {"url": self.url, **options})
            return quick
        arguments = json.dumps({"case": case, "url": self.url, **options})
        command = [sys.executable, self._program.__file__, arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        if done.returncode:
            raise SystemExit(f"{case} {options}: {done.stderr[-2_000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def filled(self, names: Sequence[str], count: int, *, size: int = 32, batch: int = 0) -> str:
        """Return a fresh topic with these subscriptions, each with ``count`` messages to receive."""
        topic = self.topic()
        self.run("fill", topic=topic, subscriptions=list(names), count=count, size=size, batch=batch)
        return topic


def rates(bench: Bench) -> None:
    """Receive and acknowledge 100 000 messages of 32 bytes."""
    count, names = bench.count(100_000), ("official", "over", "native", "soon", "port", "bare")
    rows: list[list[object]] = []
    for tasks in (1, 100) if bench.is_quick else (1, 100, 500):
        some = count if tasks > 1 else count // 2
        sides = bench.among(*(name for name in names if name != "bare" or tasks == 1))
        rounds = in_turns(bench, "rate", sides, some, rounds=5, tasks=tasks, pause=bench.pause(1.0))
        found, by_official = medians(rounds), ratios(rounds, "official")
        for side in sides:
            of = by_official[side]
            name = f"{tasks} task{'s' * (tasks > 1)}"
            rows.append([name, SIDES[side], some, *found[side].values(), *of.values()])
            if (tasks > 1 and side == "native") or (tasks == 1 and side == "soon"):
                bench.targets.check(f"{name}: official rate by that of {SIDES[side]}", ratio(1.0, of["rate"]), 1 / 0.9)
                bench.targets.check(f"{name}: CPU of {SIDES[side]} by official", of["cpu_us"], 0.6)
    columns = ("case", "side", "messages", "messages a second", "us CPU each", "rate by official", "CPU by official")
    bench.report.table(
        f"{count:,} messages of 32 bytes received and acknowledged (target: rate 0.9, CPU 0.6)", columns, rows
    )
    bench.report.note(
        "Each task awaits its acknowledgement before it receives again. A native acknowledgement returns when the"
        " broker has confirmed it, so the round trip limits a single task. That of the official client returns"
        " before it is sent, and so does ack_soon(). The bare socket runs in one thread that does nothing else,"
        " acknowledges a hundred messages at a time, and does not wait for confirmations."
    )


def decoding(bench: Bench) -> None:
    """Receive messages that were sent in batches."""
    count, sides = bench.count(400_000), bench.among("official", "native", "port")
    found = medians(in_turns(bench, "decode", sides, count, batch=1_000))
    if "port" in found:
        bench.targets.check("batches: 100 000 a second by the port's rate", 100_000 / found["port"]["rate"], 1.0)
    bench.report.table(
        f"{count:,} messages of 32 bytes in batches of 1 000, received from an Exclusive subscription"
        " (target: 100,000 a second decoded)",
        ("side", "messages a second", "us CPU each"),
        [[SIDES[side], *found[side].values()] for side in sides],
    )


def in_turns(
    bench: Bench,
    case: str,
    sides: Sequence[str],
    count: int,
    *,
    rounds: int = 3,
    size: int = 32,
    batch: int = 0,
    **options: Any,
) -> dict[str, list[dict[str, float]]]:
    """Run a case on one topic, the sides in turn, each with a separate subscription; return all rounds.

    Each round begins with another side. Before each side the broker has time to finish the work of the previous one.
    """
    numbers = range(bench.rounds(rounds))
    names = [f"{sides[(turn + number) % len(sides)]}-{number}" for number in numbers for turn in range(len(sides))]
    topic = bench.filled(names, count, size=size, batch=batch)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for name in names:
        side = name.partition("-")[0]
        time.sleep(bench.pause(QUIET_S))
        found[side].append(bench.run(case, side=side, topic=topic, subscription=name, count=count, **options))
    return found


def medians(found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the medians of the figures of several rounds."""
    return {
        side: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        for side, rounds in found.items()
    }


def ratios(found: dict[str, list[dict[str, float]]], by: str) -> dict[str, dict[str, float | None]]:
    """Return the medians of the ratios to another side within each round, or None if that side was not measured."""
    others = found.get(by)
    if others is None:
        return {side: dict.fromkeys(rounds[0]) for side, rounds in found.items()}
    return {
        side: {
            key: statistics.median(one[key] / other[key] for one, other in zip(rounds, others, strict=True))
            for key in rounds[0]
        }
        for side, rounds in found.items()
    }


def arrivals(bench: Bench) -> None:
    """Measure the time from the redelivery command to the arrival."""
    count, rounds, rows = bench.count(1_000), bench.rounds(3), list[list[object]]()
    found: dict[str, list[float]] = {side: [] for side in bench.among("native", "bare")}
    for side in list(found) * rounds:
        topic = bench.filled(["sub"], 1)
        found[side] += bench.run("arrival", side=side, topic=topic, subscription="sub", count=count)["ms"]
    for side, took in found.items():
        name = SIDES["port"] if side == "native" else SIDES[side]
        rows.append([name, len(took), min(took), at(took, 0.5), at(took, 0.99), max(took)])
        if side == "native":
            bench.targets.check("redelivery to arrival, median ms", at(took, 0.5), 1.0)
    bench.report.table(
        "From a redelivery request to the arrival, one at a time, 5 ms apart (target: a median of 1 ms)",
        ("side", "requests", "least ms", "median ms", "p99 ms", "most ms"),
        rows,
    )


def errors(bench: Bench) -> None:
    """Measure the error of 400 deadlines."""
    count, longest = (100, 0.5) if bench.is_quick else (400, 3.0)
    rows: list[list[object]] = []
    ways = (
        ("over", "auto"),
        ("over", "broker"),
        ("native", "auto"),
        ("native", "broker"),
        ("native", "local"),
    )
    for side, way in ways:
        if side not in bench.sides:
            continue
        topic = bench.filled(["sub"], count)
        asked = {"side": side, "topic": topic, "subscription": "sub", "count": count, "way": way, "longest": longest}
        found = bench.run("deadlines", **asked)["ms"]
        away = [abs(one) for one in found]
        middle, last = at(away, 0.5), at(away, 0.99)
        rows.append([SIDES[side], way, middle, last, max(found), max(-min(found), 0.0)])
        if side == "native":
            bench.targets.check(f"deadlines, {way}: median ms", middle, 2.0)
            bench.targets.check(f"deadlines, {way}: p99 ms", last, 15.0)
            bench.targets.check(f"deadlines, {way}: early by ms", -min(found), 1.0)
    bench.report.table(
        f"{count} deadlines uniform in 0.05-{longest:g} s, precision 0 bits: error in ms"
        " (target: median 2, p99 15, early 1)",
        ("side", "redelivery", "median", "p99", "latest", "earliest"),
        rows,
    )


def streams(bench: Bench) -> None:
    """Measure the error of 2 000 nacks a second."""
    per_second, seconds, rows = 2_000, 3.0 if bench.is_quick else 30.0, list[list[object]]()
    for side in bench.among("over", "native"):
        topic = bench.filled(["sub"], per_second)
        found = bench.run("sustained", side=side, topic=topic, subscription="sub", seconds=seconds, way="auto")
        away = [abs(one) for one in found["ms"]]
        middle, last = at(away, 0.5), at(away, 0.99)
        rows.append(
            [SIDES[side], found["per_second"], middle, last, max(away), -min(0, *found["ms"]), 100 * found["cpu"]]
        )
        if side == "native":
            bench.targets.check("2 000 nacks a second: median ms", middle, 3.0)
            bench.targets.check("2 000 nacks a second: p99 ms", last, 60.0)
    bench.report.table(
        f"2,000 nacks a second for {seconds:.0f} s, delays of 0.5-1.5 s: error in ms (target: median 3, p99 60)",
        ("side", "came back a second", "median", "p99", "most", "earliest", "% of a core"),
        rows,
    )


def memory(bench: Bench) -> None:
    """Measure the memory of a connection and of a waiting message."""
    many, waiting, rows = bench.count(100), bench.count(20_000), list[list[object]]()
    for side in bench.among("official", "over", "native"):
        client = bench.run("connections", side=side, topic=bench.topic(), subscription="sub", count=many)["bytes"]
        each = []
        for size in (32, 1_024):
            topic = bench.filled(["sub"], waiting, size=size)
            bench.run("fill", topic=f"{topic}-warm", subscriptions=["sub"], count=1, size=size, batch=0)
            asked = {"side": side, "topic": topic, "subscription": "sub", "count": waiting, "pause": bench.pause(4.0)}
            each.append(bench.run("prefetched", **asked)["bytes"])
        rows.append([SIDES[side], client / 1_024, *each])
    bench.report.table(
        f"Resident memory: a client with a connection and a consumer ({many} of them); a message that waits in the"
        f" client ({waiting:,} of them)",
        ("side", "KiB a connection", "bytes a message of 32", "bytes a message of 1,024"),
        rows,
    )


def storms(bench: Bench) -> list[list[object]]:
    """Measure how long a storm of nacks blocks the loop; return rows of the table of loop blocks."""
    count, rows = bench.count(45_000), list[list[object]]()
    for is_frozen, target in ((True, 20.0), (False, 45.0)):
        name = f"{count:,} nacks due at once, {'freeze_gc=True' if is_frozen else 'nothing frozen'}"
        found = [storm(bench, count, is_frozen=is_frozen) for _ in range(bench.rounds(3))]
        longest = statistics.median(each["longest_ms"] for each in found)
        bench.targets.check(f"loop blocks, {name}: ms", longest, target)
        rows.append([name, longest, None, count])
    return rows


def storm(bench: Bench, count: int, *, is_frozen: bool) -> dict[str, float]:
    """Run one storm, on a separate topic."""
    asked = {"topic": bench.filled(["sub"], count), "subscription": "sub", "count": count}
    return bench.run("storm", **asked, ahead=bench.pause(30.0), is_frozen=is_frozen)


def blocks(bench: Bench) -> None:
    """Measure how long the loop is blocked, and what the garbage collector has to track."""
    blocked = storms(bench)
    for row, (shown, _) in ROWS.items():
        found = measured(row, is_quick=bench.is_quick)
        blocked.append([shown, found["longest_ms"], found.get("memory_mb"), found.get("shown")])
        bench.targets.check(f"loop blocks, {row}: ms", found["longest_ms"], TARGET_MS)
    bench.report.table(
        f"Loop blocks (target: {TARGET_MS:g} ms of CPU; 45 where nothing is frozen)",
        ("input", "longest callback, ms of CPU", "more memory, MB", "delivered"),
        blocked,
    )
    count, rows = bench.count(20_000), list[list[object]]()
    for name, batch in (("plain messages", 0), ("messages in batches of 100", 100)):
        topic = bench.filled(["sub"], count, batch=batch)
        found = bench.run("tracked", topic=topic, subscription="sub", count=count, pause=bench.pause(8.0))
        bench.targets.check(f"{name}: objects prefetched", found["ahead"], 2.2)
        bench.targets.check(f"{name}: objects nacked", found["held"], 2.2)
        rows.append([name, *found.values()])
    bench.report.table(
        "Objects that the garbage collector tracks for each message (target: 2, and a share of what a consumer has)",
        ("of", "prefetched", "nacked", "due and prefetched again"),
        rows,
    )


def at(values: Sequence[float], share: float) -> float:
    """Return a percentile."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


CASES = {
    "rates": rates,
    "decoding": decoding,
    "arrivals": arrivals,
    "deadlines": errors,
    "sustained": streams,
    "memory": memory,
    "blocks": blocks,
}


def beside_a_broker(program: str = __file__) -> int:
    """Run a program of this folder again, with a broker that is started for it."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        print("no broker: set PULSAR_SERVICE_URL and PULSAR_ADMIN_URL, or install Java 17 and Maven")
        return 0
    command = [sys.executable, "-m", "tests.broker.standalone", "run", "--", sys.executable, program, *sys.argv[1:]]
    return subprocess.run(command, cwd=HERE.parent, check=False).returncode


def main() -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few messages, to check that it runs")
    parser.add_argument("--only", choices=CASES, action="append", help="only this case; may be repeated")
    parser.add_argument("--side", choices=SIDES, action="append", help="only this side; may be repeated")
    parser.add_argument("--save", action="store_true", help="store the tables in benchmarks/results")
    options = parser.parse_args()
    url = os.environ.get("PULSAR_SERVICE_URL")
    if not url or not os.environ.get("PULSAR_ADMIN_URL"):
        return beside_a_broker()
    if options.quick:
        be_quick()
    report = Report("The native client")
    bench = Bench(url, report, options.side or list(SIDES), is_quick=options.quick)
    for name in options.only or CASES:
        CASES[name](bench)
    report.note(bench.targets.summary())
    if options.save:
        report.save("wire")
    return 0


if __name__ == "__main__":
    sys.exit(main())
