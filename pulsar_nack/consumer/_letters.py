"""Publishes messages to the dead-letter topic or the retry topic, then acknowledges them; repeats each step.

A failed step is repeated with backoff, and the message stays unacknowledged meanwhile. If the process ends between
the two steps the message comes again and is published once more: there may be two, never none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from ..backoff import Exponential
from ..errors import AlreadySettledError, ClosedError, InvalidArgumentError
from ..ids import MessageId
from ._events import MessageTrace, names_of
from ._letter_publishing import LetterRoute
from ._letter_rules import Destination, LetterRules, Wait, as_reason, attempts_failed
from ._mark_delete import MarkDeleteWatch
from ._message_state import DEAD_LETTERING, RETRYING, MessageState, State
from ._message_table import MessageTable
from ._payloads import kept_bytes
from ._port import ConsumerPort, Delivery
from ._settings import ConsumerSettings

_log = logging.getLogger("pulsar_nack.consumer")
_MOST: Final = 1_000
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0
_LONGEST_PAUSE_MS: Final = 30_000


class Letters:
    """Publishes the messages of one consumer that go to another topic, each in a task, then acknowledges them.

    At most 1 000 of them, and ``max_local_bytes``, are under way: then :attr:`is_full`, and nothing new is fetched.

    :param settings: the consumer's, with a dead-letter policy or a retry topic
    :param port: publishes, unless the policy names a publisher
    :param mark_delete: finds messages that are settled at the broker; those are not published
    :raises InvalidArgumentError: nothing can publish, or the topic cannot be named
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        port: ConsumerPort,
        table: MessageTable,
        *,
        trace: MessageTrace,
        mark_delete: MarkDeleteWatch | None = None,
    ) -> None:
        dead, retry = settings.dead_letter, settings.retry_topic
        topic, subscription, _ = names_of(port)
        self.retry: LetterRoute | None = None
        self.dead: LetterRoute | None = None
        if retry is not None:
            if retry.topic is None and not (topic and subscription):
                expected = "a topic: this port has no names to name it by"
                raise InvalidArgumentError("retry_topic", retry, expected)
            retry = retry.named(retry.topics or ((topic,) if topic else ()), subscription)
            self.retry = LetterRoute(RETRYING, retry, port)
        if dead is not None:
            if dead.topic is None and not subscription:
                expected = "a topic: this port has no subscription to name it by"
                raise InvalidArgumentError("dead_letter", dead, expected)
            self.dead = LetterRoute(DEAD_LETTERING, dead, port)
        self.rules = LetterRules(subscription, dead, retry)
        self.has_room = asyncio.Event()
        """Clear while it is full."""
        self.has_room.set()
        self.hold_again: Callable[[Delivery, MessageState, Wait], None]
        """Called with a message whose nack could not wait in the retry topic; set by the settler."""
        self.on_left: Callable[[], None]
        """Called after a message was left to the broker; set by the settler."""
        self._table = table
        self._max_bytes = settings.max_local_bytes
        self._mark_delete = mark_delete
        self._bytes = 0
        self._trace = trace
        self._backoff = Exponential(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._under_way: dict[MessageId, LetterTask] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._acknowledge: Callable[[MessageId], Awaitable[None]]
        self._has_warned_unreadable = False

    def start(self, tasks: asyncio.TaskGroup, acknowledge: Callable[[MessageId], Awaitable[None]]) -> None:
        """Begin to accept messages, each to be acknowledged once it is in the other topic."""
        self._tasks, self._acknowledge = tasks, acknowledge

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, message_id: MessageId) -> bool:
        return message_id in self._under_way

    def state_of(self, message_id: MessageId) -> State | None:
        """Return the state of a message under way to another topic, None if it is not under way."""
        letter = self._under_way.get(message_id)
        return None if letter is None else letter.route.state

    @property
    def is_full(self) -> bool:
        """Return whether no more messages are to be fetched."""
        return not self.has_room.is_set()

    # --- sending -----------------------------------------------------------------------------------------------------

    def takes(self, delivery: Delivery, record: MessageState) -> bool:
        """Send a message that has just come, if it is a dead letter; return whether it is."""
        reason = self.rules.dead_letter_reason(delivery, record.redelivery_count)
        if reason is None:
            return False
        if delivery.error is not None:
            self._trace.nack(record, None, type(delivery.error).__name__)
        letter = self._dead_letter(delivery, record, record.redelivery_count, reason)
        if delivery.error is not None and not self._has_warned_unreadable:
            self._has_warned_unreadable = True
            _log.warning(
                "%r cannot be read, and is sent to %s without being delivered: %s", letter.id, letter.topic, reason
            )
        return True

    def dead_letter(
        self, delivery: Delivery, redelivery_count: int, reason: str = "", wait: Wait | None = None
    ) -> LetterTask:
        """Send a delivered message to the dead-letter topic; one that is under way goes on unchanged.

        :param redelivery_count: of the attempt that has just ended
        :param reason: empty: that the attempts failed
        :param wait: how long it was to wait in the retry topic, None: it was not to go there
        """
        known = self._under_way.get(delivery.id)
        if known is not None:
            return known
        record = self._table.send_away(delivery.id, redelivery_count, DEAD_LETTERING)
        attempts = redelivery_count + 1
        self._trace.nack(record, None, reason)
        return self._dead_letter(delivery, record, attempts, reason or attempts_failed(attempts), wait)

    def reconsume_later(
        self, delivery: Delivery, redelivery_count: int, wait: Wait, reason: str = "", *, is_spilled: bool = False
    ) -> LetterTask:
        """Send a delivered message to the retry topic; one that is under way goes on unchanged.

        :param redelivery_count: of the attempt that has just ended
        :param is_spilled: a nack of it waits there; if it cannot be published it waits here
        """
        known = self._under_way.get(delivery.id)
        if known is not None:
            return known
        assert self.retry is not None
        record = self._table.send_away(delivery.id, redelivery_count, RETRYING)
        if wait.is_deferred:
            self._trace.deferred(record, wait.delay_ms)
        else:
            self._trace.nack(record, wait.delay_ms if is_spilled else None, reason)
        to = self.rules.retry(delivery, redelivery_count + (not wait.is_deferred), wait)
        return self._begin(LetterTask(self.retry, record, delivery, to, wait=wait, may_wait_here=is_spilled))

    def _dead_letter(
        self, delivery: Delivery, record: MessageState, attempts: int, reason: str, wait: Wait | None = None
    ) -> LetterTask:
        assert self.dead is not None
        if record.state is not DEAD_LETTERING:
            self._table.send_away(record.id, record.redelivery_count, DEAD_LETTERING)
        reason = as_reason(reason)
        to = self.rules.dead_letter(delivery, attempts, reason, wait)
        return self._begin(LetterTask(self.dead, record, delivery, to, reason=reason))

    def _begin(self, letter: LetterTask) -> LetterTask:
        record = letter.record
        if self._tasks is None:  # closing: the message comes again
            letter.error = ClosedError("the consumer")
            return letter
        self._under_way[record.id] = letter
        letter.route.waiting += 1
        if self._mark_delete is not None:
            self._mark_delete.note(record, _LONGEST_PAUSE_MS)
        self._count(letter.bytes)
        letter.task = self._tasks.create_task(self._carry_out(letter))
        letter.task.add_done_callback(partial(self._ended, letter))
        return letter

    async def wait(self, letter: LetterTask) -> None:
        """Wait until a message is published and acknowledged; cancelling the call does not stop it.

        :raises ClosedError: the consumer was closed before
        :raises AlreadySettledError: the message was settled in another way before
        """
        letter.is_awaited = True
        if letter.task is not None:
            await asyncio.wait([letter.task])
        if letter.error is not None:
            raise letter.error

    # --- in the task of each -----------------------------------------------------------------------------------------

    async def _carry_out(self, letter: LetterTask) -> None:
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
                self.on_left()
                letter.error = AlreadySettledError(letter.id, "redelivered by the broker")
                return
            if not await self._until_done(self._publish, letter, "publishing it"):
                self._hold_again(letter)
                return
            self._count(-letter.release())
            await self._until_done(self._acknowledge_original, letter, "acknowledging it")
            letter.route.done += 1
            if letter.wait is None:
                self._trace.dead_lettered(letter.record, letter.topic, letter.reason)
            else:
                self._trace.retried(letter.record, letter.topic, letter.wait.delay_ms)
        except ClosedError as error:
            letter.error = error

    def _ended(self, letter: LetterTask, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # it may not even have begun
            letter.error = letter.error or ClosedError("the consumer")
        self._forget(letter)
        self._count(-letter.release())

    def _forget(self, letter: LetterTask) -> None:
        if self._under_way.get(letter.id) is letter:
            del self._under_way[letter.id]
            letter.route.waiting -= 1

    def _hold_again(self, letter: LetterTask) -> None:
        """Hold a message here, because its nack could not wait in the retry topic."""
        assert letter.delivery is not None
        assert letter.wait is not None
        self._forget(letter)
        self.hold_again(letter.delivery, letter.record, letter.wait)

    async def _publish(self, letter: LetterTask) -> None:
        assert letter.delivery is not None
        await letter.route.publish(letter.delivery, letter.destination)
        letter.route.has_warned = False

    async def _acknowledge_original(self, letter: LetterTask) -> None:
        await self._acknowledge(letter.id)

    async def _until_done(
        self, attempt: Callable[[LetterTask], Awaitable[None]], letter: LetterTask, what: str
    ) -> bool:
        """Repeat a step until it succeeds; False: it failed, and the message may wait here instead."""
        failed = 0
        while True:
            try:
                await attempt(letter)
            except asyncio.CancelledError as fault:
                if _is_cancelled():
                    raise
                error: BaseException = fault  # of something that it waited for
            except Exception as fault:
                if _is_cancelled():  # of which the publisher made another error
                    raise asyncio.CancelledError from fault
                error = fault
            else:
                return True
            if isinstance(error, ClosedError) and attempt == self._acknowledge_original:
                raise error  # nothing can be acknowledged any more
            self._failed(letter, what, error)
            if letter.may_wait_here:
                return False
            await asyncio.sleep(float(self._backoff(failed)))
            failed += 1

    def _failed(self, letter: LetterTask, what: str, error: BaseException) -> None:
        route = letter.route
        route.failures += 1
        self._trace.error(letter.id, letter.record.redelivery_count, route.what, error)
        if not route.has_warned:
            route.has_warned = True
            then = "it waits in this consumer" if letter.may_wait_here else "is tried again"
            _log.warning(
                "%r is a %s, %s, but %s failed and %s: %r", letter.id, route.what, letter.topic, what, then, error
            )

    # --- ending ------------------------------------------------------------------------------------------------------

    def drop(self, message_id: MessageId, state: str) -> None:
        """Abort what is under way with a message that was settled otherwise."""
        letter = self._under_way.get(message_id)
        if letter is not None:
            self._forget(letter)
            letter.error = AlreadySettledError(message_id, state)
            assert letter.task is not None
            letter.task.cancel()

    def clear(self, state: str) -> None:
        """Abort everything that is under way."""
        for message_id in list(self._under_way):
            self.drop(message_id, state)

    async def finish(self, timeout: float) -> None:
        """Wait for what is under way, then abort the rest: these messages come again. No other begins."""
        self._tasks = None
        self.has_room.set()
        tasks = [letter.task for letter in self._under_way.values() if letter.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                task.cancel()

    async def aclose(self) -> None:
        """Close the publishers, unless they are the user's."""
        self._tasks = None
        self.has_room.set()
        for route in (self.dead, self.retry):
            if route is not None:
                await route.aclose()

    def _count(self, change: int) -> None:
        self._bytes += change
        is_full = len(self._under_way) >= _MOST or (self._bytes > 0 and self._bytes >= self._max_bytes)
        if is_full and self._tasks is not None:
            self.has_room.clear()
        else:
            self.has_room.set()


class LetterTask:
    """One message under way.

    :param reason: of a dead letter
    :param wait: how long it waits in the retry topic; None: it is a dead letter
    :param may_wait_here: it is a nack that waits here if it cannot be published
    """

    def __init__(
        self,
        route: LetterRoute,
        record: MessageState,
        delivery: Delivery,
        destination: Destination,
        *,
        reason: str = "",
        wait: Wait | None = None,
        may_wait_here: bool = False,
    ) -> None:
        self.route = route
        self.record = record
        self.id = record.id
        self.topic = destination[0]
        self.reason = reason
        self.destination = destination
        self.wait = wait
        self.may_wait_here = may_wait_here
        self.delivery: Delivery | None = delivery
        self.bytes = kept_bytes(delivery)
        self.task: asyncio.Task[None] | None = None
        self.error: Exception | None = None
        self.is_awaited = False
        """The user called for it and waits: it is published although others may have settled the message."""

    def release(self) -> int:
        """Drop the payload once it is published or given up; return its size, 0 if it is gone already."""
        size, self.bytes, self.delivery, self.may_wait_here = self.bytes, 0, None, False
        return size


def _is_cancelled() -> bool:
    """Return whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
