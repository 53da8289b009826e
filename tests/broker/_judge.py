"""What must hold during random operations, judged by what the broker counts as acknowledged.

- An unacknowledged message is at a worker, at the latest two seconds after its delay;
- an acknowledged or otherwise removed message is delivered at most once more;
- none of these becomes a dead letter;
- what ``send`` reported is stored under the id that it returned;
- when all is acknowledged the backlog is empty, and nothing is left in the consumers' memory.

The broker does not say which messages of a batch are acknowledged, and forgets it when it unloads the topic. So members
that a worker acknowledged may stay hidden after a replay, and removed members are not judged: two workers may have one
of them. Two workers of a Failover subscription may both have any message; what one of them acknowledges then is not
judged either.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.broker._workers import Sent, Worker, acked_by, places_of
from tests.patience import patience

if TYPE_CHECKING:
    from tests.broker._random_operations import RandomOperations

GRACE: Final = 2.0
REQUESTED_WITHIN: Final = 1.5
"""Seconds until a consumer has requested a message that is gone, even if it has to reconnect first."""
_LONGEST_DELAY: Final = 1.0
_MAX_STUCK: Final = 3
_KEPT: Final = ("in_work", "ready", "held", "requested", "kept", "dead_letters_waiting")


class WrongError(AssertionError):
    """What is wrong, with the seed and the history of the message."""


class Judge:
    """Compares what the workers received with the broker's state; each call raises what is wrong."""

    def __init__(self, ops: RandomOperations) -> None:
        self._ops = ops

    async def rest(self) -> None:
        """Wait until every unacknowledged message is at a worker."""
        ops = self._ops
        ops.note("rest")
        await ops.settled()
        began_at = ops.now()
        while True:
            await ops.settled()
            unacked = await self._unacked()
            hidden = [each for each in unacked if not self._is_delivered(each)]
            if not hidden:
                break
            waited = ops.now() - began_at
            late = [each for each in hidden if waited > patience(_LONGEST_DELAY + GRACE + each.extra_delay)]
            if late and ops.times_stuck < _MAX_STUCK and await ops.got_moving():
                began_at = ops.now()
            elif late:
                ops.note(f"hidden are {[each.number for each in hidden]}, in memory {list(map(_left, ops.workers))}")
                raise ops.fault("unacknowledged, and delivered to nobody", late[0])
            await asyncio.sleep(0.2)
        self._judge_gone({each.number for each in unacked})

    async def end(self) -> None:
        """Acknowledge everything, and check that nothing is left."""
        ops = self._ops
        await self.rest()
        await self._poison()
        ops.note("acknowledge all")
        ends_at = ops.now() + patience(5 + 2 * GRACE)
        while True:
            for worker in ops.workers:
                for number in list(worker.hand):
                    ops.begin(worker.ack(number))
            await ops.settled()
            await asyncio.sleep(0.2)
            unacked = await self._unacked()
            left = [_left(worker) for worker in ops.workers]
            hands = [list(worker.hand) for worker in ops.workers]
            if not unacked and not any(left) and not any(hands):
                break
            if ops.now() > ends_at:
                first = next(iter(unacked or self._remembered()), None)
                broker = f"{len(unacked)} messages at the broker"
                raise ops.fault(f"all is acknowledged, but {broker}, {hands} in hand, {left} in memory", first)
        await self.storage()

    async def _poison(self) -> None:
        """Nack messages that are gone for some seconds, whenever they are delivered."""
        ops = self._ops
        ops.note("give back what is gone")
        for _ in range(6):
            for worker in ops.workers:
                for number in list(worker.hand):
                    if ops.messages[number].gone_at is not None:
                        ops.begin(worker.nack(number, 0.3))
            await asyncio.sleep(0.5)
            await ops.settled()

    async def storage(self) -> None:
        """Read the whole topic, and compare it with what was reported."""
        ops = self._ops
        await ops.settled()
        reported = [each for each in ops.messages if each.is_reported and not each.is_deleted]
        found = await ops.broker_state.stored({each.id for each in reported})
        for each in reported:
            if each.id not in found:
                raise ops.fault("reported as stored, but not in the topic", each)

    async def _unacked(self) -> list[Sent]:
        """Return the messages of which nothing is acknowledged."""
        acked = list(map(acked_by, await self._ops.broker_state.cursors()))
        return [each for each in self._stored() if not any(map(acked[max(each.partition, 0)], places_of(each)))]

    def _stored(self) -> list[Sent]:
        return [each for each in self._ops.messages if each.id is not None and not each.is_deleted]

    def _is_delivered(self, sent: Sent) -> bool:
        if any(sent.number in worker.hand for worker in self._ops.workers):
            return True
        return sent.is_member and (sent.was_acked or sent.is_letter or sent.is_doubtful)

    def _judge_gone(self, unacked: set[int]) -> None:
        ops = self._ops
        for each in self._stored():
            if (
                each.is_chunked
                or each.is_member
                or each.is_shared
                or each.number in unacked
                or each.gone_at is not None
            ):
                continue  # chunked: one of its chunks may have been skipped
            if not each.is_letter and ops.gone_op_at > ops.replayed_at:
                many = each.delivered_since(ops.gone_op_at + REQUESTED_WITHIN)
                if many > 1:
                    raise ops.fault(f"delivered {many} times after it was gone", each)
            each.gone_at = ops.now()

    def _remembered(self) -> list[Sent]:
        known = {each for worker in self._ops.workers for each in worker.consumer._engine.table._records}
        return [each for each in self._ops.messages if each.id in known]


def _left(worker: Worker) -> dict[str, int]:
    statistics = worker.consumer.statistics()
    return {name: value for name in _KEPT if (value := getattr(statistics, name))}
