"""What is asked of a cursor, checked and put in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import index

from ..errors import InvalidArgumentError
from ..ids import Position
from ._batch import BatchSet
from ._ledgers import Ledgers

BatchSets = Mapping[Position, BatchSet] | Mapping[tuple[int, int], BatchSet]


@dataclass(slots=True)
class AckRequest:
    """Acknowledgements beyond the mark-delete position: whole entries by ledger, and what is left of others."""

    whole: dict[int, list[int]] = field(default_factory=dict)
    partial: dict[tuple[int, int], BatchSet] = field(default_factory=dict)

    @property
    def ledgers(self) -> set[int]:
        """Return the ledgers that it touches."""
        return {*self.whole, *(ledger for ledger, _ in self.partial)}


def read_request(
    positions: Iterable[tuple[int, int]],
    batch_sets: BatchSets | None,
    ledgers: Ledgers,
    reached: tuple[int, int],
) -> AckRequest:
    """Check positions, and put those in order that lie beyond the mark-delete position ``reached``.

    :raises InvalidArgumentError: one of them is no position, or none that exists, or a batch set is of none of them
    """
    request = AckRequest()
    unused: dict[tuple[int, int], BatchSet] = dict((batch_sets or {}).items())
    for batch in unused.values():
        must_be_batch(batch)
    taken: dict[tuple[int, int], BatchSet] = {}
    for given in positions:
        ledger, entry = position = checked(given)
        if position in unused:
            taken[position] = unused.pop(position)
        if position <= reached:
            continue
        must_exist(ledgers, ledger, entry)
        if position in taken:
            request.partial[position] = taken[position]
        else:
            request.whole.setdefault(ledger, []).append(entry)
    if unused:
        raise InvalidArgumentError("batch_sets", next(iter(unused)), "batch sets of the given positions only")
    return request


def must_exist(ledgers: Ledgers, ledger: int, entry: int) -> None:
    """Refuse a position that does not exist.

    :raises InvalidArgumentError: says whether it is the ledger or the entry
    """
    end = ledgers.entries(ledger)
    if end is None:
        raise InvalidArgumentError("position", (ledger, entry), f"a ledger that exists, {ledger} does not")
    if entry >= end:
        raise InvalidArgumentError("position", (ledger, entry), f"an entry of ledger {ledger}, which has {end}")


def must_be_batch(batch: BatchSet) -> None:
    """Refuse what is no batch set.

    :raises InvalidArgumentError: says what it is
    """
    if not isinstance(batch, BatchSet):
        raise InvalidArgumentError("batch_set", batch, "a BatchSet")


def checked(position: tuple[int, int], *, lowest: int = 0) -> tuple[int, int]:
    """Return a position as plain integers.

    :raises InvalidArgumentError: it is none
    """
    try:
        ledger, entry = map(index, position)
    except (TypeError, ValueError):
        raise InvalidArgumentError("position", position, "a ledger and an entry, both integers") from None
    if not (lowest <= ledger < 2**63 and lowest <= entry < 2**63):
        raise InvalidArgumentError("position", position, f"a ledger and an entry from {lowest} on")
    return ledger, entry
