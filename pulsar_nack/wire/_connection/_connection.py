"""One connection to a broker or proxy, shared by all consumers and producers whose topics are there.

States: opening (until the broker has let us in), open, closed for good; whoever uses a connection opens another one
then. Its life ends once, in ``_shut``, whatever the reason: every request that waits fails, every consumer and producer
is told, every task and timer is cancelled.

Commands arrive in ``data_received`` and are handed on at once, in the same call; nothing of it waits. Answers go by
their request id, messages by consumer id, receipts by producer id; what nobody waits for any more is dropped: closing
a consumer does not stop what is on its way already.

A user that raises where it is told something has a fault. It is reported to the loop's exception handler, and the
connection is closed, since what the user had to remember may be lost: after connecting again everything comes anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Final, Self, cast

from ..._foreign import shown
from ...errors import BrokerError, ConnectionLostError
from .. import _pulsar_pb2 as pb
from .._protocol._commands import ping, pong
from .._protocol._frames import Frame, FrameDecoder, MessageFrame, encode_command
from ._address import Address
from ._dial import dial_network, not_reached
from ._events import ConsumerEvents, ProducerEvents, WatcherEvents
from ._handshake import Introduction
from ._keep_alive import KeepAlive
from ._options import ClientOptions
from ._refusals import refusal_of
from ._requests import Answer, Requests
from ._users import Users

_CLOSE_TIMEOUT: Final = 5.0
_FRAME_OVERHEAD: Final = 10 * 1024
_READ_BYTES: Final = 64 * 1024
_NO_REQUEST: Final = 2**64 - 1

Dial = Callable[["Connection", Address], Awaitable[None]]
"""Connects the protocol that it is given to an address: calls its ``connection_made`` with a transport."""

_ANSWERS: Final[dict[int, str]] = {
    pb.BaseCommand.SUCCESS: "success",
    pb.BaseCommand.ERROR: "error",
    pb.BaseCommand.PRODUCER_SUCCESS: "producer_success",
    pb.BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    pb.BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: "getTopicsOfNamespaceResponse",
    pb.BaseCommand.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    pb.BaseCommand.ACK_RESPONSE: "ackResponse",
    pb.BaseCommand.CONSUMER_STATS_RESPONSE: "consumerStatsResponse",
    pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS: "watchTopicListSuccess",
}
"""Which part of an answer the request id is in."""


class Connection(asyncio.BufferedProtocol):
    """Get one from :meth:`open`, or from a pool. All of it belongs to one event loop."""

    def __init__(
        self, address: Address, options: ClientOptions, on_closed: Callable[[Connection], None] | None = None
    ) -> None:
        self.address = address
        self.is_open = False
        self._options = options
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(max_command_bytes=options.max_command_bytes, max_topics=options.max_topics)
        self._space = memoryview(bytearray(_READ_BYTES))
        self._transport: asyncio.Transport | None = None
        self._requests = Requests(self._loop, options.request_timeout.total_seconds(), str(address))
        self._users = Users(is_secure=address.is_secure)
        self._consumers = self._users.consumers
        self._keep_alive = KeepAlive(self._loop, options.keep_alive.total_seconds(), self._ping, self._gone)
        self._introduction = Introduction(options.authentication, self._loop, self.send, self.close)
        self._last_id = {"consumer": 0, "producer": 0, "watcher": 0}
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._room: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._owes_pong = False
        self.lost_by: Exception | None = None
        """Why it was lost; None while it is open, if it was never open, or if it was closed on purpose."""

    @classmethod
    async def open(
        cls,
        address: Address,
        options: ClientOptions,
        *,
        proxy_to: str | None = None,
        dial: Dial | None = None,
        on_closed: Callable[[Connection], None] | None = None,
    ) -> Self:
        """Connect, and return when the broker has let us in.

        :param proxy_to: ``host:port`` of the broker that a proxy is to connect us with
        :param on_closed: called once when it is closed, by whomever
        :raises ConnectionLostError: nobody there, or not within ``connect_timeout``
        :raises BrokerRefusedError: the broker does not let us in
        :raises BrokerError: its certificate is not trusted
        """
        connection = cls(address, options, on_closed)
        seconds = options.connect_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds) as limit:
                await (dial(connection, address) if dial else dial_network(connection, address, options))
                await connection._begin(proxy_to)
        except OSError as error:  # a TimeoutError is one
            connection.close(error)
            if limit.expired():
                raise ConnectionLostError(f"{address}: not connected within {seconds:g} s") from error
            raise not_reached(address, error) from error
        except BaseException as error:
            connection.close(error)
            raise
        return connection

    def __repr__(self) -> str:
        state = "open" if self.is_open else "opening" if self._error is None else "closed"
        return f"<Connection to {self.address}, {state}>"

    # --- what the broker told of itself ---

    @property
    def protocol_version(self) -> int:
        """Return the version of the protocol that the broker speaks."""
        return self._introduction.answer.protocol_version

    @property
    def server_version(self) -> str:
        """Return the broker's name of its version, cut and escaped."""
        return shown(self._introduction.answer.server_version)

    @property
    def features(self) -> pb.FeatureFlags:
        """Return what the broker can do."""
        return self._introduction.answer.feature_flags

    @property
    def max_message_bytes(self) -> int:
        """Return the size of the largest message."""
        told = max(self._introduction.answer.max_message_size, 0)
        return min(told or self._options.max_message_bytes, self._options.max_frame_bytes)

    def without_secrets(self, text: str) -> str:
        """Return the broker's words, with our credentials replaced."""
        return self._introduction.without_secrets(text)

    # --- who uses it ---

    def request_id(self) -> int:
        """Return a fresh id for a request."""
        return self._requests.next_id()

    def consumer_id(self) -> int:
        """Return a fresh id for a consumer."""
        self._last_id["consumer"] += 1
        return self._last_id["consumer"]

    def producer_id(self) -> int:
        """Return a fresh id for a producer."""
        self._last_id["producer"] += 1
        return self._last_id["producer"]

    def watcher_id(self) -> int:
        """Return a fresh id for a watcher."""
        self._last_id["watcher"] += 1
        return self._last_id["watcher"]

    def add_consumer(self, consumer_id: int, handler: ConsumerEvents) -> None:
        """Hand what comes for this consumer to ``handler`` from now on.

        :raises ConnectionLostError: it is closed; likewise from all below
        """
        self._refuse_if_closed()
        self._users.consumers[consumer_id] = handler

    def remove_consumer(self, consumer_id: int) -> None:
        """Drop what comes for this consumer from now on."""
        self._users.consumers.pop(consumer_id, None)

    def add_producer(self, producer_id: int, handler: ProducerEvents) -> None:
        """Hand what comes for this producer to ``handler`` from now on."""
        self._refuse_if_closed()
        self._users.producers[producer_id] = handler

    def remove_producer(self, producer_id: int) -> None:
        """Drop what comes for this producer from now on."""
        self._users.producers.pop(producer_id, None)

    def add_watcher(self, watcher_id: int, handler: WatcherEvents) -> None:
        """Hand what comes for this watcher to ``handler`` from now on."""
        self._refuse_if_closed()
        self._users.watchers[watcher_id] = handler

    def remove_watcher(self, watcher_id: int) -> None:
        """Drop what comes for this watcher from now on."""
        self._users.watchers.pop(watcher_id, None)

    # --- sending ---

    def send(self, data: bytes) -> None:
        """Write bytes of the protocol, without waiting.

        A broker that reads nothing while more and more is sent, up to ``max_unsent_bytes``, is given up.
        """
        transport = self._transport
        if self._error is not None or transport is None:
            raise self._closed_error()
        transport.write(data)
        if self._room is not None and transport.get_write_buffer_size() > self._options.max_unsent_bytes:
            self.close(ConnectionLostError(f"{self.address}: the broker does not read what it is sent"))

    @property
    def is_congested(self) -> bool:
        """Return whether more than ``write_buffer_bytes`` are on their way."""
        return self._room is not None

    async def drained(self) -> None:
        """Wait while more than ``write_buffer_bytes`` are on their way."""
        while self._room is not None and self._error is None:
            await asyncio.shield(self._room)
        self._refuse_if_closed()

    def expect(self, request_id: int, what: str = "a command") -> Answer:
        """Return what will hold the answer to a request that is sent by :meth:`send`, or an error of :meth:`request`.

        Whoever does not want it any more cancels it.
        """
        self._refuse_if_closed()
        return self._requests.expect(request_id, what)

    async def request(
        self, command: pb.BaseCommand, request_id: int, *, timeout: float | None = None
    ) -> pb.BaseCommand:
        """Send a command that has this request id, and return the broker's answer.

        :param timeout: seconds; None: as in the options
        :raises BrokerRefusedError: the broker said no
        :raises ConnectionLostError: it is closed, or was before the answer came
        :raises RequestTimeoutError: no answer in time
        """
        self._refuse_if_closed()
        answer = self._requests.expect(request_id, pb.BaseCommand.Type.Name(command.type), timeout)
        try:
            self.send(encode_command(command))
            return await answer
        finally:
            self._requests.forget(request_id)

    # --- the end ---

    def close(self, error: BaseException | None = None) -> None:
        """Close it. Requests fail, consumers and producers are told; ``error`` is why, None: on purpose.

        On purpose what was written before is still sent.
        """
        if error is None:
            self._shut(ConnectionLostError(f"{self.address}: the connection was closed here"), is_on_purpose=True)
            return
        reason = (
            error if isinstance(error, BrokerError) else ConnectionLostError(f"{self.address}: {shown(repr(error))}")
        )
        if reason is not error:
            reason.__cause__ = error
        self._shut(reason, is_on_purpose=False)

    async def aclose(self) -> None:
        """Close it, and wait until it is gone, for a few seconds at most."""
        self.close()
        if self._transport is not None and not self._lost.done():
            try:
                await asyncio.wait([self._lost], timeout=_CLOSE_TIMEOUT)
            finally:
                if not self._lost.done():  # it takes too long, or whoever closes does not wait for it
                    self._transport.abort()
        await self._introduction.ended()

    def _shut(self, error: Exception, *, is_on_purpose: bool) -> None:
        if self._error is not None:
            return
        self._error = error
        self.lost_by = error if self.is_open and not is_on_purpose else None
        self.is_open = False
        if self._transport is not None:
            self._transport.close() if is_on_purpose else self._transport.abort()
        self._keep_alive.stop()
        self._introduction.stop(error)
        self._make_room()
        self._requests.fail_all(self._closed_error())  # whatever the reason: they may be asked again elsewhere
        self._users.lost(error, self._report)
        if self._on_closed is not None:
            self._on_closed(self)

    def _closed_error(self) -> ConnectionLostError:
        if self._error is None:
            return ConnectionLostError(f"{self.address}: the connection is not open yet")
        error = ConnectionLostError(str(self._error))
        error.__cause__ = self._error
        return error

    def _refuse_if_closed(self) -> None:
        if self._error is not None:
            raise self._closed_error()

    def _report(self, fault: Exception) -> None:
        told = f"what uses {self!r} raised where it was told something"
        self._loop.call_exception_handler({"message": told, "exception": fault, "protocol": self})

    # --- the beginning, and signs of life ---

    async def _begin(self, proxy_to: str | None) -> None:
        await self._introduction.introduce(proxy_to)
        self._refuse_if_closed()
        self._decoder.max_frame_bytes = self.max_message_bytes + _FRAME_OVERHEAD
        self._keep_alive.start()
        self.is_open = True

    def _ping(self) -> None:
        self.send(ping())

    def _gone(self) -> None:
        interval = self._options.keep_alive.total_seconds()
        self.close(ConnectionLostError(f"{self.address}: no sign of life for {interval:g} s after a ping"))

    # --- what the transport calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to use a transport."""
        self._transport = cast("asyncio.Transport", transport)
        if self._error is not None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._options.write_buffer_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """End with the transport."""
        reason = f"the connection broke: {exc}" if exc else "the broker closed the connection"
        error = ConnectionLostError(f"{self.address}: {reason}")
        error.__cause__ = exc
        self._shut(error, is_on_purpose=False)
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        """Let :meth:`drained` wait."""
        if self._room is None:
            self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """Let :meth:`drained` return."""
        self._make_room()

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def get_buffer(self, _sizehint: int, /) -> memoryview:
        """Return where to read into: one place for all reads, where a new one of the largest size was made for each."""
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        self.data_received(self._space[:nbytes].tobytes())

    def data_received(self, data: bytes) -> None:
        """Hand on what the bytes complete."""
        self._keep_alive.was_heard = True
        frames: list[Frame | MessageFrame] = []
        frame: Frame | MessageFrame | None = None
        try:
            frames = self._decoder.feed_heads(data)
            for frame in frames:
                if self._error is not None:
                    return
                if isinstance(frame, Frame):
                    self._hand_on(frame.command)
                    continue
                head, rest = frame  # in line: the hot path
                consumer = self._consumers.get(head[0])
                if consumer is not None:
                    consumer.on_message(head, rest)
            if self._owes_pong:
                self._owes_pong = False
                self.send(pong())
        except BrokerError as error:
            self.close(self._naming(error, frames, frame))
        except Exception as fault:  # noqa: BLE001 - reported
            self._report(fault)
            self.close(self._naming(fault, frames, frame))

    def _naming(
        self, error: Exception, frames: Sequence[Frame | MessageFrame], frame: Frame | MessageFrame | None
    ) -> BrokerError:
        """Return an error whose text begins with the address, and with the frame if there is one."""
        where = ""
        if frame is not None:
            number = self._decoder.frames - len(frames) + next(at for at, each in enumerate(frames) if each is frame)
            kind = pb.BaseCommand.Type.Name(frame.command.type) if isinstance(frame, Frame) else "MESSAGE"
            where = f"frame {number}, a command {kind}: "
        if isinstance(error, BrokerError):
            named = copy(error)
            named.args = (f"{self.address}: {where}{error}",)
            return named
        lost = ConnectionLostError(f"{self.address}: {where}{shown(repr(error))}")
        lost.__cause__ = error
        return lost

    def _hand_on(self, command: pb.BaseCommand) -> None:
        kind = command.type
        if kind in _ANSWERS:
            self._answered(getattr(command, _ANSWERS[kind]).request_id, command)
        elif kind == pb.BaseCommand.PING:
            self._owes_pong = True  # one for all pings that came together
        elif kind == pb.BaseCommand.CONNECTED:
            self._introduction.let_in(command.connected)
        elif kind == pb.BaseCommand.AUTH_CHALLENGE:
            self._introduction.challenged(command.authChallenge)
        else:
            self._users.tell(command)

    def _answered(self, request_id: int, command: pb.BaseCommand) -> None:
        refusal = refusal_of(command, self._introduction.without_secrets)
        if refusal is not None and (not self._introduction.is_over or request_id == _NO_REQUEST):
            self.close(refusal)  # the broker does not let us in, or not any longer
        elif refusal is not None:
            self._requests.failed(request_id, refusal)
        elif command.type == pb.BaseCommand.PRODUCER_SUCCESS and not command.producer_success.producer_ready:
            self._requests.wait_on(request_id)
        else:
            self._requests.answered(request_id, command)
