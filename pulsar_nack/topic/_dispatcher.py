"""Who gets which entry: the pure core of a subscription.

It knows the consumers and their room, what each of them holds, and what has to be delivered again. It reads nothing and
waits for nothing: it is told what happened, and says who gets an entry.

States of an entry above the mark-delete position, as far as it is known here:

- *in flight*: sent to a consumer, and not acknowledged as a whole
- *to send again*: came back, from a consumer that asked for it or that went away, or came due; lowest first
- *stuck*: to send again, and refused in this round, since whoever has to get it has no room. What follows with the same
  key is refused as well, so that a key stays in order; everything stuck may go again when something has changed

Counts grow with each redelivery on Shared and Key_Shared subscriptions, and are forgotten when the last consumer
leaves; on Exclusive and Failover ones they stay 0, as the broker's do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ..errors import BrokerError
from ..ids import Position
from ..index import OrderedPositions
from ._entry import NO_KEY
from ._keys import KeyRing


class SubscriptionType(Enum):
    """How the consumers of a subscription share its messages."""

    SHARED = "shared"
    KEY_SHARED = "key_shared"
    EXCLUSIVE = "exclusive"
    FAILOVER = "failover"

    @property
    def is_shared(self) -> bool:
        """Return whether several consumers get messages, each by itself."""
        return self in {SubscriptionType.SHARED, SubscriptionType.KEY_SHARED}


@dataclass(slots=True)
class _Held:
    consumer: int
    messages: int
    key_hash: int


@dataclass(slots=True)
class _Consumer:
    name: str
    room: int
    unacked_limit: int | None
    unacked: int = 0
    held: set[Position] = field(default_factory=set)

    @property
    def has_room(self) -> bool:
        return self.room > 0 and (self.unacked_limit is None or self.unacked < self.unacked_limit)


_MOST_AHEAD: Final = 2_000


class Dispatcher:
    """Decides; see the head of the module."""

    def __init__(self, kind: SubscriptionType) -> None:
        self.kind = kind
        self._consumers: dict[int, _Consumer] = {}
        self._order: list[int] = []
        self._turn = 0
        self._ring = KeyRing()
        self._in_flight: dict[Position, _Held] = {}
        self._by_key: dict[int, dict[int, int]] = {}
        self._again = OrderedPositions()
        self._stuck: set[Position] = set()
        self.stuck_keys: set[int] = set()
        """Keys of what is stuck. Read only."""
        self._counts: dict[Position, int] = {}

    # -- consumers -----------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> Collection[int]:
        """Return the numbers of the consumers, in the order in which they came."""
        return self._consumers

    def join(self, number: int, name: str, *, room: int, unacked_limit: int | None, kind: SubscriptionType) -> None:
        """Take a consumer in.

        :raises BrokerError: those that are there exclude it; nothing has changed
        """
        if self._consumers and (kind is not self.kind or kind is SubscriptionType.EXCLUSIVE):
            raise BrokerError(f"the subscription has a consumer already and is {self.kind.value}")
        self.kind = kind
        self._consumers[number] = _Consumer(name, room, unacked_limit)
        self._rearrange()

    def leave(self, number: int) -> None:
        """Let a consumer go; what it held goes to the others."""
        consumer = self._consumers.pop(number)
        for position in consumer.held:
            self._drop_key(self._in_flight.pop(position), number)
            self._again.add(position)
        if not self._consumers:
            self._counts.clear()
        self._rearrange()

    def _rearrange(self) -> None:
        self._order = list(self._consumers)
        if self.kind is SubscriptionType.KEY_SHARED:
            self._ring.use((number, consumer.name) for number, consumer in self._consumers.items())
        self.something_changed()

    @property
    def active(self) -> int | None:
        """Return who alone gets messages on an Exclusive or Failover subscription: the first by name, then by age."""
        return min(self._consumers, key=lambda number: (self._consumers[number].name, number), default=None)

    def something_changed(self) -> None:
        """Let what was refused be tried again."""
        self._stuck.clear()
        self.stuck_keys.clear()

    def take_room(self, number: int, messages: int) -> None:
        """Note that a consumer has received messages (negative: that it has room for them again)."""
        self._consumers[number].room -= messages
        if messages < 0:
            self.something_changed()

    @property
    def room(self) -> int:
        """Return for how many messages there is room, at most."""
        able = self._consumers if self.kind.is_shared else [self.active] if self._consumers else []
        return sum(self._consumers[number].room for number in able if number in self._consumers and self._can(number))

    def _can(self, number: int) -> bool:
        return self._consumers[number].has_room

    # -- entries -------------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> Collection[Position]:
        """Return what consumers hold."""
        return self._in_flight

    @property
    def may_read_on(self) -> bool:
        """Return whether new entries may be read: not when too many wait for a consumer already."""
        return len(self._again) < _MOST_AHEAD

    def to_send_again(self, most: int) -> list[Position]:
        """Return what has to be sent again, the lowest first, but for what is stuck."""
        found: list[Position] = []
        for position in self._again:
            if len(found) >= most:
                break
            if position not in self._stuck:
                found.append(position)
        return found

    def is_to_send_again(self, position: Position) -> bool:
        """Return whether an entry waits to be sent again."""
        return position in self._again

    def add_again(self, positions: Iterable[Position]) -> None:
        """Have entries sent, again or as they came due, that nobody holds."""
        self._again.update(position for position in positions if position not in self._in_flight)

    def choose(self, key_hash: int) -> int | None:
        """Return who gets an entry with this key, None: nobody has room who might."""
        if self.kind is SubscriptionType.KEY_SHARED:
            return self._choose_by_key(key_hash)
        if not self.kind.is_shared:
            active = self.active
            return active if active is not None and self._can(active) else None
        for step in range(len(self._order)):
            number = self._order[(self._turn + step) % len(self._order)]
            if self._can(number):
                self._turn = (self._turn + step + 1) % len(self._order)
                return number
        return None

    def _choose_by_key(self, key_hash: int) -> int | None:
        if key_hash in self.stuck_keys:
            return None
        holders = self._by_key.get(key_hash)
        number = self._ring.owner(max(key_hash, 0)) if not holders else next(iter(holders))
        return number if number is not None and self._can(number) else None

    def stuck(self, position: Position, key_hash: int) -> None:
        """Nobody could get this entry: it waits, and what has the same key behind it."""
        self._again.add(position)
        self._stuck.add(position)
        self.stuck_keys.add(key_hash)

    def held_back(self, position: Position) -> None:
        """An entry is delayed: it will come due."""
        self._again.discard(position)

    def sent(self, position: Position, number: int, messages: int, key_hash: int = NO_KEY) -> int:
        """Note that a consumer got an entry; return its redelivery count."""
        self._again.discard(position)
        self._in_flight[position] = _Held(number, messages, key_hash)
        consumer = self._consumers[number]
        consumer.held.add(position)
        consumer.unacked += messages
        consumer.room -= messages
        by_key = self._by_key.setdefault(key_hash, {})
        by_key[number] = by_key.get(number, 0) + 1
        return self._counts.get(position, 0)

    def acked(self, position: Position) -> None:
        """An entry is acknowledged as a whole."""
        self._again.discard(position)
        self._stuck.discard(position)
        self._counts.pop(position, None)
        self._release(position)

    def acked_in_part(self, position: Position, left: int) -> None:
        """So many messages of an entry are left to acknowledge."""
        held = self._in_flight.get(position)
        if held is not None and left < held.messages:
            self._consumers[held.consumer].unacked -= held.messages - left
            held.messages = left

    def redeliver(self, number: int, positions: Iterable[Position]) -> list[Position]:
        """A consumer wants entries again; return which of them it held, or all that it must let go of."""
        if not self.kind.is_shared:
            return self._rewind() if number == self.active else []
        mine = [position for position in dict.fromkeys(positions) if self._holder(position) == number]
        for position in mine:
            self._release(position)
            self._counts[position] = self._counts.get(position, 0) + 1
            self._again.add(position)
        self.something_changed()
        return mine

    def _rewind(self) -> list[Position]:
        released = list(self._in_flight)
        for position in released:
            self._release(position)
        self._again.update(released)
        self.something_changed()
        return released

    def forget(self, up_to: Position | None = None) -> None:
        """Forget all entries, or those up to one: they were skipped, or the subscription was moved."""
        for position in [each for each in self._in_flight if up_to is None or each <= up_to]:
            self._release(position)
        self._again.discard_through(up_to)
        if up_to is None:
            self._counts.clear()
        self.something_changed()

    def held_by(self, number: int) -> Iterator[Position]:
        """Go through what a consumer holds."""
        return iter(self._consumers[number].held)

    def unacked(self, number: int) -> int:
        """Return how many messages a consumer has not acknowledged."""
        return self._consumers[number].unacked

    def _holder(self, position: Position) -> int | None:
        held = self._in_flight.get(position)
        return None if held is None else held.consumer

    def _release(self, position: Position) -> None:
        held = self._in_flight.pop(position, None)
        if held is None:
            return
        consumer = self._consumers[held.consumer]
        consumer.held.discard(position)
        consumer.unacked -= held.messages
        self._drop_key(held, held.consumer)

    def _drop_key(self, held: _Held, number: int) -> None:
        by_key = self._by_key[held.key_hash]
        by_key[number] -= 1
        if not by_key[number]:
            del by_key[number]
        if not by_key:
            del self._by_key[held.key_hash]
