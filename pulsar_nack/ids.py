"""Ids of messages: ``Position`` within a topic, ``MessageId`` as clients have it.

Their bytes are ``MessageIdData`` of Pulsar's binary protocol: seven numeric fields, read and written without a protobuf
runtime. The core does not depend on protobuf, and this one message needs only varints and one nested message. Field
numbers: ledgerId 1, entryId 2, partition 3, batch_index 4, ack_set 5 (skipped), batch_size 6, first_chunk_message_id 7.
Negative int32 values take ten bytes, as protobuf writes them; when read they are cut to their lowest 32 bits, as
protobuf reads them. A first chunk that is chunked itself is refused, so that no input can nest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Self, TypeGuard, cast

from ._check import INT64_MAX
from ._varint import read_varint, write_varint
from .errors import InvalidArgumentError

__all__ = ["MessageId", "Position"]

_INT32_MAX: Final = 2**31 - 1
_MAX_CHUNKS: Final = 1_000_000
_MASK64: Final = 2**64 - 1
# the numbers of fields in the wire form, and of its kinds of values
_LEDGER: Final = 1
_ENTRY: Final = 2
_PARTITION: Final = 3
_BATCH_INDEX: Final = 4
_BATCH_SIZE: Final = 6
_FIRST_CHUNK: Final = 7
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5


class Position(NamedTuple):
    """An entry of a ledger, ordered as the broker stores them. Entry -1 is before the first entry."""

    ledger: int
    entry: int


class _Identity(NamedTuple):
    ledger: int
    entry: int
    partition: int
    batch_index: int


class MessageId(_Identity):
    """The id of one message: frozen; equality, hash and order by its first four fields.

    It is a tuple of these four, so that sets and dicts of ids are as fast as those of tuples. The other fields, which a
    transport needs (``batch_size``, ``topic``, the parts of a chunked message), are not compared.

    :param ledger: ledger id, -1 only for "earliest"
    :param entry: entry id in the ledger
    :param partition: partition of the topic, -1 for a topic without partitions
    :param batch_index: index in the entry's batch, -1 for an entry that is one message
    :param batch_size: number of messages in the batch, 0 if not known
    :param topic: full topic name, None if not known
    :param first_chunk: id of the first part of a chunked message (the id itself is that of the last)
    :param chunks: positions of all parts, if the transport knows them
    :raises InvalidArgumentError: names the field that is not an integer, out of range or of a wrong type
    """

    batch_size: int = 0
    topic: str | None = None
    first_chunk: MessageId | None = None
    chunks: tuple[Position, ...] = ()

    def __new__(
        cls,
        ledger: int,
        entry: int,
        partition: int = -1,
        batch_index: int = -1,
        *,
        batch_size: int = 0,
        topic: str | None = None,
        first_chunk: MessageId | None = None,
        chunks: Sequence[tuple[int, int]] = (),
    ) -> Self:
        """Check every field, and make the id."""
        _check("ledger", ledger, -1, INT64_MAX)
        _check("entry", entry, -1, INT64_MAX)
        _check("partition", partition, -1, _INT32_MAX)
        _check("batch_index", batch_index, -1, _INT32_MAX)
        _check("batch_size", batch_size, 0, _INT32_MAX)
        if topic is not None and not isinstance(topic, str):
            raise InvalidArgumentError("topic", topic, "a str or None")
        if first_chunk is not None:
            _check_first_chunk(first_chunk, ledger, entry)
        kind: type[MessageId] = cls
        if cls is MessageId and (first_chunk is not None or chunks):
            kind = _ChunkedId
        elif cls is MessageId and topic is not None:
            kind = _TopicId
        self = cast("Self", _Identity.__new__(kind, ledger, entry, partition, batch_index))
        extras = self.__dict__
        if batch_size:
            extras["batch_size"] = batch_size
        if topic is not None:
            extras["topic"] = topic
        if first_chunk is not None:
            extras["first_chunk"] = first_chunk
        if chunks:
            extras["chunks"] = _as_positions(chunks)
        return self

    @property
    def position(self) -> Position:
        """Return the position of the entry that holds the message."""
        return Position(self.ledger, self.entry)

    @property
    def is_chunked(self) -> bool:
        """Return whether the message was sent in several parts."""
        return self.first_chunk is not None or bool(self.chunks)

    @property
    def parts(self) -> tuple[Position, ...]:
        """Return the positions of all parts: one for a plain message, every chunk of a chunked one.

        If only the first part is known, the entries from it to the last are assumed to be the parts.
        """
        if self.chunks:
            return self.chunks
        if self.first_chunk is None:
            return (self.position,)
        first = self.first_chunk
        if first.ledger != self.ledger:
            return (first.position, self.position)
        return tuple(Position(self.ledger, entry) for entry in range(first.entry, self.entry + 1))

    def to_bytes(self) -> bytes:
        """Return the id in Pulsar's ``MessageIdData`` form, as the official clients serialize it (no topic).

        Fields that have their defaults are left out.
        """
        out = bytearray()
        _put(out, _LEDGER, self.ledger)
        _put(out, _ENTRY, self.entry)
        if self.partition != -1:
            _put(out, _PARTITION, self.partition)
        if self.batch_index != -1:
            _put(out, _BATCH_INDEX, self.batch_index)
        if self.batch_size:
            _put(out, _BATCH_SIZE, self.batch_size)
        if self.first_chunk is not None:
            first = self.first_chunk.to_bytes()
            write_varint(out, _FIRST_CHUNK << 3 | _BYTES)
            write_varint(out, len(first))
            out += first
        return bytes(out)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, topic: str | None = None) -> MessageId:
        """Read what :meth:`to_bytes` or an official client's ``serialize()`` wrote. Unknown fields are skipped.

        :raises InvalidArgumentError: the bytes are not a message id: they are truncated, lack the ledger or the entry,
            or have a first chunk that is chunked itself
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidArgumentError("data", data, "the bytes of a message id")
        data = bytes(data)
        try:
            numbers, first = _fields(data)
            first_numbers, nested = ({}, None) if first is None else _fields(first)
        except (IndexError, ValueError):
            raise InvalidArgumentError("data", data, "the bytes of a message id") from None
        if nested is not None:
            raise InvalidArgumentError("data", first, "a first chunk that is not chunked itself")
        first_chunk = None if first is None else _id_of(first, first_numbers, topic)
        return _id_of(data, numbers, topic, first_chunk)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"MessageId is frozen: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"MessageId is frozen: cannot delete {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._maker(), tuple(self), self.__dict__)

    def _replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, and check it like a new id."""
        return self._maker()(**{**self._asdict(), **self.__dict__, **changes})

    __replace__ = _replace

    def _maker(self) -> type[Self]:
        """Return the class that makes copies: the public one, which chooses the private one to use."""
        return type(self)

    def __repr__(self) -> str:
        fields = [str(self.ledger), str(self.entry)]
        if self.partition != -1:
            fields.append(f"partition={self.partition}")
        if self.batch_index != -1:
            fields.append(f"batch_index={self.batch_index}")
        fields.extend(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"MessageId({', '.join(fields)})"

    __str__ = __repr__


class _ChunkedId(MessageId):
    """The id of a chunked message; its type shows that four numbers do not suffice to rebuild it."""

    is_chunked = True

    def _maker(self) -> type[MessageId]:  # type: ignore[override]
        return MessageId


class _TopicId(MessageId):
    """An id that has a topic and no chunks; its type shows that four numbers do not suffice to rebuild it."""

    is_chunked = False

    def _maker(self) -> type[MessageId]:  # type: ignore[override]
        return MessageId


_share_extras: Callable[[MessageId, dict[str, Any]], None] = MessageId.__dict__["__dict__"].__set__


def _delivered_id(identity: tuple[int, int, int, int], extras: dict[str, Any]) -> MessageId:
    """Make the id of a message from a broker in a third of the time, without checks of what cannot be wrong.

    :param identity: ledger, entry, partition, batch index; the first two not negative, like all numbers of the protocol
    :param extras: the topic, and the batch size if known; all ids that get the same dict share it, which makes them
        three times smaller
    """
    if (identity[0] | identity[1]) >> 63:
        return MessageId(*identity, **extras)  # raises, and names the field
    made = tuple.__new__(_TopicId, identity)
    _share_extras(made, extras)
    return made


def _merge_ids(one: MessageId, other: MessageId) -> MessageId:
    """Merge two equal ids: return one with the chunks, topic and batch size that either of them has."""
    best = max(one, other, key=lambda known: (len(known.chunks), known.first_chunk is not None))
    extras = {name: value for known in (other, one) for name, value in known.__dict__.items()}
    missing = {name: extras[name] for name in ("topic", "batch_size") if extras.get(name) != best.__dict__.get(name)}
    return best._replace(**missing) if missing else best


def _java_text(message_id: MessageId) -> str:
    """Return an id as the Java client writes it: ``ledger:entry:partition``, and the batch index if there is one."""
    return ":".join(map(str, message_id[: 4 if message_id.batch_index >= 0 else 3]))


def _is_message_id(position: object) -> TypeGuard[MessageId]:
    """Return whether this is the id of a message, rather than of an end of a topic (earliest, latest) or a time."""
    return isinstance(position, MessageId) and 0 <= position.entry < INT64_MAX


def _check_stored(value: object, field: str) -> None:
    """Raise unless ``value`` is the id of a stored message."""
    if not isinstance(value, MessageId):
        raise InvalidArgumentError(field, value, "a MessageId")
    if value.ledger < 0 or value.entry < 0:
        raise InvalidArgumentError(field, value, "the id of a message: ledger and entry of at least 0")


def _check_all_stored(ids: object, field: str) -> Sequence[MessageId]:
    """Return the ids as a sequence; raise unless all are ids of stored messages."""
    if isinstance(ids, MessageId):
        raise InvalidArgumentError(field, ids, "several ids; nack() takes one")
    if not isinstance(ids, Iterable):
        raise InvalidArgumentError(field, ids, "several ids")
    sequence = ids if isinstance(ids, list | tuple) else list(ids)
    for message_id in sequence:
        if type(message_id) is not MessageId or message_id[0] < 0 or message_id[1] < 0:
            _check_stored(message_id, field)
    return sequence


def _check(field: str, value: object, lowest: int, highest: int) -> None:
    if type(value) is not int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise InvalidArgumentError(field, value, "an integer")
        raise InvalidArgumentError(field, value, "a plain int (convert numpy integers with int())")
    if not lowest <= value <= highest:
        raise InvalidArgumentError(field, value, f"an integer from {lowest} to {highest}")


def _check_first_chunk(first: object, ledger: int, entry: int) -> None:
    if not isinstance(first, MessageId):
        raise InvalidArgumentError("first_chunk", first, "a MessageId or None")
    if first.is_chunked:
        raise InvalidArgumentError("first_chunk", first, "an id that is not chunked itself")
    if first.ledger == ledger and not 0 <= entry - first.entry < _MAX_CHUNKS:
        raise InvalidArgumentError("first_chunk", first, f"one of the {_MAX_CHUNKS} entries that end at {entry}")


def _as_positions(chunks: object) -> tuple[Position, ...]:
    if not isinstance(chunks, Sequence) or isinstance(chunks, str | bytes):
        raise InvalidArgumentError("chunks", chunks, "a sequence of positions")
    return tuple(_as_position(chunk, f"chunks[{index}]") for index, chunk in enumerate(chunks))


def _as_position(value: object, field: str) -> Position:
    if not isinstance(value, tuple | list) or len(value) < len(Position._fields):
        raise InvalidArgumentError(field, value, "a ledger and an entry")
    _check(field, value[0], 0, INT64_MAX)
    _check(field, value[1], 0, INT64_MAX)
    return Position(value[0], value[1])


def _rebuild(kind: type[MessageId], identity: tuple[int, int, int, int], extras: dict[str, Any]) -> MessageId:
    return kind(*identity, **extras)


# --- the wire form ----------------------------------------------------------------------------------------------------


def _id_of(data: bytes, numbers: dict[int, int], topic: str | None, first_chunk: MessageId | None = None) -> MessageId:
    if _LEDGER not in numbers or _ENTRY not in numbers:
        raise InvalidArgumentError("data", data, "a message id with a ledger and an entry")
    return MessageId(
        numbers[_LEDGER],
        numbers[_ENTRY],
        _int32(numbers.get(_PARTITION, -1)),
        _int32(numbers.get(_BATCH_INDEX, -1)),
        batch_size=max(_int32(numbers.get(_BATCH_SIZE, 0)), 0),
        topic=topic,
        first_chunk=first_chunk,
    )


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def _fields(data: bytes) -> tuple[dict[int, int], bytes | None]:
    """Read the wire form; return the numbers by their fields, and the first chunk."""
    numbers: dict[int, int] = {}
    first: bytes | None = None
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = read_varint(data, at)
            numbers[tag >> 3] = (value + 2**63) % 2**64 - 2**63
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            length, at = read_varint(data, at)
        if length is None or at + length > len(data):
            raise ValueError("a field that does not end")
        if tag >> 3 == _FIRST_CHUNK and kind == _BYTES:
            first = data[at : at + length]
        at += length
    return numbers, first


def _put(out: bytearray, field: int, value: int) -> None:
    write_varint(out, field << 3 | _VARINT)
    write_varint(out, value & _MASK64)
