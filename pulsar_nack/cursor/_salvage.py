"""Opening a log of a cursor though it is damaged, and telling what is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ..errors import LogCorruptedError
from ..ledger import Log, LogDamage, LogStore, SalvagingStore

_TOLD: Final = 3


class Salvaged(NamedTuple):
    """An open log; when it is damaged, nothing can be added to it, and ``problem`` tells what is wrong."""

    log: Log
    problem: str | None


async def open_or_salvage(store: LogStore, name: str) -> Salvaged:
    """Open a log for writing, or a damaged one, as its owner too, for reading what is whole of it.

    :raises LogCorruptedError: it is damaged, and the store cannot do that
    """
    try:
        return Salvaged(await store.open_log(name), None)
    except LogCorruptedError:
        if not isinstance(store, SalvagingStore):
            raise
    log = await store.open_damaged(name)
    return Salvaged(log, _told(log.damage))


def _told(damage: Sequence[LogDamage]) -> str:
    told = [
        f"{each.file} at byte {each.offset}: {each.reason}"
        + (f" (records {each.first} to {each.last} are lost)" if each.last >= each.first else "")
        for each in damage[:_TOLD]
    ]
    return "; ".join(told) + (f"; and {len(damage) - _TOLD} more" if len(damage) > _TOLD else "")
