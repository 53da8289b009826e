"""The two ways in which a message comes back, and which one is taken. Pure.

*Broker*: the broker is asked for it; any consumer of the subscription may get it. *Local*: its payload is kept and
shown again. Whether to keep a payload is decided when a message is nacked, the way when it is due: by then its batch
mates may have been settled.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from ..errors import InvalidArgumentError
from ..ids import MessageId
from ..nack import RedeliveryCallback
from ._batches import is_member
from ._port import PortTraits

WayName = Literal["auto", "local", "broker"]
Redelivery = WayName | RedeliveryCallback
"""How a consumer's nacks are carried out: by name, or by the user's own callable that gets the ids which are due."""

_SHORT: Final = 0.001
_NAMES: Final = get_args(WayName)


class Plan(NamedTuple):
    """What to do with a nack.

    :param keeps: its payload is worth keeping
    :param must_keep: waiting for room is better than not keeping it
    :param is_local: the broker could not carry it out as asked
    :param ahead_ms: how long before its time the broker has to be asked, if it is
    """

    keeps: bool
    must_keep: bool
    is_local: bool
    ahead_ms: int


class Ways:
    """Decides for one consumer.

    :raises InvalidArgumentError: ``redelivery`` is none of the names and no callable
    """

    def __init__(self, redelivery: Redelivery, traits: PortTraits) -> None:
        if not callable(redelivery) and redelivery not in _NAMES:
            raise InvalidArgumentError("redelivery", redelivery, "'auto', 'local', 'broker' or a callable")
        self.name = "custom" if callable(redelivery) else redelivery
        self.only_rewinds = self.name == "broker" and not traits.honours_ids
        self._honours_ids = traits.honours_ids
        self._floor_ms = round(traits.min_redelivery_delay * 1000)
        is_auto = self.name == "auto"
        is_short = 0 < traits.redelivery_latency < _SHORT and not self._floor_ms
        is_asked = traits.honours_ids and self.name in {"auto", "broker"}
        self.ahead = traits.redelivery_latency if is_short and is_asked else 0.0
        """Seconds by which everything is due before its time, where the broker is nearer than a ms of the clock."""
        self._latency_ms = 0 if is_short else round(traits.redelivery_latency * 1000)
        self.may_keep_all = self.name == "local" or (is_auto and (self._floor_ms > 0 or not traits.honours_ids))
        self._may_keep_members = is_auto
        self._asked: tuple[int, bool] | None = None

    def may_keep(self, message_id: MessageId) -> bool:
        """Return whether the payload of a message may be wanted, whatever the delay of its nack."""
        return self.may_keep_all or (self._may_keep_members and is_member(message_id))

    def plan(self, message_id: MessageId, delay_ms: int) -> Plan:
        """Choose the way of redelivery for a nack; the last choice is reused if nothing it depends on changed."""
        asked = (delay_ms, message_id[3] >= 0 and is_member(message_id))
        if asked != self._asked:
            self._asked, self._plan = asked, self._planned(*asked)
        return self._plan

    def _planned(self, delay_ms: int, is_of_batch: bool) -> Plan:
        if self.name == "custom":
            return Plan(keeps=False, must_keep=False, is_local=False, ahead_ms=0)
        is_local = self.name == "local" or (
            self.name == "auto" and (delay_ms < self._floor_ms or not self._honours_ids)
        )
        keeps = is_local or (self.name == "auto" and is_of_batch)
        ahead = min(self._latency_ms, delay_ms)
        return Plan(keeps, must_keep=is_local and not self._honours_ids, is_local=is_local, ahead_ms=ahead)
