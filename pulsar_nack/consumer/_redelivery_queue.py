"""Holds nacked messages until they are due, and redelivers them from memory or by the broker.

*By the broker*: it is asked for the message; any consumer of the subscription may get it. *From memory*: the payload is
kept and delivered again. Whether to keep a payload is decided when a message is nacked; how to redeliver it, when it is
due: by then the other messages of its batch may have been settled.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NoReturn

from .._delays import MAX_NUMBER_S, Delay
from .._waiting import WaitingCalls, wait_at_most
from ..config import NackConfig
from ..errors import ClosedError, RedeliveryError
from ..ids import MessageId
from ..nack import NegativeAcksTracker, RedeliveryCallback
from ._events import REQUESTED_AGAIN, MessageTrace
from ._id_relations import EntryKey, entry_key, is_member, place_of
from ._mark_delete import MarkDeleteWatch
from ._message_state import ACKING, HELD, REQUESTED, MessageState
from ._message_table import MessageTable
from ._payloads import PayloadCache, kept_bytes
from ._port import ConsumerPort, Delivery, SupportsNowait
from ._requests import REQUEST_MEMORY_MS
from ._settings import ConsumerSettings

_MAX_IN_A_TURN: Final = 1_000
"""Messages that one turn of the loop handles."""
_YEAR_MS = MAX_NUMBER_S * 1000
_id_of: Callable[[MessageState], MessageId] = attrgetter("id")


class RedeliveryQueue:
    """Holds nacked messages in a tracker, whose callback redelivers them.

    :param mark_delete: watches the messages that are held; None: the port does not report positions
    :param lost: called with requested messages that never came, and are dropped
    """

    def __init__(
        self,
        port: ConsumerPort,
        table: MessageTable,
        settings: ConsumerSettings,
        trace: MessageTrace,
        *,
        mark_delete: MarkDeleteWatch | None,
        lost: Callable[[Sequence[MessageState]], None],
    ) -> None:
        traits, redelivery = port.traits, settings.redelivery
        self._custom: RedeliveryCallback | None = redelivery if callable(redelivery) else None
        self.is_auto = redelivery == "auto"
        self._floor_ms = round(traits.min_redelivery_delay * 1000)
        self.only_rewinds = redelivery == "broker" and not traits.honours_ids
        """Whether the broker brings back everything for each request."""
        self.wants_all = not traits.honours_ids
        """Whether nacked messages are to come back to this consumer, for which ``nack`` waits for room in memory."""
        self._always_memory = redelivery == "local" or (self.is_auto and self.wants_all)
        self.may_keep_all = self._always_memory or (self.is_auto and self._floor_ms > 0)
        """Whether the payload of any message may be wanted, whatever the delay of its nack."""
        is_short = 0 < traits.redelivery_latency < 0.001 and not self._floor_ms  # the tracker is ahead by it
        self._latency_ms = 0 if is_short or self._custom is not None else round(traits.redelivery_latency * 1000)
        """How long before its deadline a message is requested."""
        is_requested = traits.honours_ids and (self.is_auto or redelivery == "broker")
        self.config = settings.config or NackConfig()
        self.redeliver: Callable[[Delivery, MessageState], None]
        """Called with each message that is redelivered from memory, and its state; set by the receiver."""
        self.waiting_nacks = WaitingCalls[bool]()
        """Nacks that wait for room; each is woken with whether it must pass, else it checks again."""
        self.end_leases: Callable[[Sequence[MessageId]], Sequence[MessageId]] | None = None
        """Takes due ids, ends the leases among them, and returns the others; None: there are no leases."""
        self.redelivered_local = self.redelivered_broker = self.requested_again = 0
        self.port = port
        self.table = table
        self.payloads = PayloadCache(settings.max_local_bytes)
        self.clock = trace.clock
        self._mark_delete = mark_delete
        self._lost = lost
        self.trace = trace
        self._armed_ms = 0
        self._armed: Delay = 0.0
        self._watched_until_ms: int | None = None
        self._is_sooner = asyncio.Event()
        self._nowait_port = port if isinstance(port, SupportsNowait) else None
        must_wait = self._custom is not None or self._nowait_port is None or self.only_rewinds
        self._most_at_once = min(self.config.max_batch, traits.max_ids_per_request)
        self.tracker = NegativeAcksTracker(
            self.on_due if must_wait else self._on_due_nowait,
            self.config.model_copy(update={"max_batch": self._most_at_once, "max_held": None}),
            clock=trace.clock,
            hooks=trace.hooks,
            collapse=self.only_rewinds,
            lead_time=traits.redelivery_latency if is_short and is_requested else 0.0,
        )

    # --- how a message is redelivered ------------------------------------------------------------------------------

    def want_all(self) -> None:
        """Let nacked messages come back to this consumer: from memory, for which ``nack`` waits for room."""
        self.wants_all = True
        self._always_memory = self._always_memory or self.is_auto

    def is_local(self, delay_ms: int) -> bool:
        """Return whether a nacked message is redelivered from memory, as the broker could not do it as requested."""
        return self._always_memory or (self.is_auto and delay_ms < self._floor_ms)

    def may_keep(self, message_id: MessageId) -> bool:
        """Return whether the payload of a message may be wanted, whatever the delay of its nack."""
        return self.may_keep_all or (self.is_auto and is_member(message_id))

    # --- holding ---------------------------------------------------------------------------------------------------

    def hold(
        self,
        record: MessageState,
        delay_ms: int,
        payload: Delivery | None,
        now_ms: int | None = None,
        *,
        is_local: bool | None = None,
    ) -> None:
        """Hold a message; if it is held already, the earlier deadline counts.

        :param payload: kept if that is wanted and there is room; None if it is not known
        :param now_ms: the time from which the delay counts, None: now
        :param is_local: whether to redeliver it from memory; None: as :meth:`is_local` says, and where the broker does
            it, it is asked early by the port's latency
        """
        if record.state is REQUESTED:
            return
        if record.lease is not None:  # its deadline may be the earlier one
            record.lease = None
            self.tracker.ack(record.id)
        now_ms = self.clock.now_ms() if now_ms is None else now_ms
        may_be_early = is_local is None
        if is_local is None:
            is_local = self.is_local(delay_ms)
        if self._mark_delete is not None:
            self._mark_delete.note(record, delay_ms, now_ms)
        due_at_ms = now_ms + delay_ms
        is_sooner = not record.is_held or due_at_ms < record.due_at_ms
        record.is_held = True
        is_wanted = is_local or (self.is_auto and record.id[3] >= 0 and is_member(record.id))
        if is_wanted and payload is not None and not record.is_doubtful:
            self._keep(payload, must_keep=is_local and self.wants_all)
        if not is_sooner:
            return
        record.due_at_ms = due_at_ms
        record.is_local = is_local and record.id in self.payloads.kept
        record.is_early = may_be_early and not record.is_local and self._latency_ms > 0 and delay_ms > 0
        if record.is_early:
            delay_ms = max(delay_ms - self._latency_ms, 0)
        if delay_ms == self._armed_ms:  # as arm: the hot path
            self.tracker.nack_nowait(record.id, self._armed)
        else:
            self.arm(record.id, delay_ms)

    def _keep(self, payload: Delivery, *, must_keep: bool = False) -> bool:
        """Keep a payload if there is room; over the budget if the alternative is a rewind of everything."""
        size = kept_bytes(payload)
        if has_room := must_keep or self.payloads.has_room(payload.id, size):
            self.payloads.keep(payload, size)
        return has_room

    def doubt(self, records: Sequence[MessageState]) -> None:
        """Drop the payloads of messages that may already be settled; one that arrives is delivered at its time."""
        for record in records:
            record.is_doubtful = True
            self.payloads.pop(record.id)

    def came_again(self, record: MessageState, delivery: Delivery) -> None:
        """Note that a doubtful message has come; if it is held, its payload is kept where that is wanted."""
        record.is_doubtful = False
        if not record.is_held:
            return
        is_local = self.is_local(record.due_at_ms - self.clock.now_ms())
        if (is_local or (self.is_auto and is_member(record.id))) and self._keep(delivery):
            record.is_local = is_local

    def has_room(self, payload: Delivery) -> bool:
        """Return whether a payload may be kept."""
        return self.payloads.has_room(payload.id, kept_bytes(payload))

    def drop(self, message_id: MessageId) -> None:
        """End the hold of a message that is settled."""
        self.tracker.ack(message_id)
        self.payloads.pop(message_id)

    def ask_for(self, counts: Mapping[MessageId, int]) -> None:
        """Soon request messages that this consumer has forgotten; each comes with its last redelivery count."""
        self.table.ask_for(counts, self.clock.now_ms())
        next_at_ms = self.table.requests.next_at()
        if next_at_ms is not None and (self._watched_until_ms is None or next_at_ms < self._watched_until_ms):
            self._is_sooner.set()

    def clear(self) -> None:
        """Forget all holds."""
        self.tracker.clear()
        self.payloads.clear()

    def arm(self, message_id: MessageId, delay_ms: int) -> None:
        """Add a message to the tracker; if it is there already, the earlier deadline counts."""
        if delay_ms != self._armed_ms:
            self._armed_ms = delay_ms
            self._armed = delay_ms / 1000 if delay_ms <= _YEAR_MS else timedelta(milliseconds=delay_ms)
        self.tracker.nack_nowait(message_id, self._armed)  # cached: the tracker recognises its last delay

    # --- due messages ----------------------------------------------------------------------------------------------

    async def on_due(self, ids: Sequence[MessageId], *, is_rewind: bool = False) -> None:
        """Redeliver due messages: the tracker's callback. Lets the loop run in between if there are many.

        :param is_rewind: the broker brings back everything: one id of each topic and partition is enough for it
        """
        requested, requests, left = list[MessageState](), list[int](), iter(ids)
        try:
            while some := list(islice(left, _MAX_IN_A_TURN)):
                records, begun = self._begin_request(some if self.end_leases is None else self.end_leases(some))
                requests += begun
                requested += records
                if len(some) == _MAX_IN_A_TURN < len(ids):
                    await asyncio.sleep(0)
            if requested:
                asked = requested[: self._most_at_once] if self.only_rewinds else requested
                if is_rewind and self._custom is None:
                    asked = list({place_of(record.id): record for record in reversed(requested)}.values())
                await self._send([record.id for record in asked])
        except BaseException as error:  # noqa: BLE001 - raised there
            self._fail_request(requested, requests, error)
        if requested:
            self.redelivered_broker += len(requested)
            self._drop_requested(requested)
            if self.waiting_nacks:
                self.waiting_nacks.wake_all(value=False)

    def _on_due_nowait(self, ids: Sequence[MessageId]) -> None:
        """Redeliver due messages on a port that can request them without waiting."""
        requested, requests = self._begin_request(ids if self.end_leases is None else self.end_leases(ids))
        if requested:
            assert self._nowait_port is not None
            try:
                self._nowait_port.redeliver_nowait(list(map(_id_of, requested)))
            except BaseException as error:  # noqa: BLE001 - raised there
                self._fail_request(requested, requests, error)
            self.redelivered_broker += len(requested)
            if self.payloads.kept:
                self._drop_requested(requested)
            if self.waiting_nacks:
                self.waiting_nacks.wake_all(value=False)

    def _begin_request(self, ids: Sequence[MessageId]) -> tuple[list[MessageState], list[int]]:
        """Redeliver due messages from memory that belong there, and begin to request the others from the broker.

        Return those, and the numbers of their requests.
        """
        records: list[MessageState] = []
        for record in map(self.table.get, ids):
            if record is None:
                continue
            if record.state is HELD:
                records.append(record)
            elif record.state is ACKING and record.before_ack is HELD:
                record.is_due = True
        if self.payloads.kept:
            records = self._not_local(records)
        if not records:
            return [], []
        now_ms = self.clock.now_ms()
        if self.table.requests.open:
            self.table.expire(now_ms)
        if self.trace.is_on:
            for record in records:  # if it is not held, a request for this hold has failed
                self.trace.redeliver(record, None if record.is_held else REQUESTED_AGAIN)
        request, requests = self.table.request, list[int]()
        for record in records:
            requests.append(request(record, now_ms))
        watched_until_ms = self._watched_until_ms
        if watched_until_ms is None or now_ms + REQUEST_MEMORY_MS < watched_until_ms or self.table.requests.lost:
            self._is_sooner.set()
        return records, requests

    def _not_local(self, records: Sequence[MessageState]) -> list[MessageState]:
        """Redeliver from memory what belongs there; return the messages that the broker is to redeliver."""
        due_members = Counter(entry_key(record.id) for record in records if record.id[3] >= 0 and is_member(record.id))
        return [record for record in records if not self._bring_back_locally(record, due_members)]

    def _bring_back_locally(self, record: MessageState, due_members: Counter[EntryKey]) -> bool:
        """Redeliver a message from memory, at its deadline; return False if the broker has to redeliver it."""
        if record.id not in self.payloads.kept:
            return False
        if not record.is_local:
            table, entry = self.table, entry_key(record.id)
            others = due_members[entry] + table.requested_members.get(entry, 0)
            if not table.acked.has_busy_members(record.id, others):
                return False
            self.trace.hold(record.id, record.redelivery_count, "busy batch mates")
        early_ms = record.due_at_ms - self.clock.now_ms()
        is_last_ms = early_ms == 1 and not record.is_local and self.tracker.lead_time > 0
        must_wait = early_ms > 0 and (record.is_early or is_last_ms)
        record.is_local, record.is_early = True, False
        if must_wait:
            self.arm(record.id, early_ms + is_last_ms)  # as the tracker is ahead by a part of it
            return True
        delivery = self.payloads.pop(record.id)
        assert delivery is not None
        self.redelivered_local += 1
        self.trace.redeliver(record)
        self.table.redeliver(record)
        self.redeliver(delivery, record)
        if self.waiting_nacks:
            self.waiting_nacks.wake_all(value=False)
        return True

    def _fail_request(self, records: Sequence[MessageState], requests: Sequence[int], error: BaseException) -> NoReturn:
        failed = [
            record.id
            for record, request in zip(records, requests, strict=True)
            if self.table.request_failed(record, request)
        ]
        self._trace_failed(failed, error)
        if isinstance(error, Exception):
            raise RedeliveryError(str(error), failed=failed) from error
        raise error

    def _drop_requested(self, records: Sequence[MessageState]) -> None:
        """Drop the payloads of messages that the broker redelivers."""
        for record in records if self.payloads.kept else ():
            if record.state is REQUESTED:
                self.payloads.pop(record.id)

    # --- repeated requests -------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Repeat requests that brought nothing, until cancelled; a callback of the user is not repeated."""
        while self._custom is None:
            next_at = self.table.requests.next_at()
            self._watched_until_ms = next_at
            self._is_sooner.clear()
            delay_ms = None if next_at is None else next_at - self.clock.now_ms()
            if delay_ms is None or delay_ms > 0:
                await wait_at_most(self._is_sooner, None if delay_ms is None else delay_ms / 1000)
            elif not await self._request_again():
                return

    async def _request_again(self) -> bool:
        """Repeat the requests that are due; False: the port is closed."""
        requests, now_ms = self.table.requests, self.clock.now_ms()
        self.table.expire(now_ms)
        lost, requests.lost = requests.lost, []
        if lost:
            self._lost(lost)
        due = requests.pop_due(now_ms, self._most_at_once)
        ids = list(due)
        self.trace.request_again(self._counts_of(ids), REQUESTED_AGAIN)
        try:
            if due:
                await self.port.redeliver(ids)
        except ClosedError:
            return False
        except Exception as error:  # noqa: BLE001 - tried again
            self._trace_failed(ids, error)
            awaited = {each: turn for each, turn in due.items() if self._is_awaited(each)}
            requests.repeat_failed(awaited, self.clock.now_ms())
        else:
            self.requested_again += len(due)
            for message_id, turn in due.items():
                if self._is_awaited(message_id):
                    requests.repeat(message_id, now_ms, turn + 1)
        return True

    def _is_awaited(self, message_id: MessageId) -> bool:
        """Return whether a message whose request brought nothing has not come or been settled since."""
        return message_id in self.table.requests.counts and self.table.get(message_id) is None

    def _counts_of(self, ids: Iterable[MessageId]) -> Iterator[tuple[MessageId, int | None]]:
        """Return with which redelivery count each message was delivered last, None where that is not known."""
        for message_id in ids:
            record = self.table.get(message_id)
            known = self.table.requests.counts.get(message_id) if record is None else record.redelivery_count
            yield message_id, known

    def _trace_failed(self, ids: Iterable[MessageId], error: BaseException) -> None:
        for message_id, count in self._counts_of(ids):
            self.trace.error(message_id, count, "redeliver", error)

    async def _send(self, ids: Sequence[MessageId]) -> None:
        if self._custom is None:
            await self.port.redeliver(ids)
            return
        result: Any = self._custom(ids)
        if inspect.isawaitable(result):
            await result
