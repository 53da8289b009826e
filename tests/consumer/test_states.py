"""The states of messages: what each delivery means, with a hand-moved clock."""

from __future__ import annotations

import pytest

from pulsar_nack import AlreadySettledError, MessageId
from pulsar_nack.consumer._states import REQUEST_MEMORY_MS, Record, State, States, Verdict

ID = MessageId(3, 1, topic="t")
BATCH = [MessageId(3, 2, -1, index, batch_size=3, topic="t") for index in range(3)]


def delivered(states: States, message_id: MessageId = ID, count: int = 0, now_ms: int = 0) -> Record:
    """Deliver a message that is to be shown, and return its record."""
    assert states.deliver(message_id, count, now_ms) in {Verdict.SHOW, Verdict.REPLAY}
    states._check()
    record = states.get(message_id)
    assert record is not None
    return record


def held(states: States, message_id: MessageId = ID) -> Record:
    """Deliver a message and nack it."""
    delivered(states, message_id)
    return states.hold(message_id)


def acked(states: States, message_id: MessageId, now_ms: int = 0) -> None:
    """Acknowledge a message."""
    states.settle_all([states.begin_ack(message_id)], now_ms)
    states._check()


def test_a_copy_of_what_is_in_work_or_held_is_dropped() -> None:
    """U23: in work and held, a second delivery is a copy, whatever its count."""
    states = States()
    delivered(states)
    assert states.deliver(ID, 0, 1) is Verdict.COPY
    states.hold(ID)
    assert states.deliver(ID, 1, 1) is Verdict.COPY
    assert (states.held, states.in_work) == (1, 0)


def test_what_was_asked_for_is_shown_once() -> None:
    """U23: asked for, the first delivery is shown and the second is a copy (counts 1 and 1, or 1 and 0)."""
    for second_count in (1, 0):
        states = States()
        states.request(held(states), 10)
        assert states.requested == 1
        assert delivered(states, count=1, now_ms=11).redelivery_count == 1
        assert states.deliver(ID, second_count, 11) is Verdict.COPY
        states._check()


def test_acked_before_it_arrives() -> None:
    """U24: asked for, then acknowledged; when it arrives all the same it is acknowledged again."""
    states = States()
    states.request(held(states), 10)
    record = states.begin_ack(ID)
    assert states.deliver(ID, 1, 11) is Verdict.ACK_AGAIN
    assert states.settle_all([record], 12) == [record]
    assert states.settle_all([record], 12) == []
    assert states.deliver(ID, 1, 13) is Verdict.ACK_AGAIN
    assert len(states) == 0


@pytest.mark.parametrize(("age_ms", "verdict"), [(59_999, Verdict.ACK_AGAIN), (60_000, Verdict.REPLAY)])
def test_an_acked_message_is_hidden_for_a_while(age_ms: int, verdict: Verdict) -> None:
    """U32: younger than ack_memory an acknowledged message is acknowledged again, from then on it was replayed."""
    states = States(ack_memory_ms=60_000)
    delivered(states)
    acked(states, ID, now_ms=5)
    assert states.deliver(ID, 0, 5 + age_ms) is verdict


@pytest.mark.parametrize(("after_ms", "state"), [(REQUEST_MEMORY_MS - 1, State.REQUESTED), (REQUEST_MEMORY_MS, None)])
def test_a_request_ends(after_ms: int, state: State | None) -> None:
    """U23: what was asked for and never came is forgotten after 30 s; its count is not."""
    states = States()
    states.request(held(states), 0)
    delivered(states, MessageId(9, 9), now_ms=after_ms)
    assert states.state(ID) is state
    assert delivered(states, now_ms=after_ms).redelivery_count == 1


def test_a_newer_request_lives_on() -> None:
    """U23: the end of an earlier request does not end a later one of the same message."""
    states = States()
    states.request(held(states), 0)
    delivered(states, now_ms=1)
    states.request(states.hold(ID), 20_000)
    delivered(states, MessageId(9, 9), now_ms=REQUEST_MEMORY_MS)
    assert states.state(ID) is State.REQUESTED


def test_counts_leave_copies_out() -> None:
    """N34: the count is ours or the broker's, less what the broker counts for copies that nobody saw."""
    states = States()
    delivered(states, count=2)
    assert states.deliver(ID, 3, 0) is Verdict.COPY
    states.request(states.hold(ID), 0)
    assert delivered(states, count=4).redelivery_count == 3
    states.request(states.hold(ID), 0)
    assert delivered(states, count=0).redelivery_count == 4
    states.show(states.hold(ID))
    record = states.get(ID)
    assert record is not None
    assert record.redelivery_count == 5


def test_settled_messages_refuse_a_nack() -> None:
    """U20: during and after an acknowledgement a nack is told; after a failed one it may be made."""
    states = States()
    record = delivered(states)
    states.begin_ack(ID)
    with pytest.raises(AlreadySettledError, match="acknowledged"):
        states.hold(ID)
    assert not states.ack_failed(record)
    states.hold(ID)
    acked(states, ID)
    with pytest.raises(AlreadySettledError):
        states.hold(ID)


def test_a_failed_ack_restores_the_hold() -> None:
    """U20: when the acknowledgement of a held message fails it is held again, and due if its time came meanwhile."""
    states = States()
    record = held(states)
    states.begin_ack(ID)
    record.is_due = True
    assert states.ack_failed(record)
    assert states.state(ID) is State.HELD
    states._check()


def test_a_failed_request_is_held_again() -> None:
    """N16: a request that failed leaves the message held, unless it has arrived or was settled."""
    states = States()
    record = held(states)
    states.request(record, 0)
    assert states.request_failed(record, record.request)
    states.request(record, 0)
    delivered(states)
    assert not states.request_failed(record, record.request)
    acked(states, ID)
    assert not states.request_failed(record, record.request)
    states._check()


def test_a_failure_of_an_older_request_changes_nothing() -> None:
    """N16: a message that was asked for anew is not held because the request before it failed."""
    states = States()
    record = held(states)
    older = states.request(record, 0)
    delivered(states)
    newer = states.request(states.hold(ID), 10)
    assert not states.request_failed(record, older)
    assert states.state(ID) is State.REQUESTED
    states.begin_ack(ID)
    assert not states.request_failed(record, older)
    assert not states.ack_failed(record)
    assert states.state(ID) is State.REQUESTED
    assert states.request_failed(record, newer)
    states._check()


def test_acked_batch_members_are_remembered() -> None:
    """U26: an acknowledged member is hidden until the whole entry is acknowledged, however long that takes."""
    states = States(ack_memory_ms=60_000)
    for member in BATCH:
        delivered(states, member)
    acked(states, BATCH[1])
    assert states.deliver(BATCH[1], 1, 600_000) is Verdict.ACK_AGAIN
    assert states.deliver(BATCH[0], 1, 600_000) is Verdict.COPY
    acked(states, BATCH[0], 600_000)
    acked(states, BATCH[2], 600_000)
    assert len(states.batches) == 0
    assert {states.deliver(member, 1, 600_001) for member in BATCH} == {Verdict.ACK_AGAIN}
    assert {states.deliver(member, 1, 660_000) for member in BATCH} == {Verdict.REPLAY}


def test_busy_mates() -> None:
    """U26: mates not seen, in work, or held are busy; acknowledged, asked for, and due ones are not."""
    states = States()
    batches = states.batches
    record = held(states, BATCH[0])
    assert batches.has_busy_mates(BATCH[0], 1)
    acked(states, BATCH[1])
    other = held(states, BATCH[2])
    assert batches.has_busy_mates(BATCH[0], 1)
    assert not batches.has_busy_mates(BATCH[0], 2)
    states.request(other, 0)
    assert not batches.has_busy_mates(BATCH[0], 1)
    delivered(states, BATCH[2])
    assert batches.has_busy_mates(BATCH[0], 1)
    acked(states, BATCH[2])
    assert not batches.has_busy_mates(BATCH[0], 1)
    assert record.state is State.HELD
    assert not batches.has_busy_mates(ID, 1)


def test_a_cumulative_ack_settles_what_is_before() -> None:
    """U35: a cumulative acknowledgement settles its partition up to the message, batch members included."""
    states = States()
    other = MessageId(1, 1, 5, topic="t-5")
    for each in (ID, *BATCH, other):
        delivered(states, each)
    states.hold(ID)
    assert set(states.settle_through(BATCH[1], 0)) == {ID, BATCH[0], BATCH[1]}
    states._check()
    assert states.deliver(BATCH[0], 0, 1) is Verdict.ACK_AGAIN
    assert states.deliver(ID, 0, 1) is Verdict.ACK_AGAIN
    assert states.deliver(BATCH[2], 0, 1) is Verdict.COPY
    assert states.deliver(other, 0, 1) is Verdict.COPY


def test_memory_is_bounded() -> None:
    """Of messages in work beyond the bound the oldest are forgotten, and shown if they come; counts stay right."""
    states = States(most_in_work=100)
    for number in range(1_000):
        delivered(states, MessageId(1, number))
    assert states.in_work <= 100
    assert states.deliver(MessageId(1, 0), 0, 0) is Verdict.SHOW
    assert states.deliver(MessageId(1, 999), 0, 0) is Verdict.COPY
    states._check()


def test_a_seek_forgets_everything() -> None:
    """U32: after a seek every message is new."""
    states = States()
    held(states)
    delivered(states, BATCH[0])
    acked(states, BATCH[0])
    states.clear()
    assert {states.deliver(each, 0, 0) for each in (ID, BATCH[0])} == {Verdict.SHOW}
    states._check()


def test_what_waits_in_a_partition_leaves() -> None:
    """When another consumer gets a partition, what is held or asked for there goes, what is in work stays."""
    states = States()
    held, asked, in_work = (MessageId(1, entry, 2, topic="t-partition-2") for entry in range(3))
    elsewhere = MessageId(1, 9, 3, topic="t-partition-3")
    for message_id in (held, asked, in_work, elsewhere):
        states.deliver(message_id, 0, 0)
    states.hold(held)
    states.hold(elsewhere)
    states.request(states.hold(asked), 0)
    gone = states.waiting_in("t-partition-2", 2)
    assert [record.id for record in gone] == [held, asked]
    states.leave(gone)
    assert (states.held, states.requested, states.in_work, len(states)) == (1, 0, 1, 2)
    assert states.waiting_in("t-partition-2", 2) == []
    assert states.deliver(held, 0, 0) is Verdict.SHOW
    record = states.get(held)
    assert record is not None
    assert record.redelivery_count == 1


CHUNKED = MessageId(3, 9, first_chunk=MessageId(3, 7), chunks=[(3, 7), (3, 8), (3, 9)])


def test_parts_are_learned_late() -> None:
    """O28: what was known by its plain id first is asked for and acknowledged by all the parts that any call names."""
    plain = MessageId(3, 9, topic="t")
    nacked_twice, came, acknowledged = States(), States(), States()
    for states in (nacked_twice, came, acknowledged):
        states.hold(plain)
    nacked_twice.hold(CHUNKED)
    came.deliver(CHUNKED, 0, 0)
    acknowledged.begin_ack(CHUNKED)
    for states in (nacked_twice, came, acknowledged):
        record = states.get(plain)
        assert record is not None
        assert (record.id.parts, record.id.topic) == (CHUNKED.chunks, "t")
        assert states.get(CHUNKED) is record
