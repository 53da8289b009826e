"""The way to the dead-letter topic or to the retry topic: its publisher, and the counts of its messages."""

from __future__ import annotations

import logging
from typing import Any

from ..errors import InvalidArgumentError
from ._letter_rules import DeadLetterPolicy, LetterMessage, RetryTopicPolicy, check_delays
from ._message_state import State
from ._port import ConsumerPort, OwnPublisher, Publisher, SupportsPublishing

_log = logging.getLogger("pulsar_nack.consumer")


class LetterRoute:
    """The way to one of both topics: its publisher and its counts.

    :param state: of the messages that are on the way
    :param port: publishes, unless the policy names a publisher
    :raises InvalidArgumentError: nothing can publish
    """

    def __init__(self, state: State, policy: DeadLetterPolicy | RetryTopicPolicy, port: ConsumerPort) -> None:
        self.state = state
        self.what = "dead letter" if state is State.DEAD_LETTERING else "message for the retry topic"
        self.done = self.failures = self.waiting = 0
        self.has_warned = False
        self._publisher: Publisher
        self._own: OwnPublisher | None = None
        if policy.publisher is None:
            self._publisher = self._own = _publisher_of(policy, port)
        else:
            self._publisher = policy.publisher

    async def publish(self, message: LetterMessage) -> None:
        """Publish a message once."""
        fields = message._asdict()
        topic, data = fields.pop("topic"), fields.pop("data")
        if self._own is None:
            del fields["schema"]
        if message.deliver_at_ms is None:  # a publisher of dead letters need not know it
            del fields["deliver_at_ms"]
        await self._publisher.publish(topic, data, **fields)

    async def aclose(self) -> None:
        """Close the publisher, unless it is the user's."""
        if self._own is not None:
            try:
                await self._own.aclose()
            except Exception as error:  # noqa: BLE001 - the rest is closed too
                _log.warning("what publishes each %s could not be closed: %r", self.what, error)


def _publisher_of(policy: DeadLetterPolicy | RetryTopicPolicy, port: Any) -> OwnPublisher:
    field = "dead_letter" if isinstance(policy, DeadLetterPolicy) else "retry_topic"
    initial_subscription = policy.initial_subscription if isinstance(policy, DeadLetterPolicy) else None
    publisher = None
    if isinstance(port, SupportsPublishing):
        publisher = port.publisher(policy.topic, initial_subscription)
    if publisher is None:
        expected = f"a {type(policy).__name__} with a publisher: what this consumer was made of cannot publish"
        raise InvalidArgumentError(field, policy, expected)
    if isinstance(policy, RetryTopicPolicy):
        check_delays(field, publisher)
    return publisher
