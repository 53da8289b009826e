"""Which partition a message goes to."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Literal

from ...errors import InvalidArgumentError
from ._hashes import java_string_hash, murmur3_hash

Hashing = Literal["java_string", "murmur3"]
Router = Callable[[str | None, int], int]
"""From a message's key, or None, and the number of partitions to one of them, from 0."""

HASHES: Final[dict[str, Callable[[str], int]]] = {"java_string": java_string_hash, "murmur3": murmur3_hash}


class Routing:
    """Chooses among partitions: by the key where there is one, else as told.

    :param routing: ``"round_robin"``; ``"single"``, one that is drawn by chance; or a function that decides alone
    :param hashing: of keys
    :param choose: what is drawn from a number of partitions, from 0
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
        self._turn = -1

    def partition(self, key: str | None, partitions: int, *, stays: Callable[[int], bool] = lambda _: False) -> int:
        """Return the partition for a message.

        :param stays: whether the present partition takes another message of those without a key: its batch is not full
        :raises InvalidArgumentError: the function that decides did not return a partition
        """
        if self._router is not None:
            return self._routed(self._router, key, partitions)
        if key is not None:
            return self._hash(key) % partitions
        if self._turn < 0:
            self._turn = self._choose(partitions)
        elif not self._is_single and not stays(self._turn):
            self._turn = (self._turn + 1) % partitions
        return self._turn

    @staticmethod
    def _routed(router: Router, key: str | None, partitions: int) -> int:
        found = router(key, partitions)
        if type(found) is not int or not 0 <= found < partitions:
            raise InvalidArgumentError("routing", found, f"a function that returns a number from 0 to {partitions - 1}")
        return found
