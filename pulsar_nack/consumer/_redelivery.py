"""Holds nacked messages until they are due and brings them back, one way or the other."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Final, NoReturn

from .._delays import MAX_NUMBER_S, Delay
from ..clock import Clock
from ..config import NackConfig
from ..errors import ClosedError, RedeliveryError
from ..ids import MessageId
from ..nack import NackHook, NegativeAcksTracker, RedeliveryCallback
from ._batches import EntryKey, entry_key, is_member
from ._local_store import LocalStore
from ._port import ConsumerPort, Delivery, SupportsRedeliverNowait
from ._states import Record, State, States
from ._tracing import TraceNote
from ._ways import Redelivery, Ways

_MOST_IN_A_TURN: Final = 1_000
"""Messages that one turn of the loop handles."""
ASKED_AGAIN = "asked again"
"""Why a redelivery is traced that was traced before."""

_YEAR_MS = MAX_NUMBER_S * 1000


class Holds:
    """The tracker's user and its callback.

    :param show: called with what is shown from memory, and its record
    :param freed: called when room was made
    :param waits: called with what is held from now on, and for how many ms
    :param gone: called with what was asked for in vain and is dropped
    """

    def __init__(
        self,
        port: ConsumerPort,
        states: States,
        store: LocalStore,
        redelivery: Redelivery,
        config: NackConfig,
        *,
        clock: Clock,
        hooks: Sequence[NackHook],
        show: Callable[[Delivery, Record], None],
        freed: Callable[[], None],
        waits: Callable[[Record, int], None],
        gone: Callable[[Sequence[Record]], None],
        note: TraceNote | None = None,
    ) -> None:
        self.ways = Ways(redelivery, port.traits)
        self.redelivered_local = 0
        self.redelivered_broker = 0
        self.asked_again = 0
        self._port = port
        self._states = states
        self._store = store
        self._custom: RedeliveryCallback | None = redelivery if callable(redelivery) else None
        self._clock = clock
        self._show = show
        self._freed = freed
        self._waits = waits
        self._gone = gone
        self._note = note
        self._armed_ms = 0
        self._armed: Delay = 0.0
        self._watched_until_ms: int | None = None
        self._is_earlier = asyncio.Event()
        self._nowait_port = port if isinstance(port, SupportsRedeliverNowait) else None
        must_wait = self._custom is not None or self._nowait_port is None or self.ways.only_rewinds
        most = self._most_at_once = min(config.max_batch, port.traits.max_ids_per_request)
        self.tracker = NegativeAcksTracker(
            self.on_due if must_wait else self._on_due_nowait,
            config.model_copy(update={"max_batch": most, "max_held": None}),
            clock=clock,
            hooks=hooks,
            collapse=self.ways.only_rewinds,
            lead_time=self.ways.ahead,
        )

    def hold(self, record: Record, delay_ms: int, payload: Delivery | None) -> None:
        """Hold a message; held already, the earlier deadline counts.

        :param payload: what to keep if that is wanted and there is room, None if it is not known
        """
        if record.state is State.REQUESTED:
            return
        self._waits(record, delay_ms)
        plan = self.ways.plan(record.id, delay_ms)
        due_at_ms = self._clock.now_ms() + delay_ms
        is_earlier = not record.is_held or due_at_ms < record.due_at_ms
        record.is_held = True
        if (
            plan.keeps
            and payload is not None
            and not record.is_doubtful
            and (plan.must_keep or self._store.has_room(payload))
        ):
            self._store.keep(payload)  # over the budget rather than a rewind of everything, see Room
        if not is_earlier:
            return
        record.due_at_ms = due_at_ms
        record.is_local = plan.is_local and record.id in self._store
        record.is_ahead = not record.is_local and plan.ahead_ms > 0
        self._arm(record.id, delay_ms - plan.ahead_ms if record.is_ahead else delay_ms)

    def doubt(self, records: Sequence[Record]) -> None:
        """Keep messages in memory no more, as they may be settled: each is shown if it comes, and at its time."""
        for record in records:
            self._store.pop(record.id)

    def came_again(self, record: Record, delivery: Delivery) -> None:
        """Note that a message that was in doubt has come; held, it is kept if that is wanted and there is room."""
        record.is_doubtful = False
        if not record.is_held:
            return
        plan = self.ways.plan(record.id, record.due_at_ms - self._clock.now_ms())
        if plan.keeps and self._store.has_room(delivery):
            self._store.keep(delivery)
            record.is_local = plan.is_local

    def must_wait(self, message_id: MessageId, delay_ms: int, payload: Delivery | None) -> bool:
        """Return whether there is no room for a payload that had better be kept."""
        if payload is None or not self.ways.plan(message_id, delay_ms).must_keep:
            return False
        return not self._store.has_room(payload)

    def drop(self, message_id: MessageId) -> None:
        """Forget a hold: the message is settled."""
        self.tracker.ack(message_id)
        self._store.pop(message_id)

    def hold_again(self, record: Record) -> None:
        """Let a message come due at once: its time came while an acknowledgement was under way that failed."""
        self._arm(record.id, 0)

    def ask_for(self, counts: Mapping[MessageId, int]) -> None:
        """Ask the broker soon for messages that were forgotten here, by how often each was delivered."""
        self._states.ask_for(counts, self._clock.now_ms())
        self._watch_from(self._states.next_request_at())

    def clear(self) -> None:
        """Forget all holds."""
        self.tracker.clear()
        self._store.clear()

    def _arm(self, message_id: MessageId, delay_ms: int) -> None:
        if delay_ms != self._armed_ms:
            self._armed_ms = delay_ms
            self._armed = delay_ms / 1000 if delay_ms <= _YEAR_MS else timedelta(milliseconds=delay_ms)
        self.tracker.nack_nowait(message_id, self._armed)  # cached: the tracker recognises its last delay

    # --- what is due -----------------------------------------------------------------------------------------------

    async def on_due(self, ids: Sequence[MessageId]) -> None:
        """Redeliver due messages: the tracker's callback. Lets the loop run in between if there are many."""
        asked_for, requests, left = list[Record](), list[int](), iter(ids)
        try:
            while some := list(islice(left, _MOST_IN_A_TURN)):
                records = self._not_local(some)
                requests += self._begin_request(records)
                asked_for += records
                if len(some) == _MOST_IN_A_TURN < len(ids):
                    await asyncio.sleep(0)
            if asked_for:
                await self._send(self._ids_of(asked_for))
        except BaseException as error:  # noqa: BLE001 - raised there
            self._fail_request(asked_for, requests, error)
        self._end_request(asked_for)

    def _on_due_nowait(self, ids: Sequence[MessageId]) -> None:
        """Do the same, on a port that can ask without waiting."""
        asked_for = self._not_local(ids)
        if asked_for:
            assert self._nowait_port is not None
            requests = self._begin_request(asked_for)
            try:
                self._nowait_port.redeliver_nowait(self._ids_of(asked_for))
            except BaseException as error:  # noqa: BLE001 - raised there
                self._fail_request(asked_for, requests, error)
            self._end_request(asked_for)

    def _ids_of(self, records: Sequence[Record]) -> list[MessageId]:
        """Return what to name in a request: no more than the port takes where it brings back everything anyway."""
        some = records[: self._most_at_once] if self.ways.only_rewinds else records
        return [record.id for record in some]

    def _not_local(self, ids: Sequence[MessageId]) -> list[Record]:
        """Show what is in memory and is to be shown from there; return what the broker is to be asked for."""
        records = [record for record in map(self._states.get, ids) if record is not None and self._is_due(record)]
        due_members = Counter(entry_key(record.id) for record in records if record.id[3] >= 0 and is_member(record.id))
        return [record for record in records if not self._bring_back_locally(record, due_members)]

    def _is_due(self, record: Record) -> bool:
        if record.state is State.ACKING and record.before_ack is State.HELD:
            record.is_due = True
        return record.state is State.HELD

    def _bring_back_locally(self, record: Record, due_members: Counter[EntryKey]) -> bool:
        """Show a message from memory, or at its time if the broker was to be asked ahead; False: the broker's turn."""
        if record.id not in self._store:
            return False
        batches, due = self._states.batches, due_members[entry_key(record.id)]
        if not record.is_local and not batches.has_busy_mates(record.id, due):
            return False
        if self._note is not None and not record.is_local:
            self._note("hold", record.id, record.redelivery_count, reason="busy batch mates")
        early_ms = record.due_at_ms - self._clock.now_ms()
        is_last_ms = early_ms == 1 and not record.is_local and self.tracker.lead_time > 0
        must_wait = early_ms > 0 and (record.is_ahead or is_last_ms)
        record.is_local, record.is_ahead = True, False
        if must_wait:
            self._arm(record.id, early_ms + is_last_ms)  # as the tracker is ahead by a part of it
        else:
            self._show_again(record)
        return True

    def _show_again(self, record: Record) -> None:
        delivery = self._store.pop(record.id)
        if delivery is None:
            return
        self.redelivered_local += 1
        self._tell_redelivered(record)
        self._states.show(record)
        self._show(delivery, record)
        self._freed()

    def _begin_request(self, records: Sequence[Record]) -> list[int]:
        now_ms = self._clock.now_ms()
        self._states.expire(now_ms)
        reasons = [None if record.is_held else ASKED_AGAIN for record in records]  # else one for this hold has failed
        requests = [self._states.request(record, now_ms) for record in records]
        self._watch_from(self._states.next_request_at())
        if self._note is not None:
            for record, reason in zip(records, reasons, strict=True):
                self._tell_redelivered(record, reason)
        return requests

    def _fail_request(self, records: Sequence[Record], requests: Sequence[int], error: BaseException) -> NoReturn:
        failed = [
            record.id
            for record, request in zip(records, requests, strict=True)
            if self._states.request_failed(record, request)
        ]
        self._tell_failed(failed, error)
        if isinstance(error, Exception):
            raise RedeliveryError(str(error), failed=failed) from error
        raise error

    def _end_request(self, records: Sequence[Record]) -> None:
        if not records:
            return
        self.redelivered_broker += len(records)
        for record in records if len(self._store) else ():
            if record.state is State.REQUESTED:
                self._store.pop(record.id)
        self._freed()

    def _tell_redelivered(self, record: Record, reason: str | None = None) -> None:
        if self._note is not None:
            due_in_ms = record.due_at_ms - self._clock.now_ms()
            self._note("redeliver", record.id, record.redelivery_count, due_in_ms=due_in_ms, reason=reason)

    def _tell_asked_again(self, ids: Sequence[MessageId]) -> None:
        """Tell of requests that are made again; without a deadline, for another consumer may have nacked since."""
        if self._note is not None:
            for each in ids:
                self._note("redeliver", each, self._states.last_count(each), reason=ASKED_AGAIN)

    def _tell_failed(self, ids: Sequence[MessageId], error: BaseException) -> None:
        if self._note is not None:
            for each in ids:
                self._note("error", each, self._states.last_count(each), reason=f"redeliver: {error!r}")

    # --- what was asked for in vain ----------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Make requests again that brought nothing, until cancelled; a callable of the user's is called once."""
        while self._custom is None:
            next_at = self._states.next_request_at()
            self._watched_until_ms = next_at
            self._is_earlier.clear()
            delay_ms = None if next_at is None else next_at - self._clock.now_ms()
            if delay_ms is None or delay_ms > 0:
                await self._sleep(delay_ms)
            elif not await self._ask_again():
                return

    async def _sleep(self, delay_ms: int | None) -> None:
        try:
            async with asyncio.timeout(None if delay_ms is None else delay_ms / 1000):
                await self._is_earlier.wait()
        except TimeoutError:
            return

    def _watch_from(self, at_ms: int | None) -> None:
        if at_ms is not None and (self._watched_until_ms is None or at_ms < self._watched_until_ms):
            self._is_earlier.set()

    async def _ask_again(self) -> bool:
        """Ask for what is due; False: the port is closed."""
        unanswered, now_ms = self._states.unanswered, self._clock.now_ms()
        self._states.expire(now_ms)
        gone, self._states.gone = self._states.gone, []
        if gone:
            self._gone(gone)
        due = unanswered.pop_due(now_ms, self._most_at_once)
        ids = [one.id for one in due]
        self._tell_asked_again(ids)
        try:
            if due:
                await self._port.redeliver(ids)
        except ClosedError:
            return False
        except Exception as error:  # noqa: BLE001 - tried again
            self._tell_failed(ids, error)
            unanswered.failed((one for one in due if self._states.is_awaited(one.id)), self._clock.now_ms())
        else:
            self.asked_again += len(due)
            for one in due:
                if self._states.is_awaited(one.id):
                    unanswered.add(one.id, now_ms, one.turn + 1)
        return True

    async def _send(self, ids: Sequence[MessageId]) -> None:
        if self._custom is None:
            await self._port.redeliver(ids)
            return
        result: Any = self._custom(ids)
        if inspect.isawaitable(result):
            await result
