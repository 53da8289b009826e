"""Handles the messages of each key one after the other, in their order, also while one of them waits for its retry.

A key is *busy* while a handler has one of its messages, and *waits* while that message is held for redelivery. Later
messages of the key that come meanwhile are kept here, delivered and unacknowledged. Retries come back to this consumer,
from memory. A message without a key is not ordered.

If a key has ``max_held_per_key`` kept messages, or all together exceed the budget of bytes, nothing more is fetched for
any key; what is redelivered from memory still comes, so that the key goes on. A retry that only the broker can
bring (the connection broke meanwhile) lifts this until it has come.

Giving the messages of a full key back to the broker was rejected: it would send them again at once.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from operator import attrgetter

from ..ids import MessageId
from ._inbox import Inbox
from ._message import Message
from ._message_state import DELIVERED, HELD, SENT_AWAY, MessageState
from ._message_table import WAITING
from ._payloads import kept_bytes
from ._port import Delivery
from ._settler import Settler

_log = logging.getLogger("pulsar_nack.consumer")
Key = tuple[str, str]
"""A topic, and the ordering key or key there."""


class KeyOrder:
    """Decides which message a handler gets next.

    :param inbox: the consumer's, to which a message returns by ``take_back``
    :param receive: waits for the next message of any key
    :param is_current: whether a message is still to be delivered
    :param take_back: lets the next call of ``receive`` return a message
    :param hold_port: stops fetching, or lets it go on
    :param max_held_per_key: how many messages of one key may be kept
    :param max_bytes: most memory for all of them
    """

    def __init__(
        self,
        settler: Settler,
        inbox: Inbox[Message],
        receive: Callable[[], Awaitable[Message]],
        *,
        is_current: Callable[[Message], bool],
        take_back: Callable[[Message], None],
        hold_port: Callable[..., None],
        max_held_per_key: int,
        max_bytes: int,
    ) -> None:
        self.is_full = False
        """Whether nothing is fetched because too many messages are kept."""
        self._has_warned = False
        self._settler = settler
        self._state = settler.state
        self._inbox = inbox
        self._is_current = is_current
        self._take_back = take_back
        self._hold_port = hold_port
        self._table = settler.queue.table
        self._receive = receive
        self._most = max_held_per_key
        self._max_bytes = max_bytes
        self._receiving = asyncio.Lock()
        self._kept: dict[Key, list[Message]] = {}
        """The later messages of each key that is busy or waits, in the order of their ids."""
        self._waiting: dict[MessageId, Key] = {}
        """The keys that wait, each by the message that it waits for."""
        self._from_broker: set[MessageId] = set()
        self._full: set[Key] = set()
        self._count = self._bytes = 0

    def open(self) -> None:
        """Order what the consumer delivers from now on, and let nacked messages come back to it."""
        self._table.on_left = self._on_left
        self._settler.queue.want_all()
        self._table.requests.on_expected = self.note_origin

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(self._kept.values())

    # --- for the workers -------------------------------------------------------------------------------------------

    async def next(self) -> Message:
        """Wait for a message whose turn it is; one caller receives at a time. Raises as ``receive``."""
        async with self._receiving:
            while True:
                message = await self._receive()
                if self._admits(message):
                    return message
                self._state.delivered -= 1
                if self._settler.leases is not None:
                    self._settler.leases.cancel(message._lease)
                self._state.check_idle()

    async def begin(self, message: Message) -> bool:
        """Note durably that a handler begins with a message; return False if it was settled meanwhile."""
        durable = self._state.durable
        if durable is None:
            return True
        await durable.delivered(message.id, message.redelivery_count)
        return self._is_current(message)

    def done(self, message: Message) -> Message | None:
        """Note that a handler ended, and its message is settled; return the next message of the key to be handled.

        While the consumer is paused, the next message waits for a call of ``receive`` instead.
        """
        following = self._following(message)
        if following is None or not self._inbox.is_paused:
            return following
        self._make_ready(following)
        return None

    def _following(self, message: Message) -> Message | None:
        key = _key_of(message._delivery)
        kept = None if key is None else self._kept.get(key)
        if key is None or kept is None:
            return None
        record = self._table.get(message.id)
        if record is None or record.state in SENT_AWAY:
            return self._next_of(key)
        is_again = record.redelivery_count != message.redelivery_count  # its lease ended, and it is ready
        is_coming = is_again or record.state in WAITING or message.settled_by in {"negative_acknowledge", "defer"}
        if is_coming and not any(each.id == message.id for each in kept):  # else it is back already
            self._wait_for(key, message.id)
            return None
        return self._next_of(key)

    def waits_for(self, message: Message) -> bool:
        """Return whether a key waits for this message, so that it has to be delivered here."""
        return message.id in self._waiting

    # --- keeping ---------------------------------------------------------------------------------------------------

    def _admits(self, message: Message) -> bool:
        """Return whether it is a message's turn; if not it is kept, unless it comes again in a new session."""
        key = _key_of(message._delivery)
        if key is None:
            return True
        if not self._is_here(message):
            return False
        if key not in self._kept:
            self._kept[key] = []
            return True
        if message.id in self._waiting:
            self._waited(message.id)
            self._update()
            return True
        kept = self._kept[key]
        insort(kept, message, key=attrgetter("id"))
        self._count += 1
        self._bytes += kept_bytes(message._delivery)
        if len(kept) >= self._most:
            self._full.add(key)
        self._update()
        return False

    def _next_of(self, key: Key) -> Message | None:
        """Take out the next message of a key; forget the key if none is left."""
        found, kept = None, self._kept[key]
        while kept and found is None:
            message = kept.pop(0)
            self._forget(message)
            found = message if self._is_here(message) else None
        if len(kept) < self._most:
            self._full.discard(key)
        if found is None:
            del self._kept[key]
        else:
            self._state.delivered += 1
            if self._settler.leases is not None:
                found._lease = self._settler.leases.begin(found._delivery, found._redelivery_count)
        self._update()
        return found

    def _is_here(self, message: Message) -> bool:
        """Return whether a kept message is still this consumer's; else the broker sends it again, here or elsewhere."""
        record = self._table.get(message.id)
        is_doubtful = record is not None and record.is_doubtful
        if is_doubtful and self._is_current(message):
            self._table.give_back(message.id)
        return not is_doubtful and self._is_current(message)

    def _forget(self, message: Message) -> None:
        self._count -= 1
        self._bytes -= kept_bytes(message._delivery)

    def _update(self) -> None:
        """Stop or go on fetching."""
        is_full = bool(self._full or self._bytes >= self._max_bytes > 0) and not self._from_broker
        if is_full is self.is_full:
            return
        self.is_full = is_full
        if is_full and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%d messages (%d bytes) wait for earlier ones of their keys; nothing is fetched until there is room",
                self._count,
                self._bytes,
            )
        self._hold_port(is_held=is_full)

    # --- waiting ---------------------------------------------------------------------------------------------------

    def _wait_for(self, key: Key, message_id: MessageId) -> None:
        self._waiting[message_id] = key
        self.note_origin(message_id)

    def note_origin(self, message_id: MessageId) -> None:
        """Note whether the message that a key waits for comes from memory, or only the broker can bring it."""
        if message_id not in self._waiting:
            return
        record = self._table.get(message_id)  # None: it was forgotten here, as one of too many
        is_kept = record is not None and record.state is HELD and record.is_local and not record.is_doubtful
        if record is None or record.state is DELIVERED or is_kept:
            self._from_broker.discard(message_id)
        else:
            self._from_broker.add(message_id)
        self._update()

    def _waited(self, message_id: MessageId) -> None:
        del self._waiting[message_id]
        self._from_broker.discard(message_id)

    def on_held_back(self, delivery: Delivery) -> None:
        """Let a key wait for a message that was nacked or deferred before a restart."""
        key = _key_of(delivery)
        if key is not None and key not in self._kept:
            self._kept[key] = []
            self._wait_for(key, delivery.id)

    def _on_left(self, record: MessageState) -> None:
        if record.id in self._waiting:
            asyncio.get_running_loop().call_soon(self._look, record.id)

    def _look(self, message_id: MessageId) -> None:
        """Let a key go on if the message that it waits for does not come any more."""
        key = self._waiting.get(message_id)
        if key is None:
            return
        if self._table.get(message_id) is not None:
            self.note_origin(message_id)
            return
        self._waited(message_id)
        message = self._next_of(key)
        if message is not None:
            self._make_ready(message)

    def _make_ready(self, message: Message) -> None:
        """Let the next call of ``receive`` return a message whose turn it is."""
        key = _key_of(message._delivery)
        assert key is not None
        self._wait_for(key, message.id)
        self._take_back(message)

    # --- ending ----------------------------------------------------------------------------------------------------

    def drop(self, is_gone: Callable[[Message], bool]) -> list[Message]:
        """Drop some kept messages, and return them: the broker sends them again, here or elsewhere."""
        gone: list[Message] = []
        for key, kept in self._kept.items():
            gone += (its := [message for message in kept if is_gone(message)])
            if its:
                kept[:] = [message for message in kept if not is_gone(message)]
                self._full.discard(key)
        for message in gone:
            self._forget(message)
        self._update()
        return gone

    def clear(self) -> None:
        """Drop the kept messages, and wait for none: the subscription was moved."""
        self.drop(lambda _: True)
        self.check_waiting()

    def check_waiting(self) -> None:
        """Check soon what became of the messages that keys wait for: they are forgotten, or others may have them."""
        for message_id in list(self._waiting):
            asyncio.get_running_loop().call_soon(self._look, message_id)

    def close(self) -> None:
        """Let the consumer deliver without order again."""
        self._table.on_left = self._table.requests.on_expected = None
        if self.is_full:
            self._hold_port(is_held=False)


def _key_of(delivery: Delivery) -> Key | None:
    key = delivery.ordering_key or delivery.key
    return (delivery.topic, key) if key else None
