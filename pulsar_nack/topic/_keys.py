"""Which consumer of a Key_Shared subscription gets a key: one point after the other on a ring, as Pulsar has it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from ._entry import hash_of

_POINTS = 100


class KeyRing:
    """Gives each hash to the consumer whose point follows it: one that comes or goes moves few keys of the others."""

    def __init__(self) -> None:
        self._points: list[int] = []
        self._owners: list[int] = []

    def use(self, consumers: Iterable[tuple[int, str]]) -> None:
        """Make the ring of these consumers, each with a number and a name."""
        taken: dict[int, int] = {}
        for number, name in sorted(consumers, key=lambda each: (each[1], each[0])):
            for point in range(_POINTS):
                taken.setdefault(hash_of(f"{name}-{number}-{point}"), number)
        self._points = sorted(taken)
        self._owners = [taken[point] for point in self._points]

    def owner(self, key_hash: int) -> int | None:
        """Return who gets this hash, None when there is nobody."""
        if not self._points:
            return None
        at = bisect_left(self._points, key_hash)
        return self._owners[at % len(self._owners)]
