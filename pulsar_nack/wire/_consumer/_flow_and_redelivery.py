"""What a consumer asks the broker to send: new messages, messages to be redelivered, and entries returned unread.

*Permits* say how many messages the broker may send before this consumer reports that there is room for more. The
broker subtracts from them the messages of each entry that it sends, except members of a batch that are already
acknowledged. The count may fall below 0 by the size of a batch. Whatever happens to a message here (taken, dropped or
never delivered), its permit is returned exactly once.

Each permit is in one of three places: *out* at the broker, *free* here, or with a message that is here and not taken;
together they are ``size``. While no message is here at least one permit is out, even if memory is short, except while
permits are held: while the consumer is paused, or has no queue and no call waits.

Other clients return permits when half of them are free. In measurements a broker sent a long backlog of small messages
a tenth to a third faster when it got back a twentieth at a time, at no cost that shows here.

Free memory is shared evenly: each consumer lets the broker send as many messages as fit into its share, judged by the
mean size of its messages so far. Until it knows that, it assumes the largest size that the broker allows. So prefetched
messages stay within the limit while sizes are alike; if sizes grow suddenly, or all consumers fill up together, they
exceed it by what was permitted before.

*Redelivery requests* are collected for a millisecond and sent together, at most 1 000 entries in a command. The first
request is sent immediately; requests within the next millisecond wait for its end. Nothing survives the end of a
connection, because the broker then redelivers everything that is not acknowledged.

*Entries that go back unread* are those of a paused consumer, and chunks of messages that stay incomplete. A paused
consumer returns what was prefetched, and what still arrives. Only a new session takes back permits, and it begins only
once no message is in flight. Until then the broker may go on sending. Such an entry is returned after a moment, and
after ten times as long each time that it comes again, because the broker may have no other consumer for it and counts
each return as a redelivery. If the consumer delivers the entry later, these returns are subtracted from its redelivery
count. Once no permits are out, everything is returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from ..._delays import delay_ms
from ..._foreign import shown
from ...ids import Position
from .._connection._context import ClientContext
from .._protocol._chunks import ChunkAssembler
from ._positions import Place
from ._subscribe_options import SubscribeOptions

MAX_ENTRIES: Final = 1_000
"""Most entries in one command; brokers refuse more."""
SPACING_S: Final = 0.001
_RETURN_AT_ONCE: Final = 50
"""Permits are returned in groups of this size, or of half or a twentieth of all permits where that fits better."""
_LOG: Final = logging.getLogger("pulsar_nack.wire")
_RETURN_AFTER_S: Final = (0.1, 1.0, 10.0, 100.0)
"""How long an entry waits for its first return, its second one, and so on; for all later ones as for the last."""
_MAX_KNOWN: Final = 10_000
_WARN_AFTER: Final = 3
"""A chunked message is logged when its chunks have been returned this often."""


class Permits:
    """The permits of one consumer while it is subscribed.

    :param size: most messages that are here or on their way
    :param fitting: returns how many more messages fit into memory; None: any number
    """

    def __init__(self, size: int, fitting: Callable[[], int] | None = None) -> None:
        self.size = size
        self._fitting = fitting
        self._free = 0
        self.out = 0
        """How many more messages the broker may send; below 0 after a batch that was larger than this."""
        self.is_held = False
        """While it is True no permits are given, even if some are free."""
        self._give_at = 1

    def start(self) -> int:
        """Forget the permits of an earlier session; return how many to give the broker after subscribing."""
        self.out = 0
        self._free = self.size
        return self.give()

    def used(self, messages: int) -> None:
        """Note that the broker sent messages."""
        self.out -= messages

    def free(self, messages: int) -> int:
        """Note that there is room for more messages; return how many permits to give now, 0: wait for more."""
        self._free += messages
        return 0 if self._free < self._give_at else self.give()

    def give(self) -> int:
        """Return how many permits to give now: those that are free, as far as memory allows."""
        if self.is_held:
            return 0
        fits = self.size if self._fitting is None else min(self._fitting(), self.size)
        least = 1 if self._free + self.out >= self.size else self.out  # to be out then: nothing is here
        given = max(min(fits, self._free + self.out), least, self.out) - self.out
        self._free -= given
        self.out += given
        at_once = max(min(fits // 2, _RETURN_AT_ONCE), fits // 20, 1)
        self._give_at = min(self._free + at_once, self.size)
        return given


class RedeliveryRequests:
    """The redelivery requests of one consumer while it is subscribed.

    :param send: asks the broker for entries
    :param max_entries: most entries in a command
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Sequence[Place]], None],
        *,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self._loop = loop
        self._send = send
        self._max_entries = max_entries
        self._wanted: dict[Place, None] = {}
        self._handle: asyncio.Handle | None = None
        self._sent_at = -1e9

    def add(self, places: Iterable[Place]) -> None:
        """Request entries, each once."""
        self._wanted.update(dict.fromkeys(places))
        if self._handle is None and self._wanted:
            at = self._sent_at + SPACING_S
            if at <= self._loop.time():
                self._flush()
            else:
                self._handle = self._loop.call_at(at, self._flush)

    def clear(self) -> None:
        """Forget requests that were not sent."""
        self._wanted.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _flush(self) -> None:
        self._handle = None
        self._sent_at = self._loop.time()
        wanted, self._wanted = iter(self._wanted), {}
        while some := list(islice(wanted, self._max_entries)):
            self._send(some)


class ReturnedEntries:
    """The entries that one consumer returns to the broker unread while it is subscribed.

    :param request: asks the broker to send entries again, to any consumer
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        options: SubscribeOptions,
        request: Callable[[Sequence[Place]], None],
    ) -> None:
        self.chunks = ChunkAssembler(
            options.max_pending_chunked, options.max_chunked_bytes, delay_ms(options.chunk_timeout, "chunk_timeout")
        )
        """The chunks of incomplete messages."""
        self.is_paused = False
        self.is_last = False
        """Whether the consumer is closed next."""
        self.is_in_use = False
        """Whether arrivals must be reported here: the consumer is paused, or has returned entries."""
        self._topic = topic
        self._loop = context.loop
        self._now_ms = context.clock.now_ms
        self._request = request
        self._times: dict[Place, int] = {}
        self._due: dict[Place, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._chunk_timer: asyncio.TimerHandle | None = None

    # --- entries of a paused consumer ---------------------------------------------------------------------------------

    def pause(self, *, is_last: bool = False) -> None:
        """Return entries that arrive from now on."""
        self.is_paused, self.is_last = True, is_last
        self._update()

    def resume(self) -> None:
        """Return the entries that have arrived, and none after that."""
        self._return(list(self._due))
        self.is_paused = False
        self._update()

    def arrived(self, places: Iterable[Place], *, is_last: bool) -> None:
        """Note entries that arrived while the consumer is paused.

        :param is_last: no more entries arrive
        """
        now = self._loop.time()
        for place in places:
            due_at = now + _RETURN_AFTER_S[min(self._times.get(place, 0), len(_RETURN_AFTER_S) - 1)]
            self._due[place] = due_at
            if self._timer is None or due_at < self._timer.when():
                self._arm(due_at)
        if is_last:
            self._return(list(self._due))

    def give_back(self, places: Sequence[Place]) -> None:
        """Return entries that the application did not get."""
        for place in places:
            self._times[place] = self._times.pop(place, 0) + 1
        for oldest in list(self._times)[: max(len(self._times) - _MAX_KNOWN, 0)]:
            del self._times[oldest]
        if places:
            self._update()
            self._request(places)

    def times_returned(self, place: Place) -> int:
        """Return how often an entry was returned before the application got it."""
        return self._times.get(place, 0)

    def forget(self) -> None:
        """Forget entries and counts: the session has ended, and the broker sends everything again."""
        self._due.clear()
        self._times.clear()
        self._arm(None)
        self._update()

    def _return(self, places: Sequence[Place]) -> None:
        for place in places:
            del self._due[place]
        self._arm(min(self._due.values(), default=None))
        self.give_back(places)

    def _return_due(self) -> None:
        now = self._loop.time()
        self._return([place for place, due_at in self._due.items() if due_at <= now])

    def _arm(self, due_at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due_at is None else self._loop.call_at(due_at, self._return_due)

    def _update(self) -> None:
        self.is_in_use = self.is_paused or bool(self._times)

    # --- chunks -------------------------------------------------------------------------------------------------------

    def take_chunks(self) -> list[Position]:
        """Drop the chunks of incomplete messages, and return their entries: the broker sends them again."""
        entries = self.chunks.positions()
        self.chunks.clear()
        self.update_chunks()
        return entries

    def update_chunks(self) -> None:
        """Set the timer after a change of the chunks."""
        if self._chunk_timer is not None:
            self._chunk_timer.cancel()
            self._chunk_timer = None
        next_at = self.chunks.next_at()
        if next_at is not None:
            delay_s = max(next_at - self._now_ms(), 0) / 1000
            self._chunk_timer = self._loop.call_later(delay_s, self._return_expired)

    def _return_expired(self) -> None:
        self._chunk_timer = None
        positions: list[Place] = []
        for abandoned in self.chunks.take_abandoned(self._now_ms()):
            if abandoned.times == _WARN_AFTER:
                _LOG.warning(
                    "%s: %d of %d chunks of the message %s are here, and were returned to the broker %d times; is its "
                    "producer gone, or max_chunked_bytes too small? Retrying at growing intervals",
                    self._topic,
                    abandoned.received,
                    abandoned.expected,
                    shown(abandoned.uuid),
                    abandoned.times,
                )
            positions += abandoned.positions
        self._request(positions)
        self.update_chunks()
