"""A cursor's state as it begins: what is on storage, or nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from ..config import CursorConfig
from ..errors import InvalidArgumentError
from ..ids import Position
from ..index import varint_bytes
from ..ledger import LogStore
from ..ledger.ownership import close_on_error, take_ownership
from ._acks import AckState
from ._found import Found
from ._generations import Names
from ._ledger_acks import LedgerAcks
from ._ledgers import Ledgers, as_ledgers
from ._log import CursorLog
from ._properties import Properties
from ._recovery import Loaded, recover
from ._requests import checked
from ._sizes import ledger_size
from ._wire import messages

_AT_A_TIME: Final = 200
_log = logging.getLogger("pulsar_nack.cursor")

Topic = Mapping[int, int] | Ledgers | None
"""``{ledger: entries}``, an object that answers this, or None for a remote topic whose ledgers are not known."""


class Opened(NamedTuple):
    """What a cursor is made of."""

    state: AckState
    log: CursorLog
    properties: Properties


def check_topic(topic: Topic, start: tuple[int, int] | None) -> tuple[Ledgers | None, Position]:
    """Return the topic's ledgers, and the mark-delete position of a new cursor.

    :raises InvalidArgumentError: the topic or the start is invalid
    """
    ledgers = None if topic is None else as_ledgers(topic)
    return ledgers, _beginning(ledgers, start)


async def open_state(
    store: LogStore, names: Names, topic: Topic, config: CursorConfig, start: tuple[int, int] | None
) -> Opened:
    """Read what is there, or begin a new cursor.

    :param start: the mark-delete position of a new one; None: nothing is acknowledged
    :raises InvalidArgumentError: the topic or the start is none; nothing was opened
    :raises LedgerError: it cannot be opened
    :raises MissingExtraError: protobuf is not installed
    """
    messages()
    ledgers, beginning = check_topic(topic, start)
    make = partial(AckState, ledgers, ledger_size=partial(_size, limit=config.max_entry_bytes))
    begin = make(beginning)
    is_bounded = config.enable_lru_cache_max_unacked_ranges
    limit = config.max_individual_ack_cache_bytes_per_cursor if is_bounded else None
    part = await take_ownership(store, names.cursor)
    async with close_on_error([part]):
        found, loaded = await recover(part, names, limit, ledgers)
        contents = found.contents or found.snapshot
        reached = None if contents is None else _within(ledgers, contents.mark_delete)
        state = begin if reached is None else make(reached)
        await _fill(state, found, loaded, is_bounded=is_bounded)
        if contents is not None and reached is not None:
            _note_cut(state, loaded, contents.mark_delete, reached, names.cursor)
        properties = Properties({} if contents is None else contents.cursor_properties)
        return Opened(state, CursorLog(part, names, config, found), properties)


async def _fill(state: AckState, found: Found, loaded: Loaded, *, is_bounded: bool) -> None:
    """Take over what was found, some hundred ledgers at a time, and make dirty what a marker cannot name yet."""
    for at, (ledger, known) in enumerate(loaded.summaries.items(), 1):
        size = known.size - varint_bytes(ledger) + 1  # as if it were ledger 0
        state.note_evicted(ledger, known.summary, size=size, ranges=known.ranges)
        if not at % _AT_A_TIME:
            await asyncio.sleep(0)
    for at, ledger in enumerate(sorted(loaded.states), 1):
        state.recover(ledger, loaded.states[ledger])
        if not at % _AT_A_TIME:
            await asyncio.sleep(0)
    if (found.is_single and is_bounded) or found.snapshot is not None:
        state.put_back_dirty(state.ledger_states, mark_delete=True)
    passed = [ledger for ledger in found.index if ledger not in state.ledger_states and ledger not in state.evicted]
    state.put_back_dirty(passed, mark_delete=False)
    state.settle()


def _note_cut(state: AckState, loaded: Loaded, stored: Position, reached: Position, name: str) -> None:
    """Log and count the acknowledgements of lost entries that were dropped, and mark their ledgers dirty."""
    state.cut_entries = sum(loaded.cut.values()) + stored.entry - reached.entry
    if not state.cut_entries:
        return
    state.put_back_dirty(loaded.cut, mark_delete=True)
    _log.warning(
        "the cursor %s has acknowledged %d entries beyond the end of ledgers %s, which have lost them: their"
        " acknowledgements are dropped, and the cursor goes on after %s",
        name,
        state.cut_entries,
        sorted(loaded.cut.keys() | ({reached.ledger} if reached != stored else set())),
        tuple(state.mark_delete_position),
    )


def _size(acks: LedgerAcks, *, limit: int) -> int:
    """Return what a ledger's state takes, as if it were ledger 0; the marker's size has the rest."""
    return ledger_size(acks, 0, limit=limit)


def _beginning(ledgers: Ledgers | None, start: tuple[int, int] | None) -> Position:
    first = None if ledgers is None else ledgers.next_ledger(-1)
    if start is not None:
        ledger, entry = checked(start, lowest=-1, field="start")
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
