"""The rules of dead letters and retry topics: the policies, which messages go there, and what is published. Pure.

A message is delivered ``max_redeliveries + 1`` times in all. It goes to the dead-letter topic when the last of these is
negatively acknowledged. Without being delivered it goes there when it comes once more anyway (a process died in the
last attempt, or it comes from another consumer), or when nobody can read it.

A message that is consumed later is published to the retry topic with its delivery time, then acknowledged. The consumer
is subscribed to the retry topic too. ``RECONSUMETIMES`` is the number of attempts that failed before, so attempts go on
counting, as they do for the Java client. A postponed message keeps that number.

Brokers deliver a delayed message up to a tick early or late. So they are asked for it a tick before its time, which
``PULSAR_NACK_DELIVER_AT`` names exactly, and the consumer holds it until then.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from .._check import check_flag, check_name, check_strings
from .._delays import MAX_DELAY_MS, Delay, delay_ms
from ..errors import InvalidArgumentError
from ..ids import _java_text
from ._port import Delivery, Publisher

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
OLD_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_IDY_TIME"
"""The Java client writes the id under two names."""
DELIVER_AT: Final = "PULSAR_NACK_DELIVER_AT"
"""Until when a message waits in a retry topic, epoch ms."""
ATTEMPTS: Final = "PULSAR_NACK_ATTEMPTS"
REASON: Final = "PULSAR_NACK_REASON"
RECONSUME_TIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"
MAX_REASON: Final = 1_000
"""Characters of a reason that are kept."""
_PARTITION: Final = re.compile(r"(.+)-partition-[0-9]+", re.DOTALL)
_MAX_DIGITS: Final = 18
_MAX_ATTEMPTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """When a consumer gives a message up, and where it goes then.

    :param max_redeliveries: how often a message is redelivered; at least 1. The dead-letter topic gets it after one
        attempt more than that
    :param topic: the dead-letter topic; None: ``<topic>-<subscription>-DLQ``, one for all partitions
    :param java_names: name partitions as the Java client does: ``<topic>-partition-<n>-<subscription>-DLQ`` (with a
        retry topic one for all), and the partition in ``REAL_TOPIC``. False: neither has the partition
    :param initial_subscription: a subscription that is created before the first message is published, so that the
        broker keeps the messages
    :param publisher: publishes the messages; None: the client that the consumer was made with
    :raises InvalidArgumentError: names the setting
    """

    max_redeliveries: int
    topic: str | None = None
    initial_subscription: str | None = None
    publisher: Publisher | None = None
    java_names: bool = False

    def __post_init__(self) -> None:
        if type(self.max_redeliveries) is not int or self.max_redeliveries < 1:
            raise InvalidArgumentError("max_redeliveries", self.max_redeliveries, "an integer of at least 1")
        check_letter_topic(self.topic)
        if self.initial_subscription is not None:
            check_name("initial_subscription", self.initial_subscription, "a name or None")
        if self.publisher is not None and not hasattr(self.publisher, "publish"):
            raise InvalidArgumentError("publisher", self.publisher, "a Publisher or None")
        if self.publisher is not None and self.initial_subscription is not None:
            expected = "None, as publisher is given: it creates the topic"
            raise InvalidArgumentError("initial_subscription", self.initial_subscription, expected)
        check_flag("java_names", self.java_names)


@dataclass(frozen=True, slots=True)
class RetryTopicPolicy:
    """Where messages wait that are to be consumed later: on Shared and Key_Shared subscriptions.

    The setting ``dead_letter`` limits how often a message may fail; without it there is no limit.

    :param topic: the retry topic; None: ``<topic>-<subscription>-RETRY``. Several topics need a name
    :param spill_after: a nack with a longer delay waits in the retry topic instead of here, where it counts as
        unacknowledged; from 80 % of ``unacked_limit`` on shorter ones do too. None: nacks wait here
    :param lead_time: how much earlier than its time the broker is asked to deliver a message, which then waits here:
        brokers deliver up to a tick early, and up to a tick late, which is 1 s by default
    :param publisher: publishes the messages; None: the client that the consumer was made with
    :param topics: the full names of the topics that the consumer reads beside it; set by the calls that subscribe
    :raises InvalidArgumentError: names the setting
    """

    topic: str | None = None
    spill_after: Delay | None = None
    lead_time: Delay = 1.0
    publisher: Publisher | None = None
    topics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_letter_topic(self.topic)
        if self.spill_after is not None:
            delay_ms(self.spill_after, "spill_after")
        delay_ms(self.lead_time, "lead_time")
        if self.publisher is not None:
            check_delays("publisher", self.publisher)

    def named(
        self, topics: Sequence[str] | None, subscription: str, full_name: Callable[[str], str] = str
    ) -> RetryTopicPolicy:
        """Return the policy with all names that it leaves open.

        :param topics: None: those that match a pattern
        :param full_name: completes the name of ``topic``
        :raises InvalidArgumentError: there are several topics and ``topic`` is None, or it is one of them; or a pattern
        """
        if topics is None:
            expected = "None with a pattern: it is for a topic, or a list of topics"
            raise InvalidArgumentError("retry_topic", self, expected)
        if self.topic is None and len(topics) != 1:
            raise InvalidArgumentError("retry_topic", self, "a policy that names its topic, as there are several")
        name = f"{topics[0]}-{subscription}-RETRY" if self.topic is None else full_name(self.topic)
        if name in topics:
            raise InvalidArgumentError("retry_topic", self, "another topic than those that are subscribed")
        return replace(self, topic=name, topics=tuple(topics))


class Wait(NamedTuple):
    """How long a message waits in the retry topic.

    :param delay_ms: the delay
    :param until_ms: when it ends, epoch ms
    :param properties: of the user, for the message
    :param is_deferred: nothing failed: the message comes as the same attempt again
    """

    delay_ms: int
    until_ms: int
    properties: Mapping[str, str]
    is_deferred: bool = False


Destination = tuple[str, Mapping[str, str], int | None]
"""Where a message is published: a topic, its properties there, and its delivery time in epoch ms; None: at once."""


class LetterRules:
    """Decides for one consumer which messages go to the dead-letter topic and to the retry topic, and as what.

    :param subscription: its name
    :param dead: its dead-letter policy, if it has one
    :param retry: its retry topic, if it has one, with its topic
    """

    def __init__(
        self, subscription: str, dead: DeadLetterPolicy | None = None, retry: RetryTopicPolicy | None = None
    ) -> None:
        self._subscription = subscription
        self._dead = dead
        self._retry_name = ""
        """The retry topic; empty: there is none."""
        self._topics: tuple[str, ...] = ()
        self._spill_after_ms: int | None = None
        self._lead_ms = 0
        if retry is not None:
            assert retry.topic is not None
            self._retry_name = retry.topic
            self._topics = tuple(map(base_name, retry.topics)) or (retry.topic,)
            self._spill_after_ms = None if retry.spill_after is None else delay_ms(retry.spill_after)
            self._lead_ms = delay_ms(retry.lead_time)

    # --- dead letters ------------------------------------------------------------------------------------------------

    def is_last(self, redelivery_count: int) -> bool:
        """Return whether a message becomes a dead letter if the attempt with this count fails."""
        return self._dead is not None and redelivery_count >= self._dead.max_redeliveries

    def dead_letter_reason(self, delivery: Delivery, redelivery_count: int) -> str | None:
        """Return why a message that has just come is a dead letter, None if it is to be delivered.

        A message that only this process cannot read is delivered, since others may be able to read it.
        """
        if self._dead is None:
            return None
        if delivery.error is not None and not getattr(delivery.error, "is_local", False):
            return f"{type(delivery.error).__name__}: {delivery.error}"
        return attempts_failed(redelivery_count) if redelivery_count > self._dead.max_redeliveries else None

    def dead_letter(self, delivery: Delivery, attempts: int, reason: str, wait: Wait | None = None) -> Destination:
        """Return the destination of the dead letter for a message that was delivered ``attempts`` times.

        :param wait: how long it was to wait in the retry topic, None: it was not to go there
        """
        assert self._dead is not None
        topic, origin = delivery.topic or delivery.id.topic or "", self.origin_of(delivery)
        named = topic if self._dead.java_names and not self._retry_name else origin
        real = topic if self._dead.java_names and wait is None else origin
        properties = with_origin(delivery, real, self._subscription)
        if wait is not None:
            properties |= self._retry_properties(attempts, wait)
        properties |= {ATTEMPTS: str(attempts), REASON: reason}
        return self._dead.topic or f"{named}-{self._subscription}-DLQ", properties, None

    # --- the retry topic ---------------------------------------------------------------------------------------------

    def is_retry_topic(self, topic: str) -> bool:
        """Return whether this topic, or partition, is the retry topic."""
        return bool(self._retry_name) and topic.startswith(self._retry_name) and base_name(topic) == self._retry_name

    def origin_of(self, delivery: Delivery) -> str:
        """Return the subscribed topic that a message was first published to, without a partition."""
        topic = base_name(delivery.topic or delivery.id.topic or "")
        if topic != self._retry_name or not self._topics:
            return topic
        origin = base_name(delivery.properties.get(REAL_TOPIC, ""))
        return origin if origin in self._topics else self._topics[0]

    def arrive(self, delivery: Delivery, now_ms: int) -> tuple[Delivery, int]:
        """Return a delivery of the retry topic with its earlier attempts counted, and how many ms to hold it.

        :param now_ms: the wall clock
        """
        properties = delivery.properties
        earlier = min(_number(properties.get(RECONSUME_TIMES)), _MAX_ATTEMPTS)
        wait_ms = min(_number(properties.get(DELIVER_AT)) - now_ms, _number(properties.get(DELAY_TIME)))
        wait_ms = wait_ms if 0 <= wait_ms <= MAX_DELAY_MS else 0  # else it is past, or not a possible delay
        return replace(delivery, redelivery_count=delivery.redelivery_count + earlier), wait_ms

    @property
    def may_spill(self) -> bool:
        """Return whether nacks may wait in the retry topic."""
        return self._spill_after_ms is not None

    def spills(self, delay_ms: int, unacked: int, near: float, limit: int | None) -> bool:
        """Return whether a nack waits in the retry topic: the longer its delay, the earlier.

        :param unacked: how many messages are unacknowledged here
        :param near: from how many on room is short
        :param limit: from how many on a nack has to wait; None: there is always room
        """
        most_ms = self._spill_after_ms
        if most_ms is None or delay_ms > most_ms:
            return most_ms is not None
        if limit is None or unacked <= near:
            return False
        return delay_ms > most_ms * (limit - unacked) / (limit - near)

    def retry(self, delivery: Delivery, attempts: int, wait: Wait) -> Destination:
        """Return the destination of a message in the retry topic, with the properties that the Java client writes too.

        :param attempts: how many failed
        """
        properties = with_origin(delivery, self.origin_of(delivery), self._subscription)
        properties |= {**self._retry_properties(attempts, wait), DELIVER_AT: str(wait.until_ms)}
        deliver_at_ms = max(wait.until_ms - self._lead_ms, 0) if wait.delay_ms else None
        return self._retry_name, properties, deliver_at_ms

    @staticmethod
    def _retry_properties(attempts: int, wait: Wait) -> dict[str, str]:
        return {**wait.properties, RECONSUME_TIMES: str(attempts), DELAY_TIME: str(wait.delay_ms)}


def base_name(topic: str) -> str:
    """Return the name of a topic without the number of a partition."""
    found = _PARTITION.fullmatch(topic)
    return topic if found is None else found[1]


def with_origin(delivery: Delivery, topic: str, subscription: str) -> dict[str, str]:
    """Return the message's properties with its origin added; existing ones stay, as in the Java client.

    The time until which it waited in a retry topic is left out.
    """
    found = dict(delivery.properties)
    origin = _java_text(delivery.id)
    for name, value in (
        (REAL_TOPIC, topic),
        (REAL_SUBSCRIPTION, subscription),
        (ORIGIN_MESSAGE_ID, origin),
        (OLD_ORIGIN_MESSAGE_ID, origin),
    ):
        found.setdefault(name, value)
    found.pop(DELIVER_AT, None)
    return found


def key_of(delivery: Delivery) -> str | bytes | None:
    """Return the key; decoded to bytes if it was encoded and the bytes encode to the same text."""
    key = delivery.key
    if key is None or not delivery.is_key_encoded:
        return key
    try:
        decoded = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return key
    return decoded if base64.b64encode(decoded).decode("ascii") == key else key


def attempts_failed(attempts: int) -> str:
    """Return the reason of a message whose nacks named none."""
    return f"{attempts} attempts failed"


def as_reason(reason: object) -> str:
    """Return a checked reason, cut to 1 000 characters."""
    if not isinstance(reason, str):
        raise InvalidArgumentError("reason", reason, "a str")
    return reason[:MAX_REASON].encode("utf-8", "replace").decode("utf-8")


def check_letter_topic(topic: object) -> None:
    """Raise unless ``topic`` is None or the name of a persistent topic, which keeps what is published to it."""
    if topic is None:
        return
    if check_name("topic", topic, "a name or None").startswith("non-persistent://"):
        raise InvalidArgumentError("topic", topic, "a persistent topic: another one keeps no messages")


def check_delays(field: str, publisher: Any) -> None:
    """Raise InvalidArgumentError unless a publisher can delay messages."""
    publish = getattr(publisher, "publish", None)
    expected = "a publisher whose publish() takes deliver_at_ms, or None"
    if not callable(publish):
        raise InvalidArgumentError(field, publisher, expected)
    parameters = inspect.signature(publish).parameters
    if "deliver_at_ms" not in parameters and all(each.kind is not each.VAR_KEYWORD for each in parameters.values()):
        raise InvalidArgumentError(field, publisher, expected)


def check_properties(properties: object) -> Mapping[str, str]:
    """Return the user's properties of a message, None for none."""
    given: Any = {} if properties is None else properties
    check_strings("properties", given)
    return dict(given)


def _number(text: str | None) -> int:
    """Return the number that a property has, 0 for anything else."""
    if text is None or len(text) > _MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return 0
    return int(text)
