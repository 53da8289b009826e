"""Copying what counts to a new log: exactly the records that the last marker names (K28)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..ledger import Log
from ._records import APPEND, Stored, allot, append_all, read_ledgers, size_of


class Copied(NamedTuple):
    """Where ledgers' states lie in the new log, and how many bytes were written."""

    where: dict[int, Stored]
    size: int


async def copy_states(old: Log, index: Mapping[int, Stored], new: Log) -> Copied:
    """Copy ledgers' states, by their numbers, a bounded part in memory at a time.

    :raises LedgerError: something could not be read or written
    """
    copied: dict[int, Stored] = {}
    pending: dict[int, Sequence[bytes]] = {}
    size = total = 0
    async for ledger, records in read_ledgers(old, {ledger: index[ledger].numbers for ledger in sorted(index)}):
        pending[ledger] = records
        size += size_of(records)
        if size >= APPEND:
            copied |= await _append(new, pending)
            total += size
            pending, size = {}, 0
    copied |= await _append(new, pending)
    return Copied(copied, total + size)


async def _append(new: Log, pending: Mapping[int, Sequence[bytes]]) -> dict[int, Stored]:
    return allot(pending, await append_all(new, (record for records in pending.values() for record in records)))
