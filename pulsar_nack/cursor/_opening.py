"""Opening a cursor: its state, log and properties as recovery finds them, or those of a new cursor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from ..config import CursorConfig
from ..errors import InvalidArgumentError
from ..ids import Position
from ..index import varint_bytes
from ..ledger import LogStore
from ..ledger.ownership import close_on_error, take_ownership
from ._acks import AckState
from ._generations import RecoveredLog, recover
from ._ledgers import Ledgers, as_ledgers
from ._properties import Properties
from ._requests import check_position
from .format import LedgerAcks, LogNames, ledger_size
from .format._marker import properties_room
from .format._record import messages
from .logs import CursorLog

_AT_A_TIME: Final = 200
_log = logging.getLogger("pulsar_nack.cursor")

LedgersInput = Mapping[int, int] | Ledgers | None
"""``{ledger: entries}``, a :class:`Ledgers`, or None for a remote topic whose ledgers are not known."""


def check_ledgers(given: LedgersInput, start: tuple[int, int] | None) -> tuple[Ledgers | None, Position]:
    """Return the topic's ledgers, and the mark-delete position of a new cursor.

    :raises InvalidArgumentError: the ledgers or the start are invalid
    """
    ledgers = None if given is None else as_ledgers(given)
    return ledgers, _beginning(ledgers, start)


async def open_state(
    store: LogStore, names: LogNames, given: LedgersInput, config: CursorConfig, start: tuple[int, int] | None
) -> tuple[AckState, CursorLog, Properties]:
    """Recover the parts of a cursor, or begin a new one.

    :param start: the mark-delete position of a new cursor; None: nothing is acknowledged
    :raises InvalidArgumentError: the ledgers or the start are invalid; nothing was opened
    :raises LedgerError: the cursor cannot be opened
    :raises MissingExtraError: protobuf is not installed
    """
    messages()
    ledgers, beginning = check_ledgers(given, start)
    make = partial(AckState, ledgers, ledger_size=partial(_size, limit=config.max_entry_bytes))
    begin = make(beginning)
    is_bounded = config.enable_lru_cache_max_unacked_ranges
    limit = config.max_individual_ack_cache_bytes_per_cursor if is_bounded else None
    part = await take_ownership(store, names.cursor)
    async with close_on_error([part]):
        found = await recover(part, names, limit, ledgers)
        contents = found.state.contents or found.snapshot
        mark_delete = None if contents is None else _within(ledgers, contents.mark_delete)
        state = begin if mark_delete is None else make(mark_delete)
        await _fill(state, found, is_bounded=is_bounded)
        if contents is not None and mark_delete is not None:
            _note_cut(state, found.state.cut, contents.mark_delete, mark_delete, names.cursor)
        longs, texts = ({}, {}) if contents is None else contents[1:]
        room = properties_room(longs) if is_bounded else properties_room(longs, config.max_entry_bytes)
        return state, CursorLog(part, names, config, found), Properties(texts, room)


async def _fill(state: AckState, found: RecoveredLog, *, is_bounded: bool) -> None:
    """Take over the recovered ledgers, some hundred at a time, and make those dirty that have to be written again."""
    recovered = found.state
    for at, (ledger, (summary, size)) in enumerate(recovered.summaries.items(), 1):
        state.add_evicted(ledger, summary, size - varint_bytes(ledger) + 1)  # as if it were ledger 0
        if not at % _AT_A_TIME:
            await asyncio.sleep(0)
    for at, ledger in enumerate(sorted(recovered.states), 1):
        state.recover(ledger, recovered.states[ledger])
        if not at % _AT_A_TIME:
            await asyncio.sleep(0)
    table = state.table
    if (recovered.is_legacy and is_bounded) or found.snapshot is not None:
        state.put_back_dirty(table.states, mark_delete=True)
    passed = [ledger for ledger in recovered.index if ledger not in table.states and ledger not in table.evicted]
    state.put_back_dirty(passed, mark_delete=False)
    state.mark_delete.advance()


def _note_cut(state: AckState, cut: dict[int, int], stored: Position, mark_delete: Position, name: str) -> None:
    """Count and log the acknowledgements of lost entries that were dropped, and make their ledgers dirty."""
    state.cut_entries = sum(cut.values()) + stored.entry - mark_delete.entry
    if not state.cut_entries:
        return
    state.put_back_dirty(cut, mark_delete=True)
    _log.warning(
        "the cursor %s has acknowledged %d entries beyond the end of ledgers %s, which have lost them: their"
        " acknowledgements are dropped, and the cursor continues after %s",
        name,
        state.cut_entries,
        sorted(cut.keys() | ({mark_delete.ledger} if mark_delete != stored else set())),
        tuple(state.mark_delete_position),
    )


def _size(acks: LedgerAcks, *, limit: int) -> int:
    """Return the bytes of a ledger's state as if it were ledger 0; the marker's size counts the number."""
    return ledger_size(acks, 0, limit=limit)


def _beginning(ledgers: Ledgers | None, start: tuple[int, int] | None) -> Position:
    first = None if ledgers is None else ledgers.next_ledger(-1)
    if start is not None:
        ledger, entry = check_position(start, lowest=-1, field="start")
        if ledgers is not None and first is not None and _is_beyond(ledgers, ledger, entry):
            raise InvalidArgumentError("start", start, "a position that is not beyond the last entry")
        return Position(ledger, entry)
    return Position(-1 if first is None else first, -1)


def _within(ledgers: Ledgers | None, mark_delete: Position) -> Position:
    """Return the mark-delete position, moved back to the last entry of its ledger if it is beyond that."""
    end = None if ledgers is None else ledgers.entries(mark_delete.ledger)
    return mark_delete if end is None else Position(mark_delete.ledger, min(mark_delete.entry, end - 1))


def _is_beyond(ledgers: Ledgers, ledger: int, entry: int) -> bool:
    end = ledgers.entries(ledger)
    return ledgers.next_ledger(ledger) is None if end is None else entry >= end
