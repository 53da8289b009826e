"""A broker for `taskiq <https://taskiq-python.github.io>`_: tasks travel as Pulsar messages.

The delay of a task is carried out twice. The broker holds the message back, though it may deliver up to a second
early (its tick), or at once (on Exclusive and Failover subscriptions). So a worker that gets the message before its
time defers it for the rest. That time is in the property ``DELIVER_AT``.

taskiq hands its middlewares a task, but not the message it came in, and settles the message by one call, ``ack``. Both
run in one task of asyncio. So :class:`NackRetryMiddleware` leaves its decision in a context variable, where ``ack``
finds it. The variable holds one object for each try, because a task with a timeout runs in a copy of the context.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .._check import check_kind
from .._connect import connect
from .._delays import MAX_NUMBER_S, delay_ms
from .._foreign import error_text
from ..clock import WallClock
from ..config import NackConfig
from ..errors import BrokerError, ClosedError, InvalidArgumentError, MissingExtraError, NotDurableError, NotOpenError

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage, NoResultError, SmartRetryMiddleware, TaskiqMessage
    from taskiq.labels import LabelType
except ImportError as error:
    raise MissingExtraError("the taskiq broker", "taskiq", "taskiq") from error

if TYPE_CHECKING:
    from taskiq import TaskiqResult
    from taskiq.kicker import AsyncKicker

    from ..consumer import Consumer, Message, Subscribing
    from ..wire import Client, Producer, Producing

__all__ = ["DELIVER_AT", "NackRetryMiddleware", "PulsarBroker"]

DELIVER_AT: Final = "pulsar-nack.deliver_at_ms"
"""The property of a delayed task's message with the time when the task may run, epoch ms."""
_DEFAULTS: Final[Mapping[str, Any]] = {
    "initial_position": "earliest",
    "receiver_queue_size": 10,
    "config": NackConfig(negative_ack_precision_bit_cnt=0),
}


@dataclass(slots=True)
class _Try:
    """One run of a task, and what shall happen to its message: acknowledged, unless there is a delay or a reason."""

    is_settled: bool = False
    is_retried: bool = False
    retry_delay: float | None = None
    reason: str = ""


_TRY: Final[ContextVar[_Try | None]] = ContextVar("pulsar_nack_taskiq_try", default=None)


class PulsarBroker(AsyncBroker):
    """Sends taskiq's tasks to a topic, and receives them in workers, which share one subscription.

    A label ``delay``, in seconds, holds the task back for that time, exactly. Labels, ``task_id`` and ``task_name`` are
    properties of the message. It is acknowledged when taskiq says so: by default after the result is saved. The message
    of a worker that ends before goes to another worker.

    Workers prefetch 10 messages beyond those that taskiq runs. When a worker stops, prefetched messages go back to
    Pulsar at once, and running tasks can still finish.

    With ``dead_letter``, the message of a task that this worker does not know is nacked, so that another one gets it;
    after ``max_redeliveries`` it is a dead letter. Without, taskiq drops it with a warning.

    :param url: as for :func:`pulsar_nack.connect`
    :param topic: where the tasks go
    :param subscription: the one that all workers share; the first task creates it, so that none is lost before the
        first worker starts
    :param client: the other parameters of :func:`pulsar_nack.connect`: ``authentication``, ``tls``, ...
    :param producer: settings of :meth:`Client.producer() <pulsar_nack.wire.Client.producer>`. If the broker does not
        allow clients to create subscriptions, use ``{"initial_subscription": None}``
    :param settings: those of :meth:`Client.subscribe() <pulsar_nack.wire.Client.subscribe>` (``dead_letter``,
        ``backoff``, ``durable``, ...). Three have other defaults here: ``initial_position="earliest"``,
        ``receiver_queue_size=10``, and a ``config`` with which nothing comes back early
    :raises InvalidArgumentError: names the argument

    ::

        broker = PulsarBroker("pulsar://localhost:6650").with_middlewares(SmartRetryMiddleware(default_delay=2))


        @broker.task(retry_on_error=True)
        async def charge(order: int) -> None: ...
    """

    def __init__(
        self,
        url: str,
        *,
        topic: str = "taskiq",
        subscription: str = "taskiq",
        client: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        for name, given in (("client", client), ("producer", producer)):
            check_kind(name, given or {}, Mapping, "a mapping of settings")
        self._url, self._topic, self._subscription = url, topic, subscription
        self._client_options = dict(client or {})
        self._producer_settings = {"initial_subscription": subscription, **(producer or {})}
        self._settings = {**_DEFAULTS, **settings}
        self._wall_clock = settings.get("wall_clock") or WallClock()
        self._client: Client | None = None
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        checked = self._connect()  # sends nothing
        self._subscribing(checked)
        self._producing(checked)

    def _connect(self) -> Client:
        return connect(self._url, **self._client_options)

    def _producing(self, client: Client) -> Producing:
        return client.producer(self._topic, **self._producer_settings)

    def _subscribing(self, client: Client) -> Subscribing:
        return client.subscribe(self._topic, self._subscription, **self._settings)

    @property
    def has_dead_letter(self) -> bool:
        """Return whether messages that are given up go to a dead-letter topic."""
        return self._settings.get("dead_letter") is not None

    @property
    def consumer(self) -> Consumer | None:
        """Return the consumer of a worker, for its statistics; None before the worker listens."""
        return self._consumer

    async def startup(self) -> None:
        """Connect, and call taskiq's handlers of the event. No second connection if it is started already.

        :raises BrokerError: the broker refused, or cannot be reached
        """
        if self._client is None:
            client = self._connect()
            try:
                self._producer = await self._producing(client)
            except BaseException:
                await client.aclose()
                raise
            self._client = client
        await super().startup()

    async def shutdown(self) -> None:
        """Call taskiq's handlers of the event; then give unsettled messages back, and close the connection."""
        try:
            await super().shutdown()
        finally:
            client, kept = self._client, (self._producer, self._consumer)
            self._client = self._producer = self._consumer = None
            if client is not None:
                await client.aclose()
            del kept  # closed now, so nothing warns that they were dropped open

    # --- sending ---------------------------------------------------------------------------------------------------

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; return when Pulsar has stored it.

        :raises NotOpenError: before :meth:`startup`
        :raises InvalidArgumentError: the label ``delay``
        :raises BrokerError: it may not be stored
        """
        if self._producer is None:
            raise NotOpenError("the taskiq broker")
        properties = {name: str(value) for name, value in message.labels.items()}
        properties |= {"task_id": message.task_id, "task_name": message.task_name}
        deliver_at_ms = None
        if delay := _delay_ms(message.labels.get("delay")):
            deliver_at_ms = self._wall_clock.now_ms() + delay
            properties[DELIVER_AT] = str(deliver_at_ms)
        await self._producer.send(message.message, properties=properties, deliver_at_ms=deliver_at_ms)

    # --- receiving -------------------------------------------------------------------------------------------------

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield the messages of tasks that may run now; at the end, give back those that were prefetched.

        :raises NotOpenError: before :meth:`startup`
        :raises BrokerError: subscribing failed
        """
        if self._client is None:
            raise NotOpenError("the taskiq broker")
        if self._consumer is None:
            self._consumer = await self._subscribing(self._client)
        consumer = self._consumer
        consumer.resume()
        try:
            async for message in consumer:
                if await self._may_run(message):
                    yield AckableMessage(data=self._payload(message), ack=partial(self._settle, message))
        finally:
            try:
                consumer.pause()
            except ClosedError:
                self._consumer = None

    async def _may_run(self, message: Message) -> bool:
        """Return whether the task of a message may run here now; if not, the message is deferred or nacked."""
        with suppress(NotDurableError):  # then it is held in memory only, which the consumer has logged
            if early_ms := self._early_ms(message):
                await message.defer(early_ms / 1000)
            elif message.error is not None:
                await message.nack(reason="cannot be read")
            elif self.has_dead_letter and self.find_task(name := message.properties.get("task_name", "")) is None:
                await message.nack(reason=f"no task {name!r} in this worker")
            else:
                return True
        return False

    def _early_ms(self, message: Message) -> int:
        """Return how long the task has to wait, 0 if it may run; at most a year at once, whatever time was written."""
        written = message.properties.get(DELIVER_AT, "")
        if not (written.isascii() and written.isdigit() and len(written) <= 19):
            return 0
        return min(max(int(written) - self._wall_clock.now_ms(), 0), MAX_NUMBER_S * 1000)

    def _payload(self, message: Message) -> bytes:
        """Return the task; if its message comes again, with the label by which middlewares count retries."""
        data = message.data or b""
        if message.attempt == 1 or not any(isinstance(each, NackRetryMiddleware) for each in self.middlewares):
            return data
        try:
            task = self.formatter.loads(data)
            task.labels["_retries"] = str(int(task.labels.get("_retries", 0)) + message.redelivery_count)
            task.labels_types = {**(task.labels_types or {}), "_retries": LabelType.INT}
            return self.formatter.dumps(task).message
        except Exception:  # noqa: BLE001 - taskiq will log that it cannot read it
            return data

    async def _settle(self, message: Message) -> None:
        """Do what taskiq calls ``ack``: acknowledge the message, unless the middleware decided otherwise."""
        decided = _TRY.get() or _Try()
        decided.is_settled = True
        if decided.retry_delay is not None:
            await message.nack(decided.retry_delay, reason=decided.reason)
        elif decided.reason and self.has_dead_letter:
            await message.dead_letter(decided.reason)
        else:
            try:
                await message.ack()
            except BrokerError as error:
                await message.nack(reason=f"the acknowledgement failed: {error}")
                raise


class NackRetryMiddleware(SmartRetryMiddleware):
    """Retries a failed task by a nack of its message: the same message comes back, until one run succeeds.

    Its parameters, and the labels ``retry_on_error``, ``max_retries`` and ``delay``, are those of taskiq's
    :class:`~taskiq.SmartRetryMiddleware`, which sends a new message for each retry instead. Here, runs that a crash
    ended count as well, and the broker's ``dead_letter`` gets tasks that fail for good: after ``max_retries`` runs,
    without ``retry_on_error``, or rejected. The worker keeps the delay: if it ends, another worker runs the task at
    once, unless the broker is ``durable``.

    It needs a :class:`PulsarBroker`. With another broker, as in tests, and if the message was acknowledged already
    (``ack_type="when_received"``), it works as taskiq's. With ``ack_type="manual"`` taskiq settles nothing after a
    failure, so use a ``lease`` then.
    """

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Begin a try."""
        _TRY.set(_Try())
        return message

    async def on_send(self, kicker: AsyncKicker[Any, Any], message: TaskiqMessage, delay: float) -> None:
        """Have the message nacked in place of its acknowledgement."""
        current = _TRY.get() or _Try(is_settled=True)
        current.is_retried = True
        if current.is_settled or self.schedule_source is not None or not isinstance(self.broker, PulsarBroker):
            await super().on_send(kicker, message, delay)
        else:
            current.retry_delay = delay

    async def on_error(self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException) -> None:
        """Decide whether a failed task is retried, as taskiq does; note why, for traces and the dead letter."""
        await super().on_error(message, result, exception)
        current = _TRY.get()
        if current is not None and not isinstance(exception, NoResultError):
            is_sent_again = current.is_retried and current.retry_delay is None
            current.reason = "" if is_sent_again else error_text(exception)


def _delay_ms(label: object) -> int:
    """Return the delay that a label asks for in ms, 0 for none; taskiq turns labels into text, None too."""
    if label is None or label in {"", "None"}:
        return 0
    try:
        seconds = float(str(label))
    except ValueError:
        raise InvalidArgumentError("label delay", label, "seconds as a number") from None
    return delay_ms(seconds, "label delay")
