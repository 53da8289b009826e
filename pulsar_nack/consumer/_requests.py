"""Redelivery requests that have not brought their message yet, and when each is repeated. Pure.

A request is open for 30 s, or as long as its message may wait at the port. If nothing came by then, mostly another
consumer of the subscription got the message, and the broker passes over what we ask. Or the request was lost: a client
accepts one while it has no connection, and drops it. The two cannot be distinguished, so a few more requests are made,
further and further apart, and then the message is left to the broker, which holds it unacknowledged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Final

from ..ids import MessageId
from ._message_state import ACKING, MessageState, State

REQUEST_MEMORY_MS: Final = 30_000
PAUSES_MS: Final = (0, 60_000, 120_000, 240_000)
"""How long after a request has brought nothing the next one is made."""
_FAILED_PAUSE_MS: Final = 5_000
_MAX_REPEATED: Final = 10_000
_MAX_COUNTS: Final = 10_000


class OpenRequests:
    """The requests of one consumer, with the redelivery counts of messages that it has forgotten meanwhile.

    O(log requests) for each that is repeated.

    :param most_repeated: beyond it the oldest are left to the broker
    """

    def __init__(self, most_repeated: int = _MAX_REPEATED) -> None:
        self.repeat_at: OrderedDict[MessageId, int] = OrderedDict()
        """The messages to be requested again, and when."""
        self._most_repeated = most_repeated
        self._repeats: list[tuple[int, MessageId, int]] = []
        """A heap of what is to be repeated: when, and for which time, from 0."""
        self.lost: list[MessageState] = []
        """Requested messages that never came although the broker sends all: other consumers settled them."""
        self.bring_all = False
        """A request brings everything that is not acknowledged, so none is repeated."""
        self.may_be_at_port: Callable[[MessageState], bool] | None = None
        """Returns whether a requested message may be at the port, not received yet."""
        self.on_expected: Callable[[MessageId], None] | None = None
        """Called with each message that the broker is asked for."""
        self.open: OrderedDict[MessageState, None] = OrderedDict()
        """Requested messages that have not arrived, also while being acknowledged; the first to expire comes first."""
        self.counts: OrderedDict[MessageId, int] = OrderedDict()
        self._most_counts = _MAX_COUNTS
        self._hidden: dict[MessageId, int] = {}

    def expect(self, record: MessageState, now_ms: int) -> None:
        """Wait for a requested message for 30 s from now."""
        record.expires_at_ms = now_ms + REQUEST_MEMORY_MS
        self.open[record] = None
        self.open.move_to_end(record)
        if self.on_expected is not None:
            self.on_expected(record.id)

    def pop_expired(self, now_ms: int) -> MessageState | None:
        """Take out the oldest request; None: its message is at the port or being settled, and is expected again."""
        record = next(iter(self.open))
        is_acking = record.state is ACKING  # which may fail
        if is_acking or (self.may_be_at_port is not None and self.may_be_at_port(record)):
            self.expect(record, now_ms)
            return None
        del self.open[record]
        return record

    def give_up(self, record: MessageState, now_ms: int) -> None:
        """Repeat an expired request later, or note that its message is lost."""
        self.remember_last(record)
        if self.bring_all:
            self.lost.append(record)
        else:
            self.repeat(record.id, now_ms)

    def next_at(self) -> int | None:
        """Return when a request next expires or is repeated; None: no request. Amortized O(1)."""
        if self.lost:
            return 0
        repeat_at = self._next_repeat_at()
        if not self.open:
            return repeat_at
        expires_at = next(iter(self.open)).expires_at_ms
        return expires_at if repeat_at is None else min(expires_at, repeat_at)

    # --- repeated requests -------------------------------------------------------------------------------------------

    def repeat(self, message_id: MessageId, now_ms: int, turn: int = 0) -> None:
        """Note that the ``turn``-th repeat of a request, from 0, brought nothing, or may have brought nothing."""
        self.repeat_at.pop(message_id, None)
        if turn == len(PAUSES_MS):
            return
        if len(self.repeat_at) >= self._most_repeated:
            self.repeat_at.popitem(last=False)
        self._schedule(now_ms + PAUSES_MS[turn], message_id, turn)

    def repeat_failed(self, repeated: Mapping[MessageId, int], now_ms: int) -> None:
        """Put back what :meth:`pop_due` returned, because the request raised."""
        for message_id, turn in repeated.items():
            self._schedule(now_ms + _FAILED_PAUSE_MS, message_id, turn)

    def _schedule(self, at_ms: int, message_id: MessageId, turn: int) -> None:
        self.repeat_at[message_id] = at_ms
        heappush(self._repeats, (at_ms, message_id, turn))

    def _next_repeat_at(self) -> int | None:
        repeats = self._repeats
        while repeats and self.repeat_at.get(repeats[0][1]) != repeats[0][0]:  # it came, or its time changed
            heappop(repeats)
        return repeats[0][0] if repeats else None

    def pop_due(self, now_ms: int, limit: int) -> dict[MessageId, int]:
        """Take out at most ``limit`` messages that are to be requested again now, and return the turn of each."""
        due: dict[MessageId, int] = {}
        while len(due) < limit and (at_ms := self._next_repeat_at()) is not None and at_ms <= now_ms:
            _, message_id, turn = heappop(self._repeats)
            due[message_id] = turn
            del self.repeat_at[message_id]
        return due

    def make_room(self, count: int) -> None:
        """Raise the bounds so that ``count`` more messages fit: they took as much memory before."""
        self._most_repeated = max(self._most_repeated, len(self.repeat_at) + count)
        self._most_counts = max(self._most_counts, len(self.counts) + count)

    # --- messages that are not known any more ------------------------------------------------------------------------

    def remember(self, message_id: MessageId, count: int, hidden_count: int = 0) -> None:
        """Note with which count a message that is not known was delivered last, and what the broker counts beyond."""
        self.counts[message_id] = max(count, self.counts.get(message_id, count))
        if hidden_count:
            self._hidden[message_id] = hidden_count
        if len(self.counts) > self._most_counts:
            self.take_counts(next(iter(self.counts)))

    def remember_last(self, record: MessageState) -> None:
        """Note the count of a message that is forgotten; it replaces an older one."""
        self.take_counts(record.id)
        self.remember(record.id, record.redelivery_count, record.hidden_count)

    def take_counts(self, message_id: MessageId) -> tuple[int, int]:
        """Take out what was noted of a message, its count and its hidden count; -1 and 0: nothing."""
        return self.counts.pop(message_id, -1), self._hidden.pop(message_id, 0)

    def unknown_state(self, message_id: MessageId, state: State, least: int = 0) -> MessageState:
        """Return a state for a message that is not known, with what was noted of it; its count is at least this."""
        count, hidden_count = self.take_counts(message_id)
        record = MessageState(message_id, state, max(count, least))
        record.hidden_count = hidden_count
        return record

    def clear(self) -> None:
        """Forget all."""
        self.open.clear()
        self.counts.clear()
        self._hidden.clear()
        self.repeat_at.clear()
