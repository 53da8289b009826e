"""A ledger's state as records, and back.

A ledger of 50 000 entries takes about a millisecond at most. One that takes longer, because it has far more ranges or
many batch sets, can be encoded in a thread, from a copy that does not change meanwhile: :meth:`LedgerAcks.copy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..._check import INT64_MAX
from ...errors import CursorFormatError, InvalidArgumentError
from ...index import varint_bytes
from ._batches import batches_size, decode_batches, encode_batches
from ._entries import MAX_ACKED, decode_entries, encode_entries, entries_size
from ._ledger_acks import LedgerAcks
from ._parts import empty_record, join_parts, split_body, split_size
from ._protobuf import LEDGER, RecordKind, messages, parse

MAX_RECORD_BYTES: Final = 5 << 20
"""The largest record that is written: what bookkeepers take by default."""
_POSITION: Final = 13
"""Bytes of "ledger 0, entry -1": a negative number takes ten."""
_MARK: Final = 1 + 1 + (1 + 1 + len(LEDGER)) + 1
"""Bytes of the property that marks a ledger's state, but for the ledger."""


def encode_ledger(ledger: int, state: LedgerAcks, *, limit: int = MAX_RECORD_BYTES) -> list[bytes]:
    """Return the records of a ledger's state: one, or several where one would be longer than the limit.

    :raises InvalidArgumentError: no ledger id, a limit that is too low, or more entries than can be read
    :raises MissingExtraError: protobuf is not installed
    """
    if not 0 <= ledger <= INT64_MAX:
        raise InvalidArgumentError("ledger", ledger, "a ledger, 0 to 2**63 - 1")
    if len(state.ranges) > MAX_ACKED:
        raise InvalidArgumentError("state", state, f"at most {MAX_ACKED} acknowledged entries")

    def envelope() -> Any:
        info = empty_record()
        info.properties.add(name=LEDGER, value=ledger)
        return info

    return split_body(b"".join(encode_body(state)), limit, last=envelope, others=envelope)


def encode_body(state: LedgerAcks) -> Iterator[bytes]:
    """Yield the parts of a ledger's LedgerBody; each takes some milliseconds at most."""
    yield from encode_entries(state.ranges)
    yield from encode_batches(state.batches)


def decode_ledger(records: Sequence[bytes]) -> tuple[int, LedgerAcks]:
    """Return the ledger and its state that some records are, all of them, in order.

    Time and memory are bounded by the records' length, and by some MB.

    :raises CursorFormatError: they are something else, are not complete, or contradict themselves
    :raises MissingExtraError: protobuf is not installed
    """
    joined, _, ledger = join_parts(records, RecordKind.LEDGER, RecordKind.LEDGER)
    body = parse(messages().LedgerBody(), joined, RecordKind.LEDGER.value)
    return ledger, LedgerAcks(decode_entries(body), decode_batches(body))


def decode_state(ledger: int, records: Sequence[bytes]) -> LedgerAcks:
    """Return the state of a ledger.

    :raises CursorFormatError: the records cannot be read, or are another ledger's
    """
    found, acks = decode_ledger(records)
    if found != ledger:
        raise CursorFormatError("a ledger's state", f"it is that of ledger {found}, not of {ledger}")
    return acks


def ledger_size(state: LedgerAcks, ledger: int, *, limit: int = MAX_RECORD_BYTES) -> int:
    """Return how many bytes the records of a ledger's state would take; exact but for some bytes in 1 024 batch sets.

    It is found from the bitmap, without encoding, whenever the ledger has changed. O(bytes of the bitmaps): some
    microseconds for a ledger of 50 000 entries.
    """
    body = entries_size(state.ranges) + batches_size(state.batches)
    return split_size(body, _POSITION + _MARK + varint_bytes(ledger), limit)
