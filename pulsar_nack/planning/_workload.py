"""The workload that a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .._check import check_integer
from .._delays import delay_seconds
from ..errors import InvalidArgumentError

_MAX_RATE: Final = 1e9
_MAX_PENDING: Final = 1e12
_MAX_ENTRIES: Final = 2**40
_MAX_BATCH: Final = 65_536


class Kind(StrEnum):
    """Why messages wait: for redelivery after a nack, or for delayed delivery."""

    NACK = "nack"
    DELAYED = "delayed"


@dataclass(frozen=True, slots=True)
class Workload:
    """A steady stream of which a random share is nacked or delayed, in order and with one delay.

    :param kind: why messages wait
    :param rate: messages a second
    :param delay: seconds that a nacked or delayed message waits
    :param share: the share of messages that wait, above 0 and at most 1
    :param entries_per_ledger: entries in a ledger
    :param batch_size: messages in an entry; 1 for delayed messages, which Pulsar's producers do not batch
    :raises InvalidArgumentError: names the parameter
    """

    kind: Kind = Kind.NACK
    rate: float = 10_000
    delay: float = 60
    share: float = 1
    entries_per_ledger: int = 50_000
    batch_size: int = 1

    def __post_init__(self) -> None:
        if self.kind not in set(Kind):
            raise InvalidArgumentError("kind", self.kind, "nack or delayed")
        _check_number("rate", self.rate, _MAX_RATE)
        if not delay_seconds(self.delay) > 0:
            raise InvalidArgumentError("delay", self.delay, "more than 0 seconds")
        _check_number("share", self.share, 1)
        check_integer("entries_per_ledger", self.entries_per_ledger, 1, _MAX_ENTRIES)
        check_integer("batch_size", self.batch_size, 1, _MAX_BATCH)
        if self.kind == Kind.DELAYED and self.batch_size > 1:
            raise InvalidArgumentError("batch_size", self.batch_size, "1: delayed messages are not batched")
        if self.pending > _MAX_PENDING:
            raise InvalidArgumentError("rate", self.rate, "no more than a million million messages that wait at once")

    @property
    def pending(self) -> float:
        """Return the number of messages that wait at the same time."""
        return self.rate * self.share * self.delay

    @property
    def entries(self) -> float:
        """Return the number of entries that are published while a message waits."""
        return self.rate * self.delay / self.batch_size

    @property
    def pending_entries(self) -> float:
        """Return the number of entries with at least one message that waits."""
        return self.entries * (1 - (1 - self.share) ** self.batch_size)


def _check_number(field: str, value: object, maximum: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= maximum:  # false for NaN too
        raise InvalidArgumentError(field, value, f"a number above 0 and at most {maximum:g}")
