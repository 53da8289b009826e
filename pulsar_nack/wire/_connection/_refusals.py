"""Refusals by the broker: their errors, whether a retry may help, and their text in errors and logs."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Final

from ..._foreign import shown
from ...errors import (
    BrokerError,
    BrokerRefusedError,
    ConnectionLostError,
    PulsarNackError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from .. import _pulsar_pb2 as pb
from .._protocol._entries import text_of

_TRANSIENT: Final = frozenset(
    {"UnknownError", "MetadataError", "PersistenceError", "ServiceNotReady", "TooManyRequests"}
)
_WITH_CODES: Final = {pb.BaseCommand.GET_SCHEMA_RESPONSE, pb.BaseCommand.CONSUMER_STATS_RESPONSE}
_BUSY: Final = frozenset({"ConsumerBusy", "ProducerBusy"})


def refused(code: int, text: str, without_secrets: Callable[[str], str] = str) -> BrokerRefusedError:
    """Return the error for a code of the protocol and the broker's own words.

    :param without_secrets: replaces credentials in the broker's words
    """
    known = pb.ServerError.DESCRIPTOR.values_by_number.get(code)
    kind = TopicNotFoundError if code == pb.TopicNotFound else BrokerRefusedError
    return kind(f"ServerError {code}" if known is None else known.name, without_secrets(text_of(text)))


def refusal_of(command: pb.BaseCommand, without_secrets: Callable[[str], str] = str) -> BrokerRefusedError | None:
    """Return the error that an answer is, or None if it says yes."""
    said = _refusal_in(command)
    return None if said is None else refused(*said, without_secrets)


def _refusal_in(command: pb.BaseCommand) -> tuple[int, str] | None:
    kind = command.type
    if kind == pb.BaseCommand.ERROR:
        return command.error.error, command.error.message
    if kind == pb.BaseCommand.LOOKUP_RESPONSE:
        lookup = command.lookupTopicResponse
        return (lookup.error, lookup.message) if lookup.response == lookup.Failed else None
    if kind == pb.BaseCommand.PARTITIONED_METADATA_RESPONSE:
        metadata = command.partitionMetadataResponse
        return (metadata.error, metadata.message) if metadata.response == metadata.Failed else None
    if kind == pb.BaseCommand.ACK_RESPONSE and command.ackResponse.HasField("error"):
        return command.ackResponse.error, command.ackResponse.message
    for answer in (command.getSchemaResponse, command.consumerStatsResponse) if kind in _WITH_CODES else ():
        if answer.HasField("error_code"):
            return answer.error_code, answer.error_message
    return None


def is_transient(error: BaseException) -> bool:
    """Return whether the same may well succeed later: a lost connection, no answer in time, a broker not ready yet.

    What the broker refuses for another reason, such as missing rights or a subscription that is taken, it will refuse
    again.
    """
    if isinstance(error, BrokerRefusedError):
        return error.code in _TRANSIENT
    return isinstance(error, ConnectionLostError | RequestTimeoutError)


def is_busy(error: BaseException) -> bool:
    """Return whether another one has the place, of which the broker has one: it may leave it."""
    return isinstance(error, BrokerRefusedError) and error.code in _BUSY


def is_of_no_consumer(error: BrokerRefusedError) -> bool:
    """Return whether the broker does not know the consumer that asked: it may just have closed it."""
    return error.code == "ConsumerNotFound" or (
        error.code == "MetadataError" and "consumer not found" in error.text.lower()
    )


def told(what: str, error: BrokerError) -> BrokerError:
    """Return a copy of the error whose text begins with the failed operation; other callers may get the original."""
    copied = copy(error)
    copied.args = (f"{what}: {error}",)
    return copied


def as_text(error: BaseException) -> str:
    """Return an error as text for a log line; foreign errors with their type, because their text may be empty."""
    return str(error) if isinstance(error, PulsarNackError) else shown(repr(error))
