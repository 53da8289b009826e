"""Where a subscription goes on that the broker does not keep: it is gone with its connection. Pure.

The next session begins behind the last message that was taken, which costs nothing; what is in work stays with whoever
has it. What was taken and is asked for again may be before that beginning, where no request reaches it: then the next
session begins with the first such message. So the broker sends again what was taken after it, too. What of that is
acknowledged is known here, and not shown; the others are dropped as copies by whoever has them.

Entries only: who gets the messages knows which of a batch are acknowledged until all are.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...ids import MessageId
from ...index import PositionRanges

Place = tuple[int, int]


class Resuming:
    """Of one topic or partition.

    :param start: the message before the first one; None: the broker decides
    """

    def __init__(self, start: MessageId | None) -> None:
        self.move(start)

    def move(self, start: MessageId | None) -> None:
        """Begin behind this message, as if nothing had been taken: at first, and after a seek."""
        self._start = start
        self._last: MessageId | None = None
        self._owed = PositionRanges()
        self._asked: set[Place] = set()
        self._acked = PositionRanges()
        self._through: Place | None = None
        self._begun: Place | None = None
        self._is_rewound = False

    def begin(self) -> MessageId | None:
        """Return the message before the first one of the session that begins; None: the broker decides."""
        start = self._start if self._last is None else self._last
        lowest = min(self._asked, default=None)
        self._is_rewound = lowest is not None and start is not None and lowest <= (start.ledger, start.entry)
        if self._is_rewound and lowest is not None:
            start = MessageId(lowest[0], lowest[1] - 1)
        self._begun = None if start is None else (start.ledger, start.entry)
        self._forget_acked()
        return start

    def arrived(self, place: Place) -> bool:
        """Note what arrives; return whether it is acknowledged already."""
        if self._begun is None:  # what is not taken has to come again from the next session
            self._begun = (place[0], place[1] - 1)
            self._start = MessageId(*self._begun)
        return place in self._acked or (self._through is not None and place <= self._through)

    def taken(self, message_id: MessageId) -> None:
        """Note that a message was received."""
        if self._last is None or message_id > self._last:
            self._last = message_id
        for ledger, entry in _places(message_id):
            self._owed.add(ledger, entry)
            self._asked.discard((ledger, entry))

    def acked(self, places: Iterable[Place]) -> None:
        """Note that entries are acknowledged, wholly."""
        for ledger, entry in places:
            self._asked.discard((ledger, entry))
            if self._owed.discard_range((ledger, entry - 1), (ledger, entry)):
                self._acked.add(ledger, entry)
        self._forget_acked()

    def acked_through(self, place: Place) -> None:
        """Note that everything up to an entry is acknowledged."""
        self._through = place if self._through is None else max(self._through, place)
        self._asked = {each for each in self._asked if each > place}
        first = self._owed.first
        if first is not None and first.lower < place:
            self._owed.discard_range(first.lower, place)

    def ask(self, places: Iterable[Place]) -> bool:
        """Note what was taken and is asked for; return whether it takes another session for some of it to come."""
        self._asked.update(place for place in places if place in self._owed)
        return self.is_behind

    @property
    def is_behind(self) -> bool:
        """Return whether something is asked for that comes before the present session's first message."""
        begun = self._begun
        return begun is not None and any(place <= begun for place in self._asked)

    def expect(self, places: Iterable[Place]) -> None:
        """Note entries that are here in part, and have to come again in the next session."""
        self._asked.update(places)

    def _forget_acked(self) -> None:
        """Forget what the broker has no reason to send again: in this session, nor in the next, as nothing is owed."""
        if not self._owed and not self._asked and not self._is_rewound:
            self._acked.clear()


def _places(message_id: MessageId) -> Iterable[Place]:
    return message_id.parts if message_id.is_chunked else ((message_id.ledger, message_id.entry),)
