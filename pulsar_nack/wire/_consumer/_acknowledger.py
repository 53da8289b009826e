"""Acknowledgements of one topic or partition: which entries they complete, and what their outcome changes.

An acknowledged member of a batch is noted in the ack sets before the broker confirms it, so that members acknowledged
together complete their entry. If the broker refuses, the note is taken back: no other member may complete an entry
with a message that is not acknowledged. On a non-durable subscription complete entries are noted in its position.

The ack sets have what this consumer acknowledged in its present session, nothing from before: the subscription may have
been moved back since then, and a set that is too small would acknowledge too much. The broker intersects all the sets
that it gets, so a set may repeat an earlier one.

Once the topic is missing or deleted there is nothing to acknowledge: acknowledgements succeed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar

from ...consumer import AcksDone
from ...errors import BrokerError, ClosedError
from ...ids import MessageId
from .._protocol._batches import all_of
from ._ack_groups import AckGroupingTracker, Done, call_all, joined
from ._positions import NonDurablePosition
from ._subscribe_options import SubscribeOptions

T = TypeVar("T")
_MAX_ENTRIES: Final = 50_000


class AckSets:
    """The ack sets of partly acknowledged entries, at most 50 000; beyond that the oldest are forgotten.

    Forgetting one is harmless: the entry is never acknowledged as a whole, so the broker sends it again.
    """

    def __init__(self, max_entries: int = _MAX_ENTRIES) -> None:
        self.generation = 0
        """Grows whenever a set is forgotten."""
        self._max_entries = max_entries
        self.sets: OrderedDict[tuple[int, int], int] = OrderedDict()
        """The remaining members of each entry."""

    def __len__(self) -> int:
        return len(self.sets)

    def acked(self, message_id: MessageId) -> int:
        """Note an acknowledged message; return the remaining members of its entry, 0: none.

        :raises BrokerError: the id lacks the size of its batch
        """
        index, size = message_id.batch_index, message_id.batch_size
        position = (message_id.ledger, message_id.entry)
        if index < 0 or size == 1:
            if self.sets:
                self.sets.pop(position, None)
            return 0
        _check_size(message_id)
        return self.intersect(position, ((1 << size) - 1) & ~(1 << index))

    def failed(self, message_id: MessageId, generation: int) -> None:
        """Note that acknowledging a message failed: its entry is not complete without it.

        :param generation: that of these sets when the message was noted; one of an earlier generation is forgotten
        """
        if generation == self.generation and message_id.batch_index >= 0:
            position = (message_id.ledger, message_id.entry)
            self.sets[position] = self.sets.get(position, 0) | 1 << message_id.batch_index

    def acked_through(self, message_id: MessageId) -> int:
        """Note that all messages up to this one are acknowledged; return its entry's remaining members. O(entries).

        :raises BrokerError: the id lacks the size of its batch
        """
        index, size = message_id.batch_index, message_id.batch_size
        position = (message_id.ledger, message_id.entry)
        _check_size(message_id)
        for known in [known for known in self.sets if known < position]:
            del self.sets[known]
        remaining = 0 if index < 0 else all_of(size) & ~all_of(index + 1)
        if not remaining:
            self.sets.pop(position, None)
            return 0
        return self.intersect(position, remaining)

    def intersect(self, position: tuple[int, int], remaining: int) -> int:
        """Note that at most these members of an entry remain; return those that remain by all that is known."""
        known = self.sets.pop(position, None)
        if known is not None:
            remaining &= known
        if remaining:
            self.sets[position] = remaining
            if len(self.sets) > self._max_entries:
                self.sets.popitem(last=False)
                self.generation += 1
        return remaining

    def forget(self) -> None:
        """Forget all sets, because the broker may not have them any more."""
        self.sets.clear()
        self.generation += 1


class _BatchMember(NamedTuple):
    """A member of a batch that is being acknowledged."""

    id: MessageId
    remaining: int
    generation: int
    token: Any
    done: AcksDone[Any]


class Acknowledger:
    """Acknowledges the messages of one topic or partition.

    :param check_open: raises ClosedError once the consumer is closed
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        topic: str,
        options: SubscribeOptions,
        check_open: Callable[[], None],
    ) -> None:
        self.sets = AckSets()
        start = options.start_message_id
        is_exact = start is not None or options.initial_position != "latest"
        self.position = None if options.durable else NonDurablePosition(start, is_exact=is_exact)
        """Where the next session of a non-durable subscription begins."""
        self.is_closed = False
        """Whether ``check_open`` raises."""
        self.is_topic_missing = False
        """Whether the topic does not exist now."""
        self.is_topic_deleted = False
        """Whether the topic is deleted for good."""
        self._loop = loop
        self._topic = topic
        self._options = options
        self._check_open = check_open
        self._groups = groups = AckGroupingTracker(loop, options.ack_group_ms)
        self.connected, self.fail, self.settled = groups.connected, groups.fail, groups.settled
        self._members_done = self._on_members_done  # one object, so that members of different calls share a group

    def disconnected(self) -> None:
        """Keep unconfirmed acknowledgements for the next session; forget the ack sets."""
        self._groups.disconnected()
        self.sets.forget()

    def close(self) -> None:
        """Fail everything that is not confirmed, because the consumer is closed."""
        self.fail(None if self.is_topic_deleted else ClosedError("the consumer"))

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages; returns when the broker has confirmed it. A cancelled call does not stop it.

        :raises BrokerError: the broker refused, or did not answer; or the id of a batch's member lacks the batch size
        :raises ClosedError: the consumer is closed, also before the broker has confirmed
        """
        if self.is_topic_deleted or self.is_topic_missing or not ids:
            return
        self._check_open()
        for message_id in ids:
            _check_size(message_id)  # none of them is noted unless all can be acknowledged

        def begin(done: AcksDone[None]) -> None:
            for message_id in ids:
                self.acknowledge_soon(message_id, None, done)

        await self._until_done(begin, len(ids))

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Begin to acknowledge one message.

        :param done: gets the token, maybe with those of other messages, and None or the error, in a later turn of the
            loop
        :raises BrokerError: its batch is of unknown size; ``done`` is not called
        :raises ClosedError: the consumer is closed; ``done`` is not called
        """
        if self.is_closed:
            self._check_open()
        if self.is_topic_missing:
            self._loop.call_soon(done, [token], None)
        elif message_id[3] >= 0 or self.position is not None or message_id.is_chunked:
            self._acknowledge_noting(message_id, token, done)
        else:
            if self.sets.sets:
                self.sets.acked(message_id)
            self._groups.add(message_id[:2], 0, token, done)

    def acknowledge_entry(self, place: tuple[int, int]) -> None:
        """Acknowledge an entry of which no message is to be delivered."""
        self._groups.add_all([place], lambda _: None)

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to and including a message; returns when the broker has confirmed it.

        :raises BrokerError: the broker refused, or did not answer; always on Shared and Key_Shared
        :raises ClosedError: the consumer is closed
        """
        self._check_open()
        if not self._options.only_one_gets_messages:
            raise BrokerError(f"{self._topic}: {self._options.type} subscriptions have no cumulative acknowledgement")
        if not self.is_topic_missing:
            await self._until_done(lambda done: self.acknowledge_cumulative_soon(message_id, partial(done, [None])))

    def acknowledge_cumulative_soon(self, message_id: MessageId, done: Done) -> None:
        """Begin to acknowledge everything up to and including a message; on Exclusive and Failover only.

        :param done: called in a later turn of the loop with None, or with the error
        """
        remaining = self.sets.acked_through(message_id)
        place = (message_id.ledger, message_id.entry)
        if remaining and not self._options.batch_index_ack:
            place, remaining = (message_id.ledger, message_id.entry - 1), 0  # entry -1: all ledgers before this one
        position = self.position

        def answered(error: Exception | None) -> None:
            if error is None and position is not None:
                position.acked_through((place[0], place[1] - 1) if remaining else place)
            done(error)

        self._groups.add_cumulative(place, remaining, answered)

    def _acknowledge_noting(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Acknowledge a chunked message, a member of a batch, or a message of a non-durable subscription."""
        if message_id.is_chunked:
            self._acknowledge_parts(message_id, token, done)
            return
        generation = self.sets.generation
        remaining = self.sets.acked(message_id)
        if remaining and not self._options.batch_index_ack:
            self._loop.call_soon(done, [token], None)
        else:
            member = _BatchMember(message_id, remaining, generation, token, done)
            self._groups.add(message_id[:2], remaining, member, self._members_done)

    def _on_members_done(self, members: Sequence[_BatchMember], error: Exception | None) -> None:
        if error is not None:
            for member in members:
                self.sets.failed(member.id, member.generation)
        elif self.position is not None:
            self.position.acked(member.id[:2] for member in members if not member.remaining)
        calls = [list(group) for _, group in groupby(members, key=lambda member: id(member.done))]
        call_all([partial(same_call[0].done, [member.token for member in same_call]) for same_call in calls], error)

    def _acknowledge_parts(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Acknowledge all entries of a chunked message."""
        parts, position = message_id.parts, self.position

        def answered(error: Exception | None) -> None:
            if error is None and position is not None:
                position.acked(parts)
            done([token], error)

        self._groups.add_all(parts, answered)

    async def _until_done(self, begin: Callable[[AcksDone[None]], None], count: int = 1) -> None:
        """Wait until all of several acknowledgements are answered; raise the first error."""
        answer: asyncio.Future[Exception | None] = self._loop.create_future()
        begin(joined(count, lambda error: None if answer.done() else answer.set_result(error)))
        error = await answer
        if error is not None:
            raise error


def _check_size(message_id: MessageId) -> None:
    """Raise BrokerError if the id of a batch's member lacks the size of the batch."""
    if message_id.batch_index >= message_id.batch_size:
        raise BrokerError(
            f"{message_id!r} cannot be acknowledged: its batch_size, the number of messages in its batch, is missing"
        )
