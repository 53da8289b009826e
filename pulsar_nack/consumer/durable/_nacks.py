"""The durable nacks of one consumer: its state, journal and gate, and the expiry of acknowledgements."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from os import PathLike
from pathlib import Path
from typing import Final, Self

from ..._check import as_folder
from ...clock import Clock
from ...cursor import DispatchGate
from ...errors import InvalidArgumentError, LogLockedError
from ...ids import MessageId
from ...ledger import LocalLogStore, Log, LogStore
from ...ledger.ownership import OwnableStore, close_on_error, take_ownership
from .._message_state import MessageState
from .._message_table import MessageTable
from .._port import Delivery
from ._generations import IN_USE, STATE, acquire_ownership
from ._journal import COMPACT_BYTES, Journal, Outcome
from ._records import NO_ID, Change, RecordKind
from ._state import DurableState

DurableHome = str | PathLike[str] | LogStore
"""The place of durable nacks: a folder or a store of logs, for one consumer alone."""

_log = logging.getLogger("pulsar_nack.consumer")
_STEP: Final = 500
_ACK_BYTES: Final = 24
"""About what the acknowledgement of a message in flight adds to the state: a range, or its share of a batch."""


def check_home(durable: object) -> None:
    """Raise unless this is a path or a store."""
    if isinstance(durable, str | PathLike):
        as_folder("durable", durable)
    elif not isinstance(durable, LogStore):
        raise InvalidArgumentError("durable", durable, "a path, or a LogStore such as LocalLogStore")


class DurableNacks:
    """The durable state of one consumer: :meth:`open` it; changes are written while :meth:`run` runs.

    The consumer calls :meth:`restore` before :meth:`holds_back`.

    :param memory_ms: how long acknowledgements are remembered; 0: the broker has confirmed those that are written
    :param keeps_members: whether the broker is informed of a batch only when all its messages are acknowledged
    :param ttl_ms: how long pending messages that do not arrive are remembered after their deadline
    :param clock: epoch ms
    :param in_flight: returns the number of messages that are delivered or held
    :param is_connected: returns whether the transport has its connection
    :param max_ack_state_bytes: the limit of the acknowledgements' size; below 1: unlimited
    """

    journal: Journal
    _states: MessageTable
    _hold: Callable[[MessageState, int, Delivery], object]
    _store: OwnableStore | LocalLogStore  # closed at last
    _owner_log: Log  # open as long as the state is owned

    def __init__(
        self,
        *,
        memory_ms: int,
        ttl_ms: int,
        clock: Clock,
        keeps_members: bool = True,
        compact_bytes: int = COMPACT_BYTES,
        in_flight: Callable[[], int] = lambda: 0,
        is_connected: Callable[[], bool] = lambda: True,
        max_ack_state_bytes: int = 0,
    ) -> None:
        self.restored = 0
        self.state = state = DurableState(memory_ms, ttl_ms, keeps_members=keeps_members)
        self._clock = clock
        self._compact_bytes = compact_bytes
        self._half_limit = max_ack_state_bytes // 2
        self._in_flight = in_flight
        self._is_connected = is_connected
        self.gate = DispatchGate(max_ack_state_bytes, lambda: state.acked.bytes, self._reserved, name="a consumer")
        self._has_expiring = asyncio.Event()

    async def open(self, durable: DurableHome) -> Self:
        """Open the durable state, or create it.

        :raises LogLockedError: another consumer uses the state
        :raises LedgerError: the state cannot be read or written
        """
        if isinstance(durable, LogStore):
            await self._open(durable)
            return self
        store = await LocalLogStore.open(durable, threads=2)
        async with close_on_error([store]):
            try:
                await self._open(store)
            except LogLockedError as error:
                raise LogLockedError(str(Path(durable) / error.log), IN_USE, owner=error.owner) from error
        self._store = store
        return self

    async def _open(self, store: LogStore) -> None:
        part = await take_ownership(store, STATE)
        self.journal = Journal(part, self.state, self._clock, compact_bytes=self._compact_bytes)
        async with close_on_error([part]):
            self._owner_log = await acquire_ownership(part)
            await self.journal.open()
        self._store = part
        self.journal.on_written = self._on_written
        self._on_written()

    async def run(self) -> None:
        """Write changes and drop old acknowledgements until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.journal.run())
            tasks.create_task(self._expire_acks())

    async def _expire_acks(self) -> None:
        """Drop acknowledgements that the broker has by now, until cancelled; idle while none of them expire.

        Time without a connection does not count.
        """
        acked = self.state.acked
        while True:
            await self._has_expiring.wait()
            began_ms, was_connected = self.journal.now_ms(), self._is_connected()
            await asyncio.sleep(acked.slice_ms / 1000)
            now_ms = self.journal.now_ms()
            if not (was_connected and self._is_connected()):
                await self.journal.write(Change(RecordKind.DISCONNECTED, NO_ID, now_ms, began_ms))
            self.state.drop_old(now_ms)
            if not acked.has_expiring:
                self._has_expiring.clear()
            self.gate.changed()

    def _on_written(self) -> None:
        if self.state.acked.has_expiring:
            self._has_expiring.set()
        self.gate.changed()

    async def finish(self, timeout: float = math.inf) -> None:
        """Wait until all changes are written, at most ``timeout`` seconds."""
        if not await _ends_in_time(self.journal.finish(), timeout):
            self.journal.failures += self.journal.waiting
            _log.warning("durable state: storage does not answer; %d changes may not be there", self.journal.waiting)

    async def aclose(self, timeout: float = math.inf) -> None:
        """Close the logs, and the store of a folder, after :meth:`run`; after ``timeout`` s in the background."""
        if not await _ends_in_time(self._store.aclose(), timeout):
            _log.warning("durable state: storage does not answer; it is closed as soon as it does")

    def was_acked(self, message_id: MessageId) -> bool:
        """Return whether a message was acknowledged and the broker may not know it."""
        return self.state.acked.is_acked(message_id, self.journal.now_ms())

    def admits(self, message_id: MessageId, *, is_redelivered: bool, is_behind: bool) -> bool:
        """Return whether a message may be delivered: there is room for its acknowledgement, or it needs none.

        :param is_behind: whether earlier messages wait for admission; a new message waits behind them
        """
        if not is_behind and self._has_plenty_of_room():
            return True
        acked = self.state.acked
        adds_range = not acked.adds_nothing(message_id)
        if is_redelivered or acked.is_in_hole(message_id):
            return self.gate.admit_old(1, adds_range=adds_range) > 0
        return not (is_behind and adds_range) and self.gate.admit_new(1, adds_range=adds_range) > 0

    def _reserved(self) -> int:
        return _ACK_BYTES * self._in_flight()

    def _has_plenty_of_room(self) -> bool:
        if self._half_limit <= 0:
            return True
        return not self.gate.is_paused and self.state.acked.bytes + self._reserved() < self._half_limit

    def holds_back(self, delivery: Delivery, now_ms: int) -> bool:
        """Hold a message that arrives before its deadline after a restart, and return True; a due one keeps its count.

        :param now_ms: the time of the consumer's clock
        """
        states = self._states
        if states.get(delivery.id) is not None or states.acked.hides(delivery.id, now_ms):
            return False
        pending = self.state.pending.find(delivery.id)
        if pending is None:
            return False
        deadline_ms, redeliveries = pending
        remaining_ms = deadline_ms - self.journal.now_ms()
        if remaining_ms <= 0:
            states.requests.remember(delivery.id, redeliveries)
            return False
        record = states.restore(delivery.id, redeliveries, delivery.redelivery_count)
        self._hold(record, remaining_ms, delivery)
        self.restored += 1
        return True

    async def restore(
        self, states: MessageTable, hold: Callable[[MessageState, int, Delivery], object], now_ms: int
    ) -> None:
        """Give the consumer the acknowledgements from before its opening; other tasks run in between.

        :param states: the consumer's messages, used from now on
        :param hold: holds a message for this many ms
        :param now_ms: the time of the consumer's clock
        """
        self._states, self._hold = states, hold
        self.state.drop_old(self.state.last_at_ms)
        for step, batch in enumerate(self.state.acked.batches()):
            if step % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            states.acked.restore_batch(batch.id, batch.acked)
        for mark in self.state.acked.marks():
            states.settle_through(mark.id, now_ms)

    # --- changes: each call returns a future of the error, or None once the change is durable -------------------------

    def nacked(self, message_id: MessageId, delay_ms: int, count: int) -> asyncio.Future[Outcome]:
        """Write a negative acknowledgement, ``count`` redeliveries after the first delivery."""
        now_ms = self.journal.now_ms()
        return self.journal.write(Change(RecordKind.NACKED, message_id, now_ms, now_ms + delay_ms, count))

    def delivered(self, message_id: MessageId, count: int) -> asyncio.Future[Outcome]:
        """Write that a message is delivered to the application."""
        return self._write(RecordKind.DELIVERED, message_id, count)

    def acked(self, message_id: MessageId) -> asyncio.Future[Outcome]:
        """Write an acknowledgement."""
        return self._write(RecordKind.ACKED, message_id)

    def acked_up_to(self, message_id: MessageId) -> asyncio.Future[Outcome]:
        """Write a cumulative acknowledgement."""
        return self._write(RecordKind.CUMULATIVE_ACK, message_id)

    def confirmed(self) -> asyncio.Future[Outcome]:
        """Write that the broker has stored all acknowledgements; this is applied at once."""
        self.state.acked.confirm()
        return self._write(RecordKind.CONFIRMED, NO_ID)

    def cleared(self) -> asyncio.Future[Outcome]:
        """Write that the state is cleared."""
        return self._write(RecordKind.CLEARED, NO_ID)

    def _write(self, kind: RecordKind, message_id: MessageId, count: int = 0) -> asyncio.Future[Outcome]:
        now_ms = self.journal.now_ms()
        return self.journal.write(Change(kind, message_id, now_ms, now_ms, count))


async def _ends_in_time(work: Awaitable[None], timeout: float) -> bool:
    """Await work, and return whether it ended within ``timeout`` seconds."""
    try:
        async with asyncio.timeout(None if timeout == math.inf else timeout):
            await work
    except TimeoutError:
        return False
    return True
