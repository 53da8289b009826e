"""Keeps the consumer of one topic or partition subscribed: begins a session whenever the last one has ended.

States: new, connected (there is a session), disconnected (a task tries to begin one), closed.

What belongs to a session ends with it: the queued messages, the permits and the requests for redelivery. The broker
then sends everything unacknowledged again. Two things outlive a session: unconfirmed acknowledgements, which are the
first to be sent in the next one, and requests whose answer is awaited, which are sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from ..._check import INT64_MAX
from ..._foreign import quoted
from ...consumer import SessionEvent
from ...errors import BrokerRefusedError, ClosedError, ConnectionLostError, TopicNotFoundError
from ...ids import MessageId, _is_message_id
from .._connection._context import ClientContext
from .._connection._requests import as_text, is_busy, is_transient, is_unknown_consumer
from .._connection._session import Session
from .._protocol import _pulsar_pb2 as pb
from .._protocol._frames import position_of
from ._acknowledger import Acknowledger
from ._consumer_session import ConsumerSession, last_message_id_command, subscribe_command
from ._positions import EARLIEST, NonDurablePosition, id_after, id_before
from ._receiver_queue import ReceiverQueue
from ._subscribe_options import SubscribeOptions

_CLOSE_TIMEOUT_S: Final = 5.0
_SHORT_S: Final = 1.0
"""While sessions end sooner than this, the pauses before the next ones grow."""
_PAUSE_S: Final = 0.05
_MOST_PAUSES: Final = 20
_LOG: Final = logging.getLogger("pulsar_nack.wire")


class SessionKeeper:
    """The sessions of one consumer, one after the other.

    :param context: that of the client
    :param queue: gets the entries that arrive, and the sessions
    :param acks: gets the sessions
    :param on_event: called with each event of a session
    :param on_missing: called when the topic turns out to be deleted and may not be created again, and when the
        consumer ended without :meth:`aclose`
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        options: SubscribeOptions,
        *,
        queue: ReceiverQueue,
        acks: Acknowledger,
        on_event: Callable[[SessionEvent], None],
        on_missing: Callable[[], None],
    ) -> None:
        self.session: ConsumerSession | None = None
        self.subscribed_times = 0
        self.failed_attempts = 0
        self.last_error: Exception | None = None
        self.missing: TopicNotFoundError | None = None
        """The broker's error while the topic is deleted; subscribing is tried again and again."""
        self._context = context
        self._loop = context.loop
        self._topic = topic
        self._options = options
        self._queue = queue
        self._acks = acks
        self._position = acks.position
        self._on_event = on_event
        self._on_missing = on_missing
        self._was_active = False
        self._subscribed_at = 0.0
        self._short_sessions = 0
        self._next_first: MessageId | None = None
        self._cluster_url: str | None = None
        """The service URL of the cluster that the topic has moved to; None: the client's."""
        self._is_subscribed = asyncio.Event()
        self._may_subscribe = asyncio.Event()
        self._may_subscribe.set()
        self._subscribing: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self.fault: BaseException | None = None
        """The error that ended it, if it was not closed."""

    @property
    def is_closed(self) -> bool:
        """Return whether it is closed, or closing."""
        return self._closing is not None

    def check_open(self) -> None:
        """Raise if it is closed.

        :raises ClosedError: caused by the error that ended it, if there was one
        """
        if self._closing is not None:
            raise ClosedError("the consumer") from self.fault

    # --- opening and closing ------------------------------------------------------------------------------------------

    async def open(self, ends_at: float | None = None) -> None:
        """Subscribe; after temporary failures try again, until ``ends_at``.

        :param ends_at: time of the loop; None: as long from now as a request may take
        :raises BrokerRefusedError: the broker refused
        :raises BrokerError: it cannot be reached
        :raises ClosedError: the consumer is closed
        """
        await self._context.retry_transient(self._try_to_open, ends_at=ends_at)

    async def _try_to_open(self) -> None:
        self.check_open()
        if self.session is None:
            await self._subscribe()

    async def aclose(self) -> None:
        """End the session, after unanswered acknowledgements. Idempotent."""
        if self._closing is None:
            self._acks.is_closed = True
            self._closing = self._loop.create_task(self._close(), name=f"pulsar_nack.wire closing {self._topic}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        subscribing = self._subscribing
        if subscribing is not None:
            subscribing.cancel()
            await asyncio.wait([subscribing])
        session = self.session
        limit = min(_CLOSE_TIMEOUT_S, self._context.options.request_timeout.total_seconds())
        try:
            async with asyncio.timeout(limit):
                if session is not None:
                    await self._acks.settled()
                    await session.end()
        except TimeoutError:
            _LOG.warning("%s: the broker has not confirmed within %g s that the consumer is closed", self._topic, limit)
        finally:
            self._end_session()
            self._acks.close()
            self._is_subscribed.set()  # waiting calls check again, and find it closed

    def _fail(self, fault: BaseException) -> None:
        """Close without a connection: the client is closed, or the subscribing task was cancelled."""
        if not isinstance(fault, ClosedError):
            _LOG.error("%s: does not subscribe again: %r", self._topic, fault)
        self.fault = fault
        self._acks.is_closed = True
        self._closing = self._loop.create_future()
        self._closing.set_result(None)
        error = ClosedError("the consumer")
        error.__cause__ = fault
        self._acks.fail(error)
        self._is_subscribed.set()  # waiting calls check again
        self._on_missing()

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        connection = await self._context.broker(self._topic, self._cluster_url)
        position = self._position
        start = None if position is None else position.begin()
        session = ConsumerSession(
            connection,
            self._topic,
            on_message=self._queue.on_message,
            on_closed=self._on_session_closed,
            on_active_changed=self._on_active_changed,
            on_topic_migrated=self._on_topic_migrated,
        )
        await session.register(
            partial(subscribe_command, self._topic, options=self._options, start=start, epoch=self._queue.rewinds)
        )
        if position is not None and not position.is_known:
            try:
                await self._note_start(session, position)
            except BaseException:
                session.drop()
                raise
            if session.is_closed:
                raise ConnectionLostError(f"{self._topic}: the broker closed the consumer at once")
        if self._closing is not None:
            session.drop()
            raise ClosedError("the consumer")
        self._begin_session(session, start)
        if position is not None and position.is_behind:  # a redelivery was requested in the meantime
            self.reconnect()

    async def _note_start(self, session: ConsumerSession, position: NonDurablePosition) -> None:
        """Note where the broker begins: at the latest message, or at the time of a seek.

        The next session begins there too if no message is taken until then. No permits are given yet, and nothing is
        acknowledged.
        """
        try:
            answer = (await session.request(last_message_id_command)).getLastMessageIdResponse
        except BrokerRefusedError as error:
            _LOG.debug("%s: the latest message is unknown: %s", self._topic, error)
            return
        has_mark = answer.HasField("consumer_mark_delete_position")
        if has_mark or position.start != EARLIEST:  # otherwise a time, which an old broker does not report
            last = answer.consumer_mark_delete_position if has_mark else answer.last_message_id
            position.move(MessageId(*position_of(last)))
            position.begin()

    def _begin_session(self, session: ConsumerSession, start: MessageId | None) -> None:
        self._queue.connected(session, self._first_to_deliver(start))
        self.session = session
        self._subscribed_at = self._loop.time()
        self.last_error = self.missing = None
        self._acks.is_topic_missing = False
        if not self.subscribed_times and self._options.durable:
            # If the subscription is missing the next time, then so is the topic, or the connection was lost for too
            # long: all messages that are there then were published after this consumer began.
            self._options = replace(self._options, initial_position="earliest")
        self.subscribed_times += 1
        if self._position is None:  # otherwise the broker does not send again what is in flight
            self._on_event(SessionEvent.BEGAN)
        self._acks.connected(session.send_acks)
        if self.session is session:  # not lost while sending
            self._is_subscribed.set()
            self._queue.start()

    def _first_to_deliver(self, start: MessageId | None) -> MessageId | None:
        """Return the first message to deliver from an entry that the broker sends as a whole: after a seek.

        On a durable subscription only the next session has one, because others may have moved the subscription since.
        """
        first, self._next_first = self._next_first, None
        return id_after(start) if first is None and start is not None else first

    def _end_session(self) -> None:
        self.session = None
        self._is_subscribed.clear()
        self._acks.disconnected()
        self._queue.disconnected()

    def _report_end(self, *, is_lost: bool) -> None:
        """Report the end of a session; a non-durable subscription is lost with each."""
        self._on_event(SessionEvent.LOST if is_lost or self._position is not None else SessionEvent.CLOSED)

    def begin_at(self, position: MessageId | int) -> None:
        """Note a seek: the next session begins there."""
        self._next_first = position if _is_message_id(position) else None
        if self._position is not None:
            start = id_before(position) if isinstance(position, MessageId) else EARLIEST
            self._position.move(start, is_exact=isinstance(position, MessageId) and position.entry < INT64_MAX)

    def reconnect(self) -> None:
        """End the session and begin a new one, unless the broker has ended it already."""
        session = self.session
        if session is not None and self._closing is None:
            self._end_session()
            session.drop()
            self._report_end(is_lost=False)
            self._subscribe_again()

    def _subscribe_again(self) -> None:
        if self._closing is None and self._subscribing is None:
            task = self._loop.create_task(self._resubscribe(), name=f"pulsar_nack.wire subscribing to {self._topic}")
            self._subscribing = task
            task.add_done_callback(self._on_resubscribed)

    async def _resubscribe(self) -> None:
        async def subscribe() -> None:
            await self._may_subscribe.wait()
            await self._subscribe()

        await self._context.reconnect(
            subscribe,
            lambda: self.session is not None or self._closing is not None,
            self._note_failure,
            attempt=self._short_sessions,
            at_once=not self._may_subscribe.is_set(),
        )

    def _on_resubscribed(self, task: asyncio.Task[None]) -> None:
        self._subscribing = None
        if self._closing is not None:
            return
        fault = asyncio.CancelledError() if task.cancelled() else task.exception()
        if fault is not None:
            self._fail(fault)
        elif self.session is None:
            self._subscribe_again()

    def _note_failure(self, error: Exception) -> None:
        self.failed_attempts += 1
        if quoted(error) != quoted(self.last_error):
            _LOG.warning("%s: cannot subscribe again yet: %s", self._topic, as_text(error))
        self.last_error = error
        if isinstance(error, TopicNotFoundError):
            self._acks.is_topic_missing = True
            self._acks.fail(None)
            was_missing, self.missing = self.missing, error
            if was_missing is None:
                self._is_subscribed.set()  # waiting calls check again
                self._is_subscribed.clear()
                self._on_missing()
        elif isinstance(error, BrokerRefusedError) and not is_busy(error) and not is_transient(error):
            self._acks.fail(error)

    # --- events of sessions -------------------------------------------------------------------------------------------

    def _on_session_closed(self, session: Session, error: Exception) -> None:
        """Subscribe again; if the broker closed a session that was only beginning, just report that it ended."""
        if session is not self.session and not session.is_lost:
            self._report_end(is_lost=False)
        if session is self.session:
            self.last_error = error
            is_short = self._loop.time() - self._subscribed_at < _SHORT_S
            self._short_sessions = self._short_sessions + 1 if is_short and not self._queue.is_seeking else 0
            self._end_session()
            self._report_end(is_lost=session.is_lost)
            if self._closing is None:
                self._subscribe_again()
            else:
                self._acks.close()

    def _on_active_changed(self, session: ConsumerSession, is_active: bool) -> None:
        """Drop untaken messages when another consumer of the Failover subscription becomes active."""
        if self.session is not None and session is not self.session:
            return
        was_active, self._was_active = self._was_active, is_active
        if was_active and not is_active:
            self._queue.drop_and_permit()
            self._on_event(SessionEvent.INACTIVE)

    def _on_topic_migrated(self, url: str | None) -> None:
        """Look for the topic in another cluster from now on; the session ends."""
        self._cluster_url = self._context.checked_cluster(self._topic, url) or self._cluster_url

    # --- requests that outlive a session ------------------------------------------------------------------------------

    async def request(self, make: Callable[[int, int], pb.BaseCommand], *, is_seek: bool = False) -> pb.BaseCommand:
        """Return the answer to a request, sent again in the next session if one ends: repeating it must do no harm.

        :param is_seek: no session begins until the answer is here
        :raises BrokerError: the broker refused, or did not answer in time
        :raises ClosedError: the consumer is closed
        """
        ends_at = self._loop.time() + self._context.options.request_timeout.total_seconds()
        pauses = 0
        while True:
            session = await self._next_session(ends_at)
            if is_seek:
                self._may_subscribe.clear()
            try:
                return await session.request(make, timeout=max(ends_at - self._loop.time(), 0.001))
            except ConnectionLostError:
                if self._loop.time() >= ends_at:
                    raise
            except BrokerRefusedError as error:
                if not is_unknown_consumer(error) or self._loop.time() >= ends_at:
                    raise
                if session is self.session:  # the broker may have closed it and not said so yet
                    pauses += 1
                    if pauses > _MOST_PAUSES:
                        raise
                    await asyncio.sleep(_PAUSE_S)
            finally:
                self._may_subscribe.set()

    async def _next_session(self, ends_at: float) -> ConsumerSession:
        while True:
            self.check_open()
            if self.session is not None:
                return self.session
            if self.missing is not None:
                raise TopicNotFoundError(self.missing.code, self.missing.text)
            try:
                async with asyncio.timeout_at(ends_at):
                    await self._is_subscribed.wait()
            except TimeoutError:
                raise self.not_subscribed() from None

    async def wait_connected(self) -> None:
        """Wait for a session; returns too when none is to be expected."""
        if self.missing is None:
            await self._is_subscribed.wait()

    def not_subscribed(self) -> ConnectionLostError:
        """Return the error of a call that found no session in time."""
        return ConnectionLostError(f"{self._topic}: not subscribed at present: {self.last_error}")
