"""Acknowledgements and redelivery requests: which of them share a command, and when it is sent; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pulsar_nack.errors import BrokerError, ClosedError, ConnectionLostError
from pulsar_nack.ids import MessageId
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._consumer._ack_groups import AckGroup, AckGroupingTracker, Answered, Done
from pulsar_nack.wire._consumer._acknowledger import Acknowledger
from pulsar_nack.wire._consumer._flow_and_redelivery import SPACING_S, RedeliveryRequests
from pulsar_nack.wire._consumer._subscribe_options import SubscribeOptions


class Sender:
    """A session that keeps what it would send; the test sets ``receipts``, None: it gives none."""

    def __init__(self, *, gives_receipts: bool = True) -> None:
        self.sent: list[dict[tuple[int, int], int]] = []
        self.receipts: list[Answered] = []
        self.is_lost = False
        self._gives_receipts = gives_receipts

    def send_acks(self, group: AckGroup, answered: Answered) -> None:
        """Keep a group."""
        if self.is_lost:
            raise ConnectionLostError("lost")
        self.sent.append(dict(group.entries))
        if self._gives_receipts:
            self.receipts.append(answered)
        else:
            asyncio.get_running_loop().call_soon(answered, None, None)

    def confirm(self, number: int = -1) -> None:
        """Give a receipt."""
        self.receipts[number](None, None)


class Outcomes:
    """The outcomes of calls, by number."""

    def __init__(self) -> None:
        self.of: dict[int, Exception | None] = {}
        self.ended = self.end  # one object

    def call(self, number: int) -> Done:
        """Return the callback of a number; it may be called once."""

        def done(error: Exception | None) -> None:
            assert number not in self.of
            self.of[number] = error

        return done

    def end(self, numbers: Sequence[int], error: Exception | None) -> None:
        """Take the outcome of several numbers, each once."""
        for number in numbers:
            self.call(number)(error)


def groups() -> AckGroupingTracker:
    """Return an empty tracker."""
    return AckGroupingTracker(asyncio.get_running_loop(), 2)


@virtual_time
async def test_one_entry_of_several_members() -> None:
    """Members of one entry that share a command leave the indexes that none of them acknowledges."""
    sender, outcomes, acks = Sender(), Outcomes(), groups()
    acks.connected(sender.send_acks)
    acks.add((1, 0), 0b1110, 0, outcomes.ended)
    acks.add((1, 0), 0b1101, 1, outcomes.ended)
    acks.flush()
    assert sender.sent == [{(1, 0): 0b1100}]


@virtual_time
async def test_all_is_sent_again_in_order() -> None:
    """Unconfirmed acknowledgements go first over the next connection."""
    sender, outcomes, acks = Sender(), Outcomes(), groups()
    acks.connected(sender.send_acks)
    acks.add((1, 0), 0, 0, outcomes.ended)
    acks.flush()
    acks.add((1, 1), 0, 1, outcomes.ended)
    acks.flush()
    sender.confirm(1)
    await asyncio.sleep(0)
    acks.disconnected()
    acks.add((1, 2), 0, 2, outcomes.ended)
    await asyncio.sleep(1)
    assert outcomes.of == {1: None}
    other = Sender()
    acks.connected(other.send_acks)
    sender.confirm(0)  # of the lost connection
    assert outcomes.of == {1: None}
    assert other.sent == [{(1, 0): 0}, {(1, 2): 0}]
    for number in range(2):
        other.confirm(number)
    await asyncio.sleep(0)
    assert outcomes.of == {0: None, 1: None, 2: None}


@virtual_time
async def test_a_connection_that_breaks_while_sending() -> None:
    """A connection that refuses a group, or loses its receipt, counts as lost: the group is sent again."""
    sender, outcomes, acks = Sender(), Outcomes(), groups()
    acks.connected(sender.send_acks)
    acks.add((1, 0), 0, 0, outcomes.ended)
    acks.flush()
    sender.receipts[0](None, ConnectionLostError("lost"))
    await asyncio.sleep(0)
    sender.is_lost = True
    acks.add((1, 1), 0, 1, outcomes.ended)
    acks.flush()
    acks.disconnected()
    other = Sender(gives_receipts=False)
    acks.connected(other.send_acks)
    await asyncio.sleep(0)
    assert other.sent == [{(1, 0): 0}, {(1, 1): 0}]
    assert outcomes.of == {0: None, 1: None}


@virtual_time
async def test_errors_are_of_their_group() -> None:
    """An error goes to the calls whose acknowledgements were in the command, also if a call has several."""
    sender, outcomes, acks = Sender(), Outcomes(), groups()
    acks.connected(sender.send_acks)
    acks.add_all([(1, number) for number in range(1_500)], outcomes.call(0))
    acks.add((2, 0), 0, 1, outcomes.ended)
    acks.flush()
    assert [len(sent) for sent in sender.sent] == [1_000, 501]
    sender.confirm(1)
    await asyncio.sleep(0)
    assert outcomes.of == {1: None}
    error = BrokerError("no")
    sender.receipts[0](None, error)
    await asyncio.sleep(0)
    assert outcomes.of == {0: error, 1: None}


@virtual_time
async def test_an_outcome_that_cannot_be_taken() -> None:
    """If a callback raises, all other callers of the same command get their outcome, and so do other commands."""
    sender, outcomes = Sender(), Outcomes()
    acks = AckGroupingTracker(asyncio.get_running_loop(), 0)
    acks.connected(sender.send_acks)

    def fail(_: Sequence[int], error: Exception | None) -> None:
        raise RuntimeError("a fault") from error

    def fail_too(tokens: Sequence[int], error: Exception | None) -> None:
        fail(tokens, error)

    acks.add((1, 1), 0, 1, fail)
    acks.add((1, 2), 0, 2, outcomes.end)
    acks.add((1, 3), 0, 3, fail_too)
    acks.add_all([(1, 4)], outcomes.call(4))
    await asyncio.sleep(0.01)
    with pytest.raises(RuntimeError, match="a fault"):
        sender.confirm()
    assert outcomes.of == {2: None, 4: None}
    acks.add((1, 5), 0, 5, fail)
    acks.flush()
    acks.add((1, 6), 0, 6, outcomes.end)
    with pytest.raises(RuntimeError, match="a fault"):
        acks.fail(None)
    assert outcomes.of == {2: None, 4: None, 6: None}


@virtual_time
async def test_an_outcome_of_members_that_cannot_be_taken() -> None:
    """If the callback of one call for members of batches raises, the other calls get their outcome."""
    sender, outcomes = Sender(), Outcomes()
    options = SubscribeOptions("work", batch_index_ack=True)
    acks = Acknowledger(asyncio.get_running_loop(), "orders", options, lambda: None)
    acks.connected(sender.send_acks)

    def fail(_: Sequence[int], error: Exception | None) -> None:
        raise RuntimeError("a fault") from error

    for index, done in enumerate((fail, outcomes.ended, fail, outcomes.ended)):
        acks.acknowledge_soon(MessageId(1, 1, batch_index=index, batch_size=9), index, done)
    await asyncio.sleep(0.01)
    with pytest.raises(RuntimeError, match="a fault"):
        sender.confirm()
    assert outcomes.of == {1: None, 3: None}


@virtual_time
async def test_giving_up() -> None:
    """When the tracker closes, each unconfirmed acknowledgement fails, sent or not; nothing is left."""
    sender, outcomes, acks = Sender(), Outcomes(), groups()
    acks.connected(sender.send_acks)
    acks.add((1, 0), 0, 0, outcomes.ended)
    acks.flush()
    acks.add((1, 1), 0, 1, outcomes.ended)
    settled = asyncio.create_task(acks.settled())
    await asyncio.sleep(0)
    acks.fail(ClosedError("it"))
    assert [type(error) for error in outcomes.of.values()] == [ClosedError, ClosedError]
    await settled
    assert len(acks) == 0
    sender.confirm(0)  # too late: each has its outcome already


@virtual_time
async def test_cumulative_ones_go_at_once_and_in_order() -> None:
    """A cumulative acknowledgement is a separate command, sent after those collected before it."""
    sender, outcomes, acks = Sender(), Outcomes(), groups()
    acks.connected(sender.send_acks)
    acks.add((1, 0), 0, 0, outcomes.ended)
    acks.add_cumulative((1, 5), 0b10, outcomes.call(1))
    assert sender.sent == [{(1, 0): 0}, {(1, 5): 0b10}]


@virtual_time
async def test_redeliveries_wait_a_moment_for_one_another() -> None:
    """The first request goes at once; requests that follow within the delay go together at its end."""
    loop = asyncio.get_running_loop()
    sent: list[tuple[float, int]] = []
    asked = RedeliveryRequests(loop, lambda some: sent.append((loop.time(), len(some))))
    for number in range(10):
        asked.add([(1, number)])
        await asyncio.sleep(SPACING_S / 10 * 0.999)
    await asyncio.sleep(1)
    asked.add([(1, 0)])
    asked.add([])
    await asyncio.sleep(0)
    assert [count for _, count in sent] == [1, 9, 1]
    assert sent[1][0] == pytest.approx(SPACING_S)
    asked.add([(1, 0)])
    asked.clear()
    await asyncio.sleep(1)
    assert len(sent) == 3
