"""The arguments of acknowledgements, checked and sorted by ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import index
from typing import TypeVar

from ..errors import InvalidArgumentError
from ..ids import MessageId, Position
from ._ledgers import Ledgers
from .format import BatchSet

_T = TypeVar("_T")
BatchSets = Mapping[Position, BatchSet] | Mapping[tuple[int, int], BatchSet]


def read_request(
    positions: Iterable[tuple[int, int]],
    batch_sets: BatchSets | None,
    ledgers: Ledgers,
    mark_delete: tuple[int, int],
) -> tuple[dict[int, list[int]], dict[tuple[int, int], BatchSet]]:
    """Check positions; return those beyond the mark-delete position: whole entries by ledger, and others' batch sets.

    :raises InvalidArgumentError: an invalid position, one that does not exist, or a batch set of another position
    """
    whole: dict[int, list[int]] = {}
    partial: dict[tuple[int, int], BatchSet] = {}
    if batch_sets is not None and not isinstance(batch_sets, Mapping):
        raise InvalidArgumentError("batch_sets", batch_sets, "a mapping of positions to BatchSets")
    unused: dict[tuple[int, int], BatchSet] = dict((batch_sets or {}).items())
    for batch in unused.values():
        check_batch_set(batch)
    taken: dict[tuple[int, int], BatchSet] = {}
    for given in positions:
        ledger, entry = position = check_position(given)
        if position in unused:
            taken[position] = unused.pop(position)
        if position <= mark_delete:
            continue
        check_exists(ledgers, ledger, entry)
        if position in taken:
            partial[position] = taken[position]
        else:
            whole.setdefault(ledger, []).append(entry)
    if unused:
        raise InvalidArgumentError("batch_sets", next(iter(unused)), "batch sets of the given positions only")
    return whole, partial


def check_exists(ledgers: Ledgers, ledger: int, entry: int) -> None:
    """Raise InvalidArgumentError unless a position exists; it names the ledger or the entry."""
    end = ledgers.entries(ledger)
    if end is None:
        raise InvalidArgumentError("position", (ledger, entry), f"a ledger that exists, {ledger} does not")
    if entry >= end:
        raise InvalidArgumentError("position", (ledger, entry), f"an entry of ledger {ledger}, which has {end}")


def check_batch_set(batch: BatchSet) -> None:
    """Raise InvalidArgumentError unless ``batch`` is a batch set."""
    if not isinstance(batch, BatchSet):
        raise InvalidArgumentError("batch_set", batch, "a BatchSet, such as BatchSet.acked(size, indexes)")


def check_position(position: tuple[int, int], *, lowest: int = 0, field: str = "position") -> tuple[int, int]:
    """Return a position as plain integers.

    :raises InvalidArgumentError: it is no position, or one below ``lowest``
    """
    ledger, entry = _pair(position, field)
    if not (lowest <= ledger < 2**63 and lowest <= entry < 2**63):
        raise InvalidArgumentError(field, position, f"a ledger and an entry from {lowest} to 2**63 - 1")
    return ledger, entry


def check_number(field: str, value: int, *, lowest: int = 0) -> int:
    """Return a plain integer of at least ``lowest``.

    :raises InvalidArgumentError: no such integer; True and False are refused, as storage refuses them
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
        raise InvalidArgumentError(field, position, "a Position; that of a message is id.position")
    if isinstance(position, tuple | list) and len(position) == 2:
        ledger, entry = position
        if type(ledger) is int and type(entry) is int:
            return ledger, entry
        if not isinstance(ledger, bool) and not isinstance(entry, bool):
            with suppress(TypeError):
                return index(ledger), index(entry)
    raise InvalidArgumentError(field, position, "a ledger and an entry, both integers")


def as_list(field: str, values: Iterable[_T]) -> list[_T]:
    """Return these values as a list.

    :raises InvalidArgumentError: they cannot be iterated
    """
    try:
        return list(values)
    except TypeError:
        raise InvalidArgumentError(field, values, "a sequence") from None
