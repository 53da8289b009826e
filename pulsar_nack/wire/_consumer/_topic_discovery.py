"""The topics that a consumer subscribes to, as a list or a pattern; those that match now; and the watch for new ones.

Since Pulsar 2.11 a broker reports created and deleted topics of a namespace on request. A report is only a hint to
look. The broker's patterns differ from Python's, so all topics of the namespace are watched. A watch ends with its
connection. Without a connection, or with an older broker, topics are looked for at intervals.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..._check import check_flag, is_text
from ..._tasks import gather_or_cancel
from ..._topic_pattern import TopicPattern, full_name
from ...consumer import RetryTopicPolicy
from ...errors import BrokerError, BrokerRefusedError, InvalidArgumentError, TopicNotFoundError
from .._connection._connection import Connection
from .._connection._context import ClientContext
from .._connection._requests import is_transient
from .._connection._session import Session
from .._protocol import _pulsar_pb2 as pb
from .._protocol._topics import normalize, partition_name, split_partition, split_topic

_LOG: Final = logging.getLogger("pulsar_nack.wire")
_SYSTEM_PREFIX: Final = "__"
_DEFAULT_NAMESPACE: Final = "public/default"
_SLICE: Final = 1_000
"""Topics that are looked at before other tasks run."""
_GATHER_S: Final = 0.05
"""Changes within this time are handled together."""
_RETRY_S: Final = 1.0
"""The pause before the next watch after a connection broke."""
_MAX_LOST: Final = 3
"""A broker or proxy that broke the connection this often instead of answering is not asked again."""


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


class TopicListWatcher:
    """Watches the namespace of a pattern for topics that match it."""

    def __init__(self, context: ClientContext, selection: PatternSelection) -> None:
        self._context = context
        self._namespace = selection.namespace
        self._is_wanted = selection.matches
        self._session: Session | None = None
        self._changed = asyncio.Event()
        self._is_refused = False
        self._lost = 0

    @property
    def is_open(self) -> bool:
        """Return whether the broker reports changes now."""
        return self._session is not None and not self._session.is_closed

    async def changed(self, timeout: float) -> None:
        """Return when topics have changed, or may have; at the latest after this many seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._open()
                await self._changed.wait()
                await asyncio.sleep(_GATHER_S if self.is_open else _RETRY_S)
        except TimeoutError:
            pass
        self._changed.clear()

    async def _open(self) -> None:
        """Begin a watch unless there is one; earlier changes then remain to be found."""
        if self.is_open or self._is_refused:
            return
        try:
            connection = await self._context.pool.service()
            if connection.connected.feature_flags.supports_topic_watchers:
                await self._watch(connection)
                self._changed.set()
        except Exception as error:  # the discovery logs more serious errors
            if self._context.pool.is_closed:
                raise
            is_final = isinstance(error, BrokerRefusedError) and not is_transient(error)
            self._is_refused = is_final or self._lost >= _MAX_LOST
            _LOG.log(logging.INFO if self._is_refused else logging.DEBUG, "%s is not watched: %s", self, error)

    async def _watch(self, connection: Connection) -> None:
        session = Session(
            connection,
            connection.watchers,
            self._namespace,
            what="topic watcher",
            close=_close_command,
            on_closed=self._on_closed,
        )
        session.on_topics_changed = self._on_topics_changed
        try:
            await session.register(self._watch_command)
        except BrokerRefusedError:
            raise
        except BrokerError:
            self._lost += 1
            raise
        self._lost = 0
        self._session = session

    def _watch_command(self, watcher_id: int, request_id: int) -> pb.BaseCommand:
        command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST)
        command.watchTopicList.request_id = request_id
        command.watchTopicList.watcher_id = watcher_id
        command.watchTopicList.namespace = self._namespace
        command.watchTopicList.topics_pattern = f"persistent://{self._namespace}/.*"
        return command

    def close(self) -> None:
        """End the watch at the broker, without waiting."""
        if self._session is not None:
            self._session.drop()

    def __str__(self) -> str:
        return self._namespace

    # --- events of the session ----------------------------------------------------------------------------------------

    def _on_topics_changed(self, names: Iterable[str]) -> None:
        """Report a change if one of these topics is wanted."""
        if any(map(self._is_wanted, names)):
            self._changed.set()

    def _on_closed(self, _session: Session, _error: Exception) -> None:
        """Report a change: topics may change until the next watch begins."""
        self._changed.set()


def _close_command(watcher_id: int, request_id: int) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE)
    command.watchTopicListClose.request_id = request_id
    command.watchTopicListClose.watcher_id = watcher_id
    return command
