"""Streams of nacks for the benchmarks: ids as (ledger, entry) with the time and the delay.

Random numbers come from a small generator, so that ``java/`` creates exactly the same streams.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

ENTRIES_PER_LEDGER = 50_000
PER_MS = 10
"""Messages per ms of the traffic from which the ids come."""

Nack = tuple[int, int, int, int]
"""Ledger, entry, time in ms, delay in ms."""

Stream = Callable[[int], Iterator[Nack]]
"""Creates this number of nacks."""

FOUR_DELAYS = (10_000, 20_000, 40_000, 60_000)


class Chance:
    """A 64-bit linear congruential generator, of which the upper 31 bits are used."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, bound: int) -> int:
        """Return the next number from 0 to below ``bound``."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & 0xFFFF_FFFF_FFFF_FFFF
        return (self._state >> 33) % bound


def in_order(count: int, delay_ms: int = 60_000) -> Iterator[Nack]:
    """Nack every message, with one delay."""
    for sequence in range(count):
        ledger, entry = divmod(sequence, ENTRIES_PER_LEDGER)
        yield ledger + 1, entry, sequence // PER_MS, delay_ms


def random_share(count: int, percent: int = 30, delay_ms: int = 60_000) -> Iterator[Nack]:
    """Nack a random share of the messages, in order, with one delay."""
    below = Chance(393).below
    sequence = -1
    for _ in range(count):
        sequence += 1
        while below(100) >= percent:
            sequence += 1
        ledger, entry = divmod(sequence, ENTRIES_PER_LEDGER)
        yield ledger + 1, entry, sequence // PER_MS, delay_ms


def out_of_order(count: int, by_ms: int = 500) -> Iterator[Nack]:
    """Nack like :func:`random_share`, but each nack comes up to ``by_ms`` later than its message."""
    below = Chance(394).below
    waiting: list[tuple[int, int, Nack]] = []
    for number, nack in enumerate(random_share(count)):
        now_ms = nack[2]
        while waiting and waiting[0][0] < now_ms * 1_000:
            yield _late(*heapq.heappop(waiting))
        heapq.heappush(waiting, (now_ms * 1_000 + below(by_ms * 1_000), number, nack))
    while waiting:
        yield _late(*heapq.heappop(waiting))


def _late(at_us: int, _number: int, nack: Nack) -> Nack:
    ledger, entry, _, delay_ms = nack
    return ledger, entry, at_us // 1_000, delay_ms


def mixed_delays(count: int) -> Iterator[Nack]:
    """Nack like :func:`random_share`, with four delays in random order."""
    below = Chance(395).below
    for ledger, entry, now_ms, _ in random_share(count):
        yield ledger, entry, now_ms, FOUR_DELAYS[below(4)]


def scattered(count: int, over_ms: int) -> Iterator[Nack]:
    """Nack like :func:`random_share`, but all at the same time, each with a different delay."""
    below = Chance(396).below
    for ledger, entry, _, _ in random_share(count):
        yield ledger, entry, 0, below(over_ms)


def over_a_minute(count: int) -> Iterator[Nack]:
    """Return :func:`scattered` over 60 s."""
    return scattered(count, 60_000)


def over_an_hour(count: int) -> Iterator[Nack]:
    """Return :func:`scattered` over an hour."""
    return scattered(count, 3_600_000)


STREAMS: dict[str, Stream] = {
    "in order": in_order,
    "random 30 %": random_share,
    "out of order by 500 ms": out_of_order,
    "four delays": mixed_delays,
    "scattered over 60 s": over_a_minute,
    "scattered over an hour": over_an_hour,
}
"""All streams by name; ``java/`` uses the same names."""
