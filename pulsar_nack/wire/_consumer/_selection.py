"""Which topics a consumer is for: names, or a pattern; and which topics and partitions that means at the moment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from ...consumer._patterns import TopicPattern
from ...errors import InvalidArgumentError, TopicNotFoundError
from .._connection._together import together
from .._protocol._topics import TopicName, TopicsMode, normalize, partition_name, split_partition

_SYSTEM_PREFIX: Final = "__"
_DEFAULT_NAMESPACE: Final = "public/default"


class Directory(Protocol):
    """What tells about topics; a :class:`~pulsar_nack.wire._connection._lookup.Lookup` does."""

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Return how many partitions a topic has, 0 if it has none; see the other one for ``create``."""
        ...

    async def topics(self, namespace: str, *, pattern: str | None = None, mode: TopicsMode = "persistent") -> list[str]:
        """Return the topics of a namespace."""
        ...


class Selection(Protocol):
    """Names of topics, now and later."""

    @property
    def label(self) -> str:
        """Return what to call it."""
        ...

    @property
    def only(self) -> str | None:
        """Return the one topic that it is, with whatever partitions; None if there may be several."""
        ...

    async def members(self, directory: Directory) -> dict[str, int]:
        """Return the full names of what to consume now, each with its number as a partition, -1 if it is none."""
        ...

    def may_grow(self, members: Iterable[str]) -> bool:
        """Return whether there may be more later."""
        ...


class Named:
    """Topics by their names; those with partitions may get more."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics = tuple(dict.fromkeys(map(_persistent, topics)))
        if not self.topics:
            raise InvalidArgumentError("topic", topics, "at least one topic")
        self.label = ", ".join(self.topics)

    @property
    def only(self) -> str | None:
        """Return the topic if it is one."""
        return self.topics[0] if len(self.topics) == 1 else None

    async def members(self, directory: Directory) -> dict[str, int]:
        """Return the topics, or their partitions."""
        return await _members(directory, self.topics)

    def may_grow(self, members: Iterable[str]) -> bool:
        """Return whether one of them has partitions."""
        return any(member not in self.topics for member in members)


class Matching:
    """All topics of a namespace whose names match a pattern, those of tomorrow too.

    The whole name has to match, ``persistent://tenant/namespace/name`` or without the beginning, as the pattern has it,
    and of a topic with partitions that of the topic. A pattern that names no namespace is for ``public/default``. The
    broker's own topics are left out.
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._parts = TopicPattern.parse(pattern.pattern)
        self.namespace = self._parts.namespace or _DEFAULT_NAMESPACE
        _persistent(f"{self._parts.domain or 'persistent'}://{self.namespace}/any")
        self.label = pattern.pattern
        self.only: str | None = None

    async def members(self, directory: Directory) -> dict[str, int]:
        """Return the topics that there are now, or their partitions."""
        found: dict[str, int] = {}
        parts: dict[str, dict[str, int]] = {}
        for name in await directory.topics(self.namespace, mode="persistent"):
            topic, number = split_partition(name)
            if not self._matches(topic):
                continue
            if number < 0:
                found[name] = number
            else:
                parts.setdefault(topic, {})[name] = number
        counts = await together(_count(directory, topic) for topic in parts)
        for (topic, listed), count in zip(parts.items(), counts, strict=True):
            found |= {partition_name(topic, number): number for number in range(count)} or listed
        return found

    def matches(self, name: str) -> bool:
        """Return whether a topic belongs to it, or a partition's topic does, by its full name."""
        return self._matches(split_partition(name)[0])

    def _matches(self, topic: str) -> bool:
        name = TopicName.parse(topic)
        is_of_broker = name.local.startswith(_SYSTEM_PREFIX)
        return not is_of_broker and self._pattern.fullmatch(self._parts.subject(*name)) is not None

    def may_grow(self, members: Iterable[str]) -> bool:  # noqa: ARG002
        """Return True."""
        return True


def selection_of(topic: str | Sequence[str] | re.Pattern[str]) -> Selection:
    """Return what a user's argument means.

    :raises InvalidArgumentError: no name, list of names or compiled pattern
    """
    if isinstance(topic, re.Pattern):
        if not isinstance(topic.pattern, str):
            raise InvalidArgumentError("topic", topic, "a pattern of text")
        return Matching(topic)
    if isinstance(topic, str):
        return Named([topic])
    if not isinstance(topic, Sequence):
        raise InvalidArgumentError("topic", topic, "a name, a list of names, or a pattern by re.compile")
    return Named(topic)


def _persistent(topic: str) -> str:
    """Return the full name of a topic whose messages have ids of their own: those of others cannot be told apart."""
    name = normalize(topic)
    if TopicName.parse(name).domain != "persistent":
        raise InvalidArgumentError(
            "topic", topic, "a persistent topic: the messages of others have no ids of their own"
        )
    return name


def name_of(topic: str, partition: int) -> str:
    """Return the full name of a topic, or of its partition where the name does not tell it already."""
    name = str(TopicName.parse(topic))
    return partition_name(name, partition) if partition >= 0 and split_partition(name)[1] < 0 else name


async def _count(directory: Directory, topic: str) -> int:
    """Return how many partitions a topic has that was just listed, 0 if it has none, or is gone since."""
    try:
        return await directory.partitions(topic, create=False)
    except TopicNotFoundError:
        return 0


async def _members(directory: Directory, topics: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for members in await together(_members_of(directory, topic) for topic in topics):
        found.update(members)
    return found


async def _members_of(directory: Directory, topic: str) -> Mapping[str, int]:
    _, own = split_partition(topic)
    if own >= 0:
        return {topic: own}
    count = await directory.partitions(topic)
    return {partition_name(topic, number): number for number in range(count)} or {topic: -1}
