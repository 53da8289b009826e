"""The letters of a local topic: its retry topics, opened beside it when needed and closed with it, and dead letters."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..clock import Clock
from ..consumer import Consumer, PortTraits, RetryTopicPolicy
from ..consumer.transport import check_settings
from ..errors import InvalidArgumentError
from ..ids import MessageId
from ._inbox import FIRST_RETRY_LEDGER
from ._port import LocalPort

OpenTopic = Callable[[str, str, int], Awaitable[Any]]
"""Opens the retry topic of a subscription, a LocalTopic, by its name, with ledgers from an id on."""


class RetryTopics:
    """Opens and owns the retry topics of one topic."""

    def __init__(self) -> None:
        self.opener: OpenTopic | None = None
        """None: the topic is in a store, with no place beside it."""
        self._opened: dict[str, Any] = {}
        self._opening = asyncio.Lock()

    def open_in_folders(self, home: Any, opening: Callable[..., Awaitable[Any]]) -> None:
        """Open each retry topic in a folder beside the topic's, with the topic's settings."""
        folder = Path(home).absolute()

        def open_topic(subscription: str, name: str, first_ledger: int) -> Awaitable[Any]:
            return opening(f"{folder}-{quote(subscription, safe='')}-RETRY", name=name, first_ledger=first_ledger)

        self.opener = open_topic

    def check(self, settings: Mapping[str, Any], traits: PortTraits, topic: str, subscription: str) -> None:
        """Check the settings of a consumer before its port is opened.

        :raises InvalidArgumentError: names the setting
        """
        check_settings(traits, settings)
        dead_letter, policy = settings.get("dead_letter"), settings.get("retry_topic")
        if dead_letter is not None and dead_letter.publisher is None:
            expected = "a DeadLetterPolicy with a publisher: a local topic publishes to no other"
            raise InvalidArgumentError("dead_letter", dead_letter, expected)
        if policy is None:
            return
        if self.opener is None:
            raise InvalidArgumentError("retry_topic", policy, "None, as this topic is in a LogStore, not in a folder")
        if not traits.receiver_queue_size:
            expected = "at least 1 with a retry topic: each of both would fetch a message that no call takes"
            raise InvalidArgumentError("receiver_queue_size", traits.receiver_queue_size, expected)
        policy.named((topic,), subscription)

    async def consumer(self, port: LocalPort, settings: Mapping[str, Any], clock: Clock) -> Consumer:
        """Return a consumer on a port, which it owns, and on the retry topic that the settings name.

        :param clock: that of the topics
        """
        try:
            if settings.get("retry_topic") is None:
                return Consumer(port, **settings)
            policy = await self.join(port, settings["retry_topic"])
            return Consumer(port, **{"wall_clock": clock, **settings, "retry_topic": policy})
        except BaseException:
            await port.close()
            raise

    async def join(self, port: LocalPort, policy: RetryTopicPolicy) -> RetryTopicPolicy:
        """Let a port read the retry topic too, as it reads its own; return the policy with all that it needs."""
        topic, subscription, _ = port.names
        named = policy.named((topic,), subscription)
        assert named.topic is not None
        assert self.opener is not None
        async with self._opening:
            if named.topic not in self._opened:
                self._opened[named.topic] = await self.opener(subscription, named.topic, FIRST_RETRY_LEDGER)
            opened = self._opened[named.topic]
        joining = port.joining._replace(initial="earliest", delayed=None)
        await opened._subscriptions.join(joining, port)
        return replace(named, publisher=policy.publisher or opened.publisher())

    async def aclose(self) -> None:
        """Close all retry topics."""
        async with self._opening:
            opened, self._opened = self._opened, {}
        for topic in opened.values():
            await topic.aclose()


class LocalPublisher:
    """A :class:`~pulsar_nack.consumer.Publisher` into one topic, whatever the name; from ``topic.publisher()``.

    A local topic has no ordering keys, and no keys of bytes: those become base64.

    :param publish: publishes a message into the topic
    """

    def __init__(self, publish: Callable[..., Awaitable[Any]]) -> None:
        self._publish = publish

    async def publish(
        self,
        topic: str,
        data: bytes | None,
        *,
        properties: Mapping[str, str],
        key: str | bytes | None,
        ordering_key: str | None,
        event_time_ms: int,
        deliver_at_ms: int | None = None,
    ) -> MessageId:
        """Publish a message into the one topic, for any ``topic``; durable when it returns."""
        del topic, ordering_key
        text = base64.b64encode(key).decode("ascii") if isinstance(key, bytes) else key
        published: MessageId = await self._publish(
            data, key=text, properties=properties, event_time_ms=event_time_ms, deliver_at=deliver_at_ms
        )
        return published
