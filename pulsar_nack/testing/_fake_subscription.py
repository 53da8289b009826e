"""A subscription in memory: which entries are acknowledged, who holds which, what goes out next.

An entry is in one of three states: *queued* (waits for a consumer), *held* (sent to one, not acknowledged), *done*
(acknowledged); what a leaving consumer held is queued again. One heap in the order of
publishing serves both first deliveries and redeliveries, for a redelivered entry is older than any that was never sent.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ..errors import BrokerError
from ..ids import MessageId

if TYPE_CHECKING:
    from ._fake_topic import FakeEntry, FakeTopic

SHARED: Final = "shared"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """How an entry is to be sent: once, plus a copy for each of ``copies`` (its count, None: the same)."""

    copies: tuple[int | None, ...] = ()
    forced: frozenset[int] = frozenset()
    """Indexes that are sent even if they are acknowledged by then."""


_PLAIN: Final = Outgoing()


class Receiver(Protocol):
    """What a subscription asks of a port."""

    def _has_room(self, unacked: int) -> bool: ...
    def _accept(self, entry: FakeEntry, indexes: Collection[int], count: int, forced: Collection[int]) -> None: ...
    def _drop_received(self) -> None: ...


class FakeSubscription:
    """The broker's side of a subscription; get it from :meth:`FakeTopic.subscription`."""

    def __init__(self, topic: FakeTopic, name: str) -> None:
        self.topic = topic
        self.name = name
        self._type = SHARED
        self._receivers: list[Receiver] = []
        self._turn = 0
        self._done: set[FakeEntry] = set()
        self._done_indexes: dict[FakeEntry, set[int]] = {}
        self._heap: list[tuple[int, FakeEntry]] = []
        self._queued: dict[FakeEntry, Outgoing] = {}
        self._held: dict[Receiver, dict[FakeEntry, None]] = {}
        self._unacked: dict[Receiver, int] = {}
        self._holder: dict[FakeEntry, Receiver] = {}
        self._counts: dict[FakeEntry, int] = {}
        for entry in topic.entries:
            self._queue(entry)

    @property
    def backlog(self) -> int:
        """Return how many messages are not acknowledged at the broker."""
        return sum(len(self._open_indexes(entry)) for entry in self.topic.entries)

    def is_acked(self, message_id: MessageId) -> bool:
        """Return whether a message is acknowledged at the broker; False where there is no such message."""
        entry = self.topic.entry_of(message_id)
        return entry is not None and not self._is_open(entry, max(message_id.batch_index, 0))

    def redelivery_count(self, message_id: MessageId) -> int:
        """Return the broker's count for a message's entry; it is forgotten when the last consumer leaves."""
        entry = self.topic.entry_of(message_id)
        return 0 if entry is None else self._counts.get(entry, 0)

    def reset(self, to: MessageId | None = None) -> None:
        """Go back, or ahead, to a message, as an administrator's reset does; None: to the first of all.

        Everything from there on is delivered again, acknowledged or not; everything before counts as acknowledged.
        """
        start = to or MessageId(-1, -1)
        self._reset_where(lambda entry: start.partition in {-1, entry.partition} and entry.position >= start.position)

    def reset_to_time(self, publish_time_ms: int) -> None:
        """Go to the first message that was published at or after a time, as :meth:`reset` goes to one."""
        self._reset_where(lambda entry: entry.published_ms >= publish_time_ms)

    def _reset_where(self, is_wanted: Callable[[FakeEntry], bool]) -> None:
        first = next((entry.number for entry in self.topic.entries if is_wanted(entry)), sys.maxsize)
        self._done = {entry for entry in self.topic.entries if entry.number < first}
        self._done_indexes.clear()
        self.restart()

    def restart(self) -> None:
        """Do what a restart of the broker does: counts are forgotten, and what is not acknowledged is sent again."""
        self._counts.clear()
        self._rewind()

    def _join(self, receiver: Receiver, subscription_type: str) -> None:
        if self._receivers and (subscription_type != self._type or self._type == "exclusive"):
            raise BrokerError(f"subscription {self.name!r} has a consumer already and is {self._type}")
        self._type = subscription_type
        self._receivers.append(receiver)
        self._held[receiver] = {}
        self._unacked[receiver] = 0
        self._dispatch()

    def _leave(self, receiver: Receiver) -> None:
        for entry in list(self._held[receiver]):
            self._release(entry)
            self._queue(entry)
        self._receivers.remove(receiver)
        del self._held[receiver], self._unacked[receiver]
        if not self._receivers:
            self._counts.clear()
        self._dispatch()

    def _add(self, entry: FakeEntry) -> None:
        self._queue(entry)
        self._dispatch()

    def _ack_entries(self, entries: Iterable[FakeEntry]) -> None:
        for entry in entries:
            self._release(entry)
            self._done.add(entry)
        self._dispatch()

    def _ack_up_to(self, last: MessageId, members: int) -> None:
        """Acknowledge the entries of a partition before ``last``, and the first ``members`` of its own entry."""
        earlier = [entry for entry in self.topic.entries if entry.partition == last.partition]
        self._ack_entries(entry for entry in earlier if entry.position < last.position)
        own = self.topic.entry_of(last)
        if own is None:
            return
        for index in range(min(members, len(own.messages))):
            self._ack_index(own, index)
        if members >= len(own.messages) or not self._open_indexes(own):
            self._ack_entries([own])

    def _ack_index(self, entry: FakeEntry, index: int) -> None:
        if not self._is_open(entry, index) or not self.topic.batch_index_ack:
            return
        self._done_indexes.setdefault(entry, set()).add(index)
        holder = self._holder.get(entry)
        if holder is not None:
            self._unacked[holder] -= 1

    def _redeliver(self, receiver: Receiver, wanted: Mapping[FakeEntry, Outgoing], highest_count: int | None) -> None:
        """Send entries again that ``receiver`` holds; on an exclusive or failover subscription all that are held."""
        if self._type != SHARED:
            if receiver is self._receivers[0]:
                self._rewind(wanted)
            return
        for entry, how in wanted.items():
            if self._holder.get(entry) is not receiver:
                continue
            self._release(entry)
            count = self._counts.get(entry, 0) + 1
            self._counts[entry] = count if highest_count is None else min(count, highest_count)
            self._queue(entry, how)
        self._dispatch()

    def _rewind(self, how: Mapping[FakeEntry, Outgoing] | None = None) -> None:
        for receiver in self._receivers:
            receiver._drop_received()
            self._held[receiver].clear()
            self._unacked[receiver] = 0
        self._holder.clear()
        self._queued.clear()
        self._heap.clear()
        for entry in self.topic.entries:
            if entry not in self._done:
                self._queue(entry, (how or {}).get(entry, _PLAIN))
        self._dispatch()

    def _queue(self, entry: FakeEntry, how: Outgoing = _PLAIN) -> None:
        if entry not in self._queued:
            heapq.heappush(self._heap, (entry.number, entry))
        self._queued[entry] = how

    def _dispatch(self) -> None:
        while self._heap:
            entry = self._heap[0][1]
            how = self._queued[entry]
            indexes = sorted(self._open_indexes(entry) | how.forced)
            receiver = self._next_receiver() if indexes else None
            if indexes and receiver is None:
                return
            heapq.heappop(self._heap)
            del self._queued[entry]
            if receiver is not None:
                self._send(receiver, entry, indexes, how)

    def _send(self, receiver: Receiver, entry: FakeEntry, indexes: Collection[int], how: Outgoing) -> None:
        if entry not in self._done:
            self._holder[entry] = receiver
            self._held[receiver][entry] = None
            self._unacked[receiver] += len(self._open_indexes(entry))
        count = self._counts.get(entry, 0)
        receiver._accept(entry, indexes, count, how.forced)
        for copy in how.copies:
            receiver._accept(entry, indexes, count if copy is None else copy, how.forced)

    def _release(self, entry: FakeEntry) -> None:
        holder = self._holder.pop(entry, None)
        if holder is not None:
            del self._held[holder][entry]
            self._unacked[holder] -= len(self._open_indexes(entry))

    def _next_receiver(self) -> Receiver | None:
        able = self._receivers if self._type == SHARED else self._receivers[:1]
        for step in range(len(able)):
            at = (self._turn + step) % len(able)
            if able[at]._has_room(self._unacked[able[at]]):
                self._turn = at + 1
                return able[at]
        return None

    def _open_indexes(self, entry: FakeEntry) -> set[int]:
        if entry in self._done:
            return set()
        return set(range(len(entry.messages))) - self._done_indexes.get(entry, set())

    def _is_open(self, entry: FakeEntry, index: int) -> bool:
        return entry not in self._done and index not in self._done_indexes.get(entry, ())
