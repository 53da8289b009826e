"""The durable state of one consumer: what it remembers, and the journal that makes it last."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final, NamedTuple, Self

from ...clock import Clock
from ...cursor import DispatchGate
from ...errors import InvalidArgumentError, LogLockedError
from ...ids import MessageId
from ...ledger import LocalLogStore, Log, LogStore
from ...ledger._folder import as_folder
from ...ledger._taking import Part, given_back, take
from .._message_table import MessageTable
from .._port import Delivery
from .._redelivery_queue import RedeliveryQueue
from ._ageing import Ageing
from ._epoch import Epoch
from ._generations import IN_USE, STATE, recover, take_place
from ._journal import COMPACT_BYTES, Journal, Outcome
from ._memory import Memory
from ._records import NO_ID, Change, Kind, encode_change
from ._unsettled import Found

DurableHome = str | PathLike[str] | LogStore
"""Where durable nacks are kept: a folder, or a store of logs; of one consumer alone."""


_log = logging.getLogger("pulsar_nack.consumer")
_SLICE: Final = 500
_GROWTH: Final = 24
"""What the acknowledgement of a message in flight adds to the state, about: a range, or its part of a batch's set."""


def check_home(durable: object) -> None:
    """Refuse what is neither a path nor a store."""
    if isinstance(durable, str | PathLike):
        as_folder("durable", durable)
    elif not isinstance(durable, LogStore):
        raise InvalidArgumentError("durable", durable, "a path, or a LogStore such as LocalLogStore")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What durable state asks of its consumer.

    :param in_flight: how many messages the user has, or are held
    :param is_connected: whether the transport has its connection
    :param max_ack_state_bytes: bound of the acknowledgements, below 1: none
    """

    in_flight: Callable[[], int] = lambda: 0
    is_connected: Callable[[], bool] = lambda: True
    max_ack_state_bytes: int = 0


class Place(NamedTuple):
    """What makes this consumer the owner: its part of the store, and the log that it holds open there."""

    store: Part
    owner: Log


class DurableNacks:
    """Made by :meth:`open`; :meth:`run` has to run for what the others return to come.

    A consumer calls :meth:`restore` before :meth:`holds_back`.
    """

    _states: MessageTable
    _holds: RedeliveryQueue

    def __init__(
        self, place: Place, journal: Journal, memory: Memory, epoch: Epoch, surroundings: Surroundings
    ) -> None:
        self.restored = 0
        self._own_store: LocalLogStore | None = None
        self._place = place
        self._memory = memory
        self._epoch = epoch
        self.journal = journal
        self._half_limit = surroundings.max_ack_state_bytes // 2
        self._in_flight = surroundings.in_flight
        self.gate = DispatchGate(
            surroundings.max_ack_state_bytes, lambda: memory.settled.bytes, self._reserved, name="a consumer"
        )
        self._ageing = Ageing(
            memory,
            journal,
            epoch,
            is_connected=surroundings.is_connected,
            dropped=self.gate.changed,
        )
        journal.on_written = self._on_written
        self._ageing.note()

    @classmethod
    async def open(
        cls,
        durable: DurableHome,
        *,
        memory_ms: int,
        ttl_ms: int,
        clock: Clock,
        keeps_members: bool = True,
        compact_bytes: int = COMPACT_BYTES,
        surroundings: Surroundings | None = None,
    ) -> Self:
        """Read what is there, or begin.

        :param memory_ms: how long acknowledgements are remembered; 0: the broker keeps what is noted
        :param keeps_members: the broker learns of a batch once all its messages are acknowledged
        :param ttl_ms: how long unsettled messages that do not come are, after their deadline
        :param clock: epoch ms
        :raises LogLockedError: another consumer uses it
        :raises LedgerError: it cannot be read or written
        """
        memory, around = Memory(memory_ms, ttl_ms, keeps_members=keeps_members), surroundings or Surroundings()
        if isinstance(durable, LogStore):
            return await cls._open(durable, memory, Epoch(clock), compact_bytes, around)
        store = await LocalLogStore.open(durable, threads=2)
        async with given_back([store]):
            try:
                self = await cls._open(store, memory, Epoch(clock), compact_bytes, around)
            except LogLockedError as error:
                raise LogLockedError(str(Path(durable) / error.log), IN_USE, owner=error.owner) from error
        self._own_store = store
        return self

    @classmethod
    async def _open(
        cls, store: LogStore, memory: Memory, epoch: Epoch, compact_bytes: int, around: Surroundings
    ) -> Self:
        part = await take(store, STATE)
        async with given_back([part]):
            place = Place(part, await take_place(part))
            chain = await recover(part, memory)
            epoch.note(memory.last_at_ms)
            opened = Change(Kind.OPENED, NO_ID, epoch.now_ms(), epoch.now_ms())
            await chain.log.append(encode_change(opened))
        memory.apply(opened)
        journal = Journal(part, chain, memory, epoch, compact_bytes=compact_bytes)
        return cls(place, journal, memory, epoch, around)

    async def run(self) -> None:
        """Write changes and let acknowledgements grow old, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.journal.run())
            tasks.create_task(self._ageing.run())

    def _on_written(self) -> None:
        self._ageing.note()
        self.gate.changed()

    async def finish(self, timeout: float = math.inf) -> None:
        """Wait until everything that was called for is written, for so many seconds at most."""
        if not await _ends(self.journal.finish(), timeout):
            self.journal.failures += self.journal.waiting
            _log.warning("durable state: storage does not answer; %d changes may not be there", self.journal.waiting)

    async def aclose(self, timeout: float = math.inf) -> None:
        """Close the logs, and the store if it is our own, after :meth:`run`; past the timeout this goes on alone."""
        if not await _ends((self._own_store or self._place.store).aclose(), timeout):
            _log.warning("durable state: storage does not answer; it is let go as soon as it does")

    def __len__(self) -> int:
        return len(self._memory)

    def find(self, message_id: MessageId) -> Found | None:
        """Return what is known of an unsettled message."""
        return self._memory.find(message_id)

    def was_acked(self, message_id: MessageId) -> bool:
        """Return whether a message was acknowledged, and the broker may not know."""
        return self._memory.settled.is_acked(message_id, self._epoch.now_ms())

    @property
    def acked_entries(self) -> int:
        """Return how many entries are known to be acknowledged, at least in part. O(ledgers)."""
        return self._memory.settled.entries

    @property
    def ack_bytes(self) -> int:
        """Return about what the acknowledgements take on storage."""
        return self._memory.settled.bytes

    def admits(self, message_id: MessageId, *, is_redelivered: bool, is_behind: bool) -> bool:
        """Return whether a message may be shown: there is room for its acknowledgement, or it needs none.

        :param is_behind: others wait that came before; a new one then waits too
        """
        if not is_behind and self._has_plenty_of_room():
            return True
        settled = self._memory.settled
        adds_range = not settled.adds_nothing(message_id)
        if is_redelivered or settled.is_hole(message_id):
            return self.gate.admit_old(1, adds_range=adds_range) > 0
        return not (is_behind and adds_range) and self.gate.admit_new(1, adds_range=adds_range) > 0

    def _reserved(self) -> int:
        return _GROWTH * self._in_flight()

    def _has_plenty_of_room(self) -> bool:
        if self._half_limit <= 0:
            return True
        return not self.gate.is_paused and self.ack_bytes + self._reserved() < self._half_limit

    def holds_back(self, delivery: Delivery, now_ms: int) -> bool:
        """Return whether a message came before its time, after a restart: it is held. Due ones go on counting.

        :param now_ms: the time of the consumer's own clock
        """
        states = self._states
        if states.get(delivery.id) is not None or states.acked.hides(delivery.id, now_ms):
            return False
        found = self.find(delivery.id)
        if found is None:
            return False
        remaining_ms = found.time_ms - self._epoch.now_ms()
        if remaining_ms <= 0:
            states.requests.remember(delivery.id, found.redeliveries)
            return False
        record = states.restore(delivery.id, found.redeliveries, delivery.redelivery_count)
        self._holds.hold(record, remaining_ms, delivery)
        self.restored += 1
        return True

    async def restore(self, states: MessageTable, holds: RedeliveryQueue, now_ms: int) -> None:
        """Tell the consumer what was acknowledged before it was opened; lets others run meanwhile.

        :param states: its messages, to be looked at from now on; likewise ``holds``
        :param now_ms: the time of its own clock
        """
        self._states, self._holds = states, holds
        self._memory.drop_old(self._memory.last_at_ms)
        for step, item in enumerate(self._memory.settled.batches()):
            if step % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            states.batches.restore(item.id, item.acked)
        for mark in self._memory.settled.marks():
            states.settle_through(mark.id, now_ms)

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

    def confirmed(self) -> asyncio.Future[Outcome]:
        """Note that the broker keeps what was acknowledged; that counts here at once."""
        self._memory.settled.confirmed()
        return self._write(Kind.CONFIRMED, NO_ID)

    def cleared(self) -> asyncio.Future[Outcome]:
        """Note that everything is forgotten."""
        return self._write(Kind.CLEARED, NO_ID)

    def _write(self, kind: Kind, message_id: MessageId, count: int = 0) -> asyncio.Future[Outcome]:
        now_ms = self._epoch.now_ms()
        return self.journal.write(Change(kind, message_id, now_ms, now_ms, count))


async def _ends(work: Awaitable[None], timeout: float) -> bool:
    """Await some work, and return whether it ended in time."""
    try:
        async with asyncio.timeout(None if timeout == math.inf else timeout):
            await work
    except TimeoutError:
        return False
    return True
