"""Mutations of recorded frames, and the allowed outcomes of reading them.

As a program it reads many mutations with little memory: ``python -m tests.wire.mutations COUNT MEGABYTES`` reads COUNT;
memory may grow by at most MEGABYTES.
"""

from __future__ import annotations

import random
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import google_crc32c

from pulsar_nack.errors import ProtocolError, UndecodableMessageError
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._entries import Entry
from pulsar_nack.wire._protocol._frames import FrameDecoder
from tests.wire.frames import decode_entry, messages_of
from tests.wire.recorded import recorded

LIMIT = 1 << 20
PARTS = ("metadata: ", "payload: ", "batch: ", "checksum: ", "broker entry metadata: ")
EXTREMES = (0, 1, 2, 4, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, LIMIT, LIMIT + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)

Mutator = Callable[[bytearray, random.Random], None]


def flip(data: bytearray, chance: random.Random) -> None:
    """Flip bits."""
    for _ in range(chance.choice((1, 1, 2, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def overwrite(data: bytearray, chance: random.Random) -> None:
    """Write a byte that is likely to be significant."""
    data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))


def resize(data: bytearray, chance: random.Random) -> None:
    """Write a size that is too large, too small or nearly right, at any place."""
    at = chance.randrange(max(len(data) - 3, 1))
    (size,) = struct.unpack_from(">I", data.ljust(at + 4, b"\0"), at)
    wanted = chance.choice((*EXTREMES, size + 1, size - 1))
    data[at : at + 4] = struct.pack(">I", wanted & 0xFFFFFFFF)


def cut(data: bytearray, chance: random.Random) -> None:
    """Remove bytes, often at the end."""
    start = chance.randrange(len(data))
    del data[start : chance.choice((len(data), start + chance.randrange(9)))]


def insert(data: bytearray, chance: random.Random) -> None:
    """Insert bytes: a few, or many equal ones, which read as long numbers or deep nesting."""
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.choice(
        (chance.randbytes(chance.randrange(1, 9)), b"\xff" * 12, b"\x3a\x80" * 200, b"\x0b" * 300)
    )


def repeat(data: bytearray, chance: random.Random) -> None:
    """Repeat a piece elsewhere."""
    start = chance.randrange(len(data))
    piece = data[start : start + chance.randrange(1, 33)]
    at = chance.randrange(len(data) + 1)
    data[at:at] = piece


MUTATORS: tuple[Mutator, ...] = (flip, flip, overwrite, overwrite, resize, resize, cut, insert, repeat)


def mutations(seed: int) -> Iterator[bytes]:
    """Yield mutated frames without end; half of those with a message have valid checksums and sizes."""
    chance = random.Random(seed)
    frames = recorded()
    while True:
        one = chance.choice(frames)
        is_rest_changed = bool(one.rest) and chance.random() < 0.7
        data = bytearray(one.rest if is_rest_changed else one.frame)
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            if data:
                chance.choice(MUTATORS)(data, chance)
        if is_rest_changed:
            command = one.command.SerializeToString()
            rest = mended(bytes(data)) if chance.random() < 0.8 else bytes(data)
            yield struct.pack(">II", 4 + len(command) + len(rest), len(command)) + command + rest
        else:
            yield bytes(data)


def mended(rest: bytes) -> bytes:
    """Return the headers and payload after a command, with a valid checksum."""
    at = 0
    if rest[:2] == b"\x0e\x02" and len(rest) >= 6:
        at = min(6 + struct.unpack_from(">I", rest, 2)[0], len(rest))
    if rest[at : at + 2] != b"\x0e\x01":
        return rest
    checked = rest[at + 6 :]
    return rest[: at + 2] + struct.pack(">I", google_crc32c.value(checked)) + checked


def read(data: bytes, limit: int = LIMIT) -> str:
    """Read everything as a connection and a consumer do, and return the outcome.

    Any exception except the two errors is raised; those two have to name what is wrong.
    """
    decoder = FrameDecoder(limit)
    try:
        frames = decoder.feed(data)
    except ProtocolError as error:
        return told(error, ("frame at byte ",), "no protocol")
    assert decoder.kept_bytes <= len(data)
    result = "incomplete" if decoder.kept_bytes else "a command"
    for frame in frames:
        if frame[1]:
            result = read_entry(frame[1], limit)
    return result


def read_entry(rest: bytes, limit: int = LIMIT) -> str:
    """Read an entry, and every field that a user may read."""
    entry, payloads = None, []
    try:
        entry = decode_entry(rest, max_message_bytes=limit)
        assert len(entry.payload) <= max(limit, len(rest))
        for message in messages_of(entry):
            assert all(isinstance(text, str) for pair in message.properties.items() for text in pair)
            assert isinstance(message.key, str | None)
            assert isinstance(message.ordering_key, str | None)
            assert message.event_time_ms >= 0
            assert message.is_compacted_out in (False, True)
            assert len(message.payload) <= len(entry.payload)
            payloads.append((message.index, message.payload))
    except UndecodableMessageError as error:
        check_members(entry, payloads, str(error))
        return told(error, PARTS, "unreadable: " + str(error).partition(":")[0])
    check_members(entry, payloads, "")
    return "a message"


def check_members(entry: Entry | None, payloads: list[tuple[int, bytes]], problem: str) -> None:
    """Compare with the fast way to read a batch: equal payloads, equal errors."""
    if entry is None or not entry.is_batch:
        return
    found, said = [], ""
    try:
        for index, metadata, payload in entry.members():
            assert isinstance(metadata, bytes | pb.SingleMessageMetadata)
            found.append((index, payload))
    except UndecodableMessageError as error:
        said = str(error)
    assert (found, said) == (payloads, problem)


def told(error: Exception, beginnings: tuple[str, ...], result: str) -> str:
    """Return the outcome, after a check that the error says what it is about."""
    assert str(error).startswith(beginnings), error
    return result


def main(count: int, megabytes: int) -> None:
    """Read many mutations, after loading all modules that this needs."""
    import resource

    for one in recorded():
        read(one.frame)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + (megabytes << 20), resource.RLIM_INFINITY))
    results = Counter(read(data) for _, data in zip(range(count), mutations(count), strict=False))
    for result, times in sorted(results.items()):
        print(f"{times:8} {result}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
