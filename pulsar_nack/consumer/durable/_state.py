"""What a consumer remembers over a restart: the sum of its log's records. Pure: no clock, no await.

The last record of an id decides. So a picture of this that is taken piece by piece, while changes go on, is right
once all changes since its beginning are applied after it: compaction needs no pause.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ids import MessageId
from ._records import (
    NO_ID,
    Change,
    EntryAcks,
    Item,
    Kind,
    Page,
    RangeAcks,
    encode_change,
    encode_entry,
    encode_page,
    encode_ranges,
)
from ._settled import Settled
from ._unsettled import Found, Unsettled


class Memory:
    """Unsettled messages and recent acknowledgements.

    :param memory_ms: how long acknowledgements are remembered
    :param keeps_members: as :class:`Settled` takes it
    :param ttl_ms: how long unsettled messages are, after their deadline or the last time that they were shown
    """

    def __init__(self, memory_ms: int, ttl_ms: int, *, keeps_members: bool = True) -> None:
        self._ttl_ms = ttl_ms
        self._unsettled = Unsettled()
        self.settled = Settled(memory_ms, keeps_members=keeps_members)
        self.last_at_ms = -1
        """The time of the newest record; -1: there is none."""

    def __len__(self) -> int:
        return len(self._unsettled)

    def find(self, message_id: MessageId) -> Found | None:
        """Return what is known of an unsettled message."""
        return self._unsettled.find(message_id)

    def apply(self, item: Item) -> None:
        """Take over a record."""
        if isinstance(item, Page):
            self._unsettled.load(item)
        elif isinstance(item, EntryAcks | RangeAcks):
            self.settled.load(item)
        else:
            self._apply_change(item)

    def _apply_change(self, change: Change) -> None:
        kind, message_id, at_ms, time_ms, count = change
        if kind in {Kind.NACKED, Kind.SHOWN}:
            self.settled.shown(message_id)
            self._unsettled.put(message_id, time_ms, count)
        elif kind is Kind.SETTLED:
            self._unsettled.drop(message_id)
            self.settled.add(message_id, at_ms)
        elif kind is Kind.THROUGH:
            self._unsettled.drop_through(message_id)
            self.settled.add_through(message_id, at_ms)
        elif kind is Kind.AWAY:
            self.settled.was_away(min(time_ms, at_ms), at_ms)
        elif kind is Kind.CONFIRMED:
            self.settled.confirmed()
        elif kind is Kind.CLEARED:
            self._unsettled.clear()
            self.settled.clear()
        elif self.last_at_ms >= 0:
            self.settled.was_away(min(self.last_at_ms, at_ms), at_ms)
        self.last_at_ms = max(self.last_at_ms, at_ms)

    def drop_old(self, now_ms: int) -> None:
        """Forget acknowledgements that are old enough."""
        self.settled.drop_old(now_ms, self._ttl_ms)

    def acknowledged(self) -> Iterator[Change | EntryAcks | RangeAcks]:
        """Go through what has to be acknowledged again when it comes."""
        self.drop_old(self.last_at_ms)
        yield from self.settled.items()

    def unsettled_pages(self) -> Iterator[Page]:
        """Go through the unsettled messages in columns, some thousand at most at a time."""
        return self._unsettled.pages()

    def picture(self, now_ms: int) -> Iterator[bytes | None]:
        """Go through records that say all of this, and drop what is too old; None: a step without a record.

        Changes may be applied between the steps.
        """
        yield encode_change(Change(Kind.OPENED, NO_ID, now_ms, now_ms))
        self.drop_old(now_ms)
        for item in self.settled.items():
            if isinstance(item, Change):
                yield encode_change(item)
            else:
                yield encode_ranges(item) if isinstance(item, RangeAcks) else encode_entry(item)
        yield from self._unsettled.drop_before(now_ms - self._ttl_ms)
        yield from map(encode_page, self._unsettled.pages())
