"""The consumers of a subscription, and what they hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ids import Position


@dataclass(slots=True)
class Held:
    """An entry that a consumer holds; ``left`` are the indexes of its unacknowledged messages, as bits."""

    consumer: int
    left: int
    key_hash: int
    batch_size: int

    @property
    def messages(self) -> int:
        """Return how many messages are left."""
        return self.left.bit_count()


@dataclass(slots=True)
class Member:
    """A consumer: how many messages it may get, and what it holds.

    One that was full gets nothing before half of its queue is free, so that entries are not read one by one.

    :param room: messages that it can take before any is received; below 0 when a batch was larger than the room
    :param unacked_limit: unacknowledged messages that end it; None: any number
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
        """Note when a full queue is half free again."""
        self._refill = max(self.room // 2, 1)

    @property
    def has_room(self) -> bool:
        """Return whether it may get an entry."""
        return not (self.is_full or self.is_held) and (self.unacked_limit is None or self.unacked < self.unacked_limit)

    def fill(self, messages: int) -> None:
        """Note that so many messages are in its queue; negative: not any more."""
        self.room -= messages
        self.is_full = self.room <= 0 or (self.is_full and self.room < self._refill)

    def take(self, position: Position, messages: int) -> None:
        """Note that it got an entry."""
        self.held.add(position)
        self.unacked += messages
        self.fill(messages)

    def let_go(self, position: Position, messages: int) -> None:
        """Note that it does not hold an entry any more, of which so many messages are unacknowledged."""
        self.held.discard(position)
        self.unacked -= messages
