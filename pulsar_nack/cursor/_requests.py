"""What is asked of a cursor, checked and put in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import index

from ..errors import InvalidArgumentError
from ..ids import MessageId, Position
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
    if batch_sets is not None and not isinstance(batch_sets, Mapping):
        raise InvalidArgumentError("batch_sets", batch_sets, "a mapping of positions to BatchSets")
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
        raise InvalidArgumentError("batch_set", batch, "a BatchSet, such as BatchSet.acked(size, indexes)")


def checked(position: tuple[int, int], *, lowest: int = 0, field: str = "position") -> tuple[int, int]:
    """Return a position as plain integers.

    :raises InvalidArgumentError: it is none
    """
    ledger, entry = _pair(position, field)
    if not (lowest <= ledger < 2**63 and lowest <= entry < 2**63):
        raise InvalidArgumentError(field, position, f"a ledger and an entry from {lowest} to 2**63 - 1")
    return ledger, entry


def checked_number(field: str, value: int, *, lowest: int = 0) -> int:
    """Return a plain integer of at least ``lowest``.

    :raises InvalidArgumentError: it is none; True and False are none, for storage refuses them
    """
    try:
        number = -(2**63) if isinstance(value, bool) else index(value)
    except TypeError:
        number = -(2**63)
    if number < lowest:
        raise InvalidArgumentError(field, value, f"an integer of at least {lowest}")
    return number


def _pair(position: object, field: str) -> tuple[int, int]:
    if isinstance(position, MessageId):
        raise InvalidArgumentError(field, position, "a Position, which of a message's id is id.position")
    if isinstance(position, tuple | list) and len(position) == 2:
        ledger, entry = position
        if type(ledger) is int and type(entry) is int:
            return ledger, entry
        if not isinstance(ledger, bool) and not isinstance(entry, bool):
            with suppress(TypeError):
                return index(ledger), index(entry)
    raise InvalidArgumentError(field, position, "a ledger and an entry, both integers")
