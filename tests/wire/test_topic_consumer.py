"""A topic's consumer on a scripted broker and virtual time: subscribing, receiving, permits, acknowledging, closing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_nack.consumer import KeyShared
from pulsar_nack.errors import BrokerError, BrokerRefusedError, ClosedError, RequestTimeoutError
from pulsar_nack.ids import MessageId
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.wire.consuming import NAME, TOPIC, Ended, consuming
from tests.wire.fake_broker import cut, later, refuse, silence
from tests.wire.fake_topics import metadata_of
from tests.wire.frames import batch_payload, message_rest
from tests.wire.using import now


@virtual_time
async def test_subscribes_with_all_options() -> None:
    """The broker gets every option of the subscription."""
    async with consuming() as made:
        made.broker.topic(TOPIC)
        await made.open(
            type="key_shared",
            consumer_name="me",
            priority_level=3,
            properties={"a": "1"},
            subscription_properties={"b": "2"},
            key_shared=KeyShared(((0, 9), (20, 65_535)), allow_out_of_order=True),
            receiver_queue_size=7,
            replicate_subscription_state=True,
            create_topic=False,
        )
        told = made.broker.commands("SUBSCRIBE")[0]
        assert (told.topic, told.subscription, told.subType) == (TOPIC, NAME, pb.CommandSubscribe.Key_Shared)
        assert (told.consumer_name, told.priority_level, told.durable) == ("me", 3, True)
        assert [(pair.key, pair.value) for pair in told.metadata] == [("a", "1")]
        assert [(pair.key, pair.value) for pair in told.subscription_properties] == [("b", "2")]
        assert told.keySharedMeta.keySharedMode == pb.STICKY
        assert [(each.start, each.end) for each in told.keySharedMeta.hashRanges] == [(0, 9), (20, 65_535)]
        assert told.keySharedMeta.allowOutOfOrderDelivery
        assert told.initialPosition == pb.CommandSubscribe.Earliest
        assert told.replicate_subscription_state
        assert not told.force_topic_creation
        await asyncio.sleep(1)
        assert made.permits() == 7


@virtual_time
async def test_messages_arrive_whole() -> None:
    """A delivery has all fields from the producer and the broker."""
    async with consuming() as made:
        entry = made.topic.publish(
            b"data", properties={"a": "b"}, partition_key="k", ordering_key=b"o", publish_time=12, event_time=34
        )
        await made.open()
        (delivery,) = await made.arrived.take()
        assert delivery.id == MessageId(*entry.place)
        assert (delivery.id.topic, delivery.topic) == (TOPIC, TOPIC)
        assert (delivery.data, dict(delivery.properties)) == (b"data", {"a": "b"})
        assert (delivery.key, delivery.ordering_key) == ("k", "o")
        assert (delivery.publish_time_ms, delivery.event_time_ms, delivery.redelivery_count) == (12, 34, 0)
        assert delivery.error is None


@virtual_time
async def test_permits_go_back_half_a_queue_at_a_time() -> None:
    """At most the queue is here and not taken; permits for taken messages are returned half a queue at a time."""
    async with consuming() as made:
        for number in range(30):
            made.topic.publish(b"%d" % number)
        await made.open(receiver_queue_size=10)
        await asyncio.sleep(1)
        assert len(made.arrived) == 10
        await made.arrived.take(4)
        await asyncio.sleep(1)
        assert len(made.arrived) == 6
        await made.arrived.take(1)
        await asyncio.sleep(1)
        assert len(made.arrived) == 10
        assert [flow.messagePermits for flow in made.broker.commands("FLOW")] == [10, 5]
        rest = await made.arrived.take(25)
        assert [delivery.data for delivery in rest] == [b"%d" % number for number in range(5, 30)]


@virtual_time
async def test_a_batch_counts_its_messages() -> None:
    """A batch uses as many permits as it has messages to deliver, and those are returned one by one."""
    async with consuming() as made:
        made.topic.publish_batch([b"a", b"b", b"c"])
        await made.open(receiver_queue_size=2)
        deliveries = await made.arrived.take(3)
        assert [delivery.data for delivery in deliveries] == [b"a", b"b", b"c"]
        assert [delivery.id.batch_index for delivery in deliveries] == [0, 1, 2]
        assert {delivery.id.batch_size for delivery in deliveries} == {3}
        await asyncio.sleep(1)
        assert made.permits() == 2


@virtual_time
async def test_a_lone_ack_takes_one_round_trip() -> None:
    """An acknowledgement returns with the broker's receipt; alone it does not wait for others."""
    async with consuming() as made:
        entry = made.topic.publish(b"a")
        consumer = await made.open()
        (delivery,) = await made.arrived.take()
        began = now()
        await consumer.acknowledge([delivery.id])
        assert now() - began == pytest.approx(2 * made.broker.latency)
        assert entry.place in made.subscription.acked


@virtual_time
async def test_acks_are_grouped_while_some_are_unanswered() -> None:
    """Acknowledgements of one turn share a command in the next; those during an open command wait for its receipt."""
    async with consuming() as made:
        consumer, deliveries = await made.holding(50, ack_group_ms=10)
        began = now()
        acks = [asyncio.create_task(consumer.acknowledge([each.id])) for each in deliveries[:2]]
        await asyncio.sleep(0.0005)
        acks += [asyncio.create_task(consumer.acknowledge([each.id])) for each in deliveries[2:]]
        await asyncio.gather(*acks)
        assert now() - began == pytest.approx(4 * made.broker.latency)
        assert [len(ack.message_id) for ack in made.broker.commands("ACK")] == [2, 48]
        assert len(made.subscription.acked) == 50


@virtual_time
async def test_acks_do_not_wait_longer_than_the_group_time() -> None:
    """While the broker does not answer, the next group is still sent after the group time."""
    async with consuming() as made:
        consumer, deliveries = await made.holding(2, ack_group_ms=5)
        made.broker.next("ACK", later(1.0))
        first = asyncio.create_task(consumer.acknowledge([deliveries[0].id]))
        await asyncio.sleep(0.1)
        began = now()
        await consumer.acknowledge([deliveries[1].id])
        assert now() - began == pytest.approx(0.005 + 2 * made.broker.latency)
        assert not first.done()
        await first


@virtual_time
async def test_many_acks_in_one_call() -> None:
    """A command carries at most 1 000 entries, and the call returns when all have their receipts."""
    async with consuming() as made:
        for _ in range(2_500):
            made.topic.publish(b"a")
        consumer = await made.open(receiver_queue_size=5_000)
        deliveries = await made.arrived.take(2_500)
        await consumer.acknowledge([each.id for each in deliveries])
        assert [len(ack.message_id) for ack in made.broker.commands("ACK")] == [1_000, 1_000, 500]
        assert len(made.subscription.acked) == 2_500


@virtual_time
async def test_a_refused_ack_says_why() -> None:
    """The broker's refusal is raised only for the calls in that command."""
    async with consuming() as made:
        consumer, (delivery,) = await made.holding(1)
        made.broker.next("ACK", refuse("MetadataError", "no room"))
        with pytest.raises(BrokerRefusedError, match="MetadataError: no room"):
            await consumer.acknowledge([delivery.id])
        await consumer.acknowledge([delivery.id])
        assert len(made.subscription.acked) == 1


@pytest.mark.parametrize("keeps_indexes", [True, False])
@virtual_time
async def test_a_member_whose_ack_failed_is_not_acknowledged_by_the_others(keeps_indexes: bool) -> None:
    """After a refusal the other members are acknowledged without it; the entry completes only with it."""
    async with consuming() as made:
        entry = made.topic.publish_batch([b"a", b"b"])
        consumer = await made.open(batch_index_ack=keeps_indexes)
        ids = [delivery.id for delivery in await made.arrived.take(2)]
        made.broker.next("ACK", refuse("MetadataError"), refuse("MetadataError"))
        told = Ended()
        for each in ids:  # one at a time
            consumer.acknowledge_soon(each, each, told)
            await asyncio.sleep(0.1)
        assert [token for token, _ in told] == ids
        assert [error is None for _, error in told] == ([False, False] if keeps_indexes else [True, False])
        assert entry.place not in made.subscription.acked
        made.broker.normally("ACK")
        await consumer.acknowledge([ids[1]])
        assert (entry.place in made.subscription.acked) is not keeps_indexes
        await consumer.acknowledge([ids[0]])
        assert entry.place in made.subscription.acked


@virtual_time
async def test_an_ack_without_receipt_times_out() -> None:
    """A missing receipt raises after one request's timeout."""
    async with consuming(request_timeout=3) as made:
        consumer, (delivery,) = await made.holding(1)
        made.broker.next("ACK", silence)
        began = now()
        with pytest.raises(RequestTimeoutError):
            await consumer.acknowledge([delivery.id])
        assert now() - began == pytest.approx(3)


@virtual_time
async def test_a_cancelled_ack_goes_on() -> None:
    """An acknowledgement whose caller was cancelled is still sent."""
    async with consuming() as made:
        consumer, (delivery,) = await made.holding(1)
        call = asyncio.create_task(consumer.acknowledge([delivery.id]))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(1)
        assert len(made.subscription.acked) == 1


@virtual_time
async def test_ack_soon_reports_later() -> None:
    """An acknowledgement that nobody awaits reports its outcome in a later turn of the loop, for a batch member too."""
    async with consuming() as made:
        made.topic.publish(b"a")
        made.topic.publish_batch([b"b", b"c"])
        consumer = await made.open()
        deliveries = await made.arrived.take(3)
        told, other = Ended(), Ended()
        for delivery in deliveries:
            consumer.acknowledge_soon(delivery.id, delivery.data, told if delivery.data < b"c" else other)
        assert (told, other) == ([], [])
        await asyncio.sleep(1)
        assert sorted(told) == [(b"a", None), (b"b", None)]
        assert other == [(b"c", None)]
        assert len(made.subscription.acked) == 2


@virtual_time
async def test_members_of_a_batch_are_acknowledged_by_index() -> None:
    """The broker gets the remaining indexes of a batch; the last member acknowledges the whole entry."""
    async with consuming() as made:
        entry = made.topic.publish_batch([b"%d" % number for number in range(70)])
        consumer = await made.open()
        ids = [delivery.id for delivery in await made.arrived.take(70)]
        await consumer.acknowledge([ids[0]])
        assert made.subscription.unacked_indexes[entry.place] == [-2, 63]
        await consumer.acknowledge(ids[1:69])
        assert made.subscription.unacked_indexes[entry.place] == [0, 32]
        await consumer.acknowledge([ids[69]])
        assert list(made.broker.commands("ACK")[-1].message_id[0].ack_set) == []
        assert entry.place in made.subscription.acked


@virtual_time
async def test_without_index_acks_an_entry_is_acknowledged_at_its_end() -> None:
    """Without batch index acknowledgement an entry is sent once all of it is acknowledged."""
    async with consuming() as made:
        entry = made.topic.publish_batch([b"a", b"b", b"c"])
        consumer = await made.open(batch_index_ack=False)
        ids = [delivery.id for delivery in await made.arrived.take(3)]
        await consumer.acknowledge(ids[:2])
        assert made.broker.commands("ACK") == []
        await consumer.acknowledge(ids[2:])
        assert entry.place in made.subscription.acked


@virtual_time
async def test_a_member_without_batch_size_is_refused() -> None:
    """An id without the size of its batch would acknowledge too much or too little: nothing is sent."""
    async with consuming() as made:
        entry = made.topic.publish_batch([b"a", b"b"])
        consumer = await made.open()
        first, second = [delivery.id for delivery in await made.arrived.take(2)]
        bare = MessageId(*second)
        with pytest.raises(BrokerError, match="batch_size"):
            await consumer.acknowledge([first, bare])
        with pytest.raises(BrokerError, match="batch_size"):
            consumer.acknowledge_soon(bare, 0, Ended())
        assert made.broker.commands("ACK") == []
        await consumer.acknowledge([second])
        assert entry.place not in made.subscription.acked  # the refused call acknowledged none of its messages


@virtual_time
async def test_acked_indexes_are_not_delivered_again() -> None:
    """Only the unacknowledged members of a redelivered entry are delivered, and permits count only those."""
    async with consuming() as made:
        made.topic.publish_batch([b"a", b"b", b"c"])
        consumer = await made.open(receiver_queue_size=4)
        ids = [delivery.id for delivery in await made.arrived.take(3)]
        await consumer.acknowledge(ids[:2])
        consumer.redeliver_nowait([ids[2]])
        again = await made.arrived.take()
        assert [(delivery.data, delivery.redelivery_count) for delivery in again] == [(b"c", 1)]
        await asyncio.sleep(1)
        assert len(made.arrived) == 0


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
@virtual_time
async def test_cumulative_acks(kind: Any) -> None:
    """Everything up to a message is acknowledged, inside a batch up to its index."""
    async with consuming() as made:
        first = made.topic.publish(b"a")
        batch = made.topic.publish_batch([b"b", b"c", b"d"])
        consumer = await made.open(type=kind)
        ids = [delivery.id for delivery in await made.arrived.take(4)]
        await consumer.acknowledge_cumulative(ids[2])
        assert made.broker.commands("ACK")[0].ack_type == pb.CommandAck.Cumulative
        assert made.subscription.acked == {first.place}
        assert made.subscription.unacked_indexes[batch.place] == [4]
        await consumer.acknowledge([ids[3]])
        assert made.subscription.acked == {first.place, batch.place}


@pytest.mark.parametrize("is_first_of_ledger", [False, True])
@virtual_time
async def test_cumulative_acks_without_index_acks(is_first_of_ledger: bool) -> None:
    """Without batch index acknowledgement a cumulative acknowledgement ends before an incomplete batch."""
    async with consuming() as made:
        first = made.topic.publish(b"a")
        made.topic.ledger += is_first_of_ledger
        batch = made.topic.publish_batch([b"b", b"c"])
        assert batch.entry == (0 if is_first_of_ledger else 1)
        consumer = await made.open(type="exclusive", batch_index_ack=False)
        ids = [delivery.id for delivery in await made.arrived.take(3)]
        await consumer.acknowledge_cumulative(ids[1])
        assert made.subscription.acked == {first.place}
        await consumer.acknowledge_cumulative(ids[2])
        assert made.subscription.acked == {first.place, batch.place}


@virtual_time
async def test_cumulative_acks_are_not_for_shared() -> None:
    """A subscription with several consumers has no order, so cumulative acknowledgement is refused."""
    async with consuming() as made:
        consumer, (delivery,) = await made.holding(1)
        with pytest.raises(BrokerError, match="shared"):
            await consumer.acknowledge_cumulative(delivery.id)


@virtual_time
async def test_redelivers_chosen_entries() -> None:
    """Only requested entries are redelivered, each once, within one round trip."""
    async with consuming() as made:
        entries = [made.topic.publish(b"%d" % number) for number in range(5)]
        consumer = await made.open()
        ids = [delivery.id for delivery in await made.arrived.take(5)]
        began = now()
        consumer.redeliver_nowait([ids[3], ids[1], ids[3]])
        again = await made.arrived.take(2)
        assert now() - began == pytest.approx(2 * made.broker.latency)
        assert [(delivery.id, delivery.redelivery_count) for delivery in again] == [(ids[1], 1), (ids[3], 1)]
        (told,) = made.broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        assert [(each.ledgerId, each.entryId) for each in told.message_ids] == [entries[3].place, entries[1].place]


@virtual_time
async def test_requests_for_redelivery_are_gathered() -> None:
    """Requests within a few milliseconds share a command, and no command has more than 1 000 entries."""
    async with consuming() as made:
        consumer, deliveries = await made.holding(2_102, receiver_queue_size=5_000)
        ids = [delivery.id for delivery in deliveries]
        consumer.redeliver_nowait(ids[:1])
        await asyncio.sleep(0.0003)
        for each in ids[1:101]:
            consumer.redeliver_nowait([each])
        await asyncio.sleep(0.0003)
        consumer.redeliver_nowait(ids[101:102])
        await asyncio.sleep(1)
        consumer.redeliver_nowait(ids[102:])
        await asyncio.sleep(1)
        told = made.broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        assert [len(command.message_ids) for command in told] == [1, 101, 1_000, 1_000]
        assert len(await made.arrived.take(2_102)) == 2_102


@virtual_time
async def test_redelivery_rewinds_where_one_consumer_gets_all() -> None:
    """On Exclusive all unacknowledged messages come again, and messages on their way are dropped."""
    async with consuming() as made:
        consumer, (first, *_) = await made.holding(2, published=5, type="exclusive", receiver_queue_size=4)
        await consumer.acknowledge([first.id])
        consumer.redeliver_nowait([first.id])
        await asyncio.sleep(1)
        again = await made.arrived.take(4)
        assert [delivery.data for delivery in again] == [b"1", b"2", b"3", b"4"]
        await asyncio.sleep(1)
        assert len(made.arrived) == 0
        assert made.permits() == 4
        (told,) = made.broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        assert (list(told.message_ids), told.consumer_epoch) == ([], 1)


@virtual_time
async def test_messages_of_an_old_epoch_are_dropped() -> None:
    """Messages that the broker sent before the rewind are dropped, and their permits returned."""
    async with consuming() as made:
        made.topic.publish(b"0")
        consumer = await made.open(type="exclusive", receiver_queue_size=4)
        (first,) = await made.arrived.take()
        made.topic.publish(b"1")  # on its way
        consumer.redeliver_nowait([first.id])
        await asyncio.sleep(0)
        again = await made.arrived.take(2)
        assert [delivery.data for delivery in again] == [b"0", b"1"]
        await asyncio.sleep(1)
        assert len(made.arrived) == 0


@virtual_time
async def test_closing_gives_back_and_confirms() -> None:
    """Closing waits for open acknowledgements, then gives the remaining messages to others."""
    async with consuming() as made:
        consumer, (first, *_) = await made.holding(3)
        acking = asyncio.create_task(consumer.acknowledge([first.id]))
        await asyncio.sleep(0)
        await consumer.aclose()
        await acking
        assert [call.kind for call in made.broker.calls[-2:]] == ["ACK", "CLOSE_CONSUMER"]
        await made.open()
        rest = await made.arrived.take(2)
        assert [delivery.data for delivery in rest] == [b"1", b"2"]
        with pytest.raises(ClosedError):
            await consumer.acknowledge([first.id])
        with pytest.raises(ClosedError):
            consumer.redeliver_nowait([first.id])
        with pytest.raises(ClosedError):
            await consumer.seek(0)
        await consumer.aclose()


@virtual_time
async def test_closing_does_not_wait_for_ever() -> None:
    """A broker that answers neither acknowledgements nor the close is left after a few seconds; acks fail then."""
    async with consuming() as made:
        consumer, (delivery,) = await made.holding(1)
        made.broker.always("ACK", silence)
        made.broker.always("CLOSE_CONSUMER", silence)
        acking = asyncio.create_task(consumer.acknowledge([delivery.id]))
        await asyncio.sleep(0)
        began = now()
        await consumer.aclose()
        assert now() - began == pytest.approx(5)
        with pytest.raises(ClosedError):
            await acking


@virtual_time
async def test_a_connection_lost_while_closing() -> None:
    """When the connection breaks during a close, the consumer is closed, and unconfirmed acknowledgements fail."""
    async with consuming() as made:
        consumer, (delivery,) = await made.holding(1)
        made.broker.always("ACK", cut)
        acking = asyncio.create_task(consumer.acknowledge([delivery.id]))
        await asyncio.sleep(0)
        began = now()
        await consumer.aclose()
        assert now() - began < 0.1
        with pytest.raises(ClosedError):
            await acking


@virtual_time
async def test_unsubscribes() -> None:
    """The subscription is deleted at the broker, and the consumer is closed."""
    async with consuming() as made:
        consumer = await made.open()
        await consumer.unsubscribe()
        assert made.topic.subscriptions == {}
        with pytest.raises(ClosedError):
            await consumer.last_message_id()


@virtual_time
async def test_the_last_message_id() -> None:
    """The id of the topic's last message is returned; of an empty topic one with entry -1."""
    async with consuming() as made:
        consumer = await made.open()
        assert (await consumer.last_message_id()).entry == -1
        entry = made.topic.publish(b"a")
        last = await consumer.last_message_id()
        assert (last, last.topic) == (MessageId(*entry.place), TOPIC)


@virtual_time
async def test_a_message_that_cannot_be_read() -> None:
    """Damage and encryption are reported with the message, which can be acknowledged; others arrive."""
    async with consuming() as made:
        made.topic.append(b"\x0e\x01\x00\x00\x00\x00 this is no message")
        made.topic.publish(b"secret", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
        made.topic.publish_batch([b"x", b"y", b"z"], compression=pb.ZSTD)
        made.topic.publish(b"plain")
        consumer = await made.open(receiver_queue_size=2)
        deliveries = await made.arrived.take(4)
        assert [delivery.error is None for delivery in deliveries] == [False, False, False, True]
        assert "encrypted" in str(deliveries[1].error)
        await consumer.acknowledge([delivery.id for delivery in deliveries])
        assert len(made.subscription.acked) == 4
        await asyncio.sleep(1)
        assert made.permits() in {1, 2}


@virtual_time
async def test_a_batch_that_is_damaged_in_the_middle() -> None:
    """The members before the damage arrive; later ones are delivered as unreadable, one by one."""
    async with consuming() as made:
        metadata = metadata_of(num_messages_in_batch=3)
        made.topic.append(message_rest(metadata, batch_payload([b"a" * 9, b"b", b"c"])[:-1]), messages=3)
        consumer = await made.open(receiver_queue_size=3)
        deliveries = await made.arrived.take(3)
        assert [delivery.error is None for delivery in deliveries] == [True, True, False]
        assert [delivery.id.batch_index for delivery in deliveries] == [0, 1, 2]
        await consumer.acknowledge([delivery.id for delivery in deliveries])
        assert len(made.subscription.acked) == 1
        await asyncio.sleep(1)
        assert made.permits() >= 2
