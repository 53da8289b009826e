"""Who gets which entry: the pure core of a subscription.

It knows the consumers and their room, what each of them holds, and what has to be delivered again. It reads nothing and
waits for nothing: it is told what happened, and says who gets an entry.

States of an entry above the mark-delete position, as far as it is known here:

- *in flight*: sent to a consumer, and not acknowledged as a whole
- *waiting*: read and not sent for want of room, come back from a consumer that asked for it or went away, or come due;
  lowest first. Of one that was read its key and size are known, so it is not read in vain again.

Order of a key, on Key_Shared subscriptions: an entry goes to nobody while a lower one of its key waits, nor to another
consumer than the one that holds entries of its key. On Exclusive and Failover subscriptions all entries have one key.

Counts grow with each redelivery on Shared and Key_Shared subscriptions, and are forgotten when the last consumer
leaves; on Exclusive and Failover ones they stay 0, as the broker's do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import Final

from ..errors import BrokerError
from ..ids import Position
from ._keys import KeyRing
from ._members import Held, Member
from ._waiting import Known, Waiting


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


_MOST_AHEAD: Final = 2_000


class Dispatcher:
    """Decides; see the head of the module."""

    def __init__(self, kind: SubscriptionType) -> None:
        self.kind = kind
        self._members: dict[int, Member] = {}
        self._order: list[int] = []
        self._turn = 0
        self._ring = KeyRing()
        self._in_flight: dict[Position, Held] = {}
        self._by_key: dict[int, dict[int, int]] = {}
        self._waiting = Waiting()
        self._counts: dict[Position, int] = {}
        self.parts_acked = 0
        """How often a part of an entry was acknowledged."""

    # -- consumers -----------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> Collection[int]:
        """Return the numbers of the consumers, in the order in which they came."""
        return self._members

    def join(self, number: int, name: str, *, room: int, unacked_limit: int | None, kind: SubscriptionType) -> None:
        """Take a consumer in.

        :param room: messages that it takes ahead; 0: it gets one whenever it is not held, which it is at first
        :raises BrokerError: those that are there exclude it; nothing has changed
        """
        if self._members and (kind is not self.kind or kind is SubscriptionType.EXCLUSIVE):
            raise BrokerError(f"the subscription has a consumer already and is {self.kind.value}")
        if kind is not self.kind:
            self.kind = kind
            self._waiting.forget_all()
        self._members[number] = Member(name, max(room, 1), unacked_limit, is_held=not room)
        self._rearrange()

    def leave(self, number: int) -> None:
        """Let a consumer go; what it held goes to the others."""
        for position in list(self._members[number].held):
            self._come_back(position)
        del self._members[number]
        if not self._members:
            self._counts.clear()
        self._rearrange()

    def _rearrange(self) -> None:
        self._order = list(self._members)
        if self.kind is SubscriptionType.KEY_SHARED:
            self._ring.use((number, member.name) for number, member in self._members.items())

    @property
    def active(self) -> int | None:
        """Return who alone gets messages on an Exclusive or Failover subscription: the first by name, then by age."""
        return min(self._members, key=lambda number: (self._members[number].name, number), default=None)

    def take_room(self, number: int, messages: int) -> bool:
        """Note that a consumer has received messages (negative: that it has room for them again).

        :return: whether it may get more, and might not before
        """
        member = self._members[number]
        could = member.has_room
        member.fill(messages)
        return member.has_room and not could

    def hold(self, number: int, *, is_held: bool) -> None:
        """Give a consumer nothing until it is not held any more."""
        self._members[number].is_held = is_held

    @property
    def room(self) -> int:
        """Return for how many messages there is room, at most."""
        if self.kind.is_shared:
            return sum(member.room for member in self._members.values() if member.has_room)
        active = self.active
        return self._members[active].room if active is not None and self._members[active].has_room else 0

    # -- what may go ---------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> Collection[Position]:
        """Return what consumers hold."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Return how many entries wait to be sent."""
        return len(self._waiting)

    @property
    def may_read_on(self) -> bool:
        """Return whether new entries may be read: not when too many wait for a consumer already."""
        return len(self._waiting) < _MOST_AHEAD

    def to_send_again(self, most: int) -> list[Position]:
        """Return what waits and may be sent, the lowest first; of what was not read yet that is not known for sure."""
        found: list[Position] = []
        refused: set[int] = set()
        for position in self._waiting:
            if len(found) >= most:
                break
            known = self._waiting.known(position)
            if known is None or self._may_go(known.key_hash, refused):
                found.append(position)
            else:
                refused.add(known.key_hash)
        return found

    def _may_go(self, key_hash: int, refused: Collection[int]) -> bool:
        return key_hash not in refused and (self.kind is SubscriptionType.SHARED or self._peek(key_hash) is not None)

    def is_to_send_again(self, position: Position) -> bool:
        """Return whether an entry waits."""
        return position in self._waiting

    def known(self, position: Position) -> Known | None:
        """Return what is known of an entry that waits, None: it was not read."""
        return self._waiting.known(position)

    def add_again(self, positions: Iterable[Position]) -> None:
        """Have entries sent, again or as they came due, that nobody holds."""
        self._waiting.update(position for position in positions if position not in self._in_flight)

    def choose(self, position: Position, key_hash: int, refused: Collection[int] = ()) -> int | None:
        """Return who gets an entry, None: nobody has room who might, or it has to wait for others of its key.

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
            if self._members[number].has_room:
                self._turn = (self._turn + step + 1) % len(self._order)
                return number
        return None

    def _peek(self, key_hash: int) -> int | None:
        if self.kind is SubscriptionType.KEY_SHARED:
            holders = self._by_key.get(key_hash)
            number = next(iter(holders)) if holders else self._ring.owner(max(key_hash, 0))
        else:
            number = self.active
        return number if number is not None and self._members[number].has_room else None

    def _is_overtaking(self, position: Position, key_hash: int) -> bool:
        """Return whether a lower entry of this key waits, as far as its key is known."""
        lowest = self._waiting.lowest(key_hash if self.kind is SubscriptionType.KEY_SHARED else None)
        return lowest is not None and lowest < position

    # -- what happens --------------------------------------------------------------------------------------------------

    def refused(self, position: Position, known: Known) -> None:
        """An entry was read and could not be sent: it waits."""
        self._waiting.add(position, known)

    def held_back(self, position: Position) -> None:
        """An entry is delayed: it will come due."""
        self._waiting.discard(position)

    def sent(self, position: Position, number: int, left: int, known: Known) -> int:
        """Note that a consumer got an entry; return its redelivery count.

        :param left: the indexes of its messages that are not acknowledged, as bits
        """
        self._waiting.discard(position)
        held = self._in_flight[position] = Held(number, left, known.key_hash, known.batch_size)
        self._members[number].take(position, held.messages)
        by_key = self._by_key.setdefault(known.key_hash, {})
        by_key[number] = by_key.get(number, 0) + 1
        return self._counts.get(position, 0)

    def acked(self, position: Position) -> None:
        """An entry is acknowledged as a whole."""
        self._waiting.discard(position)
        self._counts.pop(position, None)
        self._release(position)

    def acked_in_part(self, position: Position, left: int) -> bool:
        """Of an entry only these messages are left, as bits, or fewer; return whether a consumer holds it, and none is.

        What nobody holds is looked at when it is sent.
        """
        self.parts_acked += 1
        held = self._in_flight.get(position)
        if held is None:
            return False
        before = held.messages
        held.left &= left
        self._members[held.consumer].unacked -= before - held.messages
        return not held.left

    def batch_size(self, position: Position) -> int | None:
        """Return how many messages a batch has that is in flight, 0: it is none, None: it is not in flight."""
        held = self._in_flight.get(position)
        return None if held is None else held.batch_size

    def redeliver(self, number: int, positions: Iterable[Position]) -> list[Position]:
        """A consumer wants entries again; return which of them it held, or all that it must let go of."""
        if not self.kind.is_shared:
            return self.rewind() if number == self.active else []
        mine = self.give_back(number, positions)
        for position in mine:
            self._counts[position] = self._counts.get(position, 0) + 1
        return mine

    def give_back(self, number: int, positions: Iterable[Position]) -> list[Position]:
        """Give entries to other consumers that this one holds and has not shown; return which of them it held."""
        mine = [position for position in dict.fromkeys(positions) if self._holder(position) == number]
        for position in mine:
            self._come_back(position)
        return mine

    def rewind(self) -> list[Position]:
        """Have all that is in flight sent again; return it."""
        released = list(self._in_flight)
        for position in released:
            self._come_back(position)
        return released

    def forget(self, up_to: Position | None = None) -> None:
        """Forget all entries, or those up to one: they were skipped, or the subscription was moved."""
        for position in [each for each in self._in_flight if up_to is None or each <= up_to]:
            self._release(position)
        self._waiting.discard_through(up_to)
        for position in [each for each in self._counts if up_to is None or each <= up_to]:
            del self._counts[position]

    def held_by(self, number: int) -> Iterator[Position]:
        """Go through what a consumer holds."""
        return iter(self._members[number].held)

    def unacked(self, number: int) -> int:
        """Return how many messages a consumer has not acknowledged."""
        return self._members[number].unacked

    def _holder(self, position: Position) -> int | None:
        held = self._in_flight.get(position)
        return None if held is None else held.consumer

    def _come_back(self, position: Position) -> None:
        """Have an entry wait that was in flight."""
        held = self._release(position)
        if held is not None:
            self._waiting.add(position, Known(held.key_hash, held.batch_size))

    def _release(self, position: Position) -> Held | None:
        held = self._in_flight.pop(position, None)
        if held is not None:
            self._members[held.consumer].let_go(position, held.messages)
            by_key = self._by_key[held.key_hash]
            by_key[held.consumer] -= 1
            if not by_key[held.consumer]:
                del by_key[held.consumer]
            if not by_key:
                del self._by_key[held.key_hash]
        return held
