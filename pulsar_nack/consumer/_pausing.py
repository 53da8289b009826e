"""Gives messages back that are not delivered: a consumer pauses, drains, or cannot read a message.

Prefetched messages that no call received go back to the broker if the port can do that and other consumers would get
them. Messages that the application has are not touched: it settles them as always.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from ..errors import ClosedError
from ._message import Message
from ._port import ConsumerPort, SupportsPause
from ._receiver import Receiver

_log = logging.getLogger("pulsar_nack.consumer")
_UNWANTED_AFTER_S: Final = 0.1
"""How long a message waits for a call of ``receive`` without a queue; then it goes back to the broker."""


class Pausing:
    """Stops and continues the deliveries of one consumer.

    :param stop: called to close the consumer after a message that this process cannot read
    """

    def __init__(self, receiver: Receiver, port: ConsumerPort, stop: Callable[[], None]) -> None:
        self.drained: asyncio.Event | None = None
        """Set once a draining consumer has settled all delivered messages; None: it does not drain."""
        self.port = port if isinstance(port, SupportsPause) else None
        self._receiver = receiver
        self._port = port
        self._state = state = receiver.state
        self._table = state.queue.table
        self._stop = stop
        self._has_warned = False
        receiver.on_unreadable = self._end_unreadable
        self._unwanted_after_s: float | None = None
        if self.port is not None and not port.traits.receiver_queue_size:
            self._unwanted_after_s, receiver.inbox.kept = _UNWANTED_AFTER_S, self._on_kept

    def pause(self, name: object) -> None:
        """Deliver nothing until :meth:`resume`; give messages back to the broker if the port can.

        :param name: the consumer's, for the log
        """
        receiver = self._receiver
        if receiver.inbox.is_paused or self.drained is not None:
            return
        receiver.inbox.pause()
        receiver.use_nowait()
        if self.port is not None:
            self._give_back(list(receiver.inbox.ready))
            is_idle = not self._state.limiter.count()
            self._state.on_idle = None if is_idle else self._on_idle
            self.port.pause(is_idle=is_idle)
        elif not self._has_warned:
            self._has_warned = True
            port = type(self._port).__name__
            _log.warning("%r is paused, but %s cannot give prefetched messages back: they stay here", name, port)

    def resume(self) -> None:
        """Deliver messages again."""
        inbox = self._receiver.inbox
        if inbox.is_paused and self.drained is None:
            self._state.on_idle = None if self._receiver.unreadable is None else self._on_idle
            if self.port is not None:
                self.port.resume()
            inbox.resume()
            self._receiver.use_nowait()

    def drain(self, error: Exception) -> int:
        """Deliver nothing any more, and give back what was not delivered; return how many messages these were.

        :param error: raised in all calls of ``receive``
        """
        receiver, inbox, given = self._receiver, self._receiver.inbox, 0
        self.drained = asyncio.Event()
        if self._state.is_closed:
            self.drained.set()
            return 0
        receiver.is_draining = True
        receiver.use_nowait()
        if receiver.key_order is not None:
            inbox.ready.extend(receiver.key_order.drop(lambda _: True))
        inbox.drop_outdated()
        inbox.refuse(error)
        with suppress(ClosedError):  # the port is closed already
            given = self._give_back(list(inbox.ready))
            given += 0 if self.port is None else self.port.drain()
        self._unwanted_after_s, inbox.kept = 0.0, self._on_kept
        self._state.on_idle = self._on_idle
        self._on_idle()
        return given

    def _end_unreadable(self) -> None:
        """Close the consumer once every delivered message is settled, because this process cannot read one."""
        self._receiver.inbox.kept = self._on_kept
        self._state.on_idle = self._on_idle
        self._on_idle()

    def _on_idle(self) -> None:
        """Go on once a paused, draining or ending consumer has settled all delivered messages."""
        inbox, limiter = self._receiver.inbox, self._state.limiter
        if self.drained is not None:
            if not self._receiver.in_work():
                self.drained.set()
        elif self._receiver.unreadable is not None and not self._receiver.in_work():
            self._stop()
        elif inbox.is_paused and self.port is not None and not limiter.count():
            self._state.on_idle = None
            self.port.pause(is_idle=True)

    def _give_back(self, messages: Sequence[Message]) -> int:
        """Give ready messages back to the broker, and return how many; members of batches stay with the others."""
        if self.port is None or not self._port.traits.honours_ids:
            return 0
        receiver, trace = self._receiver, self._state.queue.trace
        given = [each for each in messages if each.id.batch_index < 0 and receiver.is_current(each)]
        if self.drained is not None:  # the broker counts each return; the others follow with the close
            given = [each for each in given if not each.redelivery_count]
        elif receiver.key_order is not None:
            given = [each for each in given if not receiver.key_order.waits_for(each)]
        for each in given:
            receiver.inbox.ready.remove(each)
            self._table.give_back(each.id)
            if receiver.gate_queue is not None:
                receiver.gate_queue.gone(each)
            trace.cancel(each.id, each.redelivery_count, "given back")
        self.port.give_back([each.id for each in given])
        return len(given)

    def _on_kept(self, message: Message) -> None:
        """Give back a message that no call takes in time, if the consumer has no queue or drains."""
        if self._unwanted_after_s is not None:
            asyncio.get_running_loop().call_later(self._unwanted_after_s, self._give_back_if_ready, message)
        self._state.check_idle()  # a call may have taken it back

    def _give_back_if_ready(self, message: Message) -> None:
        if message in self._receiver.inbox.ready and not self._state.is_closed:
            self._give_back([message])
