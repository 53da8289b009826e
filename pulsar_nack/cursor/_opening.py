"""A cursor's state as it begins: what is on storage, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..config import CursorConfig
from ..ids import Position
from ..index import varint_bytes
from ..ledger import LogStore
from ._acks import AckState
from ._generations import Names
from ._ledger_acks import LedgerAcks
from ._ledgers import Ledgers, as_ledgers
from ._log import CursorLog
from ._properties import Properties
from ._recovery import recover
from ._sizes import ledger_size
from ._wire import messages

Topic = Mapping[int, int] | Ledgers | None
"""``{ledger: entries}``, an object that answers this, or None for a remote topic whose ledgers are not known."""


class Opened(NamedTuple):
    """What a cursor is made of."""

    state: AckState
    log: CursorLog
    properties: Properties


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
    ledgers = None if topic is None else as_ledgers(topic)

    def state_size(acks: LedgerAcks) -> int:
        return ledger_size(acks, 0, limit=config.max_entry_bytes)

    state = AckState(ledgers, _beginning(ledgers, start), ledger_size=state_size)
    is_bounded = config.enable_lru_cache_max_unacked_ranges
    limit = config.max_individual_ack_cache_bytes_per_cursor if is_bounded else None
    found, loaded = await recover(store, names, limit)
    contents = found.contents or found.snapshot
    if contents is not None:
        state = AckState(ledgers, contents.mark_delete, ledger_size=state_size)
    for ledger, known in loaded.summaries.items():
        size = known.size - varint_bytes(ledger) + 1  # as ledger_size has it for ledger 0
        state.note_evicted(ledger, known.summary, size=size, ranges=known.ranges)
    for ledger in sorted(loaded.states):
        state.recover(ledger, loaded.states[ledger])
    if found.contents is None or found.is_single:  # none of it is there in a form that a marker could name
        state.put_back_dirty(state.ledger_states, mark_delete=contents is not None)
    passed = [ledger for ledger in found.index if ledger not in state.ledger_states and ledger not in state.evicted]
    state.put_back_dirty(passed, mark_delete=False)
    properties = Properties({} if contents is None else contents.cursor_properties)
    return Opened(state, CursorLog(store, names, config, found), properties)


def _beginning(ledgers: Ledgers | None, start: tuple[int, int] | None) -> Position:
    if start is not None:
        return Position(*start)
    first = None if ledgers is None else ledgers.next_ledger(-1)
    return Position(-1 if first is None else first, -1)
