"""Decides by the session events of the port which confirmed acknowledgements still hide a delivery. Pure.

An acknowledgement is stamped with a *turn*, which grows with each event of a session, and with a time. These hide:

- in the present session: those of the last ``ack_memory``, for duplicates that were on their way. No other message of
  it can come again: a call that moves a subscription ends the session
- after a lost connection: those of the last ``ack_memory`` before it, as the broker may have lost them
- after a session that the broker closed on a living connection: none from before. The broker has them all, so every
  delivery is meant. Except for members of a batch with unacknowledged messages: brokers forget those when they unload a
  topic, also if they keep index acks. They hide until another delivery shows that the subscription was moved

For a port that does not report its sessions, one session lasts for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from ..ids import MessageId

Place = tuple[str | None, int]
"""Topic and partition."""
Stamp = tuple[int, int]
"""A turn, and a time in ms."""

_NEVER: Final = (0, 0, 0)


def place_of(message_id: MessageId) -> Place:
    """Return the topic and the partition of a message."""
    return message_id.topic, message_id.partition


class Sessions:
    """The sessions of a consumer with each of its topics and partitions.

    :param ack_memory_ms: how long a confirmed acknowledgement hides, at most
    """

    def __init__(self, ack_memory_ms: int) -> None:
        self.turn = 1
        self.closed_turn = 0
        """The turn in which the broker last ended a session, of any topic or partition."""
        self._ack_memory_ms = ack_memory_ms
        self._ended: dict[Place, tuple[int, int, int]] = {}
        self._replayed: dict[Place, int] = {}

    def closed(self, place: Place) -> None:
        """Note that the broker ended a session."""
        self.turn += 1
        self.closed_turn = self.turn
        self._ended[place] = (self.turn, 0, 0)

    def lost(self, place: Place, now_ms: int) -> None:
        """Note that a session ended with its connection."""
        self.turn += 1
        self._ended[place] = (self._ended.get(place, _NEVER)[0], self.turn, now_ms)

    def has_ended(self, place: Place) -> bool:
        """Return whether an earlier session of this topic or partition has ended."""
        return place in self._ended

    def is_forgotten(self, stamp: Stamp, place: Place) -> bool:
        """Return whether an acknowledgement no longer counts, as the broker ended its session."""
        return bool(self._ended) and stamp[0] < self._ended.get(place, _NEVER)[0]

    def replayed(self, place: Place) -> None:
        """Note a delivery that proves a replay: it was acknowledged before the broker ended a session."""
        self._replayed[place] = self._ended.get(place, _NEVER)[0]

    def is_replayed(self, stamp: Stamp, place: Place) -> bool:
        """Return whether an acknowledgement no longer counts, as the subscription was moved since."""
        return bool(self._replayed) and stamp[0] < self._replayed.get(place, 0)

    def is_replaying(self, place: Place) -> bool:
        """Return whether a replay was noted since the broker last ended a session."""
        return self._replayed.get(place, 0) == self._ended.get(place, _NEVER)[0] > 0

    def is_of_earlier(self, stamp: Stamp, place: Place) -> bool:
        """Return whether an acknowledgement was confirmed before the present session."""
        return stamp[0] < self._ended.get(place, _NEVER)[1]

    def hides(self, stamp: Stamp, place: Place, now_ms: int) -> bool:
        """Return whether an acknowledgement hides a delivery that comes now."""
        turn, at_ms = stamp
        closed, lost, lost_at_ms = self._ended.get(place, _NEVER)
        return turn >= closed and (lost_at_ms if turn < lost else now_ms) - at_ms < self._ack_memory_ms

    def is_young(self, stamp: Stamp, now_ms: int) -> bool:
        """Return whether an acknowledgement is younger than ``ack_memory``."""
        return now_ms - stamp[1] < self._ack_memory_ms

    def losses(self) -> list[Stamp]:
        """Return when a connection was lost last, for each topic and partition, in order."""
        return sorted((lost, lost_at_ms) for _, lost, lost_at_ms in self._ended.values() if lost)

    def was_young_when_lost(self, stamp: Stamp, losses: Sequence[Stamp]) -> bool:
        """Return whether an acknowledgement was young at the first of some losses after it, and so still hides."""
        first = bisect_left(losses, (stamp[0] + 1, 0))
        return first < len(losses) and self.is_young(stamp, losses[first][1])
