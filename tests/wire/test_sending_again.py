"""What producers send again, on a scripted broker: whole messages, divided batches, and nothing that is stored."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pulsar_nack import BrokerError, InvalidArgumentError, MessageId
from pulsar_nack.errors import BrokerRefusedError, RequestTimeoutError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._producer._producer import Producer
from pulsar_nack.wire._protocol._entries import unpack
from tests.for_each import for_each
from tests.tiers import seeds
from tests.wire.consuming import TOPIC
from tests.wire.fake_broker import Answer, Call, as_usual, carried_out_then_cut, cut, in_turn, later, refuse, silence
from tests.wire.frames import decode_entry, messages_of
from tests.wire.producing import Made, producing

HAD = MessageId(-1, -1)
PART = 1_024


def payload(number: int, parts: int = 3) -> bytes:
    """Return a payload that takes ``count`` chunks."""
    return b"%04d" % number * (parts * 230)


async def sent(producer: Producer, numbers: range, *, large: bool = False) -> list[MessageId | BaseException]:
    """Send numbers as messages with these sequence ids, and return their ids or errors."""
    data = payload if large else b"%d".__mod__
    sending = (producer.send(data(number), sequence_id=number) for number in numbers)
    return await asyncio.gather(*sending, return_exceptions=True)


async def sent_before(made: Made, numbers: range, **options: Any) -> None:
    """Send numbers with an earlier producer named ``import``, to a broker that deduplicates."""
    made.broker.deduplicates = True
    producer = await made.open(name="import", **options)
    await sent(producer, numbers)
    await producer.aclose()


def parts(made: Made) -> dict[str, str]:
    """Return the numbers of the chunks that the topic has of each message, in order."""
    found: dict[str, str] = {}
    for metadata in made.metadata():
        found[metadata.uuid] = found.get(metadata.uuid, "") + str(metadata.chunk_id)
    return found


def is_whole(held: str, count: int = 3) -> bool:
    """Return whether the chunks are those of one message: begun again at any time, and complete at the end."""
    whole = "".join(map(str, range(count)))
    return held.endswith(whole) and all(
        whole.startswith(piece) for piece in ("0" + rest for rest in held.split("0")[1:])
    )


def unload(call: Call) -> None:
    """Carry out received commands, and unload the topic afterwards."""
    as_usual(call)
    call.broker.move(TOPIC, call.broker.url)


def without_answer(answer: Answer) -> Answer:
    """Carry out a command without an answer."""

    def answer_nothing(call: Call) -> None:
        call.reply = lambda *_args, **_fields: None  # type: ignore[method-assign]
        answer(call)

    return answer_nothing


def hang_up(call: Call) -> None:
    """End the connection; earlier answers still arrive."""
    call.link.transport.hang_up()


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"batch_by_key": True}], ids=["", "zlib", "by key"])
@virtual_time
async def test_a_producer_that_begins_before_where_it_was(options: dict[str, Any]) -> None:
    """O10: no batch holds ids on both sides of the broker's last one: new messages are stored, with real ids."""
    async with producing() as made:
        await sent_before(made, range(10), batching=True)
        second = await made.open(name="import", batching=True, **options)
        assert second.last_sequence_id == 9
        ids = await sent(second, range(5, 15))
        assert made.stored() == [b"%d" % number for number in range(15)]
        assert [isinstance(each, MessageId) and each.ledger for each in ids] == [-1] * 5 + [7] * 5
        assert second.last_sequence_id == 14


@virtual_time
async def test_ids_that_the_producer_gives_itself_are_divided_too() -> None:
    """O10: with batches by key, and ids that begin below the broker's last one, each message is stored once."""
    async with producing() as made:
        await sent_before(made, range(10), batching=True)
        second = await made.open(name="import", batching=True, batch_by_key=True, initial_sequence_id=5)
        ids = await asyncio.gather(*(second.send(b"%d" % number, key=f"k{number % 2}") for number in range(5, 15)))
        assert [metadata.sequence_id for metadata in made.metadata()] == [0, 10]
        assert [each.ledger for each in ids] == [-1, 7] * 5  # those of the first key had the ids 5 to 9
        assert made.stored()[10:] == [b"6", b"8", b"10", b"12", b"14"]


@virtual_time
async def test_one_message_that_is_left_of_a_batch() -> None:
    """O10: a single message on either side of the broker's last id is sent without a batch."""
    async with producing() as made:
        await sent_before(made, range(1))
        second = await made.open(name="import", batching=True)
        assert await sent(second, range(2)) == [HAD, MessageId(7, 1)]
        assert made.stored() == [b"0", b"1"]


@virtual_time
async def test_a_reconnect_that_reports_more() -> None:
    """O10: a batch is divided when it is sent, by the broker's last id then, even inside it."""
    async with producing() as made:
        made.broker.deduplicates = True
        producer = await made.open(name="import", batching=True, batch_max_messages=10)

        def other_half_is_there(call: Call) -> None:
            made.topic.last_sequence_ids["import"] = 4
            cut(call)

        made.broker.next("SEND", other_half_is_there)
        ids = await sent(producer, range(10))
        assert [isinstance(each, MessageId) and each.ledger for each in ids] == [-1] * 5 + [7] * 5
        assert made.stored() == [b"%d" % number for number in range(5, 10)]


def _then_allows(made: Made, most: int, *, received: int = -1) -> Answer:
    """Receive the messages up to an id, then break the connection; the next one allows smaller messages only."""

    def answer(call: Call) -> None:
        made.broker.max_message_bytes = most
        made.topic.last_sequence_ids["import"] = received
        cut(call)

    return answer


def _strict(made: Made) -> Answer:
    """Carry out what the broker's limit allows, and break the connection at anything larger, as brokers do."""

    def answer(call: Call) -> None:
        (as_usual if len(call.rest) <= made.broker.max_message_bytes + 10 * 1024 else cut)(call)

    return answer


@pytest.mark.parametrize("compression", ["none", "zlib"])
@pytest.mark.parametrize("received", [-1, 3, 5])
@virtual_time
async def test_a_batch_for_a_broker_that_allows_less(received: int, compression: str) -> None:
    """O10: only messages that are now too large fail, with the error of a first attempt; all others are stored."""
    loop_errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    chance = random.Random(1)
    sizes = [100, 3_000, 4_000, 50, 5_000, 4_000, 100, 20_000, 10, 4_096]
    data = [chance.randbytes(size) for size in sizes]
    async with producing() as made:
        made.broker.deduplicates = True
        producer = await made.open(name="import", batching=True, batch_max_messages=10, compression=compression)
        made.broker.always("SEND", _strict(made))
        made.broker.next("SEND", _then_allows(made, 4_096 if compression == "none" else 4_200, received=received))
        ids = await asyncio.gather(*map(producer.send, data), return_exceptions=True)
        later = await producer.send(b"later")
        assert (producer.pending, loop_errors) == (0, [])
        assert isinstance(later, MessageId)
        for number, each in enumerate(ids):
            if sizes[number] > 4_096 and number <= received:
                assert isinstance(each, BrokerError)
                assert f"does not say whether message {number} is stored" in str(each)
            elif sizes[number] > 4_096:
                assert isinstance(each, InvalidArgumentError)
                assert "the limit of the broker" in str(each)
            else:
                assert isinstance(each, MessageId)
                assert (each.ledger == -1) == (number <= received)
        assert made.stored() == [*(each for each in data[received + 1 :] if len(each) <= 4_096), b"later"]


@virtual_time
async def test_a_batch_of_messages_with_large_properties() -> None:
    """O10: a batch that no consumer reads by default can still be divided."""
    large = {"name": "x" * 300_000}
    async with producing() as made:
        made.broker.deduplicates = True
        producer = await made.open(name="import", batching=True, batch_max_messages=4, batch_max_bytes=4 << 20)
        made.broker.next("SEND", _then_allows(made, 5 << 20, received=1))
        ids = await asyncio.gather(*(producer.send(b"%d" % number, properties=large) for number in range(4)))
        assert [each.ledger for each in ids] == [-1, -1, 7, 7]


@virtual_time
async def test_single_messages_for_a_broker_that_allows_less() -> None:
    """O10: one that is too large now fails, with chunking it is sent in chunks; those around it are stored."""
    data = [b"first", random.Random(1).randbytes(20_000), b"last"]
    for chunking in (False, True):
        async with producing() as made:
            producer = await made.open(name="import", chunking=chunking)
            made.broker.always("SEND", _strict(made))
            made.broker.next("SEND", _then_allows(made, 4_096))
            first, large, last = await asyncio.gather(*map(producer.send, data), return_exceptions=True)
            assert isinstance(first, MessageId)
            assert isinstance(last, MessageId)
            if chunking:
                assert isinstance(large, MessageId)
                assert len(large.parts) == 5
                assert b"".join(decode_entry(rest).payload for rest in made.rests()[1:-1]) == data[1]
            else:
                assert isinstance(large, InvalidArgumentError)
                assert made.stored() == [b"first", b"last"]


@pytest.mark.parametrize("compression", ["none", "zlib"])
@virtual_time
async def test_chunks_for_a_broker_that_allows_less(compression: str) -> None:
    """O45: they are cut again; the message is whole, and its id names the new ones."""
    data = random.Random(1).randbytes(20_000)
    async with producing() as made:
        made.broker.max_message_bytes = 10_000
        producer = await made.open(chunking=True, compression=compression)
        made.broker.always("SEND", _strict(made))
        made.broker.next("SEND", as_usual, _then_allows(made, 4_096))
        id_, after = await asyncio.gather(*map(producer.send, (data, b"after")))
        entries = [decode_entry(rest) for rest in made.rests()]
        assert entries[0].metadata.num_chunks_from_msg == 3  # one of the first cut, which is never completed
        whole = entries[1:-1]
        assert [each.entry for each in id_.parts] == list(range(1, after.entry))
        assert unpack(whole[0].metadata, b"".join(each.payload for each in whole), 1 << 20) == data


@pytest.mark.parametrize("seed", seeds(range(20)))
@virtual_time
async def test_programs_that_end_anywhere(seed: int) -> None:
    """O10, O45: a program restarts again and again a little before its last message: each message is stored once."""
    chance = random.Random(seed)
    ways: list[dict[str, Any]] = [
        {},
        {"batching": True},
        {"batching": True, "batch_by_key": True},
        {"chunking": True, "chunk_max_bytes": PART},
    ]
    async with producing(backoff_minimum=0.01, backoff_maximum=0.1) as made:
        made.broker.deduplicates = True
        reported: dict[int, set[tuple[int, int]]] = {}
        start = 0
        while start < 40:
            options: dict[str, Any] = {"batch_max_messages": chance.randint(2, 8), **chance.choice(ways)}
            producer = await made.open(name="import", **options)
            made.broker.normally("SEND")
            answers = [as_usual, cut, carried_out_then_cut, hang_up, unload, without_answer(unload)]
            made.broker.next("SEND", *chance.choices(answers, [8, 1, 1, 1, 1, 1], k=12))
            numbers = range(start, min(start + chance.randint(1, 15), 40))
            large = chance.random() < 0.5 and "chunking" in options
            sending = [
                producer.send_nowait(
                    payload(number) if large else b"%04d" % number, sequence_id=number, key=f"k{number % 3}"
                )
                for number in numbers
            ]
            await asyncio.sleep(chance.choice([0, 0.002, 0.01, 10]))
            if chance.random() < 0.5:
                made.broker.cut()
                await asyncio.sleep(0.001)
            await producer.aclose()
            for number, each in zip(numbers, sending, strict=True):
                assert each.exception() is None
                reported.setdefault(number, set()).add((each.result().ledger, each.result().entry))
            start = max(producer.last_sequence_id + 1 - chance.randint(0, 6), 0) if numbers.stop < 40 else 40
        entries = [decode_entry(rest) for rest in made.rests()]
        last = [entry for entry in entries if entry.metadata.chunk_id == max(entry.metadata.num_chunks_from_msg - 1, 0)]
        numbers_stored = [message.metadata.sequence_id for entry in last for message in messages_of(entry)]
        assert numbers_stored == list(range(40))
        assert all(is_whole(held) for uuid, held in parts(made).items() if uuid)
        assert all(len(places - {(-1, -1)}) <= 1 for places in reported.values())


# --- chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("confirmed", range(3))
@pytest.mark.parametrize("last", [hang_up, without_answer(in_turn(as_usual, hang_up))], ids=["before", "after"])
@virtual_time
async def test_all_parts_go_again(confirmed: int, last: Answer) -> None:
    """O44: a connection breaks after some chunks were confirmed: all are sent again, under the same uuid."""
    async with producing() as made:
        producer = await made.open(chunking=True, chunk_max_bytes=PART)
        made.broker.next("SEND", *[as_usual] * confirmed, last)
        first, second = await asyncio.gather(producer.send(payload(0, 3)), producer.send(payload(1, 3)))
        assert all(is_whole(held) for held in parts(made).values()), parts(made)
        assert len(first.parts) == len(second.parts) == 3
        stored = confirmed + (last is not hang_up)
        assert first.parts == tuple((7, stored + number) for number in range(3))


@virtual_time
async def test_parts_that_wait_for_the_connection_are_part_of_a_whole_too() -> None:
    """O44: confirmed chunks are sent again if the others had not been written yet."""
    async with producing(write_buffer_bytes=1_024) as made:
        producer = await made.open(chunking=True, chunk_max_bytes=PART)
        (link,) = made.broker.links
        link.transport.stall()
        sending = asyncio.ensure_future(producer.send(payload(0, 5)))
        await asyncio.sleep(0.1)
        link.transport.go_on()
        link.transport.stall()
        await asyncio.sleep(1)
        assert len(made.rests()) == 1
        made.broker.cut()
        await sending
        (held,) = parts(made).values()
        assert held.endswith("01234")
        assert held != "01234"


@pytest.mark.parametrize("seed", seeds(range(20)))
@pytest.mark.parametrize("deduplicates", [False, True])
@virtual_time
async def test_unloads_in_the_middle(seed: int, deduplicates: bool) -> None:
    """O43, O44: chunked messages while their topic is unloaded repeatedly: all are stored whole."""
    chance = random.Random(seed)
    async with producing(backoff_minimum=0.01, backoff_maximum=0.1) as made:
        made.broker.deduplicates = deduplicates
        producer = await made.open(chunking=True, chunk_max_bytes=PART, name="p")
        answers = [as_usual, cut, carried_out_then_cut, hang_up, unload, without_answer(unload)]
        made.broker.next("SEND", *chance.choices(answers, [9, 1, 1, 1, 1, 1], k=60))
        ids = await asyncio.gather(*(producer.send(payload(number)) for number in range(20)))
        assert len(ids) == len(parts(made)) == 20
        for held in parts(made).values():
            assert is_whole(held), held
            assert not deduplicates or held.count("2") == 1, held
        for each in ids:
            assert each == HAD or len(each.parts) == 3


@virtual_time
async def test_a_broker_that_took_some_parts_for_the_message() -> None:
    """O43: chunks stored before an unload do not count as the message: the broker then accepts the last one."""
    async with producing() as made:
        made.broker.deduplicates = True
        producer = await made.open(chunking=True, chunk_max_bytes=PART)
        for _ in range(2):  # the first message of all, and one after another
            made.broker.next("SEND", as_usual, without_answer(unload))
            assert len((await producer.send(payload(0))).parts) == 3
        assert list(parts(made).values()) == ["01012", "01012"]


@for_each(("first", "known"), [(20, 9), (10, 9), (9, 8), (0, -1)])
@virtual_time
async def test_parts_alone_change_nothing_of_what_the_broker_has_had(first: int, known: int) -> None:
    """O45: a chunk stored before an unload counts as the message before it, of an earlier producer too."""
    async with producing() as made:
        await sent_before(made, range(10) if first else range(0))
        if first == 9:
            made.topic.last_sequence_ids["import"] = 8  # the last one failed, and is sent again
        producer = await made.open(name="import", chunking=True, chunk_max_bytes=PART)
        made.broker.always("PRODUCER", refuse("ServiceNotReady"))
        made.broker.next("SEND", without_answer(unload))
        sending = producer.send_nowait(payload(0), sequence_id=first)
        await asyncio.sleep(1)
        assert made.topic.last_sequence_ids.get("import", -1) == known
        made.broker.normally("PRODUCER")
        assert len((await sending).parts) == 3


@virtual_time
async def test_what_the_broker_cannot_tell_is_asked_again_and_stores_nothing() -> None:
    """O43: if a broker may have a chunked message, only its last chunk is sent, less and less often."""
    async with producing() as made:
        made.broker.deduplicates = True
        producer = await made.open(chunking=True, chunk_max_bytes=PART)
        made.broker.next("SEND", as_usual, as_usual, carried_out_then_cut, *[refuse("PersistenceError", "unsure")] * 6)
        began = made.context.loop.time()
        assert await producer.send(payload(0)) == HAD
        assert list(parts(made).values()) == ["012"]
        assert len(made.broker.commands("SEND")) == 3 + 7
        assert 3 < made.context.loop.time() - began < 25


@virtual_time
async def test_sending_again_is_bounded() -> None:
    """O43: a message that is refused temporarily is sent at growing intervals until it times out."""
    async with producing() as made:
        producer = await made.open(send_timeout=30)
        made.broker.always("SEND", refuse("PersistenceError", "not now"))
        with pytest.raises(RequestTimeoutError, match="not confirmed within 30 s; PersistenceError: not now"):
            await producer.send(b"")
        assert len(made.broker.commands("SEND")) < 12
        made.broker.normally("SEND")
        await asyncio.sleep(60)
        await producer.send(b"")


@virtual_time
async def test_a_session_in_which_something_is_confirmed_is_no_failure() -> None:
    """O43: a topic that is unloaded all the time does not slow its producer down while messages get through."""
    async with producing() as made:
        producer = await made.open()
        began = made.context.loop.time()
        for number in range(10):
            await producer.send(b"%d" % number)
            made.broker.move(TOPIC, made.broker.url)
        assert made.context.loop.time() - began < 2


# --- receipts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deduplicates", [False, True])
@virtual_time
async def test_a_receipt_that_is_missing(deduplicates: bool) -> None:
    """O43: after a receipt for n + 1 before n, n is sent again and stored, or fails; it does not count as stored."""
    async with producing() as made:
        made.broker.deduplicates = deduplicates
        producer = await made.open()
        made.broker.next("SEND", silence, as_usual)
        results = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(3)), return_exceptions=True)
        assert results[1] == MessageId(7, 0)
        if deduplicates:
            assert isinstance(results[0], BrokerError)
            assert "does not say whether message 0 is stored" in str(results[0])
            assert sorted(made.stored()) == [b"1", b"2"]
        else:
            assert set(made.stored()) == {b"0", b"1", b"2"}
            assert isinstance(results[0], MessageId)
        assert len(made.broker.commands("PRODUCER")) == 2


@pytest.mark.parametrize("which", range(3))
@virtual_time
async def test_a_part_whose_receipt_is_missing(which: int) -> None:
    """O43: receipts of other chunks do not replace lost ones: the message is sent again."""
    async with producing(request_timeout=5) as made:
        producer = await made.open(chunking=True, chunk_max_bytes=PART)
        made.broker.next("SEND", *[as_usual] * which, silence)
        first, second = await asyncio.gather(producer.send(payload(0)), producer.send(payload(1)))
        assert len(first.parts) == len(second.parts) == 3
        stored = made.metadata()
        for each in (first, second):
            assert [stored[place.entry].chunk_id for place in each.parts] == [0, 1, 2]


@virtual_time
async def test_a_broker_that_knows_no_parts() -> None:
    """O43: a broker that drops later chunks as duplicates does not have the message: `send` raises."""

    def drop(call: Call) -> None:
        call.reply(
            "SEND_RECEIPT",
            producer_id=call.body.producer_id,
            sequence_id=call.body.sequence_id,
            message_id={"ledgerId": 2**64 - 1, "entryId": 2**64 - 1},
        )

    async with producing() as made:
        producer = await made.open(chunking=True, chunk_max_bytes=PART)
        made.broker.next("SEND", as_usual, drop, drop)
        with pytest.raises(BrokerError, match="does not say whether message 0 is stored"):
            await producer.send(payload(0))
        assert (await producer.send(b"small")).entry == 1
        on_memory = await made.open("non-persistent://public/default/t", chunking=True, chunk_max_bytes=PART)
        made.broker.always("SEND", drop)  # as brokers answer there
        assert await on_memory.send(payload(0)) == HAD


@virtual_time
async def test_a_refused_batch_is_named_by_its_last_message() -> None:
    """O43: brokers name a refused batch by its highest sequence id; its messages fail at once."""

    def refuse_it(call: Call) -> None:
        call.body.sequence_id = call.body.highest_sequence_id
        refuse("NotAllowedError", "too large")(call)

    async with producing() as made:
        producer = await made.open(batching=True)
        made.broker.next("SEND", refuse_it)
        results = await sent(producer, range(5))
        assert [getattr(each, "code", None) for each in results] == ["NotAllowedError"] * 5
        assert made.context.loop.time() < 1


# --- restarts --------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_program_that_starts_again_with_parts() -> None:
    """O45: stored messages return ledger -1 and are not stored again; new ones are stored whole."""
    async with producing() as made:
        made.broker.deduplicates = True
        first = await made.open(name="import", chunking=True, chunk_max_bytes=PART)
        await sent(first, range(4), large=True)
        await first.aclose()
        before = len(made.rests())
        second = await made.open(name="import", chunking=True, chunk_max_bytes=PART)
        ids = await sent(second, range(2, 6), large=True)
        assert ids[:2] == [HAD, HAD]
        assert [len(each.parts) for each in ids[2:] if isinstance(each, MessageId)] == [3, 3]
        assert len(made.rests()) == before + 6
        assert set(parts(made).values()) == {"012"}


@pytest.mark.parametrize(
    "options", [{}, {"batching": True}, {"batching": True, "batch_by_key": True}, {"chunking": True}]
)
@virtual_time
async def test_sequence_ids_have_to_grow(options: dict[str, Any]) -> None:
    """O45: a sequence id that is not above the last one is refused at once, by name, and takes no room."""
    async with producing() as made:
        producer = await made.open(**options)
        sending = [asyncio.ensure_future(producer.send(b"", sequence_id=7)), asyncio.ensure_future(producer.send(b""))]
        await asyncio.sleep(0)
        for wrong in (0, 7, 8):
            with pytest.raises(InvalidArgumentError, match="more than 8, that of the message before") as caught:
                producer.send_nowait(b"", sequence_id=wrong)
            assert caught.value.field == "sequence_id"
        assert producer.pending == 2
        await asyncio.gather(*sending)
        await producer.send(b"", sequence_id=9)


@virtual_time
async def test_a_message_that_failed_is_sent_again_under_its_id() -> None:
    """O45: the ids of messages that failed last may be used again, in a new session if they had been sent before."""
    async with producing() as made:
        producer = await made.open(send_timeout=5, chunking=True, chunk_max_bytes=PART)
        await producer.send(b"before", sequence_id=4)
        made.broker.next("SEND", *[silence] * 9)
        failed = await sent(producer, range(5, 8), large=True)
        assert {type(each) for each in failed} == {RequestTimeoutError}
        ids = await sent(producer, range(5, 8), large=True)
        assert [len(each.parts) for each in ids if isinstance(each, MessageId)] == [3, 3, 3]
        assert len(made.broker.commands("PRODUCER")) == 2
        with pytest.raises(InvalidArgumentError):
            await producer.send(b"x" * 6_000_000, sequence_id=7)
        with pytest.raises(InvalidArgumentError, match="properties"):
            await producer.send(b"", properties={"a": "x" * 50_000}, sequence_id=8)
        await producer.send(b"", sequence_id=8)


# --- flush -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"batching": True, "batch_max_messages": 1}])
@virtual_time
async def test_flush_waits_for_all_before(options: dict[str, Any]) -> None:
    """O46: the last message is refused before the others are confirmed: `flush` waits for those, and for no later."""
    async with producing() as made:
        producer = await made.open(**options)
        made.broker.next("SEND", later(2), later(4), refuse("NotAllowedError"), later(20))
        futures = [producer.send_nowait(b"%d" % number) for number in range(3)]
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(1)
        late = producer.send_nowait(b"late")
        await flushing
        assert [future.done() for future in futures] == [True] * 3
        assert isinstance(futures[2].exception(), BrokerRefusedError)
        assert not late.done()
        assert made.context.loop.time() == pytest.approx(4, abs=0.1)
        await asyncio.gather(*futures[:2], late)


@virtual_time
async def test_flush_waits_for_those_that_wait_for_room() -> None:
    """O46: calls of `send` that wait for room are waited for, with their messages in batches."""
    async with producing() as made:
        producer = await made.open(max_pending_messages=2, batching=True, batch_delay=1_000)
        sending = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(7)]
        await asyncio.sleep(0)
        sending[-1].cancel()
        await producer.flush()
        assert [each.done() for each in sending] == [True] * 7
        assert made.stored() == [b"%d" % number for number in range(6)]
        assert made.context.loop.time() < 1


@virtual_time
async def test_flush_through_a_reconnect() -> None:
    """O46: over partitions, while one is away, with chunks; a cancelled flush leaves nothing behind."""
    async with producing() as made:
        made.broker.partitions[TOPIC] = 2
        producer = await made.open(chunking=True, chunk_max_bytes=PART)
        made.broker.next("SEND", as_usual, cut, as_usual, in_turn(as_usual, cut))
        futures = [producer.send_nowait(payload(number)) for number in range(6)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await producer.flush()
        await producer.flush()
        assert [len(future.result().parts) for future in futures] == [3] * 6
