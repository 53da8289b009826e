"""The memory of acknowledgements: it decides as if it forgot nothing, and does not grow with a consumer's age."""

from __future__ import annotations

import random

import pytest

from pulsar_nack import MessageId
from pulsar_nack.consumer import _ack_memory
from pulsar_nack.consumer._ack_memory import AckMemory
from pulsar_nack.consumer._id_relations import Place
from tests.for_each import for_each

MEMORY_MS = 1_000
NEVER = 1 << 60
PLACES: list[Place] = [("t", 0), ("t", 1), ("u", -1)]


def new_memory(*, compacts: bool = True) -> AckMemory:
    """Return an empty memory; one that does not compact keeps the stamp of each entry for ever."""
    memory = AckMemory(MEMORY_MS, keeps_members=True)
    if not compacts:
        memory.compact_at = NEVER
    return memory


def ack(memory: AckMemory, message_id: MessageId, now_ms: int) -> None:
    """Note an acknowledgement as the table of messages does."""
    memory.entries[message_id[:3]] = (memory.turn, now_ms)
    if len(memory.entries) >= memory.compact_at:
        memory.compact(now_ms)


def meaning(memory: AckMemory, message_id: MessageId, now_ms: int) -> str:
    """Return what a delivery counts as."""
    replayed = memory.replayed
    if not memory.judge(message_id, now_ms):
        return "ack again"
    return "replay" if memory.replayed > replayed else "deliver"


@for_each("places", [1, 3])
@for_each("seed", range(10))
def test_it_decides_as_if_it_forgot_nothing(monkeypatch: pytest.MonkeyPatch, places: int, seed: int) -> None:
    """With random acknowledgements and ends of sessions, duplicates and replays are recognized exactly.

    What counts as acknowledged is exact for one topic. If the broker closes sessions of several topics, an old
    acknowledgement may be forgotten with the session of another one, and none is remembered for too long.
    """
    monkeypatch.setattr(_ack_memory, "COMPACT_STEP", 5)
    rng, now_ms = random.Random(seed), 0
    memories = new_memory(), new_memory(compacts=False)
    memories[0].compact_at = 5
    ids = [
        MessageId(place + 1, entry, PLACES[place][1], topic=PLACES[place][0])
        for place in range(places)
        for entry in range(20)
    ]

    moved = replayed = 0
    for _ in range(600):
        message_id, place = rng.choice(ids), rng.choice(PLACES[:places])
        kind = rng.random()
        if kind < 0.4:
            for memory in memories:
                ack(memory, message_id, now_ms)
        elif kind < 0.43:
            for memory in memories:
                memory.session_closed(place)
        elif kind < 0.46:
            for memory in memories:
                memory.session_lost(place, now_ms)
        elif kind < 0.5:
            memories[0].compact(now_ms)
        elif kind < 0.7:
            now_ms += rng.choice([1, 30, 100, MEMORY_MS])
        else:
            verdicts = [meaning(memory, message_id, now_ms) for memory in memories]
            assert verdicts[0] == verdicts[1]
            replayed += verdicts[0] == "replay"
        for each in rng.sample(ids, 5):
            is_hidden = [memory.hides(each, now_ms) for memory in memories]
            assert is_hidden[0] == is_hidden[1]
            is_acked, is_acked_in_all = [memory.is_acked(each) for memory in memories]
            assert is_acked == is_acked_in_all if places == 1 else is_acked <= is_acked_in_all
        moved = max(moved, memories[0].count_unstamped())
    assert moved
    assert replayed


def test_it_does_not_grow_with_the_age_of_a_consumer() -> None:
    """U19: acknowledgements of hours, one of three messages being here, take no more than those of the last seconds."""
    memory, rng = new_memory(), random.Random(1)
    for number in range(60_000):
        now_ms = 10 * number
        if rng.random() < 1 / 3:
            ack(memory, MessageId(7 + number // 20_000, number % 20_000), now_ms)
        assert len(memory.entries) <= _ack_memory.COMPACT_STEP + MEMORY_MS // 10
    assert memory.count_unstamped() > 15_000
    assert sum(ledger.memory_bytes for ledger in memory._since.values()) < 30_000
    first = next(entry for entry in range(20_000) if memory.unstamped((7, entry, -1)) is not None)
    assert meaning(memory, MessageId(7, first), now_ms) == "replay"


def test_it_is_bounded_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many acknowledgements in one moment, many ledgers, and an entry that no broker has, take bounded memory."""
    monkeypatch.setattr(_ack_memory, "MAX_STAMPED", 2_000)
    monkeypatch.setattr(_ack_memory, "MAX_UNSTAMPED", 5_000)
    monkeypatch.setattr(_ack_memory, "MAX_LEDGERS", 50)
    memory = new_memory()
    for number in range(20_000):
        ack(memory, MessageId(number // 200, number * number), number // 10)
        assert len(memory.entries) <= 2_000 + _ack_memory.COMPACT_STEP
        assert memory.count_unstamped() <= 5_000
    assert memory.hides(MessageId(99, 19_999 * 19_999), 2_000)
    assert not memory.is_acked(MessageId(0, 0))
    ack(memory, MessageId(1, -1), 2_000)
    for number in range(3_000):
        ack(memory, MessageId(1_000 + number, 2**63 - 1), 9_000)
    memory.compact(99_000)
    assert memory.is_acked(MessageId(3_999, 2**63 - 1))
    assert not memory.is_acked(MessageId(1, -1))
    memory.clear()
    assert memory.count_unstamped() == len(memory.entries) == 0


def test_what_is_forgotten_proves_no_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more acknowledgements than ``ack_memory`` holds, an old one's message is delivered like a new one."""
    monkeypatch.setattr(_ack_memory, "MAX_STAMPED", 2_000)
    memory = new_memory()
    for entry in range(0, 10_000, 2_500):  # one call of a port may settle many
        memory.entries.update({(1, entry + number, -1): (1, 10) for number in range(2_500)})
        memory.compact(10)
    assert len(memory.entries) == 2_000
    assert meaning(memory, MessageId(1, 0), 11) == "deliver"
    assert meaning(memory, MessageId(1, 9_999), 11) == "ack again"


def test_closes_join_bitmaps() -> None:
    """O1: after two closes in one ledger, with small and with large entries, all acknowledged messages are replays."""
    memory = new_memory()
    for start in (0, 1, 2**40):
        for number in range(1_100):
            ack(memory, MessageId(5, start + 3 * number), 0)
        memory.compact(MEMORY_MS)
        assert len(memory.entries) == 0
        memory.session_closed((None, -1))
    assert memory.count_unstamped() == 3_300
    for entry in (0, 1, 2**40 + 3_297):
        assert meaning(memory, MessageId(5, entry), MEMORY_MS) == "replay"
    assert meaning(memory, MessageId(5, 2), MEMORY_MS) == "deliver"
