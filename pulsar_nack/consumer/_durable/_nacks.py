"""The durable state of one consumer: what it remembers, and the journal that makes it last."""

from __future__ import annotations

import asyncio
from os import PathLike
from pathlib import Path
from typing import Final, Self

from ...clock import Clock
from ...errors import InvalidArgumentError, LogLockedError
from ...ids import MessageId
from ...ledger import LocalLogStore, Log, LogStore
from ...ledger._folder import as_folder
from .._port import Delivery
from .._redelivery import Holds
from .._states import States
from ._epoch import Epoch
from ._generations import IN_USE, recover, take_place
from ._journal import COMPACT_BYTES, Journal, Outcome
from ._memory import Memory
from ._records import NO_ID, Change, EntryAcks, Kind, encode_change
from ._unsettled import Found

DurableHome = str | PathLike[str] | LogStore
"""Where durable nacks are kept: a folder, or a store of logs; of one consumer alone."""


_SLICE: Final = 500


def check_home(durable: object) -> None:
    """Refuse what is neither a path nor a store."""
    if isinstance(durable, str | PathLike):
        as_folder("durable", durable)
    elif not isinstance(durable, LogStore):
        raise InvalidArgumentError("durable", durable, "a path, or a LogStore such as LocalLogStore")


class DurableNacks:
    """Made by :meth:`open`; :meth:`run` has to run for what the others return to come.

    A consumer calls :meth:`restore` before :meth:`holds_back`.
    """

    _states: States
    _holds: Holds

    def __init__(self, owner: Log, journal: Journal, memory: Memory, epoch: Epoch) -> None:
        self.restored = 0
        self._own_store: LogStore | None = None
        self._owner = owner
        self._memory = memory
        self._epoch = epoch
        self.journal = journal
        self.run = journal.run
        self.finish = journal.finish

    @classmethod
    async def open(
        cls,
        durable: DurableHome,
        *,
        memory_ms: int,
        ttl_ms: int,
        clock: Clock,
        compact_bytes: int = COMPACT_BYTES,
    ) -> Self:
        """Read what is there, or begin.

        :param memory_ms: how long acknowledgements are remembered
        :param ttl_ms: how long unsettled messages that do not come are, after their deadline
        :param clock: epoch ms
        :raises LogLockedError: another consumer uses it
        :raises LedgerError: it cannot be read or written
        """
        if isinstance(durable, LogStore):
            return await cls._open(durable, memory_ms, ttl_ms, clock, compact_bytes)
        store = await LocalLogStore.open(durable, threads=2)
        try:
            self = await cls._open(store, memory_ms, ttl_ms, clock, compact_bytes)
        except LogLockedError as error:
            await store.aclose()
            raise LogLockedError(str(Path(durable) / error.log), IN_USE) from error
        except BaseException:
            await store.aclose()
            raise
        self._own_store = store
        return self

    @classmethod
    async def _open(cls, store: LogStore, memory_ms: int, ttl_ms: int, clock: Clock, compact_bytes: int) -> Self:
        owner = await take_place(store)
        try:
            memory, epoch = Memory(memory_ms, ttl_ms), Epoch(clock)
            chain = await recover(store, memory)
            try:
                epoch.note(memory.last_at_ms)
                opened = Change(Kind.OPENED, NO_ID, epoch.now_ms(), epoch.now_ms())
                await chain.log.append(encode_change(opened))
            except BaseException:
                await chain.log.aclose()
                raise
            memory.apply(opened)
        except BaseException:
            await owner.aclose()
            raise
        journal = Journal(store, chain, memory, epoch, compact_bytes=compact_bytes)
        return cls(owner, journal, memory, epoch)

    async def aclose(self) -> None:
        """Close the logs, and the store if it is our own; :meth:`run` has ended."""
        try:
            await self.journal.aclose()
            await self._owner.aclose()
        finally:
            if self._own_store is not None:
                await self._own_store.aclose()

    def __len__(self) -> int:
        return len(self._memory)

    def find(self, message_id: MessageId) -> Found | None:
        """Return what is known of an unsettled message."""
        return self._memory.find(message_id)

    def holds_back(self, delivery: Delivery, now_ms: int) -> bool:
        """Return whether a message came before its time, after a restart: it is held. Due ones go on counting.

        :param now_ms: the time of the consumer's own clock
        """
        states = self._states
        if states.get(delivery.id) is not None or states.is_hidden(delivery.id, now_ms):
            return False
        found = self.find(delivery.id)
        if found is None:
            return False
        remaining_ms = found.time_ms - self._epoch.now_ms()
        if remaining_ms <= 0:
            states.remember(delivery.id, found.redeliveries)
            return False
        record = states.restore(delivery.id, found.redeliveries, delivery.redelivery_count)
        self._holds.hold(record, remaining_ms, delivery)
        self.restored += 1
        return True

    async def restore(self, states: States, holds: Holds, now_ms: int) -> None:
        """Tell the consumer what was acknowledged before it was opened; lets others run meanwhile.

        :param states: its messages, to be looked at from now on; likewise ``holds``
        :param now_ms: the time of its own clock
        """
        self._states, self._holds = states, holds
        for step, item in enumerate(self._memory.acknowledged()):
            if step % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if isinstance(item, EntryAcks):
                if item.is_done:
                    states.settle(item.id, now_ms)
                else:
                    states.batches.restore(item.id, item.acked)
            elif item.kind is Kind.THROUGH:
                states.settle_through(item.id, now_ms)
            else:
                states.settle(item.id, now_ms)

    # --- what happens: each call returns a future of the error, None once it is durable ------------------------------

    def nacked(self, message_id: MessageId, delay_ms: int, count: int) -> asyncio.Future[Outcome]:
        """Note a negative acknowledgement, ``count`` redeliveries after the first delivery."""
        now_ms = self._epoch.now_ms()
        return self.journal.write(Change(Kind.NACKED, message_id, now_ms, now_ms + delay_ms, count))

    def shown(self, message_id: MessageId, count: int) -> asyncio.Future[Outcome]:
        """Note that a message is given to the user."""
        return self._write(Kind.SHOWN, message_id, count)

    def settled(self, message_id: MessageId) -> asyncio.Future[Outcome]:
        """Note an acknowledgement."""
        return self._write(Kind.SETTLED, message_id)

    def settled_through(self, message_id: MessageId) -> asyncio.Future[Outcome]:
        """Note a cumulative acknowledgement."""
        return self._write(Kind.THROUGH, message_id)

    def cleared(self) -> asyncio.Future[Outcome]:
        """Note that everything is forgotten."""
        return self._write(Kind.CLEARED, NO_ID)

    def _write(self, kind: Kind, message_id: MessageId, count: int = 0) -> asyncio.Future[Outcome]:
        now_ms = self._epoch.now_ms()
        return self.journal.write(Change(kind, message_id, now_ms, now_ms, count))
