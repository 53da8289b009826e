"""One write of a cursor: encode what is dirty, commit it, and make it dirty again if that fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Collection, Iterable
from functools import partial
from typing import Final

from ..config import CursorConfig
from ._acks import AckState
from ._chain import Contents
from ._codec import encode_ledger
from ._ledger_acks import LedgerAcks
from ._log import CursorLog, LedgerRecords
from ._properties import Properties
from ._single import MOST_BATCHES, Single, Written, encode_single

_SLICE_S: Final = 0.004
_MANY_RANGES: Final = 10_000
"""So many ranges take some ms to encode, ten times as many where they lie close together."""
_DENSE: Final = 8
_FEW: Final = 500
_log = logging.getLogger("pulsar_nack.cursor")


class Writing:
    """Writes one cursor's state to its log; one write at a time."""

    def __init__(self, state: AckState, log: CursorLog, properties: Properties, config: CursorConfig) -> None:
        self.in_flight: Collection[int] = ()
        """Ledgers that a write under way has taken: clean if it succeeds, and not on storage yet."""
        self.dropped_ranges = 0
        """Ranges that the last write in the old form left out; likewise ``dropped_batches``."""
        self.dropped_batches = 0
        self._state = state
        self._log = log
        self._properties = properties
        self._config = config
        self._encoded = asyncio.Event()
        self._encoded.set()
        self._has_warned = False
        self.long_properties: dict[str, int] = dict(log.committed.properties) if log.committed else {}

    @property
    def is_encoding(self) -> bool:
        """Return whether ledgers are being encoded, so that nothing may be reset."""
        return not self._encoded.is_set()

    @property
    def is_dirty(self) -> bool:
        """Return whether anything has changed that no write has begun with."""
        state = self._state
        return bool(state.dirty) or state.mark_delete_is_dirty or self._properties.is_dirty

    async def when_encoded(self) -> None:
        """Wait until no ledgers are being encoded; the caller runs before anything else does."""
        while self.is_encoding:
            await self._encoded.wait()

    async def write(self) -> None:
        """Write what is dirty, durably.

        :raises LedgerError: it could not be written; it is dirty again
        """
        if not self.is_dirty:
            return
        self._encoded.clear()
        try:
            await self._log.prepare(self._contents(self._properties.with_changes(())))
            await self._write_dirty()
        finally:
            self._encoded.set()

    async def _write_dirty(self) -> None:
        state, properties = self._state, self._properties
        taken, mark_delete = state.take_dirty()
        changes = properties.take()
        self.in_flight = taken
        try:
            after = properties.with_changes(changes)
            if self._config.enable_lru_cache_max_unacked_ranges:
                await self._log.commit(self._encode(sorted(taken)), partial(self._contents, after))
            else:
                self._encoded.set()  # copies are made before anything else runs
                await self._write_old(self._contents(after))
        except BaseException as error:
            state.put_back_dirty(
                taken, mark_delete=mark_delete or bool(changes)
            )  # what is in doubt of it is to be written over
            properties.give_up(changes, error)
            raise
        finally:
            self.in_flight = ()
        properties.commit(changes)

    def _contents(self, properties: dict[str, str]) -> Contents:
        return Contents(self._state.mark_delete_position, self.long_properties, properties)

    async def _encode(self, ledgers: Iterable[int]) -> AsyncGenerator[LedgerRecords]:
        """Encode ledgers, and let others run in between, who may add to what is not encoded yet, and to what is."""
        states = self._state.ledger_states
        encode = partial(encode_ledger, limit=self._config.max_entry_bytes)
        paused_at = time.monotonic()
        for ledger in ledgers:
            acks = states.get(ledger)
            if acks is None:
                yield LedgerRecords(ledger, ())
            elif _is_large(acks):
                loop = asyncio.get_running_loop()
                yield LedgerRecords(ledger, await loop.run_in_executor(None, encode, ledger, acks.copy()))
            else:
                yield LedgerRecords(ledger, encode(ledger, acks))
            if time.monotonic() - paused_at > _SLICE_S:
                await asyncio.sleep(0)
                paused_at = time.monotonic()
        self._encoded.set()

    async def _write_old(self, contents: Contents) -> None:
        written = await self._encode_old(contents)
        await self._log.commit_single(written.record, contents)
        self.dropped_ranges, self.dropped_batches = written.dropped_ranges, written.dropped_batches
        if (written.dropped_ranges or written.dropped_batches) and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%d ranges of acknowledged messages, and %d partly acknowledged batches, are not written: one entry has"
                " no room for them; after a restart they are delivered again (enable_lru_cache_max_unacked_ranges"
                " writes all of them)",
                written.dropped_ranges,
                written.dropped_batches,
            )

    async def _encode_old(self, contents: Contents) -> Written:
        """Encode the lowest ledgers, as many as may be written; what takes long is done in a thread, with copies."""
        states, config = self._state.ledger_states, self._config
        most = config.managed_ledger_max_unacked_ranges_to_persist
        chosen: dict[int, LedgerAcks] = {}
        ranges = batches = 0
        for ledger in sorted(states):
            if ranges >= most and batches >= MOST_BATCHES:
                break
            chosen[ledger] = acks = states[ledger].copy()
            ranges, batches = ranges + acks.ranges.range_count, batches + len(acks.batches)
        beyond = [acks for ledger, acks in states.items() if ledger not in chosen]
        head = self._log.next_head(contents)
        single = Single(contents.mark_delete, chosen, contents.properties, contents.cursor_properties, head.sequence)
        encode = partial(encode_single, single, most_ranges=most, limit=config.max_entry_bytes)
        if ranges + batches > _FEW:
            written = await asyncio.get_running_loop().run_in_executor(None, encode)
        else:
            written = encode()
        return Written(
            written.record,
            written.dropped_ranges + sum(acks.ranges.range_count for acks in beyond),
            written.dropped_batches + sum(len(acks.batches) for acks in beyond),
        )


def _is_large(acks: LedgerAcks) -> bool:
    """Return whether it takes longer than others should wait; a thread has memory of its own, that it keeps."""
    ranges, count = acks.ranges, acks.ranges.range_count
    first, last = ranges.first, ranges.last
    if first is not None and last is not None and last - first < _DENSE * count:
        count //= 10
    return count + len(acks.batches) > _MANY_RANGES
