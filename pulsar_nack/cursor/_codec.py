"""A ledger's state as records, and back; the other records of a cursor are in the modules beside.

A ledger of 50 000 entries takes about a millisecond at most. What may take longer, because it has far more ranges or
many batch sets, can be done in steps by :func:`ledger_parts`, or in a thread; both want a state that does not change
meanwhile, :meth:`LedgerAcks.copy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..errors import InvalidArgumentError
from ._batch_columns import decode_batches, encode_batches
from ._encodings import MOST_ACKED, decode_entries, encode_entries
from ._ledger_acks import LedgerAcks
from ._parts import cut, empty_record, join
from ._wire import INT64_MAX, LEDGER, Kind, messages, parse

LIMIT: Final = 5 << 20
"""The largest entry that is written, envelope included: what bookkeepers take by default."""


def encode_ledger(ledger: int, state: LedgerAcks, *, limit: int = LIMIT) -> list[bytes]:
    """Return the records of a ledger's state: one, or several where one would be longer than the limit.

    :raises InvalidArgumentError: the ledger is none, the limit is too low, or the state is beyond what can be read
    :raises MissingExtraError: protobuf is not installed
    """
    return pack_ledger(ledger, ledger_parts(state), limit=limit)


def ledger_parts(state: LedgerAcks) -> Iterator[bytes]:
    """Yield a ledger's state in steps, for :func:`pack_ledger`.

    :raises InvalidArgumentError: the state is beyond what can be read
    """
    if len(state.ranges) > MOST_ACKED:
        raise InvalidArgumentError("state", state, f"at most {MOST_ACKED} acknowledged entries")
    yield from encode_entries(state.ranges)
    yield from encode_batches(state.batches)


def pack_ledger(ledger: int, parts: Iterator[bytes] | Sequence[bytes], *, limit: int = LIMIT) -> list[bytes]:
    """Return the records of a ledger's state from all that :func:`ledger_parts` yields; errors as in encode_ledger."""
    if not 0 <= ledger <= INT64_MAX:
        raise InvalidArgumentError("ledger", ledger, "a ledger, 0 to 2**63 - 1")

    def envelope(*, is_last: bool) -> Any:
        del is_last
        info = empty_record()
        info.properties.add(name=LEDGER, value=ledger)
        return info

    return cut(b"".join(parts), envelope, limit)


def decode_ledger(records: Sequence[bytes]) -> tuple[int, LedgerAcks]:
    """Return the ledger and its state that some records are, all of them, in order.

    Time and memory are bounded by the records' length, and by some MB.

    :raises CursorFormatError: they are something else, are not complete, or contradict themselves
    :raises MissingExtraError: protobuf is not installed
    """
    joined, _, ledger = join(records, Kind.LEDGER, Kind.LEDGER)
    body = parse(messages().LedgerBody(), joined, Kind.LEDGER.value)
    return ledger, LedgerAcks(decode_entries(body), decode_batches(body))
