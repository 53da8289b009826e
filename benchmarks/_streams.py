"""Streams of nacks that the benchmarks share: ids as (ledger, entry) with the time and the delay, made on the fly."""

from __future__ import annotations

import random
from collections.abc import Iterator

ENTRIES_PER_LEDGER = 50_000
PER_MS = 10
"""Messages a ms of the traffic that the ids come from."""

Nack = tuple[int, int, int, int]
"""Ledger, entry, time in ms, delay in ms."""


def in_order(count: int, delay_ms: int = 60_000) -> Iterator[Nack]:
    """Every message is nacked, with one delay."""
    for sequence in range(count):
        ledger, entry = divmod(sequence, ENTRIES_PER_LEDGER)
        yield ledger + 1, entry, sequence // PER_MS, delay_ms


def random_share(count: int, share: float = 0.3, delay_ms: int = 60_000) -> Iterator[Nack]:
    """A random share of the messages is nacked, in order, with one delay."""
    chance = random.Random(393)
    sequence = -1
    for _ in range(count):
        sequence += 1
        while chance.random() >= share:
            sequence += 1
        ledger, entry = divmod(sequence, ENTRIES_PER_LEDGER)
        yield ledger + 1, entry, sequence // PER_MS, delay_ms


def out_of_order(count: int, by_ms: int = 500) -> Iterator[Nack]:
    """Like :func:`random_share`, but each nack comes up to ``by_ms`` later than its message."""
    chance = random.Random(394)
    waiting: list[tuple[float, Nack]] = []
    for nack in random_share(count):
        waiting.append((nack[2] + chance.random() * by_ms, nack))
        if len(waiting) >= 4_096:
            waiting.sort()
            ready, waiting = waiting[:2_048], waiting[2_048:]
            yield from ((ledger, entry, int(at), delay) for at, (ledger, entry, _, delay) in ready)
    waiting.sort()
    yield from ((ledger, entry, int(at), delay) for at, (ledger, entry, _, delay) in waiting)


def mixed_delays(count: int) -> Iterator[Nack]:
    """Like :func:`random_share`, with four delays in random turn."""
    chance = random.Random(395)
    for ledger, entry, now_ms, _ in random_share(count):
        yield ledger, entry, now_ms, chance.choice((10_000, 20_000, 40_000, 60_000))


def scattered(count: int, over_ms: int) -> Iterator[Nack]:
    """Like :func:`random_share`, all at once, with a delay of its own each."""
    chance = random.Random(396)
    for ledger, entry, _, _ in random_share(count):
        yield ledger, entry, 0, chance.randrange(over_ms)
