"""The official client's asyncio consumer as a port.

The client keeps negative acknowledgements in a set with one timer of a third of its delay, which every further nack
restarts: nacks that come faster than that starve it. So this port keeps all of them. It hands them over in bursts
that are further apart than the timer's interval, and ``traits.redelivery_latency`` is the lead time of its requests.
With a delay of 100 ms the interval is 33 ms, bursts are 43 ms apart (a busy machine is some ms late), and an id comes
back 101 to 165 ms after it was requested, mostly 120 to 145.

Callbacks of the client arrive on its own threads; they do nothing but put a call on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from .._delays import Delay, delay_ms
from .._foreign import quoted, shown
from .._waiting import wait_at_most
from ..errors import (
    BrokerError,
    ClosedError,
    InvalidArgumentError,
    MissingExtraError,
    RedeliveryError,
    TopicNotFoundError,
)
from ..ids import MessageId
from ._inbox import Inbox
from ._official_ids import OfficialMessageIds, delivery_of
from ._official_publisher import OfficialPublisher
from ._port import Delivery, OwnPublisher, PortTraits

NATIVE_DELAY_S: Final = 0.1
"""The shortest delay that the client knows; :func:`~pulsar_nack.subscribe` gives it to its consumers."""
_CLIENT_DEFAULT_DELAY_S: Final = 60.0
_LATENCY: Final = 3.66
"""The longest time until a requested message is back, in intervals of the client's timer."""
_BURSTS_APART: Final = 1.3
"""How far bursts are apart, in the same intervals."""
_SLICE: Final = 256
_CALLBACK_TIMEOUT_S: Final = 2.0
_CHECK_INTERVAL_S: Final = 1.0
"""How often the port checks that the topic is still there, while a receiver waits."""
_NOBODY_THERE: Final = {"ConnectError", "NotConnected", "Timeout", "ReadError", "InvalidUrl"}
_NOT_FOUND: Final = "TopicNotFound"
_SEVERAL: Final = "TopicsConsumerFakeName"
"""Part of the name that the client gives to a consumer of a list of topics."""


class OfficialPort:
    """A :class:`~pulsar_nack.ConsumerPort` over a ``pulsar.asyncio.Consumer``; it owns that consumer from now on.

    :param consumer: no other code may receive from it, acknowledge or close it
    :param traits: those of a port over it, see :func:`traits_of`
    :param has_several_topics: it was subscribed to a pattern (lists are recognized)
    :param client: the client that made the consumer, to publish dead letters; None: not known
    :raises InvalidArgumentError: not a consumer of ``pulsar.asyncio``
    """

    def __init__(
        self, consumer: Any, traits: PortTraits, *, has_several_topics: bool = False, client: Any = None
    ) -> None:
        if not isinstance(consumer, import_pulsar_asyncio().Consumer):
            raise InvalidArgumentError("consumer", consumer, "a pulsar.asyncio.Consumer (not the synchronous one)")
        self._traits = traits
        self._spacing = traits.redelivery_latency * _BURSTS_APART / _LATENCY
        self._consumer = consumer
        self._client = client
        self._native = consumer._consumer
        self._schema = consumer._schema
        self._topic = None if has_several_topics or _SEVERAL in consumer.topic() else consumer.topic()
        self._ids = OfficialMessageIds(self._topic)
        self._loop = asyncio.get_running_loop()
        self._inbox: Inbox[Delivery] = Inbox()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._outbox: deque[Any] = deque()
        self._burst_timer: asyncio.Handle | None = None
        self._last_burst_at = -1e9
        self._check_timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None

    @property
    def names(self) -> tuple[str, str, str]:
        """Return topic, subscription and consumer name, as the client has them."""
        consumer = self._consumer
        return consumer.topic(), consumer.subscription_name(), consumer.consumer_name()

    @property
    def traits(self) -> PortTraits:
        """Return what this port promises."""
        return self._traits

    @property
    def native(self) -> Any:
        """Return the client's consumer."""
        return self._consumer

    @property
    def is_connected(self) -> bool:
        """Return whether the client has its connection, all of them for several topics or partitions."""
        return bool(self._native.is_connected())

    def publisher(self, topic: str | None, initial_subscription: str | None) -> OwnPublisher | None:
        """Return a publisher of dead letters, None if the client is not known."""
        del topic  # the client checks it when it is connected to
        return None if self._client is None else OfficialPublisher(self._client, initial_subscription)

    async def receive(self) -> Delivery:
        """Wait for the next message; first come, first served, and a cancelled call loses nothing.

        :raises TopicNotFoundError: the only topic was deleted, and the broker may not create it
        """
        self._check_open()
        if not self._inbox.ready:
            self._fetch()
            self._check_topic_later()
        return await self._inbox.get()

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge; the client sends it within 100 ms and does not wait for the broker.

        :raises BrokerError: the client refused one; the others were acknowledged
        """
        await self._acknowledge_each(ids, self._native.acknowledge_async)
        for message_id in ids:
            self._ids.forget(message_id)

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to and including ``message_id``.

        :raises BrokerError: the client refused it
        """
        await self._acknowledge_each([message_id], self._native.acknowledge_cumulative_async)
        self._ids.forget_through(message_id)

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Request redelivery of messages, in the next burst.

        :raises RedeliveryError: an id that the client cannot read; nothing was requested
        """
        self._check_open()
        try:
            self._outbox.extend([self._ids.get(message_id) for message_id in ids])
        except (BrokerError, RuntimeError, ValueError, TypeError) as error:
            raise RedeliveryError(f"the client refused a redelivery: {error}") from error
        if self._burst_timer is None and self._outbox:
            at = max(self._last_burst_at + self._spacing, self._loop.time())
            self._burst_timer = self._loop.call_at(at, self._burst)

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription to a message id, or to a publish time in epoch ms.

        :raises BrokerError: the broker refused it
        """
        self._check_open()
        target = self._official_position(position)
        self._ids.clear()
        self._inbox.clear()
        await self._call(self._native.seek_async, target)

    def check_seek(self, position: MessageId | int) -> None:
        """Raise if the consumer has several topics, and the message names none.

        :raises BrokerError: it does not
        """
        self._check_open()
        self._official_position(position)

    def _official_position(self, position: MessageId | int) -> Any:
        """Return what the official client has in place of a position."""
        return position if isinstance(position, int) else self._ids.build(position)

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of the topic; entry -1: it is empty.

        :raises BrokerError: the client refused, as it does for several topics or partitions
        """
        self._check_open()
        handle = await self._call(self._native.get_last_message_id_async)
        position = (handle.ledger_id(), handle.entry_id(), handle.partition())
        return [MessageId(*position, max(handle.batch_index(), -1), topic=self._topic)]

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription at the broker, and close.

        :raises BrokerError: the broker refused, as it does while others consume
        :raises NotImplementedError: the client cannot force it
        """
        self._check_open()
        if force:
            raise NotImplementedError("the official client cannot unsubscribe by force: use pulsar_nack.connect")
        await self._call(self._native.unsubscribe_async)
        await self.close()

    async def close(self) -> None:
        """Give unacknowledged messages back; calls that wait get :class:`~pulsar_nack.ClosedError`."""
        if self._closing is None:
            self._closing = self._loop.create_future()
            self._stop()
            try:
                await self._call(self._native.close_async)
            except BrokerError as error:
                if "AlreadyClosed" not in str(error):
                    raise
            finally:
                await self._let_native_receive_end()
                if self._checking is not None:
                    await asyncio.wait([self._checking], timeout=_CALLBACK_TIMEOUT_S)
                self._closing.set_result(None)
        await asyncio.shield(self._closing)

    def _check_topic_later(self) -> None:
        if (
            self._check_timer is None
            and self._checking is None
            and self._client is not None
            and self._topic is not None
        ):
            self._check_timer = self._loop.call_later(_CHECK_INTERVAL_S, self._check_topic)

    def _check_topic(self) -> None:
        """Check whether the topic still exists if the client is not connected to it: the client does not say why."""
        self._check_timer = None
        if self._closing is not None or not self._inbox.wanted.is_set():
            return
        if self._native.is_connected():
            self._check_topic_later()
        else:
            self._checking = self._loop.create_task(self._ask_for_topic(), name="pulsar_nack checks for a topic")

    async def _ask_for_topic(self) -> None:
        error: Exception | None = None
        try:
            await self._client.get_topic_partitions(self._topic)
        except import_pulsar_asyncio().PulsarException as failure:
            error = failure
        self._checking = None
        if error is not None and result_of(error) == _NOT_FOUND:
            what = f"{self._topic} was deleted, and may not be created again (the client says: {shown(str(error))})"
            self._inbox.fail(TopicNotFoundError(_NOT_FOUND, what))
        elif self._closing is None and self._inbox.wanted.is_set():
            self._check_topic_later()

    async def _let_native_receive_end(self) -> None:
        """Wait for the callback of the outstanding receive: the process dies if it comes while Python shuts down."""
        await wait_at_most(self._is_idle, _CALLBACK_TIMEOUT_S)

    # --- receiving -------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        if self._is_idle.is_set():
            self._is_idle.clear()
            self._native.receive_async(partial(_call_soon, self._loop, self._on_message))

    def _on_message(self, result: Any, native: Any) -> None:
        self._is_idle.set()
        if result.name != "Ok":
            self._inbox.fail(BrokerError(f"receive: {result.name}"))
            return
        self._inbox.put(delivery_of(native, self._schema, self._ids.id_of(native)))
        if self._inbox.wanted.is_set():
            self._fetch()

    # --- requests --------------------------------------------------------------------------------------------------

    async def _acknowledge_each(self, ids: Sequence[MessageId], function: Callable[..., None]) -> None:
        self._check_open()
        calls = [self._call(function, self._ids.for_ack(message_id)) for message_id in ids]
        if len(calls) == 1:
            await calls[0]
            return
        errors = [error for error in await asyncio.gather(*calls, return_exceptions=True) if error is not None]
        if errors:
            raise errors[0]

    def _call(self, function: Callable[..., None], *args: object) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        what = getattr(function, "__name__", "call").removesuffix("_async")
        function(*args, partial(_call_soon, self._loop, _resolve, future, what))
        return future

    def _burst(self) -> None:
        for _ in range(min(len(self._outbox), _SLICE)):
            self._native.negative_acknowledge(self._outbox.popleft())
        self._last_burst_at = self._loop.time()
        self._burst_timer = self._loop.call_soon(self._burst) if self._outbox else None

    def _stop(self) -> None:
        for timer in (self._burst_timer, self._check_timer):
            if timer is not None:
                timer.cancel()
        self._outbox.clear()
        self._inbox.close(ClosedError("the consumer"))

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ClosedError("the consumer")


def traits_of(
    *,
    honours_ids: bool,
    native_delay: Delay = _CLIENT_DEFAULT_DELAY_S,
    batch_index_ack: bool = False,
    receiver_queue_size: int = 0,
) -> PortTraits:
    """Return what a port over a consumer promises.

    :param honours_ids: True for Shared and Key_Shared subscriptions
    :param native_delay: the client's negative-ack delay in seconds that the consumer was made with, which cannot be
        read back; the client's own default is 60 s
    :param batch_index_ack: whether the consumer was made with ``batch_index_ack_enabled``
    :param receiver_queue_size: how many messages the client may prefetch
    """
    interval = max(delay_ms(native_delay, "native_delay") / 1000, NATIVE_DELAY_S) / 3
    return PortTraits(
        honours_ids=honours_ids,
        redelivery_latency=round(_LATENCY * interval, 3),
        min_redelivery_delay=round(4.2 * interval, 3),
        batch_index_ack=batch_index_ack,
        receiver_queue_size=receiver_queue_size,
    )


def import_pulsar_asyncio() -> Any:
    """Return the module ``pulsar.asyncio``.

    :raises MissingExtraError: pulsar-client is not installed
    """
    try:
        import pulsar.asyncio
    except ImportError as error:
        raise MissingExtraError("the official client's consumer", "pulsar-client>=3.13", "pulsar") from error
    return pulsar.asyncio


def result_of(error: Exception) -> str:
    """Return the client's name of an error."""
    result = getattr(error, "error", None)
    return getattr(result(), "name", "") if callable(result) else ""


def broker_error(what: str, error: Exception) -> BrokerError:
    """Return the exception for an error of the client, with a hint if one fits."""
    result = result_of(error)
    if result == _NOT_FOUND:
        return TopicNotFoundError(result, f"{what}: the client says {quoted(str(error))}")
    hint = "; does a broker answer there?" if result in _NOBODY_THERE else ""
    return BrokerError(f"{what}: the client says {quoted(str(error))}{hint}")


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:  # the loop is closed: no call waits any more
        return


def _resolve(future: asyncio.Future[Any], what: str, result: Any, value: Any = None) -> None:
    if future.done():
        return
    if result.name == "Ok":
        future.set_result(value)
    else:
        future.set_exception(BrokerError(f"{what}: {result.name}"))
