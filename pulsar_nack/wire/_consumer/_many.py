"""The consumers of several topics and partitions as one: opened together, found by id, joined by new ones.

What appears later is consumed from its first message on: all of it was published after this consumer began.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from ...consumer import AcksDone
from ...errors import BrokerError, TopicNotFoundError
from ...ids import MessageId, Position
from .._connection._core import Core
from .._connection._refusals import told
from .._connection._together import MOST_AT_ONCE, each_tried, together
from ._departed import Departed
from ._inbox import Queued, Source
from ._selection import Directory, Selection, name_of

T = TypeVar("T")
_LOG: Final = logging.getLogger("pulsar_nack.wire")
_MOST_DEPARTED: Final = 10_000
"""Topics that were deleted and are still known."""


class Member(Source, Protocol):
    """The consumer of one topic or partition; a :class:`~._topic_consumer.TopicConsumer` is one."""

    topic: str
    partition: int

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection now."""
        ...

    @property
    def is_active(self) -> bool | None:
        """Return whether it is the one that gets messages, on Failover; None where that is not known."""
        ...

    @property
    def has_ended(self) -> bool:
        """Return whether the topic was terminated, and all of it was delivered."""
        ...

    def check_open(self) -> None:
        """Raise if it is closed, or has ended with an error."""

    @property
    def missing(self) -> TopicNotFoundError | None:
        """Return what the broker says, while the topic is deleted and may not be created."""
        ...

    async def open(self, ends_at: float | None = None) -> None:
        """Subscribe, by this time of the loop."""

    async def aclose(self) -> None:
        """Give back what is not acknowledged."""

    def topic_deleted(self) -> None:
        """Learn that the topic is gone: what is acknowledged of it is done."""

    async def unsubscribe(self) -> None:
        """Delete the subscription."""

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Begin to acknowledge a message; ``done`` learns of the end."""

    async def acknowledge(self, ids: list[MessageId]) -> None:
        """Acknowledge messages."""

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to a message."""

    def redeliver_nowait(self, ids: list[MessageId]) -> None:
        """Ask for messages again."""

    def want(self) -> None:
        """Learn that a call waits for a message."""

    def pause(self, queued: Sequence[Queued], *, is_idle: bool) -> None:
        """Give back what was fetched ahead, and fetch nothing."""

    def resume(self) -> None:
        """Fetch messages again."""

    def give_back(self, ids: Iterable[MessageId]) -> None:
        """Give back what was taken and not shown."""

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription."""

    async def held_back(self) -> str | None:
        """Return why the broker sends nothing more."""
        ...

    async def last_message_id(self) -> MessageId:
        """Return the id of the last message of the topic."""
        ...

    async def mark_delete_position(self) -> Position | None:
        """Return up to where everything is acknowledged, None where that is not known."""
        ...


class Make(Protocol):
    """What makes a member."""

    def __call__(self, name: str, partition: int, *, count: int, is_new: bool) -> Member:
        """Make one that is not open.

        :param name: the full name of the topic or partition
        :param count: how many members there are
        :param is_new: it appeared after the consumer began
        """
        ...


class Members:
    """All members of a selection.

    :param subscription: its name, for errors
    :param gone: called with each that leaves because its topic was deleted, and again when messages are asked for that
        will not come for that
    :param core: the client's
    """

    def __init__(
        self,
        selection: Selection,
        directory: Directory,
        make: Make,
        *,
        subscription: str,
        gone: Callable[[Member], None],
        core: Core,
    ) -> None:
        self._core = core
        self._subscription = subscription
        self._selection = selection
        self._directory = directory
        self._make = make
        self._gone = gone
        self._members: dict[str, Member] = {}
        self._departed: dict[str, Departed] = {}
        self._leaving: set[Member] = set()
        self.by_topic: Mapping[str | None, Member] = self._members  # type: ignore[assignment]
        """By their full names."""
        self._lone: Member | None = None

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    @property
    def may_grow(self) -> bool:
        """Return whether it makes sense to look again."""
        return self._selection.may_grow(self._members)

    async def open(self) -> None:
        """Open all, in the time of one request for each 32; where one cannot, none is open.

        :raises BrokerError: the first that failed
        """
        ends_at = self._core.deadline()
        wanted = await self.wanted(ends_at)
        count = len(wanted)
        made = {name: self._make(name, partition, count=count, is_new=False) for name, partition in wanted.items()}
        try:
            more_s = self._core.options.request_timeout.total_seconds()
            await together(
                self._open(name, member, ends_at + number // MOST_AT_ONCE * more_s)
                for number, (name, member) in enumerate(made.items())
            )
        except BaseException:
            await each_tried(member.aclose() for member in made.values())
            raise
        self._members.update(made)
        self._note_lone()

    async def wanted(self, ends_at: float | None = None) -> Mapping[str, int]:
        """Return the names of all that there are to be, and the numbers of partitions.

        :raises BrokerError: the broker gave no answer
        """
        try:
            return await self._core.patiently(
                lambda: self._selection.members(self._directory),
                ends_at=self._core.deadline() if ends_at is None else ends_at,
            )
        except BrokerError as error:
            raise self._told(self._selection.label, error) from error

    async def _open(self, name: str, member: Member, ends_at: float) -> None:
        try:
            await member.open(ends_at)
        except BrokerError as error:
            raise self._told(name, error) from error

    def _told(self, name: str, error: BrokerError) -> BrokerError:
        return told(f"subscribing to {name} as {self._subscription!r}", error)

    async def refresh(self) -> None:
        """Open what is new and close what is gone; what fails is logged, and tried the next time.

        :raises BrokerError: the broker does not tell what there is
        """
        wanted = await self._selection.members(self._directory)
        new = {name: partition for name, partition in wanted.items() if name not in self._members}
        await asyncio.gather(*(self._add(name, partition) for name, partition in new.items()))
        if self._selection.only is None:
            await self._leave([name for name in self._members if name not in wanted])

    async def _add(self, name: str, partition: int) -> None:
        member = self._make(name, partition, count=len(self._members) + 1, is_new=True)
        try:
            await member.open()
        except Exception as error:  # noqa: BLE001 - it is tried again
            await each_tried([member.aclose()])
            _LOG.warning("%s is new, and cannot be consumed yet: %s", name, error)
        except BaseException:
            await each_tried([member.aclose()])
            raise
        else:
            _LOG.info("%s is new, and consumed from now on", name)
            self._members[name] = member
            self._departed.pop(name, None)
            self._note_lone()

    async def _leave(self, names: Iterable[str]) -> None:
        leaving = {name: self._members.pop(name) for name in names}
        self._note_lone()
        for name, member in leaving.items():
            self._depart(name, member)
        self._leaving.update(leaving.values())
        await each_tried(member.aclose() for member in leaving.values())
        self._leaving.difference_update(leaving.values())

    def _depart(self, name: str, member: Member) -> None:
        member.topic_deleted()
        self._departed[name] = Departed(member.topic, member.partition, self._gone)
        if len(self._departed) > _MOST_DEPARTED:
            del self._departed[next(iter(self._departed))]
        self._gone(member)

    async def aclose(self) -> BaseException | None:
        """Close all, those too that a call which was cancelled has left half closed; return the first error."""
        return await each_tried(member.aclose() for member in (*self._members.values(), *self._leaving))

    def _note_lone(self) -> None:
        is_plain = self._selection.only in self._members
        self._lone = next(iter(self._members.values())) if is_plain and len(self._members) == 1 else None

    # --- by id -----------------------------------------------------------------------------------------------------

    def of(self, message_id: MessageId) -> Member:
        """Return the member that an id belongs to; one of a topic that was deleted, what stands for it.

        :raises BrokerError: it does not tell, or is of another topic
        """
        topic = message_id.topic
        if topic is None:
            if self._lone is not None:
                return self._lone
            topic = self._selection.only
            if topic is None:
                raise BrokerError(
                    f"{message_id!r} was not delivered to this consumer of several topics, and names none"
                )
        found: Member | None = self._members.get(topic) or self._members.get(name_of(topic, message_id.partition))
        if found is None:
            found = self._departed.get(topic) or self._departed.get(name_of(topic, message_id.partition))
        if found is None:
            raise BrokerError(f"{message_id!r} is of no topic of this consumer of {self._selection.label}")
        return found

    def grouped_known(self, ids: Iterable[MessageId]) -> Mapping[Member, list[MessageId]]:
        """Return which ids are of which member, without those of none: they keep no others from being asked for."""
        groups: dict[Member, list[MessageId]] = {}
        for message_id in ids:
            with suppress(BrokerError):
                groups.setdefault(self.of(message_id), []).append(message_id)
        return groups

    def grouped(self, ids: Iterable[MessageId]) -> Mapping[Member, list[MessageId]]:
        """Return which ids are of which member; raises as :meth:`of`."""
        groups: dict[Member, list[MessageId]] = {}
        for message_id in ids:
            groups.setdefault(self.of(message_id), []).append(message_id)
        return groups
