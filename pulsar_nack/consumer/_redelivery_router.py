"""Decides how a nacked message is redelivered: by the broker, or locally from memory. Pure.

*Broker*: the broker is asked for the message; any consumer of the subscription may get it. *Local*: its payload is kept
and delivered again. Whether to keep a payload is decided when a message is nacked; how to redeliver it, when it is due:
by then the other messages of its batch may have been settled.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from ..errors import InvalidArgumentError
from ..ids import MessageId
from ..nack import RedeliveryCallback
from ._batches import is_member
from ._port import PortTraits

RedeliveryName = Literal["auto", "local", "broker"]
Redelivery = RedeliveryName | RedeliveryCallback
"""How a consumer's nacks are carried out: by name, or by the user's own callable that gets the ids which are due."""

_SHORT_S: Final = 0.001
_NAMES: Final = get_args(RedeliveryName)


class RedeliveryPlan(NamedTuple):
    """How a nack is carried out.

    :param keeps: its payload is worth keeping
    :param must_keep: waiting for room is better than not keeping it
    :param is_local: the broker could not carry it out as requested
    :param early_ms: how long before its deadline the broker has to be asked, if it is
    """

    keeps: bool
    must_keep: bool
    is_local: bool
    early_ms: int


class RedeliveryRouter:
    """Decides for one consumer.

    :raises InvalidArgumentError: ``redelivery`` is not a known name or a callable
    """

    def __init__(self, redelivery: Redelivery, traits: PortTraits) -> None:
        if not callable(redelivery) and redelivery not in _NAMES:
            raise InvalidArgumentError("redelivery", redelivery, "'auto', 'local', 'broker' or a callable")
        self.name = "custom" if callable(redelivery) else redelivery
        self.only_rewinds = self.name == "broker" and not traits.honours_ids
        self._honours_ids = traits.honours_ids
        self._floor_ms = round(traits.min_redelivery_delay * 1000)
        is_auto = self.name == "auto"
        is_short = 0 < traits.redelivery_latency < _SHORT_S and not self._floor_ms
        is_requested = traits.honours_ids and self.name in {"auto", "broker"}
        self.lead_time = traits.redelivery_latency if is_short and is_requested else 0.0
        """Seconds by which everything is due before its time, where the broker is nearer than a ms of the clock."""
        self._latency_ms = 0 if is_short else round(traits.redelivery_latency * 1000)
        self.may_keep_all = self.name == "local" or (is_auto and (self._floor_ms > 0 or not traits.honours_ids))
        self._may_keep_members = is_auto
        self.wants_all = False
        """Nacked messages come back to this consumer."""
        self._last: tuple[int, bool] | None = None

    def may_keep(self, message_id: MessageId) -> bool:
        """Return whether the payload of a message may be wanted, whatever the delay of its nack."""
        return self.may_keep_all or (self._may_keep_members and is_member(message_id))

    def choose_memory(self, message_id: MessageId, delay_ms: int) -> RedeliveryPlan:
        """Choose memory if the setting allows it and there is room, as for a message that this consumer wants back."""
        if self.name != "auto":
            return self.choose(message_id, delay_ms)
        return RedeliveryPlan(keeps=True, must_keep=not self._honours_ids or self.wants_all, is_local=True, early_ms=0)

    def want_all(self) -> None:
        """Let nacked messages come back to this consumer: from memory, for which ``nack`` waits for room."""
        self.wants_all, self._last = True, None

    def choose(self, message_id: MessageId, delay_ms: int) -> RedeliveryPlan:
        """Choose how to redeliver a nacked message; the last choice is reused if nothing it depends on changed."""
        case = (delay_ms, message_id[3] >= 0 and is_member(message_id))
        if case != self._last:
            self._last, self._plan = case, self._choose(*case)
        return self._plan

    def _choose(self, delay_ms: int, is_of_batch: bool) -> RedeliveryPlan:
        if self.name == "custom":
            return RedeliveryPlan(keeps=False, must_keep=False, is_local=False, early_ms=0)
        is_auto = self.name == "auto"
        is_wanted = self.wants_all or not self._honours_ids
        is_local = self.name == "local" or (is_auto and (delay_ms < self._floor_ms or is_wanted))
        keeps = is_local or (is_auto and is_of_batch)
        early_ms = min(self._latency_ms, delay_ms)
        return RedeliveryPlan(keeps, must_keep=is_local and is_wanted, is_local=is_local, early_ms=early_ms)
