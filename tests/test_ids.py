"""Positions and message ids: frozen, compared by four fields, checked when created."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest

from pulsar_nack import InvalidArgumentError, MessageId, Position
from pulsar_nack.ids import _TopicId
from tests.for_each import for_each

FULL = MessageId(
    3,
    7,
    2,
    1,
    batch_size=4,
    topic="persistent://a/b/c-partition-2",
    first_chunk=MessageId(3, 5, 2),
    chunks=[(3, 5), (3, 7)],
)


def test_defaults() -> None:
    """An id of ledger and entry has no partition, no batch and no topic."""
    message_id = MessageId(3, 7)
    assert (message_id.ledger, message_id.entry, message_id.partition, message_id.batch_index) == (3, 7, -1, -1)
    assert (message_id.batch_size, message_id.topic, message_id.first_chunk, message_id.chunks) == (0, None, None, ())
    assert message_id.position == Position(3, 7)
    assert not message_id.is_chunked


@for_each("other", [MessageId(4, 7, 2, 1), MessageId(3, 8, 2, 1), MessageId(3, 7, 3, 1), MessageId(3, 7, 2)])
def test_equality_is_by_the_first_four(other: MessageId) -> None:
    """Ids are equal when the first four fields are; other fields are not compared."""
    bare = MessageId(3, 7, 2, 1)
    assert bare == FULL
    assert hash(bare) == hash(FULL)
    assert len({bare, FULL, other}) == 2
    assert other != FULL


def test_order_is_by_the_first_four() -> None:
    """Ids sort by ledger, then entry, then partition, then batch index."""
    ordered = [
        MessageId(1, 9, 5, 5),
        MessageId(2, -1),
        MessageId(2, 0),
        MessageId(2, 1, -1, 3),
        MessageId(2, 1, 0, -1),
        MessageId(2, 1, 0, 0, topic="a"),
        MessageId(2, 1, 0, 1),
        MessageId(2**40, 0),
    ]
    shuffled = random.Random(1).sample(ordered, len(ordered))
    assert sorted(shuffled) == ordered
    assert max(shuffled) is ordered[-1]


@for_each("field", ["ledger", "entry", "batch_index", "topic", "batch_size", "chunks", "anything"])
def test_is_frozen(field: str) -> None:
    """No field can be set or deleted, the fields that are not compared included."""
    with pytest.raises(AttributeError, match="frozen"):
        setattr(FULL, field, 1)
    with pytest.raises(AttributeError, match="frozen"):
        delattr(FULL, field)


def test_copies() -> None:
    """A copy, by pickle too, is an equal id with every field."""
    pickled = [pickle.dumps(FULL, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in (*map(pickle.loads, pickled), copy.copy(FULL), copy.deepcopy(FULL), FULL._replace()):
        assert type(again) is type(FULL)
        assert (again, vars(again), repr(again)) == (FULL, vars(FULL), repr(FULL))


def test_replace_keeps_and_checks() -> None:
    """Replacing a field keeps the others, the topic too, and checks the new value."""
    other = FULL._replace(batch_index=3, topic="t")
    assert (other.batch_index, other.topic, other.batch_size, other.partition) == (3, "t", 4, 2)
    with pytest.raises(InvalidArgumentError, match="batch_index"):
        FULL._replace(batch_index=-2)


def test_chunked_ids_and_those_with_a_topic_have_types() -> None:
    """The type alone distinguishes plain ids, those with a topic, and chunked ones, however they were made."""
    named = FULL._replace(first_chunk=None, chunks=())
    plain = named._replace(topic=None)
    assert (type(plain), type(named)) == (MessageId, _TopicId)
    assert type(pickle.loads(pickle.dumps(plain))) is MessageId
    assert type(pickle.loads(pickle.dumps(named))) is type(copy.copy(named)) is _TopicId
    for chunked in (FULL, plain._replace(chunks=[(3, 1)]), MessageId(3, 7, first_chunk=MessageId(3, 5))):
        assert isinstance(chunked, MessageId)
        assert type(chunked) not in {MessageId, _TopicId}
        assert type(copy.copy(chunked)) is type(chunked)


def test_repr() -> None:
    """The repr shows what differs from the defaults, and evaluates to the id."""
    assert repr(MessageId(3, 7)) == str(MessageId(3, 7)) == "MessageId(3, 7)"
    assert repr(MessageId(3, 7, 2, 1, batch_size=4, topic="t")) == (
        "MessageId(3, 7, partition=2, batch_index=1, batch_size=4, topic='t')"
    )
    assert vars(eval(repr(FULL))) == vars(FULL)


WRONG: dict[str, list[Any]] = {
    "ledger": [-2, 2**63, 1.0, "1", None, True],
    "entry": [-2, 10**400, float("nan")],
    "partition": [-2, 2**31],
    "batch_index": [-2, 2**31],
    "batch_size": [-1, False],
    "topic": [b"bytes", 5],
    "first_chunk": [(3, 5), MessageId(3, 8), MessageId(3, 5, first_chunk=MessageId(3, 4))],
    "chunks": [5, "ab", [(3,)], [(3, -1)], [(3, 1), 7]],
}


@for_each(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_wrong_fields(field: str, value: object) -> None:
    """A wrong value is refused with the field's name and the value."""
    fields: dict[str, Any] = {"ledger": 3, "entry": 7, field: value}
    with pytest.raises(InvalidArgumentError) as caught:
        MessageId(**fields)
    assert caught.value.field.split("[")[0] == field
    assert str(caught.value).startswith(field)


def test_numpy_integers_are_named() -> None:
    """An integer of another type is refused with a hint how to convert it."""

    class Int64:
        def __index__(self) -> int:
            return 3

    wrong: Any = Int64()
    with pytest.raises(InvalidArgumentError, match=r"ledger: .*int\(\)"):
        MessageId(wrong, 1)


def test_limits_are_good() -> None:
    """The lowest and highest ids of the wire form are ids."""
    assert MessageId(-1, -1) < MessageId(2**63 - 1, 2**63 - 1, 2**31 - 1, 2**31 - 1)


def test_parts() -> None:
    """A plain message is one entry, whatever its batch index; chunks that the transport knows are returned as is."""
    assert MessageId(3, 7, 2, 1).parts == (Position(3, 7),)
    from_json: Any = [7, 3]
    message_id = MessageId(7, 3, chunks=[(7, 1), MessageId(7, 2).position, from_json])
    assert message_id.parts == (Position(7, 1), Position(7, 2), Position(7, 3))
    assert all(type(part) is Position for part in message_id.parts)
    assert message_id.is_chunked


def test_parts_from_the_first() -> None:
    """N13a: if only the first chunk is known, those up to the last follow it; in two ledgers only these two are."""
    message_id = MessageId(7, 3, first_chunk=MessageId(7, 1))
    assert message_id.parts == (Position(7, 1), Position(7, 2), Position(7, 3))
    assert message_id.is_chunked
    assert MessageId(8, 0, first_chunk=MessageId(7, 9)).parts == (Position(7, 9), Position(8, 0))


def test_position() -> None:
    """A position is a tuple, ordered by ledger and entry."""
    assert Position(1, 9) < Position(2, -1) < Position(2, 0)
    assert Position(2, 0) == (2, 0)
