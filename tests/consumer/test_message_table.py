"""The states of messages: what each delivery means, with a manual clock."""

from __future__ import annotations

import pytest

from pulsar_nack import AlreadySettledError, MessageId
from pulsar_nack.consumer._message_state import MessageState, State
from pulsar_nack.consumer._message_table import WAITING, MessageTable
from pulsar_nack.consumer._requests import REQUEST_MEMORY_MS

ID = MessageId(3, 1, topic="t")
BATCH = [MessageId(3, 2, -1, index, batch_size=3, topic="t") for index in range(3)]


def state_of(table: MessageTable, message_id: MessageId = ID) -> State | None:
    """Return the state of an unacknowledged message, None of any other."""
    record = table.get(message_id)
    return None if record is None else record.state


def delivered(table: MessageTable, message_id: MessageId = ID, count: int = 0, now_ms: int = 0) -> MessageState:
    """Deliver a message that must be delivered, and return its record."""
    record = table.deliver(message_id, count, now_ms)
    table._check()
    assert record is not None
    assert record is table.get(message_id)
    return record


def meaning(table: MessageTable, message_id: MessageId, count: int, now_ms: int) -> str:
    """Deliver a message, and return what the table decides."""
    duplicates, replayed = table.duplicates, table.acked.replayed
    if table.deliver(message_id, count, now_ms) is not None:
        return "replay" if table.acked.replayed > replayed else "deliver"
    return "duplicate" if table.duplicates > duplicates else "ack again"


def held(table: MessageTable, message_id: MessageId = ID) -> MessageState:
    """Deliver a message and nack it."""
    delivered(table, message_id)
    return table.hold(message_id)


def acked(table: MessageTable, message_id: MessageId, now_ms: int = 0) -> None:
    """Acknowledge a message."""
    table.settle_all([table.mark_acking_unknown(message_id)], now_ms)
    table._check()


def test_a_duplicate_of_a_delivered_or_held_message_is_dropped() -> None:
    """U23: a second delivery of a delivered or held message is a duplicate, whatever its count."""
    table = MessageTable()
    delivered(table)
    assert meaning(table, ID, 0, 1) == "duplicate"
    table.hold(ID)
    assert meaning(table, ID, 1, 1) == "duplicate"
    assert (table.held, table.delivered) == (1, 0)


def test_acked_before_it_arrives() -> None:
    """U24: requested, then acknowledged; if it arrives nevertheless it is acknowledged again."""
    table = MessageTable()
    table.request(held(table), 10)
    record = table.mark_acking_unknown(ID)
    assert meaning(table, ID, 1, 11) == "ack again"
    assert table.settle_all([record], 12) == [record]
    assert table.settle_all([record], 12) == []
    assert meaning(table, ID, 1, 13) == "ack again"
    assert not table._records


@pytest.mark.parametrize(("age_ms", "verdict"), [(59_999, "ack again"), (60_000, "replay")])
def test_an_acked_message_is_hidden_for_a_while(age_ms: int, verdict: str) -> None:
    """U32: an acknowledged message younger than ack_memory is acknowledged again; an older one was replayed."""
    table = MessageTable(ack_memory_ms=60_000)
    delivered(table)
    acked(table, ID, now_ms=5)
    assert meaning(table, ID, 0, 5 + age_ms) == verdict


def test_a_newer_request_lives_on() -> None:
    """U23: the end of an earlier request does not end a later one of the same message."""
    table = MessageTable()
    table.request(held(table), 0)
    delivered(table, now_ms=1)
    table.request(table.hold(ID), 20_000)
    delivered(table, MessageId(9, 9), now_ms=REQUEST_MEMORY_MS)
    assert state_of(table) is State.REQUESTED


def test_counts_leave_copies_out() -> None:
    """N34: the count is ours or the broker's, less what the broker counts for undelivered duplicates."""
    table = MessageTable()
    delivered(table, count=2)
    assert meaning(table, ID, 3, 0) == "duplicate"
    table.request(table.hold(ID), 0)
    assert delivered(table, count=4).redelivery_count == 3
    table.request(table.hold(ID), 0)
    assert delivered(table, count=0).redelivery_count == 4
    table.redeliver(table.hold(ID))
    record = table.get(ID)
    assert record is not None
    assert record.redelivery_count == 5


def test_counts_of_a_forgotten_message_leave_copies_out() -> None:
    """N34: also if the message is nacked, acknowledged or published elsewhere by its id before it comes again."""
    table = MessageTable()
    table.requests.remember(ID, 0, 3)
    table.request(table.hold(ID), 0)
    assert delivered(table, count=4).redelivery_count == 1
    for number, ack in enumerate((True, False)):
        message_id = MessageId(7, number)
        table.requests.remember(message_id, 1, 2)
        record = table.mark_acking_unknown(message_id) if ack else table.send_away(message_id, 0, State.RETRYING)
        assert (record.redelivery_count, record.hidden_count) == (1, 2)


def test_settled_messages_refuse_a_nack() -> None:
    """U20: during and after an acknowledgement a nack raises; after a failed one it is possible."""
    table = MessageTable()
    record = delivered(table)
    table.mark_acking_unknown(ID)
    with pytest.raises(AlreadySettledError, match="acknowledged"):
        table.hold(ID)
    assert not table.ack_failed(record)
    table.hold(ID)
    acked(table, ID)
    with pytest.raises(AlreadySettledError):
        table.hold(ID)


def test_a_failed_request_is_held_again() -> None:
    """N16: a failed request leaves the message held, unless it has arrived or was settled."""
    table = MessageTable()
    record = held(table)
    table.request(record, 0)
    assert table.request_failed(record, record.request)
    table.request(record, 0)
    delivered(table)
    assert not table.request_failed(record, record.request)
    acked(table, ID)
    assert not table.request_failed(record, record.request)
    table._check()


def test_a_failure_of_an_older_request_changes_nothing() -> None:
    """N16: a message that was requested again is not held because the earlier request failed."""
    table = MessageTable()
    record = held(table)
    older = table.request(record, 0)
    delivered(table)
    newer = table.request(table.hold(ID), 10)
    assert not table.request_failed(record, older)
    assert state_of(table) is State.REQUESTED
    table.mark_acking_unknown(ID)
    assert not table.request_failed(record, older)
    assert not table.ack_failed(record)
    assert state_of(table) is State.REQUESTED
    assert table.request_failed(record, newer)
    table._check()


def test_acked_batch_members_are_remembered() -> None:
    """U26: an acknowledged member is hidden until the whole entry is acknowledged, however long that takes."""
    table = MessageTable(ack_memory_ms=60_000)
    for member in BATCH:
        delivered(table, member)
    acked(table, BATCH[1])
    assert meaning(table, BATCH[1], 1, 600_000) == "ack again"
    assert meaning(table, BATCH[0], 1, 600_000) == "duplicate"
    acked(table, BATCH[0], 600_000)
    acked(table, BATCH[2], 600_000)
    assert not table.acked.batches
    assert {meaning(table, member, 1, 600_001) for member in BATCH} == {"ack again"}
    assert {meaning(table, member, 1, 660_000) for member in BATCH} == {"replay"}


def test_busy_members() -> None:
    """U26: unseen, delivered and held members are busy; acknowledged, requested and due ones are not."""
    table = MessageTable()

    def is_busy(due: int, member: MessageId = BATCH[0]) -> bool:
        return table.acked.has_busy_members(member, due + table.requested_members.get(member[:3], 0))

    record = held(table, BATCH[0])
    assert is_busy(1)
    acked(table, BATCH[1])
    other = held(table, BATCH[2])
    assert is_busy(1)
    assert not is_busy(2)
    table.request(other, 0)
    assert not is_busy(1)
    delivered(table, BATCH[2])
    assert is_busy(1)
    acked(table, BATCH[2])
    assert not is_busy(1)
    assert record.state is State.HELD
    assert not is_busy(1, ID)


def test_a_cumulative_ack_settles_what_is_before() -> None:
    """U35: a cumulative acknowledgement settles its partition up to the message, batch members included."""
    table = MessageTable()
    other = MessageId(1, 1, 5, topic="t-5")
    for each in (ID, *BATCH, other):
        delivered(table, each)
    table.hold(ID)
    assert {record.id for record in table.settle_through(BATCH[1], 0)} == {ID, BATCH[0], BATCH[1]}
    table._check()
    assert meaning(table, BATCH[0], 0, 1) == "ack again"
    assert meaning(table, ID, 0, 1) == "ack again"
    assert meaning(table, BATCH[2], 0, 1) == "duplicate"
    assert meaning(table, other, 0, 1) == "duplicate"


def test_memory_is_bounded() -> None:
    """Above the limit the oldest delivered messages are forgotten, and delivered if they come; counts stay right."""
    table = MessageTable(most_delivered=100)
    for number in range(1_000):
        delivered(table, MessageId(1, number))
    assert table.delivered <= 100
    assert meaning(table, MessageId(1, 0), 0, 0) == "deliver"
    assert meaning(table, MessageId(1, 999), 0, 0) == "duplicate"
    table._check()


def test_a_seek_forgets_everything() -> None:
    """U32: after a seek every message is new."""
    table = MessageTable()
    held(table)
    delivered(table, BATCH[0])
    acked(table, BATCH[0])
    table.clear()
    assert {meaning(table, each, 0, 0) for each in (ID, BATCH[0])} == {"deliver"}
    table._check()


def test_what_waits_in_a_partition_leaves() -> None:
    """When another consumer gets a partition, held and requested messages go, delivered ones stay."""
    table = MessageTable()
    held, asked, in_work = (MessageId(1, entry, 2, topic="t-partition-2") for entry in range(3))
    elsewhere = MessageId(1, 9, 3, topic="t-partition-3")
    for message_id in (held, asked, in_work, elsewhere):
        table.deliver(message_id, 0, 0)
    table.hold(held)
    table.hold(elsewhere)
    table.request(table.hold(asked), 0)
    gone = table.select(WAITING, ("t-partition-2", 2))
    assert [record.id for record in gone] == [held, asked]
    table.leave(gone)
    assert (table.held, table.requested, table.delivered, len(table._records)) == (1, 0, 1, 2)
    assert table.select(WAITING, ("t-partition-2", 2)) == []
    assert meaning(table, held, 0, 0) == "deliver"
    record = table.get(held)
    assert record is not None
    assert record.redelivery_count == 1


CHUNKED = MessageId(3, 9, first_chunk=MessageId(3, 7), chunks=[(3, 7), (3, 8), (3, 9)])


def test_parts_are_learned_late() -> None:
    """O28: a message first known by its plain id is requested and acknowledged by all chunks that any call names."""
    plain = MessageId(3, 9, topic="t")
    nacked_twice, came, acknowledged = MessageTable(), MessageTable(), MessageTable()
    for table in (nacked_twice, came, acknowledged):
        table.hold(plain)
    nacked_twice.hold(CHUNKED)
    came.deliver(CHUNKED, 0, 0)
    acknowledged.mark_acking_unknown(CHUNKED)
    for table in (nacked_twice, came, acknowledged):
        record = table.get(plain)
        assert record is not None
        assert (record.id.parts, record.id.topic) == (CHUNKED.chunks, "t")
        assert table.get(CHUNKED) is record
