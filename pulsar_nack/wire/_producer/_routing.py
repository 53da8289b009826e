"""Which partition a message goes to. Key hashes are those of the Java client, so equal keys get equal partitions."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal

from ...errors import InvalidArgumentError

Hashing = Literal["java_string", "murmur3"]
Router = Callable[[str | None, int], int]
"""Maps a message's key, or None, and the number of partitions to a partition, from 0."""

_INT31: Final = 0x7FFF_FFFF
_INT32: Final = 0xFFFF_FFFF
_CACHED: Final = 4_096


class PartitionRouter:
    """Chooses a partition: by key if the message has one, otherwise by ``routing``.

    :param routing: ``"round_robin"``; ``"single"``, one random partition; or a function that decides for all messages
    :param hashing: of keys
    :param choose: draws a random partition from a number of them
    """

    def __init__(
        self,
        routing: Literal["round_robin", "single"] | Router,
        hashing: Hashing,
        *,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._router = routing if callable(routing) else None
        self._is_single = routing == "single"
        self._hash = HASHES[hashing]
        self._choose = choose
        self._current = -1

    def partition(
        self, key: str | None, partitions: int, *, is_filling: Callable[[int], bool] = lambda _: False
    ) -> int:
        """Return the partition for a message.

        :param is_filling: whether a partition has an open batch; round robin then stays there
        :raises InvalidArgumentError: the user's function did not return a partition
        """
        if self._router is not None:
            return self._routed(self._router, key, partitions)
        if key is not None:
            return self._hash(key) % partitions
        if self._current < 0:
            self._current = self._choose(partitions)
        elif not self._is_single and not is_filling(self._current):
            self._current = (self._current + 1) % partitions
        return self._current

    @staticmethod
    def _routed(router: Router, key: str | None, partitions: int) -> int:
        found = router(key, partitions)
        if type(found) is not int or not 0 <= found < partitions:
            raise InvalidArgumentError("routing", found, f"a function that returns a number from 0 to {partitions - 1}")
        return found


@lru_cache(_CACHED)
def java_string_hash(key: str) -> int:
    """Return ``String.hashCode`` of Java without its sign, 0 to 2**31 - 1; the Java client's default."""
    found = 0
    data = key.encode("utf-16-le", "surrogatepass")
    for (unit,) in struct.iter_unpack("<H", data):
        found = (31 * found + unit) & _INT32
    return found & _INT31


@lru_cache(_CACHED)
def murmur3_hash(key: str) -> int:
    """Return the 32-bit MurmurHash3 of the key's UTF-8, seed 0, without its sign."""
    data = key.encode("utf-8", "surrogatepass")
    found = 0
    blocks = len(data) // 4
    for (block,) in struct.iter_unpack("<I", data[: 4 * blocks]):
        found = _rotated(found ^ _scrambled(block), 13) * 5 + 0xE6546B64 & _INT32
    tail = data[4 * blocks :]
    if tail:
        found ^= _scrambled(int.from_bytes(tail, "little"))
    return _finished(found ^ len(data)) & _INT31


def _scrambled(block: int) -> int:
    return _rotated(block * 0xCC9E2D51 & _INT32, 15) * 0x1B873593 & _INT32


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _INT32


def _finished(value: int) -> int:
    value = (value ^ value >> 16) * 0x85EBCA6B & _INT32
    value = (value ^ value >> 13) * 0xC2B2AE35 & _INT32
    return value ^ value >> 16


HASHES: Final[dict[str, Callable[[str], int]]] = {"java_string": java_string_hash, "murmur3": murmur3_hash}
