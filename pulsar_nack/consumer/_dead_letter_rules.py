"""The rules of dead letters: the user's policy, which messages are dead letters, and their published form. Pure.

A message is delivered ``max_redeliveries + 1`` times in all. It goes to the dead-letter topic when the last of these is
negatively acknowledged. Without being delivered it goes there when it comes once more anyway (a process died in the
last attempt, or it comes from another consumer), or when nobody can read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .._check import check_flag, check_name
from ..errors import InvalidArgumentError
from ._letter_message import LetterMessage, base_name, check_letter_topic, letter_of, with_origin
from ._port import Delivery, Publisher
from ._retry_topic import RetryTopic, Wait

ATTEMPTS: Final = "PULSAR_NACK_ATTEMPTS"
REASON: Final = "PULSAR_NACK_REASON"

MAX_REASON: Final = 1_000
"""Characters of a reason that are kept."""


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


class DeadLetterRules:
    """Decides for one consumer which messages are dead letters.

    :param subscription: its name
    :param retry: its retry topic
    """

    def __init__(self, setting: DeadLetterPolicy, subscription: str, retry: RetryTopic | None = None) -> None:
        self._most = setting.max_redeliveries
        self._topic = setting.topic
        self._java_names = setting.java_names
        self._subscription = subscription
        self._retry = retry

    def is_last(self, redelivery_count: int) -> bool:
        """Return whether the attempt with this count is the last one."""
        return redelivery_count >= self._most

    def reason_for(self, delivery: Delivery, redelivery_count: int) -> str | None:
        """Return why a message that has just come is a dead letter, None if it is to be delivered.

        A message that only this process cannot read is delivered, since others may be able to read it.
        """
        if delivery.error is not None and not getattr(delivery.error, "is_local", False):
            return f"{type(delivery.error).__name__}: {delivery.error}"
        return attempts_failed(redelivery_count) if redelivery_count > self._most else None

    def message(self, delivery: Delivery, attempts: int, reason: str, wait: Wait | None = None) -> LetterMessage:
        """Return the dead letter of a message that was delivered ``attempts`` times.

        :param wait: how long it was to wait in the retry topic, None: it was not to go there
        """
        topic, retry = delivery.topic or delivery.id.topic or "", self._retry
        origin = base_name(topic) if retry is None else retry.origin_of(delivery)
        named = topic if self._java_names and retry is None else origin
        real = topic if self._java_names and wait is None else origin
        if retry is None or wait is None:
            properties = with_origin(delivery, real, self._subscription)
        else:
            properties = retry.properties(delivery, attempts, wait)
        properties |= {ATTEMPTS: str(attempts), REASON: reason}
        return letter_of(delivery, self._topic or f"{named}-{self._subscription}-DLQ", properties)


def attempts_failed(attempts: int) -> str:
    """Return the reason of a message whose nacks named none."""
    return f"{attempts} attempts failed"


def as_reason(reason: object) -> str:
    """Return a checked reason, cut to 1 000 characters."""
    if not isinstance(reason, str):
        raise InvalidArgumentError("reason", reason, "a str")
    return reason[:MAX_REASON].encode("utf-8", "replace").decode("utf-8")
