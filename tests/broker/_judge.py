"""What must hold in a life of random operations, by what the broker counts as acknowledged.

- A message that is not acknowledged is in the hands of a worker that was shown it, within its delay and two seconds;
- one that is acknowledged, or gone by whatever means, is shown at most once more;
- none of these becomes a dead letter;
- what ``send`` reported is stored under the id that it returned;
- when all is acknowledged the backlog is empty, and nothing is left in the consumers' memory.

The broker does not tell which messages of a batch are acknowledged, and forgets it when it unloads the topic. So
members that a worker acknowledged may stay hidden after a replay, and members that are gone are not judged: two
workers may have one of them. So may two of a Failover subscription have any message in their hands; what one of them
acknowledged then is not judged either.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.broker._workers import Sent, Worker, acked_by, places_of
from tests.patience import patience

if TYPE_CHECKING:
    from tests.broker._life import Life

GRACE: Final = 2.0
TOLD_WITHIN: Final = 1.5
"""Seconds in which a consumer has asked for what is gone, also where that takes a new connection."""
_LONGEST_DELAY: Final = 1.0
_MAX_STUCK: Final = 3
_KEPT: Final = ("in_work", "ready", "held", "requested", "kept", "dead_letters_waiting")


class WrongError(AssertionError):
    """What is wrong, with the seed and what happened to the message."""


class Judge:
    """Compares what the workers of a life were shown with what the broker tells; each call raises what is wrong."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def rest(self) -> None:
        """Wait until all that is not acknowledged is in hands."""
        life = self._life
        life.note("rest")
        await life.settled()
        began_at = life.now()
        while True:
            await life.settled()
            unacked = await self._unacked()
            hidden = [each for each in unacked if not self._is_shown(each)]
            if not hidden:
                break
            waited = life.now() - began_at
            late = [each for each in hidden if waited > patience(_LONGEST_DELAY + GRACE + each.extra_delay)]
            if late and life.times_stuck < _MAX_STUCK and await life.got_moving():
                began_at = life.now()
            elif late:
                life.note(f"hidden are {[each.number for each in hidden]}, in memory {list(map(_left, life.workers))}")
                raise life.fault("unacknowledged, and shown to nobody", late[0])
            await asyncio.sleep(0.2)
        self._judge_gone({each.number for each in unacked})

    async def end(self) -> None:
        """Acknowledge all, and look that nothing is left."""
        life = self._life
        await self.rest()
        await self._poison()
        life.note("acknowledge all")
        ends_at = life.now() + patience(5 + 2 * GRACE)
        while True:
            for worker in life.workers:
                for number in list(worker.hand):
                    life.begin(worker.ack(number))
            await life.settled()
            await asyncio.sleep(0.2)
            unacked = await self._unacked()
            left = [_left(worker) for worker in life.workers]
            hands = [list(worker.hand) for worker in life.workers]
            if not unacked and not any(left) and not any(hands):
                break
            if life.now() > ends_at:
                first = next(iter(unacked or self._remembered()), None)
                broker = f"{len(unacked)} messages at the broker"
                raise life.fault(f"all is acknowledged, but {broker}, {hands} in hand, {left} in memory", first)
        await self.storage()

    async def _poison(self) -> None:
        """Give back for some seconds what is gone, whenever it is shown."""
        life = self._life
        life.note("give back what is gone")
        for _ in range(6):
            for worker in life.workers:
                for number in list(worker.hand):
                    if life.messages[number].gone_at is not None:
                        life.begin(worker.nack(number, 0.3))
            await asyncio.sleep(0.5)
            await life.settled()

    async def storage(self) -> None:
        """Read the whole topic, and compare it with what was reported."""
        life = self._life
        await life.settled()
        reported = [each for each in life.messages if each.is_reported and not each.is_deleted]
        found = await life.told.stored({each.id for each in reported})
        for each in reported:
            if each.id not in found:
                raise life.fault("reported as stored, but not in the topic", each)

    async def _unacked(self) -> list[Sent]:
        """Return those of which nothing is acknowledged."""
        acked = list(map(acked_by, await self._life.told.cursors()))
        return [each for each in self._stored() if not any(map(acked[max(each.partition, 0)], places_of(each)))]

    def _stored(self) -> list[Sent]:
        return [each for each in self._life.messages if each.id is not None and not each.is_deleted]

    def _is_shown(self, sent: Sent) -> bool:
        if any(sent.number in worker.hand for worker in self._life.workers):
            return True
        return sent.is_member and (sent.was_acked or sent.is_letter or sent.is_doubtful)

    def _judge_gone(self, unacked: set[int]) -> None:
        life = self._life
        for each in self._stored():
            if (
                each.is_chunked
                or each.is_member
                or each.is_shared
                or each.number in unacked
                or each.gone_at is not None
            ):
                continue  # chunked: a part of it may have been skipped
            if not each.is_letter and life.gone_op_at > life.replayed_at:
                many = each.shown_since(life.gone_op_at + TOLD_WITHIN)
                if many > 1:
                    raise life.fault(f"shown {many} times after it was gone", each)
            each.gone_at = life.now()

    def _remembered(self) -> list[Sent]:
        known = {each for worker in self._life.workers for each in worker.consumer._engine.table._records}
        return [each for each in self._life.messages if each.id in known]


def _left(worker: Worker) -> dict[str, int]:
    told = worker.consumer.statistics()
    return {name: value for name in _KEPT if (value := getattr(told, name))}
