"""The producer of one topic or partition: keeps a session with the topic's broker, reconnects after each loss.

States: new, connected (there is a session), reconnecting (a task tries to begin one), failed (the
topic was terminated, or another producer has taken over), closed.

Sessions in which nothing is confirmed are followed by longer and longer pauses, until ``send_timeout`` fails the
messages in the :class:`SendQueue`, which sends them again in each session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from ..._foreign import quoted
from ...errors import BrokerRefusedError, ClosedError
from .._connection._context import ClientContext
from .._connection._requests import as_text, broker_error, is_busy, is_transient
from .._connection._session import Session
from .._protocol import _pulsar_pb2 as pb
from ._options import ProducerOptions
from ._outgoing import OutgoingMessage
from ._send_queue import SendQueue

_CLOSE_TIMEOUT_S: Final = 5.0
_FINAL: Final = frozenset({"TopicTerminatedError", "ProducerFenced"})
"""Errors after which the broker accepts nothing more from this producer."""

_DROPPED: Final = "ChecksumError"
"""The error of a damaged message: the broker drops it, and takes those that were sent after it."""

_SEND_AGAIN: Final = frozenset({_DROPPED, "ProducerBlockedQuotaExceededError"})
"""Errors of a message that may be accepted when it is sent again, besides transient ones."""

_LASTING_S: Final = 1.0
"""A session that ends sooner, with nothing confirmed, delays the next one."""

_LOG: Final = logging.getLogger("pulsar_nack.wire")


class TopicProducer:
    """Produces to one topic or partition; all calls in the client's event loop.

    :param topic: the full name, of a partition too
    :param on_done: called with each message whose receipt is done
    """

    def __init__(
        self, context: ClientContext, topic: str, options: ProducerOptions, on_done: Callable[[OutgoingMessage], None]
    ) -> None:
        self.topic = topic
        self.name = options.name or ""
        """The producer's name; empty until the broker has chosen one."""
        self.failed_attempts = 0
        """How many attempts to reconnect have failed."""
        self.queue = SendQueue(topic, options, context, on_done=on_done, restart=self._restart)
        self._context = context
        self._loop = context.loop
        self._options = options
        self._epoch = 0
        """How many sessions there were."""
        self._topic_epoch: int | None = None
        """That of the broker's last answer, with an exclusive access mode."""
        self._session: Session | None = None
        self._session_start: tuple[float, int] = (0.0, -1)
        """When the session began, and the last confirmed sequence id then."""
        self._short_sessions = 0
        self._assigned_url: str | None = None
        """The address that the broker named when it closed the producer; the next session begins there."""
        self._cluster_url: str | None = None
        """The service URL of the cluster that the topic has moved to; None: the client's."""
        self._reconnecting: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closing else "connected" if self.is_connected else "not connected"
        return f"<TopicProducer of {self.topic} as {self.name!r}, {state}>"

    @property
    def is_connected(self) -> bool:
        """Return whether the broker knows the producer now."""
        return self._session is not None

    # --- opening and closing ---------------------------------------------------------------------------------------

    async def open(self, ends_at: float | None = None) -> None:
        """Connect; transient errors are retried until ``ends_at``, or for ``request_timeout``.

        A broker that lets a producer wait until it is the only one may take any time.

        :param ends_at: loop time
        :raises BrokerRefusedError: the broker refused
        :raises BrokerError: the broker cannot be reached
        :raises ClosedError: the producer is closed
        """
        may_wait = self._options.access_mode == "wait_for_exclusive"
        await self._context.retry_transient(self._open_once, ends_at=ends_at, may_wait=may_wait)

    async def _open_once(self) -> None:
        self.check_open()
        if self._session is None:
            await self._connect()

    def check_open(self) -> None:
        """Raise if the producer accepts no messages.

        :raises ClosedError: it is closed
        :raises BrokerRefusedError: the broker has refused it for good
        """
        if self._closing is not None:
            raise ClosedError("the producer")
        if self._failure is not None:
            raise self._failure

    async def aclose(self) -> None:
        """Send all messages, wait for their receipts, a few seconds at most, and close. Idempotent."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name=f"pulsar_nack.wire closing {self.topic}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        limit = min(_CLOSE_TIMEOUT_S, self._context.options.request_timeout.total_seconds())
        try:
            async with asyncio.timeout(limit):
                await self.queue.flush()
                if self._session is not None:
                    await self._session.end()
        except TimeoutError:
            _LOG.warning("%s: the broker has not confirmed all messages within %g s", self.topic, limit)
        finally:
            await self._end()

    async def _end(self) -> None:
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            session.drop()
        self.queue.fail_all(ClosedError("the producer"))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])

    # --- sessions --------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        assigned_url, self._assigned_url = self._assigned_url, None
        if assigned_url is None:
            connection = await self._context.broker(self.topic, self._cluster_url)
        else:
            connection = await self._context.pool.get(assigned_url)
        session = Session(
            connection,
            connection.producers,
            self.topic,
            what="producer",
            close=_close_command,
            on_closed=self._on_session_closed,
        )
        session.on_topic_migrated = self._on_topic_migrated
        session.on_receipt = self.queue.on_receipt
        session.on_send_error = partial(self._on_send_error, session)
        answer = (await session.register(self._producer_command)).producer_success
        if self._is_closed:
            session.drop()
            raise ClosedError("the producer")
        self._session = session
        self._epoch += 1
        self.name = answer.producer_name
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        self._session_start = (self._loop.time(), self.queue.confirmed_id)
        self.queue.start(connection, session.id, answer)

    def _producer_command(self, producer_id: int, request_id: int) -> pb.BaseCommand:
        options = self._options
        body = pb.CommandProducer(
            topic=self.topic,
            producer_id=producer_id,
            request_id=request_id,
            producer_name=self.name or None,
            metadata=[pb.KeyValue(key=key, value=value) for key, value in options.properties.items()],
            schema=None if options.schema_info is None else options.schema_info.to_protobuf(),
            epoch=self._epoch,
            user_provided_producer_name=options.name is not None,
            producer_access_mode=options.access_mode_type,
            topic_epoch=self._topic_epoch,
            initial_subscription_name=options.initial_subscription,
        )
        return pb.BaseCommand(type=pb.BaseCommand.PRODUCER, producer=body)

    def _on_session_closed(self, session: Session, error: Exception) -> None:
        """Reconnect, and send again all unconfirmed messages."""
        if session is not self._session:
            return
        self._session = None
        self._assigned_url = session.assigned_url
        began_at, confirmed_id = self._session_start
        has_lasted = self.queue.confirmed_id != confirmed_id or self._loop.time() - began_at >= _LASTING_S
        self._short_sessions = 0 if has_lasted else self._short_sessions + 1
        self.queue.stop(error)
        self._start_reconnecting()

    def _on_topic_migrated(self, url: str | None) -> None:
        """Look for the topic in another cluster from now on; the session ends."""
        self._cluster_url = self._context.checked_cluster(self.topic, url) or self._cluster_url

    def _restart(self, error: Exception) -> None:
        """End the session and begin another one."""
        session = self._session
        if session is not None:
            _LOG.warning("%s: sending unconfirmed messages again: %s", self.topic, error)
            session.drop()
            self._on_session_closed(session, error)

    def _start_reconnecting(self) -> None:
        has_no_use = self._closing is not None and not self.queue.has_unsent
        if self._reconnecting is None and self._failure is None and not has_no_use:
            task = self._loop.create_task(self._reconnect(), name=f"pulsar_nack.wire producing to {self.topic}")
            self._reconnecting = task
            task.add_done_callback(self._on_reconnected)

    async def _reconnect(self) -> None:
        await self._context.reconnect(
            self._connect,
            lambda: self._session is not None or self._failure is not None or self._is_closed,
            self._on_failed_attempt,
            attempt=self._short_sessions,
            at_once=self._assigned_url is not None,
        )

    def _on_reconnected(self, task: asyncio.Task[None]) -> None:
        self._reconnecting = None
        if self._is_closed:
            return
        fault = asyncio.CancelledError() if task.cancelled() else task.exception()
        if fault is None:
            if self._session is None:
                self._start_reconnecting()
            return
        if not isinstance(fault, ClosedError):
            _LOG.error("%s: does not reconnect any more: %r", self.topic, fault)
        error = ClosedError("the producer")
        error.__cause__ = fault
        self._fail(error)

    def _on_failed_attempt(self, error: Exception) -> None:
        self.failed_attempts += 1
        if quoted(error) != quoted(self.queue.session_error):
            _LOG.warning("%s: cannot produce again yet: %s", self.topic, as_text(error))
        self.queue.session_error = error
        if not isinstance(error, BrokerRefusedError):
            return  # it may pass: a lost connection, or missing credentials
        if error.code in _FINAL:
            self._fail(error)
        elif not is_transient(error) and not is_busy(error) and error.code != "ProducerBlockedQuotaExceededError":
            self.queue.fail_all(error)

    def _fail(self, error: Exception) -> None:
        """Fail all messages, and accept no more."""
        self._failure = error
        self.queue.fail_all(error)

    def _on_send_error(self, session: Session, command: pb.CommandSendError) -> None:
        """Fail a message that the broker refused, or send it again if that may help."""
        if session is not self._session:
            return
        error = broker_error(command.error, command.message, session.connection.without_secrets)
        if error.code in _FINAL:
            self._fail(error)
            return
        op = self.queue.sent_op(command.sequence_id)
        if is_transient(error) or error.code in _SEND_AGAIN:
            if op is not None and error.code == _DROPPED:
                op.overtake()
            self._restart(error)
        elif op is not None:
            self.queue.fail(op, error)


def _close_command(producer_id: int, request_id: int) -> pb.BaseCommand:
    body = pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=body)
