"""Mutated frames of a recorded session against a client with a consumer and a producer, on a scripted broker.

``FRAMES=1000000 SEED=3 python -m tests.wire.fuzz`` prints the outcomes, the longest block of the loop and the growth of
memory. A connection that an error has ended is replaced, on virtual time; so is one that waits for the rest of a frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import resource
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pulsar_nack import BrokerError, Consumer
from pulsar_nack.errors import BrokerRefusedError, ConnectionLostError
from pulsar_nack.testing import run
from pulsar_nack.wire import Client, ClientOptions, Producer
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.wire.fake_broker import Call, FakeBroker, silence
from tests.wire.mutations import MUTATORS, mended
from tests.wire.recorded import Recorded, recorded

MAX_RECEIVED: Final = 200
"""How many messages of one frame are received at most."""
QUIET: Final = ("AUTH_RESPONSE", "CLOSE_CONSUMER", "FLOW", "REDELIVER_UNACKNOWLEDGED_MESSAGES")
"""Commands that get no answer."""
IDS: Final = ("consumer_id", "producer_id", "resource_id")


@dataclass
class Found:
    """The outcomes of the frames.

    :param longest_ms: of all callbacks of the loop, by the processor time of the thread
    :param by_kind: errors that ended a connection, by class
    :param unnamed: those of them that name neither a frame nor the broker's text
    :param faults: errors that reached the loop's exception handler
    """

    frames: int = 0
    received: int = 0
    unreadable: int = 0
    longest_ms: float = 0.0
    longest_of: bytes = b""
    more_mb: float = 0.0
    by_kind: Counter[str] = field(default_factory=Counter)
    unnamed: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def mutated(chance: random.Random, consumer_id: int, producer_id: int) -> Iterator[bytes]:
    """Yield mutated broker frames without end, for these handlers; mostly entries, half with valid checksums."""
    frames = [one for one in recorded() if one.sender == "broker" or one.rest]
    entries = [one for one in frames if one.rest and one.sender == "broker"]
    while True:
        one = chance.choice(entries if chance.random() < 0.6 else frames)
        command = _addressed(one, consumer_id, producer_id, chance)
        body, rest = bytearray(command.SerializeToString()), bytearray(one.rest)
        part = rest if rest and chance.random() < 0.7 else body
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            if part:
                chance.choice(MUTATORS)(part, chance)
        if part is rest and chance.random() < 0.8:
            rest = bytearray(mended(bytes(rest)))
        frame = bytearray(struct.pack(">II", 4 + len(body) + len(rest), len(body)) + body + rest)
        if chance.random() < 0.1:
            chance.choice(MUTATORS)(frame, chance)
        if frame:
            yield bytes(frame)


def _addressed(one: Recorded, consumer_id: int, producer_id: int, chance: random.Random) -> pb.BaseCommand:
    command = pb.BaseCommand()
    command.CopyFrom(one.command)
    for descriptor, part in command.ListFields():
        if descriptor.message_type is None:
            continue
        for name in IDS:
            if name in part.DESCRIPTOR.fields_by_name:
                setattr(part, name, producer_id if name == "producer_id" else consumer_id)
        if "message_id" in part.DESCRIPTOR.fields_by_name and command.type == pb.BaseCommand.MESSAGE:
            part.message_id.entryId = chance.randrange(1 << 20)
    return command


class Fuzz:
    """One run."""

    def __init__(self, frames: int, seed: int) -> None:
        self.found = Found()
        self._frames = frames
        self._chance = random.Random(seed)
        self._broker = FakeBroker(latency=0)
        for kind in QUIET:
            self._broker.always(kind, silence)
        self._broker.always("ACK", _confirm)
        self._frame = b""

    async def run(self) -> Found:
        """Feed all frames."""
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.found.faults.append(repr(context)))
        log = _Errors(self.found)
        logger = logging.getLogger("pulsar_nack.wire")
        logger.addHandler(log)
        try:
            async with (
                _client(self._broker) as client,
                client.subscribe("orders", "billing") as consumer,
                client.producer("orders", send_timeout=None) as producer,
            ):
                await self._feed_all(consumer, producer)
        finally:
            logger.removeHandler(log)
        return self.found

    async def _feed_all(self, consumer: Consumer, producer: Producer) -> None:
        port: Any = consumer.port
        (member,) = port._consumers
        frames = mutated(self._chance, 1, 1)
        before, warm = peak_mb(), min(1_000, self._frames // 4)
        ran: Any = asyncio.Handle._run
        asyncio.Handle._run = self._measured(ran)  # type: ignore[method-assign]
        try:
            for number in range(self._frames):
                if number == warm:
                    before = peak_mb()
                self._frame = next(frames)
                for link in self._broker.links:
                    link.transport.deliver(self._frame)
                await self._settle(port, member, producer)
                self._broker.calls.clear()
                self.found.frames += 1
        finally:
            asyncio.Handle._run = ran  # type: ignore[method-assign]
            self.found.more_mb = peak_mb() - before

    async def _settle(self, port: Any, member: Any, producer: Producer) -> None:
        """Receive what has arrived, and reconnect if the connection is gone or waits for the rest of a frame."""
        await asyncio.sleep(0.001)
        for _ in range(MAX_RECEIVED):
            delivery = port.receive_nowait()
            if delivery is None:
                break
            self.found.received += 1
            self.found.unreadable += delivery.error is not None
            with contextlib.suppress(BrokerError):
                port.acknowledge_soon(delivery.id, None, lambda _tokens, _error: None)
        session = member.sessions.session
        if session is not None and session.connection._decoder.kept_bytes:
            self.found.by_kind["incomplete"] += 1
            session.connection.close(ConnectionLostError("the rest of a frame does not come"))
        while member.sessions.session is None or not producer.is_connected:
            await asyncio.sleep(1)

    def _measured(self, ran: Any) -> Any:
        def measured(handle: asyncio.Handle) -> None:
            began = time.thread_time_ns()
            ran(handle)
            took = (time.thread_time_ns() - began) / 1e6
            if took > self.found.longest_ms:
                self.found.longest_ms, self.found.longest_of = took, self._frame

        return measured


class _Errors(logging.Handler):
    """Counts the errors that ended connections."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if not record.msg.startswith("connection lost") or not isinstance(record.args, tuple):
            return
        error = record.args[0]
        if "does not come" in str(error):
            return
        self._found.by_kind[type(error).__name__] += 1
        if "frame " not in str(error) and not isinstance(error, BrokerRefusedError):
            self._found.unnamed.append(str(error))


def _client(broker: FakeBroker) -> Client:
    at_once = {"backoff_minimum": 0.01, "backoff_maximum": 0.01}
    return Client(broker.url, ClientOptions(max_frame_bytes=1 << 20, keep_alive=3_600, **at_once), dial=broker.dial)


def _confirm(call: Call) -> None:
    if call.body.HasField("request_id"):
        call.reply("ACK_RESPONSE", consumer_id=call.body.consumer_id)


def peak_mb() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz(frames: int, seed: int) -> Found:
    """Run it on virtual time, or until it is interrupted; the collector skips objects that existed before."""
    made = Fuzz(frames, seed)
    gc.collect()
    gc.freeze()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            run(made.run(), patience=600)
        return made.found
    finally:
        gc.unfreeze()


def main() -> None:
    """Print the figures of a run."""
    began = time.process_time()
    found = fuzz(int(os.environ.get("FRAMES", "10000")), int(os.environ.get("SEED", "0")))
    print(f"{found.frames} frames in {time.process_time() - began:.0f} s; {found.received} messages, of which")
    print(f"{found.unreadable} unreadable; longest block {found.longest_ms:.1f} ms; memory more {found.more_mb:.0f} MB")
    for kind, times in found.by_kind.most_common():
        print(f"{times:8} {kind}")
    print(f"{len(found.unnamed)} errors that name no frame: {found.unnamed[:5]}")
    print(f"{len(found.faults)} faults: {found.faults[:5]}")
    print("longest of:", found.longest_of[:200].hex())


if __name__ == "__main__":
    main()
