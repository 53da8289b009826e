"""Dead letters under way: first published, then acknowledged; each step until it is done.

Whatever fails is tried again with backoff, and the message stays unacknowledged meanwhile. If the process ends between
the two steps the message comes again and is published once more: there may be two, never none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from ..backoff import Exponential
from ..errors import AlreadySettledError, ClosedError, InvalidArgumentError
from ..ids import MessageId
from ._dead_letter import DeadLetterPolicy, Letter, Rules, as_reason, attempts_failed
from ._following import Following
from ._local_store import kept_bytes
from ._port import ConsumerPort, Delivery, OwnPublisher, Publisher, SupportsPublishing
from ._states import Record, State, States
from ._tracing import TraceNote, names_of

_log = logging.getLogger("pulsar_nack.consumer")
REASON_IN_TRACE: Final = "dead-letter"
"""The reason of the acknowledgement of a dead letter."""
_MOST: Final = 1_000
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0
_LONGEST_PAUSE_MS: Final = 30_000


class Acknowledging(Protocol):
    """What acknowledges a message that has been published."""

    def acknowledge(self, message_id: MessageId) -> Awaitable[None]:
        """Begin, and return what waits for the outcome."""
        ...


class DeadLetters:
    """Carries dead letters out, each in a task.

    At most 1 000 of them, and ``max_bytes``, are under way: then :attr:`is_full`, and nothing new is fetched.

    :param port: publishes, where the setting names nothing else
    :param max_bytes: most memory for their payloads
    :param following: finds messages that are settled at the broker; those are not published
    :raises InvalidArgumentError: nothing can publish, or the topic cannot be named
    """

    def __init__(
        self,
        setting: DeadLetterPolicy,
        port: ConsumerPort,
        states: States,
        *,
        max_bytes: int,
        following: Following | None = None,
        note: TraceNote | None = None,
    ) -> None:
        self.done = 0
        self.failures = 0
        _, subscription, _ = names_of(port)
        if setting.topic is None and not subscription:
            raise InvalidArgumentError("dead_letter", setting, "a topic: this port tells no subscription to name it by")
        self.rules = Rules(setting, subscription)
        self.has_room = asyncio.Event()
        """Clear while it is full."""
        self.has_room.set()
        self._own = None if setting.publisher is not None else _publisher_of(setting, port)
        self._publisher: Publisher | OwnPublisher = setting.publisher or self._own  # type: ignore[assignment]  # one is
        self._states = states
        self._max_bytes = max_bytes
        self._following = following
        self._bytes = 0
        self._note = note
        self._backoff = Exponential(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._under_way: dict[MessageId, Job] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._acks: Acknowledging | None = None
        self._has_warned = self._has_told = False

    def start(self, tasks: asyncio.TaskGroup, acks: Acknowledging) -> None:
        """Begin to carry out what is sent."""
        self._tasks, self._acks = tasks, acks

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, message_id: MessageId) -> bool:
        return message_id in self._under_way

    @property
    def is_full(self) -> bool:
        """Return whether no more are to be fetched."""
        return not self.has_room.is_set()

    # --- sending -----------------------------------------------------------------------------------------------------

    def takes(self, delivery: Delivery, record: Record) -> bool:
        """Send a message that has just come, if it is not to be shown."""
        reason = self.rules.reason_for(delivery, record.redelivery_count)
        if reason is None:
            return False
        told = None if delivery.error is None else type(delivery.error).__name__
        if told is not None:
            self._tell(record, told)
        job = self._send(delivery, record, record.redelivery_count, reason)
        if told is not None and not self._has_told:
            self._has_told = True
            _log.warning("%r cannot be read, and goes to %s without being shown: %s", job.id, job.topic, reason)
        return True

    def send(self, delivery: Delivery, redelivery_count: int, reason: str = "") -> Job:
        """Send a message that was shown; one that is under way goes on as it is.

        :param redelivery_count: of the attempt that has just ended
        :param reason: empty: that the attempts failed
        """
        known = self._under_way.get(delivery.id)
        if known is not None:
            return known
        record = self._states.give_up(delivery.id, redelivery_count)
        attempts = redelivery_count + 1
        self._tell(record, reason or None)
        return self._send(delivery, record, attempts, reason or attempts_failed(attempts))

    def _tell(self, record: Record, reason: str | None) -> None:
        if self._note is not None:
            self._note("nack", record.id, record.redelivery_count, reason=reason)

    def _send(self, delivery: Delivery, record: Record, attempts: int, reason: str) -> Job:
        if record.state is not State.GIVEN_UP:
            self._states.give_up(record.id, record.redelivery_count)
        job = Job(record, self.rules.letter(delivery, attempts, as_reason(reason)), kept_bytes(delivery))
        if self._tasks is None:  # closing: the message comes again
            job.error = ClosedError("the consumer")
            return job
        self._under_way[record.id] = job
        if self._following is not None:
            self._following.note(record, _LONGEST_PAUSE_MS)
        self._count(job.bytes)
        job.task = self._tasks.create_task(self._carry_out(job))
        job.task.add_done_callback(partial(self._ended, job))
        return job

    async def wait(self, job: Job) -> None:
        """Wait until it is published and acknowledged; a cancelled call leaves it to go on.

        :raises ClosedError: the consumer was closed before
        :raises AlreadySettledError: the message was settled in another way before
        """
        job.is_awaited = True
        if job.task is not None:
            await asyncio.wait([job.task])
        if job.error is not None:
            raise job.error

    # --- in the task of each -----------------------------------------------------------------------------------------

    async def _carry_out(self, job: Job) -> None:
        try:
            was_doubtful = job.record.is_doubtful
            if self._following is not None:
                await self._following.check(job.record)
            if self._under_way.get(job.id) is not job:
                return  # it was settled, and has been dropped
            if job.record.is_doubtful and not (was_doubtful or job.is_awaited):  # it comes again, here or elsewhere
                self._states.leave([job.record])
                job.error = AlreadySettledError(job.id, "given out again by the broker")
                return
            await self._until_done(self._publish, job, "publishing it")
            self._count(-job.release())
            await self._until_done(self._acknowledge, job, "acknowledging it")
            self.done += 1
        except ClosedError as error:
            job.error = error

    def _ended(self, job: Job, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # it may not even have begun
            job.error = job.error or ClosedError("the consumer")
        if self._under_way.get(job.id) is job:
            del self._under_way[job.id]
        self._count(-job.release())

    async def _publish(self, job: Job) -> None:
        letter = job.letter
        assert letter is not None
        about: dict[str, Any] = {
            "properties": letter.properties,
            "key": letter.key,
            "ordering_key": letter.ordering_key,
            "event_time_ms": letter.event_time_ms,
        }
        if self._own is not None:
            about["schema"] = letter.schema
        await self._publisher.publish(letter.topic, letter.data, **about)
        self._has_warned = False

    async def _acknowledge(self, job: Job) -> None:
        assert self._acks is not None
        await self._acks.acknowledge(job.id)

    async def _until_done(self, attempt: Callable[[Job], Awaitable[None]], job: Job, what: str) -> None:
        failed = 0
        while True:
            try:
                await attempt(job)
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
            self._failed(job, what, error)
            await asyncio.sleep(float(self._backoff(failed)))
            failed += 1

    def _failed(self, job: Job, what: str, error: BaseException) -> None:
        self.failures += 1
        if self._note is not None:
            self._note("error", job.id, job.record.redelivery_count, reason=f"dead letter: {error!r}")
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%r is a dead letter for %s, but %s failed and is tried again: %r", job.id, job.topic, what, error
            )

    # --- ending ------------------------------------------------------------------------------------------------------

    def drop(self, message_id: MessageId, state: str) -> None:
        """End one that is under way: the message was settled in another way."""
        job = self._under_way.pop(message_id, None)
        if job is not None:
            job.error = AlreadySettledError(message_id, state)
            assert job.task is not None
            job.task.cancel()

    def clear(self, state: str) -> None:
        """End all."""
        for message_id in list(self._under_way):
            self.drop(message_id, state)

    async def finish(self, timeout: float) -> None:
        """Wait for those under way, then end the rest: their messages come again. No other begins."""
        self._tasks = None
        self.has_room.set()
        tasks = [job.task for job in self._under_way.values() if job.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                task.cancel()

    async def aclose(self) -> None:
        """Close what publishes, if it is not the user's."""
        self._tasks = None
        self.has_room.set()
        if self._own is not None:
            try:
                await self._own.aclose()
            except Exception as error:  # noqa: BLE001 - the rest is closed too
                _log.warning("closing what published dead letters: %r", error)

    def _count(self, change: int) -> None:
        self._bytes += change
        is_full = len(self._under_way) >= _MOST or (self._bytes > 0 and self._bytes >= self._max_bytes)
        if is_full and self._tasks is not None:
            self.has_room.clear()
        else:
            self.has_room.set()


class Job:
    """One dead letter under way."""

    def __init__(self, record: Record, letter: Letter, size: int) -> None:
        self.record = record
        self.id = record.id
        self.topic = letter.topic
        self.letter: Letter | None = letter
        self.bytes = size
        self.task: asyncio.Task[None] | None = None
        self.error: Exception | None = None
        self.is_awaited = False
        """The user asked for it, and waits: it is published although others may have settled the message."""

    def release(self) -> int:
        """Drop the payload; return how many bytes that were, 0 if it is gone already."""
        size, self.bytes, self.letter = self.bytes, 0, None
        return size


def _is_cancelled() -> bool:
    """Return whether the task that runs is to end."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _publisher_of(setting: DeadLetterPolicy, port: Any) -> OwnPublisher:
    publisher = None
    if isinstance(port, SupportsPublishing):
        publisher = port.publisher(setting.topic, setting.initial_subscription)
    if publisher is None:
        expected = "a DeadLetterPolicy with a publisher: what this consumer was made of cannot publish"
        raise InvalidArgumentError("dead_letter", setting, expected)
    return publisher
