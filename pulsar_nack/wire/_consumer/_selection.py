"""The topics that a consumer subscribes to, as a list or a pattern; and the topics and partitions that match now."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..._check import check_flag, is_text
from ..._tasks import gather_or_cancel
from ..._topic_pattern import TopicPattern, full_name
from ...consumer import RetryTopicPolicy
from ...errors import InvalidArgumentError, TopicNotFoundError
from .._connection._context import ClientContext
from .._protocol._topics import normalize, partition_name, split_partition, split_topic

_SYSTEM_PREFIX: Final = "__"
_DEFAULT_NAMESPACE: Final = "public/default"
_SLICE: Final = 1_000
"""Topics that are looked at before other tasks run."""


class TopicListSelection:
    """A list of topics; partitioned ones may get more partitions.

    :param retry_topic: is subscribed too, None: none
    """

    def __init__(self, topics: Sequence[str], retry_topic: str | None = None) -> None:
        self.topics = tuple(dict.fromkeys(map(_persistent, topics)))
        self.retry_topic = retry_topic
        self._all = self.topics if retry_topic is None else (*self.topics, retry_topic)
        if not self.topics:
            raise InvalidArgumentError("topic", topics, "at least one topic")
        self.label = ", ".join(self.topics)
        self._found: dict[str, Mapping[str, int]] = {}
        """The last answer for each topic."""

    @property
    def only(self) -> str | None:
        """Return the topic if the list has one, with any number of partitions; otherwise None."""
        return self.topics[0] if len(self.topics) == 1 else None

    async def members(self, context: ClientContext) -> dict[str, int]:
        """Return the full names of all topics, or of their partitions with the numbers; -1: no partition.

        A topic that was deleted since the last call has the same ones as before: it may be created again.
        """
        found: dict[str, int] = {}
        for members in await gather_or_cancel(self._known_members_of(context, topic) for topic in self._all):
            found.update(members)
        return found

    async def _known_members_of(self, context: ClientContext, topic: str) -> Mapping[str, int]:
        try:
            self._found[topic] = await _members_of(context, topic)
        except TopicNotFoundError:
            if topic not in self._found:
                raise
        return self._found[topic]

    def may_grow(self, members: Iterable[str]) -> bool:
        """Return whether a topic is partitioned, and may get more partitions."""
        return any(member not in self._all for member in members)


class PatternSelection:
    """All topics of a namespace whose names match a pattern, also those created later.

    The whole name has to match: ``persistent://tenant/namespace/name``, or without the beginning if the pattern has
    none. Of a partitioned topic the topic's name counts. Without a namespace a pattern is for ``public/default``. The
    broker's system topics are excluded.
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._parts = TopicPattern.parse(pattern.pattern)
        self.namespace = self._parts.namespace or _DEFAULT_NAMESPACE
        _persistent(f"{self._parts.domain or 'persistent'}://{self.namespace}/any")
        self.label = pattern.pattern
        self.only: str | None = None
        self.retry_topic: str | None = None

    async def members(self, context: ClientContext) -> dict[str, int]:
        """Return the full names of the topics that exist now, or of their partitions with the numbers."""
        found: dict[str, int] = {}
        parts: dict[str, dict[str, int]] = {}
        for at, name in enumerate(await context.topics(self.namespace)):
            if not at % _SLICE:
                await asyncio.sleep(0)
            if not self.matches(name):
                continue
            topic, number = split_partition(name)
            if number < 0:
                found[name] = number
            else:
                parts.setdefault(topic, {})[name] = number
        counts = await gather_or_cancel(_count(context, topic) for topic in parts)
        for (topic, listed), count in zip(parts.items(), counts, strict=True):
            found |= {partition_name(topic, number): number for number in range(count)} or listed
        return found

    def matches(self, name: str) -> bool:
        """Return whether a topic matches, by its full name or that of one of its partitions; invalid names do not."""
        try:
            domain, namespace, local = split_topic(split_partition(name)[0])
        except ValueError:  # somebody has named a topic like that, which must not stop those who watch the namespace
            return False
        is_system_topic = local.startswith(_SYSTEM_PREFIX)
        subject = self._parts.subject(domain, namespace, local)
        return not is_system_topic and self._pattern.fullmatch(subject) is not None

    def may_grow(self, members: Iterable[str]) -> bool:  # noqa: ARG002
        """Return True: a matching topic may be created."""
        return True


Selection = TopicListSelection | PatternSelection


def selection_of(topic: str | Sequence[str] | re.Pattern[str], *, is_pattern: bool | None = None) -> Selection:
    """Return the selection that a user's argument means.

    :param is_pattern: whether it is a pattern, also as text; None: as its type says
    :raises InvalidArgumentError: neither a name, a list of names, nor a pattern
    """
    if is_pattern is not None:
        check_flag("is_pattern_topic", is_pattern)
    if isinstance(topic, re.Pattern) if is_pattern is None else is_pattern:
        return PatternSelection(_compiled(topic))
    if isinstance(topic, str):
        return TopicListSelection([topic])
    if not isinstance(topic, Sequence):
        raise InvalidArgumentError("topic", topic, "a name, a list of names, or a pattern by re.compile")
    return TopicListSelection(topic)


def _compiled(topic: object) -> re.Pattern[str]:
    pattern = topic
    if is_text(topic):
        try:
            pattern = re.compile(topic)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidArgumentError("topic", topic, f"a pattern ({error})") from error
    if not isinstance(pattern, re.Pattern) or not isinstance(pattern.pattern, str):
        raise InvalidArgumentError("topic", topic, "a pattern of text")
    return pattern


def with_retry_topic(
    selection: Selection, policy: RetryTopicPolicy, subscription: str
) -> tuple[Selection, RetryTopicPolicy]:
    """Return a selection with the retry topic of its subscription, and the policy with all names.

    :raises InvalidArgumentError: the topic cannot be named, or the selection is a pattern
    """
    topics = None if isinstance(selection, PatternSelection) else selection.topics
    named = policy.named(topics, subscription, _persistent)
    return TopicListSelection(named.topics, named.topic), named


def _persistent(topic: str) -> str:
    """Return the full name of a persistent topic; refuse others, whose messages have no unique ids."""
    name = normalize(topic)
    if not name.startswith("persistent://"):
        raise InvalidArgumentError("topic", topic, "a persistent topic: messages of other topics have no unique ids")
    return name


def name_of(topic: str, partition: int) -> str:
    """Return the full name of a topic, or of its partition if the name is not that of the partition already."""
    split_topic(topic)
    name = full_name(topic)
    return partition_name(name, partition) if partition >= 0 and split_partition(name)[1] < 0 else name


async def _count(context: ClientContext, topic: str) -> int:
    """Return how many partitions a listed topic has, 0 if it is not partitioned, or was just deleted."""
    try:
        return await context.partitions(topic, create=False)
    except TopicNotFoundError:
        return 0


async def _members_of(context: ClientContext, topic: str) -> Mapping[str, int]:
    _, own = split_partition(topic)
    if own >= 0:
        return {topic: own}
    count = await context.partitions(topic)
    return {partition_name(topic, number): number for number in range(count)} or {topic: -1}
