"""Random traces of the documented schema, in files as writers leave them, and as people copy and break them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any, Final

START_MS: Final = 1_700_000_000_000
DELAYS: Final = (0, 1, 40, 300, 1_000, 1_001, 2_500, 10_000, 60_000, 700_000, 4_000_000)
CANCELS: Final = ("ack", "seek", "close", "given back", "passed", "inactive")
HOLDS: Final = ("busy batch mates", "paused", "not due", "no room")
BROKEN: Final[tuple[bytes, ...]] = (
    b"", b"{", b"[]", b"null", b"{} {}", b"{'v': 1}", b"\xef\xbb\xbf{}", b'{"v": 1}', b'{"v": 2}', b'{"a": "\xff"}',
    b'{"v": 1, "reason": "\\ud800"}', b'{"v": 1.0}', b'{"v": true}', b'{"v": NaN}', b"{}x",
    b"\x00", b'{"time_ms": 1e3}',
    b'{"topic": 5}', b'{"ledger": 9223372036854775808}', b'{"partition": 2147483648}', b"[" * 2_000,
)  # fmt: skip
NONSENSE: Final[tuple[dict[str, Any], ...]] = (
    {"v": 2}, {"v": None}, {"event": "explode"}, {"time_ms": -1}, {"delay_ms": -1}, {"delay_ms": 2**63 - 1},
    {"deadline_ms": 2**62}, {"ledger": -5}, {"entry": -1}, {"batch_index": -2}, {"partition": -7}, {"attempt": -1},
    {"ledger": None}, {"topic": None}, {"event": "nack", "deadline_ms": 5}, {"actual_ms": 253_402_300_800_000},
)  # fmt: skip


class RandomTrace:
    """Some consumers at random, whose topics and names no other trace has."""

    def __init__(self, name: str, random: Random) -> None:
        self._random = random
        self._now = START_MS
        self._name = name
        self._groups = [(f"{name}-topic-{topic}", f"s{number}") for topic in range(3) for number in range(2)][:5]
        self._consumers = [f"{name}-{each}" for each in ("a", "b", "c")] + [""] * (name == "0")
        self._skews = {each: random.choice((0, 0, -700, 1_300)) for each in self._consumers}
        self._messages: list[dict[str, Any]] = []
        self._entry = 0

    def events(self, count: int) -> list[dict[str, Any]]:
        """Return some events, unordered."""
        found = [self._event() for _ in range(count)]
        twice = self._random.sample(found, count // 50)
        return found + twice

    def _event(self) -> dict[str, Any]:
        random = self._random
        calm = random.random()
        self._now += 0 if calm < 0.3 else random.randrange(300) if calm < 0.99 else random.randrange(20_000)
        if not self._messages or random.random() < 0.15:
            self._messages.append(self._message())
        message = random.choice(self._messages[-40:])
        kind = random.choices(
            ("arrive", "nack", "redeliver", "ack", "cancel", "hold", "error"), (30, 30, 15, 10, 4, 5, 3)
        )[0]
        consumer = message["consumer"] if random.random() < 0.8 else random.choice(self._consumers)
        time = self._now + self._skews[consumer]
        self._entry += 1
        event: dict[str, Any] = {
            "v": 1, "event": kind, "time_ms": time, "mono_ns": (time - START_MS) * 1_000_000 + self._entry,
            **message["id"], "consumer": consumer, "attempt": message["attempt"], "delay_ms": None, "deadline_ms": None,
            "actual_ms": None, "reason": None,
        }  # fmt: skip
        getattr(self, f"_{kind}")(event, message)
        return event

    def _message(self) -> dict[str, Any]:
        random = self._random
        topic, subscription = random.choice(self._groups)
        self._entry += random.choice((0, 1, 1, 5))
        where = {"topic": topic, "partition": random.choice((-1, 0, 1)), "subscription": subscription}
        where |= {"ledger": self._entry // 300, "entry": self._entry, "batch_index": random.choice((-1, -1, 0, 3))}
        return {"id": where, "attempt": 0, "consumer": random.choice(self._consumers), "deadline": None, "late": False}

    def _arrive(self, event: dict[str, Any], message: dict[str, Any]) -> None:
        random = self._random
        if message["deadline"] is not None:
            if random.random() < 0.9:  # else the delivery comes twice
                message["attempt"] += 1
            event["attempt"] = message["attempt"]
            event["deadline_ms"] = message["deadline"] if random.random() < 0.8 else None
        event["actual_ms"] = event["time_ms"] if random.random() < 0.98 else None
        if random.random() < 0.05:
            event["attempt"] = None

    def _nack(self, event: dict[str, Any], message: dict[str, Any]) -> None:
        delay = self._random.choice(DELAYS)
        event["reason"] = self._random.choice((None, "ValueError", 'é "\\\n', "Timeout"))
        if self._random.random() < 0.95:
            message["deadline"] = event["time_ms"] + delay
            event |= {"delay_ms": delay, "deadline_ms": message["deadline"]}

    def _redeliver(self, event: dict[str, Any], message: dict[str, Any]) -> None:
        is_again = self._random.random() < 0.2
        event["reason"] = "asked again" if is_again else None
        event["deadline_ms"] = None if is_again else message["deadline"]
        event["actual_ms"] = event["time_ms"]

    def _ack(self, event: dict[str, Any], message: dict[str, Any]) -> None:
        event["reason"] = self._random.choice(("ack", "ack", "dead-letter", None))
        message["attempt"], message["deadline"] = 0, None  # later deliveries are a replay

    def _cancel(self, event: dict[str, Any], message: dict[str, Any]) -> None:
        event["reason"] = self._random.choice(CANCELS)
        if event["reason"] == "close":
            message["deadline"] = None

    def _hold(self, event: dict[str, Any], _: dict[str, Any]) -> None:
        event["reason"] = self._random.choice(HOLDS)

    def _error(self, event: dict[str, Any], _: dict[str, Any]) -> None:
        event["reason"] = "redeliver: BrokerError('no')"


def write_traces(folder: Path, seed: int, traces: int, events: int) -> None:
    """Write traces into a folder: files of several writers, some packed, some twice, with broken lines."""
    for number in range(traces):
        random = Random(f"{seed} {number}")
        found = RandomTrace(str(number), random).events(events)
        writers = 1 + events // 2_000
        for place in range(3 * writers):
            lines = [json.dumps(each, ensure_ascii=False).encode() for each in found[place :: 3 * writers]]
            lines += random.sample(BROKEN, 2)
            wrong = found[place] | random.choice(NONSENSE)
            lines.append(json.dumps(wrong, ensure_ascii=False).encode())
            random.shuffle(lines)
            text = b"\r\n".join(lines) if random.random() < 0.1 else b"\n".join(lines) + b"\n"
            name = f"trace-{START_MS + place}-{number:04x}{place % writers:04x}-{place // writers}.jsonl"
            _write(folder / str(number % 7), name, text, random)


def _write(folder: Path, name: str, text: bytes, random: Random) -> None:
    where = random.choice((folder, folder / "more"))
    where.mkdir(parents=True, exist_ok=True)
    chance = random.random()
    if chance < 0.2:
        (where / f"{name}.gz").write_bytes(gzip.compress(text, 1))
        return
    (where / name).write_bytes(text)
    for other, copy in (("copies", text), ("partial", text[: len(text) // 2]), ("_temporary", text), (".hidden", text)):
        if random.random() < 0.1:
            (folder / other).mkdir(exist_ok=True)
            (folder / other / name).write_bytes(copy)
    if random.random() < 0.1:
        (where / f"{name}.open").write_bytes(text)
        (where / f"_{name}").write_bytes(text)
        (where / "notes.txt").write_bytes(text)
