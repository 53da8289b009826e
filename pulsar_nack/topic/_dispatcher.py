"""Which consumer gets which entry: the pure core of a subscription.

It knows the consumers and their room, what each of them holds, and what has to be delivered again. It reads nothing and
waits for nothing: its caller reports what happened, and asks who gets an entry.

States of an entry above the mark-delete position, as far as it is known here:

- *in flight*: sent to a consumer, and not acknowledged as a whole
- *queued*: not sent when it was read because no consumer had room, returned by a consumer that asked for redelivery or
  left, or delayed and due; lowest first. If it was read, its key and size are known, so it is not read for nothing.

Order of a key, on Key_Shared subscriptions: no consumer gets an entry while a lower one of its key is queued, and only
the consumer that holds entries of the key gets more of them. On Exclusive and Failover subscriptions all entries have
one key.

Redelivery counts grow on Shared and Key_Shared subscriptions, and are forgotten when the last consumer leaves; on
Exclusive and Failover subscriptions they stay 0, as at a broker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ..cursor import Reserve
from ..errors import BrokerError
from ..ids import Position
from ._dispatch_queue import DispatchQueue, EntryInfo
from ._entry import hash_of


class SubscriptionType(Enum):
    """How the consumers of a subscription share its messages."""

    SHARED = "shared"
    KEY_SHARED = "key_shared"
    EXCLUSIVE = "exclusive"
    FAILOVER = "failover"

    @property
    def is_shared(self) -> bool:
        """Return whether several consumers get messages at the same time."""
        return self in {SubscriptionType.SHARED, SubscriptionType.KEY_SHARED}


_MAX_QUEUED: Final = 2_000
_POINTS: Final = 100
"""How many points on the ring of keys each consumer has."""
KeyRing = list[tuple[int, int]]
"""Points in order, each with its consumer. As in Pulsar, a key belongs to the consumer whose point follows its hash, so
a consumer that comes or goes moves few keys of the others."""


class Dispatcher:
    """Decides who gets an entry; see the head of the module."""

    def __init__(self, kind: SubscriptionType) -> None:
        self.kind = kind
        self.in_flight: dict[Position, HeldEntry] = {}
        """The entries that consumers hold. Read only."""
        self.queue = DispatchQueue()
        """The entries that wait to be sent."""
        self.reserve: Reserve | None = None
        """What acknowledging the entries in flight may add to the cursor's state; None: the gate is off."""
        self.parts_acked = 0
        """How often a part of an entry was acknowledged."""
        self._consumers: dict[int, AttachedConsumer] = {}
        self._order: list[int] = []
        self._turn = 0
        self._ring: KeyRing = []
        self._by_key: dict[int, dict[int, int]] = {}
        self._counts: dict[Position, int] = {}

    # -- consumers -----------------------------------------------------------------------------------------------------

    def join(self, number: int, name: str, *, room: int, unacked_limit: int | None, kind: SubscriptionType) -> None:
        """Add a consumer.

        :param room: messages that fit into its queue; 0: it gets one whenever it is not held, and begins held
        :raises BrokerError: the present consumers exclude it; nothing has changed
        """
        if self._consumers and (kind is not self.kind or kind is SubscriptionType.EXCLUSIVE):
            raise BrokerError(f"the subscription has a consumer already and is {self.kind.value}")
        if kind is not self.kind:
            self.kind = kind
            self.queue.forget_info()
        self._consumers[number] = AttachedConsumer(name, max(room, 1), unacked_limit, is_held=not room)
        self._rearrange()

    def leave(self, number: int) -> None:
        """Remove a consumer; the entries that it held go to the others. O(entries that it held)."""
        for position in list(self._consumers[number].held):
            self._return_to_queue(position)
        del self._consumers[number]
        if not self._consumers:
            self._counts.clear()
        self._rearrange()

    def _rearrange(self) -> None:
        self._order = list(self._consumers)
        if self.kind is SubscriptionType.KEY_SHARED:
            self._ring = key_ring((number, consumer.name) for number, consumer in self._consumers.items())

    @property
    def active(self) -> int | None:
        """Return the only consumer that gets messages if the type is Exclusive or Failover: first by name, then age."""
        return min(self._consumers, key=lambda number: (self._consumers[number].name, number), default=None)

    def take_room(self, number: int, messages: int) -> bool:
        """Note that messages entered a consumer's queue; negative: that they left it.

        :return: whether it may get more now, and might not before
        """
        consumer = self._consumers[number]
        could = consumer.has_room
        consumer.fill(messages)
        return consumer.has_room and not could

    def hold(self, number: int, *, is_held: bool) -> None:
        """Give a consumer nothing while it is held."""
        self._consumers[number].is_held = is_held

    @property
    def room(self) -> int:
        """Return for how many messages there is room, at most."""
        if self.kind.is_shared:
            return sum(consumer.room for consumer in self._consumers.values() if consumer.has_room)
        active = self.active
        return self._consumers[active].room if active is not None and self._consumers[active].has_room else 0

    # -- choosing ------------------------------------------------------------------------------------------------------

    @property
    def may_read_on(self) -> bool:
        """Return whether new entries may be read: not while too many are queued."""
        return len(self.queue) < _MAX_QUEUED

    def next_queued(self, limit: int) -> list[Position]:
        """Return queued entries that may be sent, lowest first; of those that were not read this is not certain."""
        found: list[Position] = []
        refused: set[int] = set()
        for position in self.queue:
            if len(found) >= limit:
                break
            info = self.queue.info(position)
            if info is None or self._may_go(info.key_hash, refused):
                found.append(position)
            else:
                refused.add(info.key_hash)
        return found

    def _may_go(self, key_hash: int, refused: Collection[int]) -> bool:
        return key_hash not in refused and (self.kind is SubscriptionType.SHARED or self._peek(key_hash) is not None)

    def requeue(self, positions: Iterable[Position]) -> None:
        """Queue entries that no consumer holds, to be sent again or because they are due."""
        self.queue.update(position for position in positions if position not in self.in_flight)

    def choose(self, position: Position, key_hash: int, refused: Collection[int] = ()) -> int | None:
        """Return the consumer that gets an entry, None if nobody has room, or a lower entry of its key comes first.

        :param refused: keys of which a lower entry was refused just before
        """
        if self.kind is SubscriptionType.SHARED:
            return self._next_in_turn()
        if key_hash in refused or self._is_overtaking(position, key_hash):
            return None
        return self._peek(key_hash)

    def _next_in_turn(self) -> int | None:
        for step in range(len(self._order)):
            number = self._order[(self._turn + step) % len(self._order)]
            if self._consumers[number].has_room:
                self._turn = (self._turn + step + 1) % len(self._order)
                return number
        return None

    def _peek(self, key_hash: int) -> int | None:
        if self.kind is SubscriptionType.KEY_SHARED:
            holders = self._by_key.get(key_hash)
            number = next(iter(holders)) if holders else owner_on(self._ring, max(key_hash, 0))
        else:
            number = self.active
        return number if number is not None and self._consumers[number].has_room else None

    def _is_overtaking(self, position: Position, key_hash: int) -> bool:
        """Return whether a lower entry of this key is queued, as far as keys are known."""
        lowest = self.queue.lowest(key_hash if self.kind is SubscriptionType.KEY_SHARED else None)
        return lowest is not None and lowest < position

    # -- events --------------------------------------------------------------------------------------------------------

    def sent(self, position: Position, number: int, left: int, info: EntryInfo) -> int:
        """Note that a consumer got an entry; return its redelivery count.

        :param left: bits of the messages that are not acknowledged
        """
        self.queue.discard(position)
        held = self.in_flight[position] = HeldEntry(number, left, info)
        if self.reserve is not None:
            self.reserve.add(position, info.batch_size)
        self._consumers[number].take(position, held.messages)
        by_key = self._by_key.setdefault(info.key_hash, {})
        by_key[number] = by_key.get(number, 0) + 1
        return self._counts.get(position, 0)

    def acked(self, position: Position) -> None:
        """Note that an entry is acknowledged as a whole."""
        self.queue.discard(position)
        self._counts.pop(position, None)
        self._release(position)

    def acked_in_part(self, position: Position, left: int) -> bool:
        """Note that at most these messages of an entry are not acknowledged, as bits.

        Of an entry that no consumer holds, the cursor is asked when it is sent.

        :return: whether a consumer holds it, and all of it is acknowledged now
        """
        self.parts_acked += 1
        held = self.in_flight.get(position)
        if held is None:
            return False
        before = held.messages
        held.left &= left
        self._consumers[held.consumer].unacked -= before - held.messages
        return not held.left

    def batch_size(self, position: Position) -> int | None:
        """Return how many messages a batch in flight has, 0 for an entry that is no batch, None if not in flight."""
        held = self.in_flight.get(position)
        return None if held is None else held.info.batch_size

    def redeliver(self, number: int, positions: Iterable[Position]) -> list[Position]:
        """Queue entries that a consumer wants again; return those that it held, or all that it must let go of."""
        if not self.kind.is_shared:
            return self.rewind() if number == self.active else []
        held = self.give_back(number, positions)
        for position in held:
            self._counts[position] = self._counts.get(position, 0) + 1
        return held

    def give_back(self, number: int, positions: Iterable[Position]) -> list[Position]:
        """Queue undelivered entries of a consumer for other consumers; return those that it held."""
        mine = [
            position
            for position in dict.fromkeys(positions)
            if (held := self.in_flight.get(position)) is not None and held.consumer == number
        ]
        for position in mine:
            self._return_to_queue(position)
        return mine

    def rewind(self) -> list[Position]:
        """Queue all entries in flight; return them."""
        released = list(self.in_flight)
        for position in released:
            self._return_to_queue(position)
        return released

    def forget(self, up_to: Position | None = None) -> None:
        """Forget all entries, or those up to one: they were skipped, or the subscription was moved."""
        for position in [each for each in self.in_flight if up_to is None or each <= up_to]:
            self._release(position)
        self.queue.discard_through(up_to)
        for position in [each for each in self._counts if up_to is None or each <= up_to]:
            del self._counts[position]

    def _return_to_queue(self, position: Position) -> None:
        """Queue an entry that is in flight."""
        held = self._release(position)
        if held is not None:
            self.queue.add(position, held.info)

    def _release(self, position: Position) -> HeldEntry | None:
        held = self.in_flight.pop(position, None)
        if held is not None:
            if self.reserve is not None:
                self.reserve.discard(position)
            self._consumers[held.consumer].let_go(position, held.messages)
            by_key = self._by_key[held.info.key_hash]
            by_key[held.consumer] -= 1
            if not by_key[held.consumer]:
                del by_key[held.consumer]
            if not by_key:
                del self._by_key[held.info.key_hash]
        return held


@dataclass(slots=True)
class HeldEntry:
    """An entry that a consumer holds; ``left`` has a bit for each message that is not acknowledged."""

    consumer: int
    left: int
    info: EntryInfo

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
        """Note that it got an entry with this many unacknowledged messages."""
        self.held.add(position)
        self.unacked += messages
        self.fill(messages)

    def let_go(self, position: Position, messages: int) -> None:
        """Note that it does not hold an entry any more, which has this many unacknowledged messages."""
        self.held.discard(position)
        self.unacked -= messages


def key_ring(consumers: Iterable[tuple[int, str]]) -> KeyRing:
    """Return the ring of some consumers, each with a number and a name."""
    points: dict[int, int] = {}
    for number, name in sorted(consumers, key=lambda each: (each[1], each[0])):
        for point in range(_POINTS):
            points.setdefault(hash_of(f"{name}-{number}-{point}"), number)
    return sorted(points.items())


def owner_on(ring: KeyRing, key_hash: int) -> int | None:
    """Return the consumer of a hash, None if there is no consumer."""
    return ring[bisect_left(ring, (key_hash,)) % len(ring)][1] if ring else None
