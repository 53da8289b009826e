"""A topic's consumer whose connection breaks, whose topic moves, or that is refused; on virtual time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from pulsar_nack.consumer import SessionEvent
from pulsar_nack.errors import BrokerRefusedError, ClosedError, ConnectionLostError, RequestTimeoutError
from pulsar_nack.ids import MessageId
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._connection._authentication import TokenAuthentication
from pulsar_nack.wire._consumer._topic_consumer import TopicConsumer
from tests.wire.consuming import TOPIC, Arrived, Consuming, consuming
from tests.wire.fake_broker import URL, carried_out_then_cut, cut, half, in_turn, later, refuse, silence
from tests.wire.using import now

OTHER = "pulsar://other:6650"


def active(consumer: TopicConsumer) -> bool | None:
    """Return whether it is active; a function, so that each call reads it again."""
    return consumer.is_active


async def subscribed(consumer: TopicConsumer, times: int) -> None:
    """Wait until a consumer has subscribed this many times."""
    async with asyncio.timeout(100):
        while consumer.sessions.subscribed_times < times or not consumer.is_connected:
            await asyncio.sleep(0.001)


@virtual_time
async def test_what_was_not_taken_is_dropped_and_comes_again() -> None:
    """After a lost connection the queue is dropped, permits start again, and everything unacknowledged comes again."""
    async with consuming() as made:
        consumer, taken = await made.holding(3, published=20, receiver_queue_size=8)
        await consumer.acknowledge([taken[0].id])
        epoch = consumer.queue.epoch
        made.broker.cut()
        assert (consumer.queue.epoch, consumer.is_connected) == (epoch + 1, False)
        assert len(made.arrived) == 0
        await subscribed(consumer, 2)
        await asyncio.sleep(1)
        assert len(made.arrived) == 8
        seen = await made.arrived.take(19)
        assert [delivery.data for delivery in seen] == [b"%d" % number for number in range(1, 20)]
        await asyncio.sleep(1)
        assert made.permits() in range(5, 9)
        assert len(made.arrived) == 0


@virtual_time
async def test_acks_are_sent_again() -> None:
    """An acknowledgement whose receipt was lost with the connection is confirmed over the next one."""
    async with consuming() as made:
        consumer, deliveries = await made.holding(4)
        ids = [delivery.id for delivery in deliveries]
        for answer in (cut, carried_out_then_cut):
            made.broker.next("ACK", answer)
            await consumer.acknowledge([ids.pop()])
        made.broker.cut()
        await consumer.acknowledge([ids.pop()])  # while there is no connection
        assert len(made.subscription.acked) == 3
        await asyncio.sleep(1)
        assert {delivery.id for delivery in made.arrived.take_nowait()} == set(ids)


@virtual_time
async def test_acks_go_before_permits() -> None:
    """Acknowledged messages do not come again: the broker gets the acknowledgements before any permits."""
    async with consuming() as made:
        consumer, deliveries = await made.holding(10)
        ids = [delivery.id for delivery in deliveries]
        made.broker.next("ACK", cut)
        await consumer.acknowledge(ids[:9])
        await asyncio.sleep(1)
        assert [delivery.id for delivery in made.arrived.take_nowait()] == ids[9:]


@virtual_time
async def test_a_batch_acked_over_two_connections() -> None:
    """Members acknowledged before and after a lost connection complete their entry, with either kind of index."""
    for keeps_indexes in (True, False):
        async with consuming() as made:
            entry = made.topic.publish_batch([b"a", b"b", b"c"])
            consumer = await made.open(batch_index_ack=keeps_indexes)
            ids = [delivery.id for delivery in await made.arrived.take(3)]
            await consumer.acknowledge(ids[:1])
            made.broker.cut()
            again = await made.arrived.take(2 if keeps_indexes else 3)
            assert [delivery.id for delivery in again] == (ids[1:] if keeps_indexes else ids)
            await consumer.acknowledge(ids[1:])
            assert (entry.place in made.subscription.acked) is keeps_indexes
            await consumer.acknowledge(ids[:1])  # as a consumer does with duplicates
            assert entry.place in made.subscription.acked


@virtual_time
async def test_a_redelivery_without_a_connection() -> None:
    """An id that is requested without a connection comes with the next one."""
    async with consuming() as made:
        consumer, (delivery,) = await made.holding(1)
        made.broker.cut()
        consumer.redeliver_nowait([delivery.id])
        assert [again.id for again in await made.arrived.take()] == [delivery.id]
        await asyncio.sleep(1)
        assert made.broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES") == []
        assert len(made.arrived) == 0


@virtual_time
async def test_a_redelivery_that_is_lost() -> None:
    """A request that the broker did not get because the connection broke is fulfilled by the next one."""
    async with consuming() as made:
        consumer, (delivery,) = await made.holding(1)
        made.broker.next("REDELIVER_UNACKNOWLEDGED_MESSAGES", cut)
        consumer.redeliver_nowait([delivery.id])
        assert [again.id for again in await made.arrived.take()] == [delivery.id]


@virtual_time
async def test_backoff_is_bounded_and_ends() -> None:
    """While the broker is down attempts become rarer, up to the longest pause; then it subscribes again."""
    async with consuming(backoff_minimum=0.1, backoff_maximum=2) as made:
        consumer = await made.open()
        made.broker.node(URL).kill()
        await asyncio.sleep(60)
        attempts = len(made.broker.dialled) - 1
        assert 30 <= attempts <= 70
        assert isinstance(consumer.sessions.last_error, ConnectionLostError)
        made.broker.node(URL).start()
        began = now()
        await subscribed(consumer, 2)
        assert now() - began < 2.1
        assert consumer.sessions.last_error is None


@virtual_time
async def test_a_topic_moves() -> None:
    """When the broker unloads the topic the consumer finds its new broker; nothing is lost."""
    async with consuming() as made:
        for number in range(6):
            made.topic.publish(b"%d" % number)
        consumer = await made.open(receiver_queue_size=4)
        await made.arrived.take(2)
        made.broker.move(TOPIC, OTHER, tell_where=True)
        await asyncio.sleep(0.01)
        seen = await made.arrived.take(6)
        assert [delivery.data for delivery in seen] == [b"%d" % number for number in range(6)]
        await consumer.acknowledge([delivery.id for delivery in seen])
        assert OTHER in made.broker.dialled


@pytest.mark.parametrize("code", ["ServiceNotReady", "TooManyRequests", "MetadataError", "PersistenceError"])
@virtual_time
async def test_what_may_pass_is_tried_again_at_the_beginning(code: str) -> None:
    """While opening, a broker that is not ready yet is asked again."""
    async with consuming() as made:
        made.broker.next("SUBSCRIBE", refuse(code), refuse(code))
        made.broker.next("LOOKUP", cut, refuse(code))
        consumer = await made.open()
        assert consumer.is_connected


@virtual_time
async def test_a_place_that_is_taken_is_tried_for_a_moment() -> None:
    """A predecessor's place is taken once it is free, if its connection just broke; else the refusal is raised soon."""
    async with consuming() as made:
        made.broker.next("SUBSCRIBE", refuse("ConsumerBusy"), refuse("ConsumerBusy"))
        consumer = await made.open(type="exclusive")
        assert consumer.is_connected
        before = now()
        with pytest.raises(BrokerRefusedError, match="ConsumerBusy"):
            await made.open(type="exclusive")
        assert 0.3 < now() - before <= 1.1


@pytest.mark.parametrize("code", ["AuthorizationError", "TopicNotFound", "NotAllowedError"])
@virtual_time
async def test_a_lasting_refusal_is_raised_at_once(code: str) -> None:
    """A lasting refusal is raised with the broker's text, after one attempt."""
    async with consuming() as made:
        made.broker.next("SUBSCRIBE", refuse(code, "in its own words"))
        with pytest.raises(BrokerRefusedError, match=f"{code}: in its own words"):
            await made.open()
        assert len(made.broker.commands("SUBSCRIBE")) == 1


@virtual_time
async def test_opening_ends_when_a_request_would() -> None:
    """Without a broker opening raises after one request's timeout."""
    async with consuming(request_timeout=5) as made:
        made.broker.node(URL).kill()
        with pytest.raises(ConnectionLostError):
            await made.open()
        assert now() <= 5


@virtual_time
async def test_no_answer_to_subscribing() -> None:
    """A subscription without an answer is closed, because the broker may have made it; then it is tried again."""
    async with consuming(request_timeout=5) as made:
        made.broker.next("SUBSCRIBE", later(6))
        with pytest.raises(RequestTimeoutError):
            await made.open(type="exclusive")
        await asyncio.sleep(5)
        assert [call.kind for call in made.broker.calls[-1:]] == ["CLOSE_CONSUMER"]


@virtual_time
async def test_a_cancelled_opening_takes_the_subscription_back() -> None:
    """Cancelled before the answer arrives, nothing is left at the broker."""
    async with consuming() as made:
        made.broker.next("SUBSCRIBE", in_turn(later(0), later(0)))
        opening = asyncio.create_task(made.open(type="exclusive"))
        while not made.broker.commands("SUBSCRIBE"):
            await asyncio.sleep(0.0005)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.sleep(0.1)
        await made.open(type="exclusive")


@virtual_time
async def test_half_an_answer() -> None:
    """A connection that ends in the middle of an answer is lost."""
    async with consuming() as made:
        made.broker.next("SUBSCRIBE", half())
        consumer = await made.open()
        assert consumer.is_connected


@virtual_time
async def test_refused_later_it_keeps_trying(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that refuses it afterwards is asked again and again; acknowledgements fail with its text."""
    async with consuming() as made:
        consumer, (delivery,) = await made.holding(1)
        made.broker.always("SUBSCRIBE", refuse("AuthorizationError", "not any more"))
        with caplog.at_level(logging.WARNING):
            made.broker.cut()
            with pytest.raises(BrokerRefusedError, match="not any more"):
                await consumer.acknowledge([delivery.id])
            await asyncio.sleep(120)
        assert len([record for record in caplog.records if "not any more" in record.getMessage()]) == 1
        made.broker.normally("SUBSCRIBE")
        await subscribed(consumer, 2)
        assert [again.id for again in await made.arrived.take()] == [delivery.id]


@virtual_time
async def test_an_exclusive_subscription_that_is_taken_meanwhile() -> None:
    """While another consumer has an Exclusive subscription, acknowledgements wait; it subscribes when that is free."""
    async with consuming() as made:
        consumer, (delivery,) = await made.holding(1, type="exclusive")
        made.broker.always("SUBSCRIBE", refuse("ConsumerBusy"))
        made.broker.cut()
        acking = asyncio.create_task(consumer.acknowledge([delivery.id]))
        await asyncio.sleep(30)
        assert not acking.done()
        made.broker.normally("SUBSCRIBE")
        await acking
        assert len(made.subscription.acked) == 1


@virtual_time
async def test_closing_while_there_is_no_connection() -> None:
    """Closing does not wait for a broker that is away; unconfirmed acknowledgements fail."""
    async with consuming() as made:
        consumer, (delivery,) = await made.holding(1)
        made.broker.node(URL).kill()
        acking = asyncio.create_task(consumer.acknowledge([delivery.id]))
        asking = asyncio.create_task(consumer.last_message_id())
        await asyncio.sleep(10)
        began = now()
        await consumer.aclose()
        assert now() == began
        for call in (acking, asking):
            with pytest.raises(ClosedError):
                await call


@virtual_time
async def test_the_broker_closes_it_at_once() -> None:
    """A consumer that the broker closes with the answer to its subscription subscribes again."""
    async with consuming() as made:

        def then_close(call: Any) -> None:
            call.reply("SUCCESS")
            call.reply("CLOSE_CONSUMER", consumer_id=call.body.consumer_id, request_id=0)

        made.broker.next("SUBSCRIBE", then_close)
        made.topic.publish(b"a")
        await made.open()
        assert [delivery.data for delivery in await made.arrived.take()] == [b"a"]


@virtual_time
async def test_what_else_is_raised_is_tried_again() -> None:
    """O11: an authentication that raises does not end the consumer: acknowledgements wait for the next attempt."""

    class Moody(TokenAuthentication):
        fails = False

        async def data(self, challenge: bytes | None) -> bytes:
            if self.fails:
                raise ValueError("no token today")
            return await super().data(challenge)

    who = Moody("token")
    async with consuming(authentication=who) as made:
        consumer, (delivery,) = await made.holding(1)
        who.fails = True
        made.broker.cut()
        acking = asyncio.ensure_future(consumer.acknowledge([delivery.id]))
        await asyncio.sleep(60)
        assert not acking.done()
        who.fails = False
        await acking
        assert consumer.sessions.failed_attempts > 3
        assert made.subscription.acked == {(7, 0)}


@virtual_time
async def test_the_client_is_closed_first() -> None:
    """A consumer whose client was closed does not try to subscribe again; acknowledgements fail."""
    async with consuming() as made:
        consumer, (delivery,) = await made.holding(1)
        await made.context.pool.aclose()
        with pytest.raises(ClosedError):
            await consumer.acknowledge([delivery.id])
        calls = len(made.broker.calls)
        await asyncio.sleep(100)
        assert len(made.broker.calls) == calls


@virtual_time
async def test_sessions_that_do_not_last() -> None:
    """A broker that closes the consumer shortly after each subscription is asked less and less often."""
    async with consuming(backoff_minimum=0.1, backoff_maximum=10) as made:
        made.topic.publish(b"a")
        consumer = await made.open()
        made.broker.always("FLOW", cut)
        made.broker.cut()
        await asyncio.sleep(100)
        assert 10 <= consumer.sessions.subscribed_times <= 30
        made.broker.normally("FLOW")
        assert [delivery.data for delivery in await made.arrived.take()] == [b"a"]
        await asyncio.sleep(2)
        began, times = now(), consumer.sessions.subscribed_times
        made.broker.cut()
        await subscribed(consumer, times + 1)
        assert now() - began < 0.2


@virtual_time
async def test_questions_are_asked_again() -> None:
    """The last message id is requested again when the connection breaks, within one request's timeout."""
    async with consuming(request_timeout=5) as made:
        entry = made.topic.publish(b"a")
        consumer = await made.open()
        made.broker.next("GET_LAST_MESSAGE_ID", cut)
        assert await consumer.last_message_id() == MessageId(*entry.place)
        made.broker.always("SUBSCRIBE", silence)
        made.broker.cut()
        began = now()
        with pytest.raises(ConnectionLostError, match="not subscribed"):
            await consumer.last_message_id()
        assert now() - began == pytest.approx(5)


# --- seeking ---


async def moved_to_the_beginning(made: Consuming, consumer: TopicConsumer) -> None:
    """Seek, and check that everything comes once more and no more."""
    await consumer.seek(0)
    seen = await made.arrived.take(len(made.topic.entries))
    assert [delivery.id.position for delivery in seen] == [entry.place for entry in made.topic.entries]
    await asyncio.sleep(1)
    assert len(made.arrived) == 0


@virtual_time
async def test_seek() -> None:
    """The queue is dropped and the message sought comes next, at once; by id and by time."""
    async with consuming() as made:
        for number in range(10):
            made.topic.publish(b"%d" % number, publish_time=100 * number)
        consumer = await made.open(receiver_queue_size=4)
        first, *_ = await made.arrived.take(3)
        await consumer.acknowledge([first.id])
        began = now()
        await consumer.seek(MessageId(*made.topic.entries[7].place))
        assert now() - began < 0.1
        assert [delivery.data for delivery in await made.arrived.take(3)] == [b"7", b"8", b"9"]
        await consumer.seek(450)
        assert [delivery.data for delivery in await made.arrived.take(5)] == [b"5", b"6", b"7", b"8", b"9"]
        await moved_to_the_beginning(made, consumer)
        assert consumer.sessions.subscribed_times == 4


@virtual_time
async def test_seek_at_a_broker_that_does_not_close_the_consumer() -> None:
    """A seek ends the session whether the broker ends it or not: earlier messages belong to the old position."""
    async with consuming() as made:

        def only_rewind(call: Any) -> None:
            made.subscription.consumers[0].pending.clear()
            made.subscription.rewind(0)
            call.reply("SUCCESS")

        for number in range(5):
            made.topic.publish(b"%d" % number)
        consumer = await made.open()
        await made.arrived.take(3)
        made.broker.always("SEEK", only_rewind)
        await moved_to_the_beginning(made, consumer)


@virtual_time
async def test_a_refused_seek_changes_nothing() -> None:
    """If the broker refuses, messages that were not taken come again, and everything continues."""
    async with consuming() as made:
        consumer, (first,) = await made.holding(1, published=5)
        await consumer.acknowledge([first.id])
        made.broker.next("SEEK", refuse("MetadataError", "cannot"))
        with pytest.raises(BrokerRefusedError, match="cannot"):
            await consumer.seek(0)
        assert [delivery.data for delivery in await made.arrived.take(4)] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("answer", [cut, carried_out_then_cut, half()])
@virtual_time
async def test_a_seek_whose_connection_breaks(answer: Any) -> None:
    """A seek whose answer is lost is sent again over the next connection."""
    async with consuming() as made:
        for number in range(5):
            made.topic.publish(b"%d" % number)
        consumer = await made.open()
        await made.arrived.take(3)
        made.broker.next("SEEK", answer)
        await moved_to_the_beginning(made, consumer)
        assert len(made.broker.commands("SEEK")) == 2


@virtual_time
async def test_a_cancelled_seek_leaves_it_usable() -> None:
    """Cancelled while the broker moves the subscription, the consumer subscribes again and continues."""
    async with consuming() as made:
        for number in range(5):
            made.topic.publish(b"%d" % number)
        consumer = await made.open()
        await made.arrived.take(5)
        made.broker.next("SEEK", later(1))
        seeking = asyncio.create_task(consumer.seek(0))
        await asyncio.sleep(0.5)
        seeking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await seeking
        await asyncio.sleep(2)
        await moved_to_the_beginning(made, consumer)


@virtual_time
async def test_seeks_at_a_time() -> None:
    """Concurrent seeks are carried out one after another, and the last one counts."""
    async with consuming() as made:
        ids = [MessageId(*made.topic.publish(b"%d" % number).place) for number in range(5)]
        consumer = await made.open()
        await asyncio.gather(*(consumer.seek(ids[index]) for index in (0, 4, 1, 3)))
        assert [delivery.data for delivery in await made.arrived.take(2)] == [b"3", b"4"]


@virtual_time
async def test_acks_before_a_seek_are_before_it() -> None:
    """An acknowledgement that was open during the seek does not affect later messages."""
    async with consuming() as made:
        consumer, deliveries = await made.holding(3)
        ids = [delivery.id for delivery in deliveries]
        made.broker.next("ACK", later(1))
        acking = asyncio.create_task(consumer.acknowledge(ids))
        await asyncio.sleep(0)
        await moved_to_the_beginning(made, consumer)
        await acking
        assert made.subscription.acked == set()


@virtual_time
async def test_batch_acks_are_forgotten_by_a_seek() -> None:
    """A batch of which most was acknowledged before a seek is not complete with its remaining members afterwards."""
    async with consuming() as made:
        entry = made.topic.publish_batch([b"a", b"b", b"c"])
        consumer = await made.open(batch_index_ack=False)
        ids = [delivery.id for delivery in await made.arrived.take(3)]
        await consumer.acknowledge(ids[:2])
        await consumer.seek(0)
        await made.arrived.take(3)
        await consumer.acknowledge(ids[2:])
        assert entry.place not in made.subscription.acked
        await consumer.acknowledge(ids[:2])
        assert entry.place in made.subscription.acked


@virtual_time
async def test_a_seek_into_a_batch() -> None:
    """Members before the one sought are not delivered, and the entry is complete without them."""
    for keeps_indexes in (True, False):
        async with consuming() as made:
            entry = made.topic.publish_batch([b"a", b"b", b"c"])
            consumer = await made.open(batch_index_ack=keeps_indexes, receiver_queue_size=3)
            ids = [delivery.id for delivery in await made.arrived.take(3)]
            await consumer.acknowledge(ids)
            await consumer.seek(ids[1])
            again = await made.arrived.take(2)
            assert [delivery.id for delivery in again] == ids[1:]
            await consumer.acknowledge(ids[1:])
            assert entry.place in made.subscription.acked
            await asyncio.sleep(1)
            assert len(made.arrived) == 0
            assert made.permits() >= 2


@virtual_time
async def test_a_reader_goes_on_where_it_was() -> None:
    """A non-durable subscription begins after the last message taken when it subscribes again."""
    async with consuming() as made:
        for number in range(6):
            made.topic.publish(b"%d" % number)
        start = MessageId(*made.topic.entries[1].place)
        consumer = await made.open(type="exclusive", durable=False, start_message_id=start)
        assert [delivery.data for delivery in await made.arrived.take(2)] == [b"2", b"3"]
        made.broker.cut()
        made.topic.subscriptions.clear()
        assert [delivery.data for delivery in await made.arrived.take(2)] == [b"4", b"5"]
        assert not consumer.has_ended


# --- Failover ---


@virtual_time
async def test_failover_reports_when_another_one_takes_over() -> None:
    """Messages that were not taken are dropped when another consumer becomes active, which is reported."""
    async with consuming() as made:
        for number in range(6):
            made.topic.publish(b"%d" % number)
        told: list[SessionEvent] = []
        other = made.make(type="failover", consumer_name="b", told=lambda event, *_: told.append(event))
        await other.open()
        assert [delivery.data for delivery in await made.arrived.take(2)] == [b"0", b"1"]
        assert (other.is_active, told) == (True, [SessionEvent.BEGAN])
        arrived = Arrived()
        first = await made.open(arrived, type="failover", consumer_name="a")
        assert len(await arrived.take(6)) == 6
        assert (other.is_active, first.is_active, told) == (False, True, [SessionEvent.BEGAN, SessionEvent.INACTIVE])
        assert len(made.arrived) == 0
        await first.aclose()
        assert [delivery.data for delivery in await made.arrived.take(6)] == [b"%d" % number for number in range(6)]
        assert other.is_active
        assert told == [SessionEvent.BEGAN, SessionEvent.INACTIVE]


@virtual_time
async def test_failover_that_was_lost_meanwhile() -> None:
    """If another consumer became active while there was no connection, that is reported after subscribing again."""
    async with consuming() as made:
        made.topic.publish(b"0")
        told: list[SessionEvent] = []
        consumer = made.make(type="failover", consumer_name="b", told=lambda event, *_: told.append(event))
        await consumer.open()
        await made.arrived.take()
        made.broker.always("SUBSCRIBE", refuse("ServiceNotReady"))
        made.broker.cut()
        assert active(consumer) is None
        made.broker.normally("SUBSCRIBE")
        arrived = Arrived()
        await made.open(arrived, type="failover", consumer_name="a")
        await subscribed(consumer, 2)
        await asyncio.sleep(0.1)
        assert active(consumer) is False
        assert told == [SessionEvent.BEGAN, SessionEvent.LOST, SessionEvent.INACTIVE, SessionEvent.BEGAN]
        consumer.redeliver_nowait([MessageId(7, 0)])
        await asyncio.sleep(0.1)
        assert made.broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES") == []


@virtual_time
async def test_the_end_of_a_topic_is_known() -> None:
    """The end of a terminated topic is noted; the consumer stays."""
    async with consuming() as made:
        made.topic.is_terminated = True
        consumer = await made.open()
        await asyncio.sleep(0.1)
        assert consumer.has_ended
        assert consumer.is_connected
