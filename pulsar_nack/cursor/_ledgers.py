"""The ledgers of a topic as a cursor sees them: which there are, and how many entries each has."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Reversible
from typing import Protocol, runtime_checkable

from .._check import INT64_MAX
from ..errors import InvalidArgumentError


@runtime_checkable
class Ledgers(Protocol):
    """The ledgers of a topic. Ledgers appear, the last one grows, old ones go; an entry never moves to another ledger.

    A ``{ledger: entries}`` mapping is accepted in its place, see :func:`as_ledgers`.
    """

    def entries(self, ledger: int) -> int | None:
        """Return how many entries the ledger has now, None if there is no such ledger."""
        ...

    def next_ledger(self, ledger: int) -> int | None:
        """Return the lowest ledger above this number, which need not exist, or None."""
        ...

    def previous_ledger(self, ledger: int) -> int | None:
        """Return the highest ledger below this number, which need not exist, or None."""
        ...


class MappingLedgers:
    """The ledgers of a mapping, which may change while it is in use.

    The ledgers are kept sorted, and sorted again when the length, the first or the last key differ. In a ``dict`` that
    misses only one kind of change: keys are replaced, and the last one is removed and set again.
    """

    __slots__ = ("_mapping", "_mark", "_sorted", "entries")

    def __init__(self, mapping: Mapping[int, int]) -> None:
        for ledger, entries in mapping.items():
            if not (0 <= _number(ledger) <= INT64_MAX and 0 <= _number(entries) <= INT64_MAX):
                raise InvalidArgumentError(
                    "ledgers", {ledger: entries}, "ledger ids and numbers of entries, integers from 0 to 2**63 - 1"
                )
        self._mapping = mapping
        self._mark: object = None
        self._sorted: list[int] = []
        self.entries = mapping.get

    def next_ledger(self, ledger: int) -> int | None:
        """Return the lowest ledger above this number."""
        ordered = self._ordered()
        at = bisect_right(ordered, ledger)
        return ordered[at] if at < len(ordered) else None

    def previous_ledger(self, ledger: int) -> int | None:
        """Return the highest ledger below this number."""
        ordered = self._ordered()
        at = bisect_left(ordered, ledger)
        return ordered[at - 1] if at else None

    def _ordered(self) -> list[int]:
        mapping = self._mapping
        mark = (len(mapping), next(iter(mapping), None), self._newest())
        if mark != self._mark or mark[2] is None:
            self._sorted = sorted(mapping)
            self._mark = mark
        return self._sorted

    def _newest(self) -> int | None:
        return next(reversed(self._mapping), None) if isinstance(self._mapping, Reversible) else None


def _number(value: object) -> int:
    """Return an integer, -1 for anything else and for True and False."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def as_ledgers(ledgers: Mapping[int, int] | Ledgers) -> Ledgers:
    """Return an object that answers for these ledgers.

    :raises InvalidArgumentError: neither a mapping nor a :class:`Ledgers`
    """
    if isinstance(ledgers, Mapping):
        return MappingLedgers(ledgers)
    if isinstance(ledgers, Ledgers):
        return ledgers
    raise InvalidArgumentError("ledgers", ledgers, "a {ledger: entries} mapping, an object with entries(), or None")


class UnknownLedgers:
    """The ledgers of a remote topic: every entry may exist, and no ledger is known to follow another one."""

    __slots__ = ()

    def entries(self, ledger: int) -> int:
        """Return a number above every entry: each may exist."""
        del ledger
        return 2**63

    def next_ledger(self, ledger: int) -> None:
        """Return None: no ledger is known."""

    def previous_ledger(self, ledger: int) -> None:
        """Return None: no ledger is known."""


def ledger_after(ledgers: Ledgers, ledger: int) -> int | None:
    """Return the next ledger that has entries."""
    following = ledgers.next_ledger(ledger)
    while following is not None and not ledgers.entries(following):
        following = ledgers.next_ledger(following)
    return following


def position_before(ledgers: Ledgers, ledger: int, entry: int) -> tuple[int, int]:
    """Return the last position before this one that exists, else (ledger, -1)."""
    if entry > 0:
        return ledger, entry - 1
    previous = ledgers.previous_ledger(ledger)
    while previous is not None:
        if end := ledgers.entries(previous):
            return previous, end - 1
        previous = ledgers.previous_ledger(previous)
    return ledger, -1


def entries_after(ledgers: Ledgers, ledger: int, entry: int) -> int:
    """Return how many entries exist after a position. O(ledgers)."""
    total = max(0, (ledgers.entries(ledger) or 0) - entry - 1)
    following = ledgers.next_ledger(ledger)
    while following is not None:
        total += ledgers.entries(following) or 0
        following = ledgers.next_ledger(following)
    return total


def reset_target(ledgers: Ledgers, ledger: int, entry: int) -> tuple[int, int]:
    """Return the mark-delete position that makes this position the next message.

    :raises InvalidArgumentError: the position is beyond the end of the topic
    """
    end = ledgers.entries(ledger)
    if end is None:
        following = ledgers.next_ledger(ledger)
        if following is None:
            raise InvalidArgumentError("position", (ledger, entry), "a position that is not beyond the last ledger")
        return position_before(ledgers, following, 0)
    if entry > end:
        raise InvalidArgumentError("position", (ledger, entry), f"at most entry {end} of ledger {ledger}")
    return position_before(ledgers, ledger, entry)
