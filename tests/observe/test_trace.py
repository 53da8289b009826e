"""The trace writer: its lines, its files, and a full buffer, a broken disk and kill -9."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import (
    BrokerError,
    ClosedError,
    Consumer,
    InvalidArgumentError,
    MessageId,
    NackConfig,
    NegativeAcksTracker,
)
from pulsar_nack.clock import LoopClock
from pulsar_nack.config import TraceConfig
from pulsar_nack.observe import TraceWriter
from pulsar_nack.testing import FakePort, ManualClock, virtual_time
from tests.consumer.local_stand_in import LocalStandIn
from tests.patience import patience

KEYS = [
    "v",
    "event",
    "time_ms",
    "mono_ns",
    "topic",
    "partition",
    "subscription",
    "consumer",
    "ledger",
    "entry",
    "batch_index",
    "attempt",
    "delay_ms",
    "deadline_ms",
    "actual_ms",
    "reason",
]
EXACT = NackConfig(negative_ack_precision_bit_cnt=0)
WRITER = """
import asyncio, sys
from pulsar_nack import MessageId
from pulsar_nack.config import TraceConfig
from pulsar_nack.observe import TraceWriter

async def main():
    async with TraceWriter(TraceConfig(folder=sys.argv[1], flush_seconds=0.01)) as writer:
        note = writer.source("t", "s", "c")
        for entry in range(1_000_000_000):
            note("ack", MessageId(1, entry), 0, reason="ack")
            if entry % 100 == 0:
                await asyncio.sleep(0.001)
            if entry == 2_000:
                print("going", flush=True)

asyncio.run(main())
"""


SAMPLE = Path(__file__).parent.parent / "pipeline" / "data" / "trace-sample"


@asynccontextmanager
async def traced(folder: Path, *, is_local: bool) -> AsyncIterator[tuple[Any, Consumer]]:
    """A port with a batch of two, of a local topic or a fake one, and a consumer with a trace on virtual time."""
    fake: Any = LocalStandIn if is_local else FakePort
    port = fake()
    port.topic.publish_batch([b"one", b"two"])
    async with (
        TraceWriter(folder, wall_clock=LoopClock()) as writer,
        Consumer(port, config=EXACT, trace=writer) as consumer,
    ):
        yield port, consumer


def lines(folder: Path, pattern: str = "*.jsonl") -> list[dict[str, Any]]:
    """Read the events of a folder, file after file in the order of creation."""
    files = sorted(folder.glob(pattern), key=lambda path: int(path.name.split(".")[0].split("-")[-1]))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def fail_writes(monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    """Let the disk be full for some writes: half of the data is accepted first."""
    real: Callable[[int, Any, int], int] = os.pwrite
    left = [times]

    def write(descriptor: int, data: Any, offset: int) -> int:
        if left[0] == 0:
            return real(descriptor, data, offset)
        left[0] -= 1
        real(descriptor, bytes(data)[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", write)


class Stepped(LoopClock):
    """The loop's clock, as if the loop had not run for a while."""

    step_ms = 0

    def now_ms(self) -> int:
        """Return the time."""
        return super().now_ms() + self.step_ms


async def test_a_line(tmp_path: Path) -> None:
    """An event is one JSON object with all keys in order; unknown values are null, text is escaped."""
    async with TraceWriter(tmp_path, wall_clock=ManualClock(now_ms=1_000)) as writer:
        note = writer.source('a "topic"', "s", "c\n")
        note("nack", MessageId(3, 4, 2, 5), 1, delay_ms=200, due_in_ms=200)
        note("arrive", MessageId(3, 4, topic="other"), 2, due_in_ms=-7)
    nack, arrive = lines(tmp_path)
    assert list(nack) == list(arrive) == KEYS
    assert nack.pop("mono_ns") <= arrive.pop("mono_ns")
    assert list(nack.values()) == [
        1, "nack", 1_000, 'a "topic"', 2, "s", "c\n", 3, 4, 5, 1, 200, 1_200, None, None,
    ]  # fmt: skip
    assert list(arrive.values()) == [
        1, "arrive", 1_000, "other", -1, "s", "c\n", 3, 4, -1, 2, None, 993, 1_000, None,
    ]  # fmt: skip


async def test_order_and_rotation_by_size(tmp_path: Path) -> None:
    """All events are there in order, in closed files no larger than the limit, and no file stays open."""
    async with TraceWriter(TraceConfig(folder=tmp_path, max_file_bytes=200_000)) as writer:
        note = writer.source()
        for entry in range(5_000):
            note("ack", MessageId(1, entry))
    assert [each["entry"] for each in lines(tmp_path)] == list(range(5_000))
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) > 3
    assert max(sizes) <= 200_000
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl"}
    assert (writer.statistics().written, writer.statistics().files_closed) == (5_000, len(sizes))


async def test_rotation_by_time(tmp_path: Path) -> None:
    """A file whose time is over is closed, also if no event follows, and the next event begins another."""
    config = TraceConfig(folder=tmp_path, max_file_seconds=0.02, flush_seconds=0.01)
    async with TraceWriter(config) as writer:
        note = writer.source()
        for number in (1, 2):
            note("ack", MessageId(1, number))
            async with asyncio.timeout(patience(20)):
                while writer.statistics().files_closed < number:
                    await asyncio.sleep(0.01)
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


async def test_a_full_buffer_drops_and_counts(tmp_path: Path) -> None:
    """Events that find the buffer full are dropped and counted, and so are those after the writer is closed."""
    config = TraceConfig(folder=tmp_path, max_buffered_events=10, flush_seconds=3_600)
    writer = TraceWriter(config)
    writer.source()("ack", MessageId(1, 0))
    async with writer:
        worker = writer._worker
        worker.wake_at = 10**9  # the thread is not woken
        note = writer.source()
        for entry in range(25):
            note("ack", MessageId(1, entry))
        assert writer.statistics().buffered == 10
    note("ack", MessageId(1, 99))
    assert [each["entry"] for each in lines(tmp_path)] == list(range(10))
    assert (writer.statistics().dropped, writer.statistics().written) == (17, 10)
    await writer.aclose()
    with pytest.raises(ClosedError):
        await writer.__aenter__()


async def test_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Events that a full disk refuses are counted, logged once, and leave no part of a line; then it continues."""
    fail_writes(monkeypatch, times=3)
    with caplog.at_level(logging.ERROR, "pulsar_nack.trace"):
        async with TraceWriter(TraceConfig(folder=tmp_path, flush_seconds=3_600)) as writer:
            note = writer.source()
            for entry in range(2_000):
                note("ack", MessageId(1, entry))
    assert [each["entry"] for each in lines(tmp_path)] == list(range(1_500, 2_000))
    found = writer.statistics()
    assert (found.written, found.failed, found.failures, found.dropped) == (500, 1_500, 3, 0)
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


async def test_a_consumer_goes_on_where_nothing_can_be_written(tmp_path: Path) -> None:
    """A folder that cannot be created costs the trace, not the consumer."""
    (tmp_path / "file").write_text("")
    port = FakePort()
    port.topic.publish(b"one")
    async with TraceWriter(tmp_path / "file" / "sub") as writer, Consumer(port, trace=writer) as consumer:
        await (await consumer.receive(timeout=5)).ack()
        assert consumer.statistics().acked == 1
    assert writer.statistics().failed == 2


def test_kill(tmp_path: Path) -> None:
    """After kill -9 the open file has whole lines up to its last; the next writer does not touch it, nor others."""
    foreign = tmp_path / "trace-1-aa-1.jsonl.open"
    foreign.write_text("foreign")
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"going\n"
        child.send_signal(signal.SIGKILL)
    (left,) = [path for path in tmp_path.iterdir() if path != foreign]
    assert left.name.endswith(".jsonl.open")
    before = left.read_bytes()
    whole = before[: before.rindex(b"\n")].splitlines()
    assert [json.loads(line)["entry"] for line in whole] == list(range(len(whole)))

    async def next_writer() -> None:
        async with TraceWriter(tmp_path) as writer:
            writer.source()("ack", MessageId(1, 7))

    asyncio.run(next_writer())
    assert (left.read_bytes(), foreign.read_text()) == (before, "foreign")
    assert [each["entry"] for each in lines(tmp_path)] == [7]


@pytest.mark.parametrize("is_local", [False, True])
@virtual_time
async def test_all_events_of_a_consumer(tmp_path: Path, is_local: bool) -> None:
    """Nack, redeliver, arrive, ack, cancel, hold and error of a consumer, in order, with exact times."""
    async with traced(tmp_path, is_local=is_local) as (port, consumer):
        message, other = await consumer.receive(), await consumer.receive()
        await message.nack(delay=2)
        message = await consumer.receive()
        port.fail_next("acknowledge", error=BrokerError("no"))
        with pytest.raises(BrokerError):
            await message.ack()
        await message.nack(delay=5)
        await message.ack()
        await other.nack(delay=1)
    found = lines(tmp_path)
    assert [
        (each["event"], each["batch_index"], each["attempt"], each["time_ms"], each["reason"]) for each in found
    ] == [
        ("arrive", 0, 0, 0, None),
        ("arrive", 1, 0, 0, None),
        ("nack", 0, 0, 0, None),
        ("hold", 0, 0, 2_000, "busy batch mates"),
        ("redeliver", 0, 0, 2_000, None),
        ("arrive", 0, 1, 2_000, None),
        ("error", 0, 1, 2_000, "ack: BrokerError('no')"),
        ("nack", 0, 1, 2_000, None),
        ("cancel", 0, 1, 2_000, "ack"),
        ("ack", 0, 1, 2_000, "ack"),
        ("nack", 1, 0, 2_000, None),
        ("cancel", 1, 0, 2_000, "close"),
    ]
    assert [each["deadline_ms"] for each in found] == [
        None, None, 2_000, None, 2_000, 2_000, None, 7_000, None, None, 3_000, None,
    ]  # fmt: skip
    assert [each["delay_ms"] for each in found if each["event"] == "nack"] == [2_000, 5_000, 1_000]
    assert {each["topic"] for each in found} == {"persistent://public/default/fake"}


@virtual_time
async def test_redelivery_through_the_broker(tmp_path: Path) -> None:
    """A request that fails is an error, then redeliver comes again, and the arrival knows its deadline."""
    port = FakePort()
    port.topic.publish(b"one")
    async with (
        TraceWriter(tmp_path, wall_clock=LoopClock()) as writer,
        Consumer(port, config=EXACT, redelivery="broker", trace=writer) as consumer,
    ):
        await (await consumer.receive()).nack(delay=2)
        port.fail_next("redeliver", error=BrokerError("no"))
        await (await consumer.receive()).ack()
    found = lines(tmp_path)
    events = ["arrive", "nack", "redeliver", "error", "redeliver", "arrive", "ack"]
    assert [each["event"] for each in found] == events
    assert [each["reason"] for each in found[2:5]] == [None, "redeliver: BrokerError('no')", "asked again"]
    assert [each["deadline_ms"] for each in found[2:5]] == [2_000, None, 2_000]
    assert found[5]["deadline_ms"] == 2_000 < found[5]["actual_ms"] == found[5]["time_ms"]


@virtual_time
async def test_asking_again(tmp_path: Path) -> None:
    """A request without effect is traced again each time that it is repeated, also if that fails."""
    port = FakePort()
    port.topic.publish(b"one")
    async with (
        TraceWriter(tmp_path, wall_clock=LoopClock()) as writer,
        Consumer(port, config=EXACT, redelivery="broker", trace=writer) as consumer,
    ):
        await (await consumer.receive()).nack(delay=1)
        port.lose_next("redeliver")
        await asyncio.sleep(20)
        port.fail_next("redeliver", error=BrokerError("no"))
        again = await consumer.receive(timeout=100)
        assert (again.redelivery_count, consumer.statistics().requested_again) == (1, 1)
        await again.ack()
    found = [tuple(each[name] for name in ("event", "time_ms", "attempt", "reason")) for each in lines(tmp_path)]
    assert found == [
        ("arrive", 0, 0, None),
        ("nack", 0, 0, None),
        ("redeliver", 1_000, 0, None),
        ("redeliver", 31_000, 0, "asked again"),
        ("error", 31_000, 0, "redeliver: BrokerError('no')"),
        ("redeliver", 36_000, 0, "asked again"),
        ("arrive", 36_000, 1, None),
        ("ack", 36_000, 1, "ack"),
    ]
    assert [each["deadline_ms"] for each in lines(tmp_path)] == [None, 1_000, 1_000, None, None, None, None, None]


@virtual_time
async def test_seek_cancels(tmp_path: Path) -> None:
    """A message that is held during a seek is traced as cancelled by the seek."""
    port = FakePort()
    port.topic.publish(b"one")
    async with TraceWriter(tmp_path) as writer, Consumer(port, config=EXACT, trace=writer) as consumer:
        message = await consumer.receive()
        await message.nack(delay=60)
        await consumer.seek(message.id)
    assert [each["reason"] for each in lines(tmp_path) if each["event"] == "cancel"] == ["seek"]


async def test_a_tracker(tmp_path: Path) -> None:
    """The hook of a tracker without consumer traces nack, redeliver with its deadline, and cancel."""

    async def redeliver(ids: Any) -> None:
        done.set()

    done = asyncio.Event()
    async with (
        TraceWriter(tmp_path) as writer,
        NegativeAcksTracker(redeliver, EXACT, hooks=[writer.hook("t")]) as tracker,
    ):
        tracker.nack_many([MessageId(1, 1)], 0.01)
        tracker.nack_nowait(MessageId(1, 2), 60)
        tracker.ack(MessageId(1, 2))
        await done.wait()
        await asyncio.sleep(0)
    found = lines(tmp_path)
    assert [(each["event"], each["entry"]) for each in found] == [
        ("nack", 1), ("nack", 2), ("cancel", 2), ("redeliver", 1),
    ]  # fmt: skip
    assert found[3]["deadline_ms"] is not None
    assert found[3]["attempt"] is None


@virtual_time
async def test_a_tracker_whose_callback_fails(tmp_path: Path) -> None:
    """A redelivery that fails twice is traced once, when it was taken, after an error for each failure."""
    failures = [BrokerError("one"), BrokerError("two")]

    async def redeliver(ids: Any) -> None:
        if failures:
            raise failures.pop(0)

    async with (
        TraceWriter(tmp_path, wall_clock=LoopClock()) as writer,
        NegativeAcksTracker(redeliver, EXACT, hooks=[writer.hook("t")]) as tracker,
    ):
        tracker.nack_nowait(MessageId(1, 1), 1)
        await asyncio.sleep(100)
        assert tracker.statistics().pending == 0
    found = lines(tmp_path)
    assert [(each["event"], each["deadline_ms"], each["reason"]) for each in found] == [
        ("nack", 1_000, None),
        ("error", None, "redeliver: BrokerError('one')"),
        ("error", None, "redeliver: BrokerError('two')"),
        ("redeliver", 1_000, None),
    ]
    assert [each["time_ms"] for each in found][:2] == [0, 1_000]
    assert found[3]["actual_ms"] > 1_000


@pytest.mark.parametrize("setting", [{"folder": ""}, {"folder": 3}, {"folder": "x", "max_file_bytes": 5}])
def test_bad_settings(setting: dict[str, Any]) -> None:
    """An invalid setting is refused."""
    with pytest.raises(ValueError, match=r"folder|max_file_bytes|maxFileBytes"):
        TraceConfig(**setting)
    with pytest.raises(InvalidArgumentError, match="config"):
        TraceWriter(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["s3://bucket/traces", "file:///var/traces"])
def test_urls_are_refused(url: str) -> None:
    """A URL is no folder: the error says what to do, and no folder of that name is created."""
    with pytest.raises(ValueError, match=r"folder.*a local folder; copy closed files from there to object storage"):
        TraceConfig(folder=url)
    with pytest.raises(ValueError, match="local folder"):
        TraceWriter(url)


def test_the_stored_sample() -> None:
    """The trace of a run on a real broker has whole lines with all keys and names, in the order of its clock."""
    found = lines(SAMPLE)
    assert len(found) == 345
    assert {tuple(each) for each in found} == {tuple(KEYS)}
    assert [each["mono_ns"] for each in found] == sorted(each["mono_ns"] for each in found)
    assert {(each["topic"].rpartition("/")[2], each["subscription"], each["consumer"]) for each in found} == {
        ("orders", "billing", "worker-1"),
        ("invoices", "billing", "worker-1"),
    }
    assert {"nack", "redeliver", "arrive", "ack", "cancel"} <= {each["event"] for each in found}


async def test_a_nack_is_never_due_before_it(tmp_path: Path) -> None:
    """S7: a message nacked again when it is overdue, because the loop was busy, is due at once and not before."""
    clock = Stepped()
    port = FakePort()
    port.topic.publish(b"x")
    async with (
        TraceWriter(tmp_path, wall_clock=clock) as writer,
        Consumer(port, config=EXACT, trace=writer, clock=clock) as consumer,
    ):
        message = await consumer.receive()
        for _ in range(2):
            await message.nack(delay=60)
            clock.step_ms += 100_000
    nacks = [each for each in lines(tmp_path) if each["event"] == "nack"]
    first, second = [each["deadline_ms"] - each["time_ms"] for each in nacks]
    assert 59_000 < first <= 60_000  # the clock runs on
    assert second == 0
    assert nacks[0]["deadline_ms"] < nacks[1]["deadline_ms"]
