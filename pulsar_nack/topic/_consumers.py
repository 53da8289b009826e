"""The consumers of a subscription: their queues, the entries that they hold, and who gets which key."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..ids import Position
from ._entry import hash_of

_POINTS = 100


@dataclass(slots=True)
class HeldEntry:
    """An entry that a consumer holds; ``left`` has a bit for each message that is not acknowledged."""

    consumer: int
    left: int
    key_hash: int
    batch_size: int

    @property
    def messages(self) -> int:
        """Return how many messages are not acknowledged."""
        return self.left.bit_count()


@dataclass(slots=True)
class AttachedConsumer:
    """A consumer: how many more messages it may get, and the entries that it holds.

    A consumer whose queue was full gets nothing before half of it is free, so that entries are not read one by one.

    :param room: messages that fit into its queue; below 0 when a batch was larger than the room
    :param unacked_limit: number of unacknowledged messages at which it gets no more; None: no limit
    """

    name: str
    room: int
    unacked_limit: int | None
    is_held: bool = False
    """It gets nothing: it is paused, or has no queue and does not wait."""
    unacked: int = 0
    held: set[Position] = field(default_factory=set)
    is_full: bool = field(default=False, init=False)
    _refill: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        """Set the room at which a full queue is filled again."""
        self._refill = max(self.room // 2, 1)

    @property
    def has_room(self) -> bool:
        """Return whether it may get an entry."""
        return not (self.is_full or self.is_held) and (self.unacked_limit is None or self.unacked < self.unacked_limit)

    def fill(self, messages: int) -> None:
        """Note that messages entered its queue; negative: that they left it."""
        self.room -= messages
        self.is_full = self.room <= 0 or (self.is_full and self.room < self._refill)

    def take(self, position: Position, messages: int) -> None:
        """Note that it got an entry."""
        self.held.add(position)
        self.unacked += messages
        self.fill(messages)

    def let_go(self, position: Position, messages: int) -> None:
        """Note that it does not hold an entry any more, which has this many unacknowledged messages."""
        self.held.discard(position)
        self.unacked -= messages


class KeyRing:
    """Assigns each key hash to a consumer, as Pulsar does: to the one whose point follows the hash on a ring.

    So a consumer that comes or goes moves few keys of the others.
    """

    def __init__(self) -> None:
        self._points: list[int] = []
        self._owners: list[int] = []

    def use(self, consumers: Iterable[tuple[int, str]]) -> None:
        """Build the ring of these consumers, each with a number and a name."""
        taken: dict[int, int] = {}
        for number, name in sorted(consumers, key=lambda each: (each[1], each[0])):
            for point in range(_POINTS):
                taken.setdefault(hash_of(f"{name}-{number}-{point}"), number)
        self._points = sorted(taken)
        self._owners = [taken[point] for point in self._points]

    def owner(self, key_hash: int) -> int | None:
        """Return the consumer of a hash, None if there is no consumer."""
        if not self._points:
            return None
        at = bisect_left(self._points, key_hash)
        return self._owners[at % len(self._owners)]
