"""Sends dead letters: each is published, then acknowledged, and each step is repeated until it succeeds.

A failed step is repeated with backoff, and the message stays unacknowledged meanwhile. If the process ends between
the two steps the message comes again and is published once more: there may be two, never none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from ..backoff import Exponential
from ..errors import AlreadySettledError, ClosedError, InvalidArgumentError
from ..ids import MessageId
from ._acks import Acks
from ._dead_letter_rules import DeadLetterMessage, DeadLetterPolicy, DeadLetterRules, as_reason, attempts_failed
from ._mark_delete import MarkDeleteWatch
from ._message_state import MessageState, State
from ._message_table import MessageTable
from ._payloads import kept_bytes
from ._port import ConsumerPort, Delivery, OwnPublisher, Publisher, SupportsPublishing
from ._tracing import MessageTrace, names_of

_log = logging.getLogger("pulsar_nack.consumer")
_MOST: Final = 1_000
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0
_LONGEST_PAUSE_MS: Final = 30_000


class DeadLetters:
    """Sends the dead letters of one consumer, each in a task.

    At most 1 000 of them, and ``max_bytes``, are under way: then :attr:`is_full`, and nothing new is fetched.

    :param port: publishes, unless the policy names a publisher
    :param max_bytes: most memory for their payloads
    :param mark_delete: finds messages that are settled at the broker; those are not published
    :raises InvalidArgumentError: nothing can publish, or the topic cannot be named
    """

    def __init__(
        self,
        policy: DeadLetterPolicy,
        port: ConsumerPort,
        table: MessageTable,
        *,
        max_bytes: int,
        trace: MessageTrace,
        mark_delete: MarkDeleteWatch | None = None,
    ) -> None:
        self.done = 0
        self.failures = 0
        _, subscription, _ = names_of(port)
        if policy.topic is None and not subscription:
            raise InvalidArgumentError("dead_letter", policy, "a topic: this port has no subscription to name it by")
        self.rules = DeadLetterRules(policy, subscription)
        self.has_room = asyncio.Event()
        """Clear while it is full."""
        self.has_room.set()
        self._own = None if policy.publisher is not None else _publisher_of(policy, port)
        self._publisher: Publisher | OwnPublisher = policy.publisher or self._own  # type: ignore[assignment]  # one is
        self._table = table
        self._max_bytes = max_bytes
        self._mark_delete = mark_delete
        self._bytes = 0
        self._trace = trace
        self._backoff = Exponential(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._under_way: dict[MessageId, DeadLetterTask] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._acks: Acks | None = None
        self._has_warned = self._has_warned_unreadable = False

    def start(self, tasks: asyncio.TaskGroup, acks: Acks) -> None:
        """Begin to accept dead letters."""
        self._tasks, self._acks = tasks, acks

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, message_id: MessageId) -> bool:
        return message_id in self._under_way

    @property
    def is_full(self) -> bool:
        """Return whether no more messages are to be fetched."""
        return not self.has_room.is_set()

    # --- sending -----------------------------------------------------------------------------------------------------

    def takes(self, delivery: Delivery, record: MessageState) -> bool:
        """Send a message that has just come, if it is a dead letter; return whether it is."""
        reason = self.rules.reason_for(delivery, record.redelivery_count)
        if reason is None:
            return False
        if delivery.error is not None:
            self._trace.nack(record, None, type(delivery.error).__name__)
        letter = self._send(delivery, record, record.redelivery_count, reason)
        if delivery.error is not None and not self._has_warned_unreadable:
            self._has_warned_unreadable = True
            _log.warning(
                "%r cannot be read, and is sent to %s without being delivered: %s", letter.id, letter.topic, reason
            )
        return True

    def send(self, delivery: Delivery, redelivery_count: int, reason: str = "") -> DeadLetterTask:
        """Send a message that was delivered; one that is under way goes on unchanged.

        :param redelivery_count: of the attempt that has just ended
        :param reason: empty: that the attempts failed
        """
        known = self._under_way.get(delivery.id)
        if known is not None:
            return known
        record = self._table.dead_letter(delivery.id, redelivery_count)
        attempts = redelivery_count + 1
        self._trace.nack(record, None, reason)
        return self._send(delivery, record, attempts, reason or attempts_failed(attempts))

    def _send(self, delivery: Delivery, record: MessageState, attempts: int, reason: str) -> DeadLetterTask:
        if record.state is not State.DEAD_LETTERING:
            self._table.dead_letter(record.id, record.redelivery_count)
        reason = as_reason(reason)
        message = self.rules.message(delivery, attempts, reason)
        letter = DeadLetterTask(record, message, kept_bytes(delivery), reason)
        if self._tasks is None:  # closing: the message comes again
            letter.error = ClosedError("the consumer")
            return letter
        self._under_way[record.id] = letter
        if self._mark_delete is not None:
            self._mark_delete.note(record, _LONGEST_PAUSE_MS)
        self._count(letter.bytes)
        letter.task = self._tasks.create_task(self._carry_out(letter))
        letter.task.add_done_callback(partial(self._ended, letter))
        return letter

    async def wait(self, letter: DeadLetterTask) -> None:
        """Wait until a dead letter is published and acknowledged; cancelling the call does not stop it.

        :raises ClosedError: the consumer was closed before
        :raises AlreadySettledError: the message was settled in another way before
        """
        letter.is_awaited = True
        if letter.task is not None:
            await asyncio.wait([letter.task])
        if letter.error is not None:
            raise letter.error

    # --- in the task of each -----------------------------------------------------------------------------------------

    async def _carry_out(self, letter: DeadLetterTask) -> None:
        try:
            was_doubtful = letter.record.is_doubtful
            if self._mark_delete is not None:
                await self._mark_delete.check(letter.record)
            if self._under_way.get(letter.id) is not letter:
                return  # it was settled, and has been dropped
            if letter.record.is_doubtful and not (
                was_doubtful or letter.is_awaited
            ):  # it comes again, here or elsewhere
                self._table.leave([letter.record])
                letter.error = AlreadySettledError(letter.id, "redelivered by the broker")
                return
            await self._until_done(self._publish, letter, "publishing it")
            self._count(-letter.release())
            await self._until_done(self._acknowledge, letter, "acknowledging it")
            self.done += 1
            self._trace.dead_lettered(letter.record, letter.topic, letter.reason)
        except ClosedError as error:
            letter.error = error

    def _ended(self, letter: DeadLetterTask, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # it may not even have begun
            letter.error = letter.error or ClosedError("the consumer")
        if self._under_way.get(letter.id) is letter:
            del self._under_way[letter.id]
        self._count(-letter.release())

    async def _publish(self, letter: DeadLetterTask) -> None:
        message = letter.message
        assert message is not None
        about: dict[str, Any] = {
            "properties": message.properties,
            "key": message.key,
            "ordering_key": message.ordering_key,
            "event_time_ms": message.event_time_ms,
        }
        if self._own is not None:
            about["schema"] = message.schema
        await self._publisher.publish(message.topic, message.data, **about)
        self._has_warned = False

    async def _acknowledge(self, letter: DeadLetterTask) -> None:
        assert self._acks is not None
        await self._acks.acknowledge(letter.id)

    async def _until_done(
        self, attempt: Callable[[DeadLetterTask], Awaitable[None]], letter: DeadLetterTask, what: str
    ) -> None:
        failed = 0
        while True:
            try:
                await attempt(letter)
            except asyncio.CancelledError as fault:
                if _is_cancelled():
                    raise
                error: BaseException = fault  # of something that it waited for
            except Exception as fault:  # noqa: BLE001 - noted, and tried again
                error = fault
            else:
                return
            if isinstance(error, ClosedError) and attempt == self._acknowledge:
                raise error  # nothing can be acknowledged any more
            self._failed(letter, what, error)
            await asyncio.sleep(float(self._backoff(failed)))
            failed += 1

    def _failed(self, letter: DeadLetterTask, what: str, error: BaseException) -> None:
        self.failures += 1
        self._trace.error(letter.id, letter.record.redelivery_count, "dead letter", error)
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%r is a dead letter for %s, but %s failed and is tried again: %r", letter.id, letter.topic, what, error
            )

    # --- ending ------------------------------------------------------------------------------------------------------

    def drop(self, message_id: MessageId, state: str) -> None:
        """Abort the dead-lettering of a message that was settled otherwise."""
        letter = self._under_way.pop(message_id, None)
        if letter is not None:
            letter.error = AlreadySettledError(message_id, state)
            assert letter.task is not None
            letter.task.cancel()

    def clear(self, state: str) -> None:
        """Abort all dead letters."""
        for message_id in list(self._under_way):
            self.drop(message_id, state)

    async def finish(self, timeout: float) -> None:
        """Wait for dead letters under way, then abort the rest: their messages come again. No other begins."""
        self._tasks = None
        self.has_room.set()
        tasks = [letter.task for letter in self._under_way.values() if letter.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                task.cancel()

    async def aclose(self) -> None:
        """Close the publisher, unless it is the user's."""
        self._tasks = None
        self.has_room.set()
        if self._own is not None:
            try:
                await self._own.aclose()
            except Exception as error:  # noqa: BLE001 - the rest is closed too
                _log.warning("the publisher of dead letters could not be closed: %r", error)

    def _count(self, change: int) -> None:
        self._bytes += change
        is_full = len(self._under_way) >= _MOST or (self._bytes > 0 and self._bytes >= self._max_bytes)
        if is_full and self._tasks is not None:
            self.has_room.clear()
        else:
            self.has_room.set()


class DeadLetterTask:
    """One dead letter under way."""

    def __init__(self, record: MessageState, message: DeadLetterMessage, size: int, reason: str) -> None:
        self.record = record
        self.id = record.id
        self.topic = message.topic
        self.reason = reason
        self.message: DeadLetterMessage | None = message
        self.bytes = size
        self.task: asyncio.Task[None] | None = None
        self.error: Exception | None = None
        self.is_awaited = False
        """The user called for it and waits: it is published although others may have settled the message."""

    def release(self) -> int:
        """Drop the payload; return its size, 0 if it is gone already."""
        size, self.bytes, self.message = self.bytes, 0, None
        return size


def _is_cancelled() -> bool:
    """Return whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _publisher_of(policy: DeadLetterPolicy, port: Any) -> OwnPublisher:
    publisher = None
    if isinstance(port, SupportsPublishing):
        publisher = port.publisher(policy.topic, policy.initial_subscription)
    if publisher is None:
        expected = "a DeadLetterPolicy with a publisher: what this consumer was made of cannot publish"
        raise InvalidArgumentError("dead_letter", policy, expected)
    return publisher
