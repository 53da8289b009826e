"""Errors that brokers respond with: as exceptions, whether a retry may help, and as text for logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..._foreign import shown
from ...errors import (
    BrokerRefusedError,
    ConnectionLostError,
    PulsarNackError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from .._protocol import _pulsar_pb2 as pb
from .._protocol._entries import text_of

_TRANSIENT: Final = frozenset(
    {"UnknownError", "MetadataError", "PersistenceError", "ServiceNotReady", "TooManyRequests"}
)
_WITH_RESULT: Final[dict[int, str]] = {
    pb.BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    pb.BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
}
_WITH_CODE: Final[dict[int, str]] = {
    pb.BaseCommand.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    pb.BaseCommand.CONSUMER_STATS_RESPONSE: "consumerStatsResponse",
}
_BUSY: Final = frozenset({"ConsumerBusy", "ProducerBusy"})


def broker_error(code: int, text: str, without_secrets: Callable[[str], str] = str) -> BrokerRefusedError:
    """Return the exception for an error code of the protocol and the broker's text.

    :param without_secrets: replaces credentials in the text
    """
    known = pb.ServerError.DESCRIPTOR.values_by_number.get(code)
    kind = TopicNotFoundError if code == pb.TopicNotFound else BrokerRefusedError
    return kind(f"ServerError {code}" if known is None else known.name, without_secrets(text_of(text)))


def error_in(response: pb.BaseCommand, without_secrets: Callable[[str], str] = str) -> BrokerRefusedError | None:
    """Return the error that a response holds, or None."""
    kind = response.type
    if kind == pb.BaseCommand.ACK_RESPONSE:
        ack = response.ackResponse
        return broker_error(ack.error, ack.message, without_secrets) if ack.HasField("error") else None
    if kind == pb.BaseCommand.ERROR:
        return broker_error(response.error.error, response.error.message, without_secrets)
    if kind in _WITH_RESULT:
        found = getattr(response, _WITH_RESULT[kind])
        return broker_error(found.error, found.message, without_secrets) if found.response == found.Failed else None
    if kind in _WITH_CODE:
        found = getattr(response, _WITH_CODE[kind])
        if found.HasField("error_code"):
            return broker_error(found.error_code, found.error_message, without_secrets)
    return None


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed: a lost connection, a timeout, or a broker that is not ready yet.

    Other refusals, such as missing rights or a subscription that is taken, are permanent.
    """
    if isinstance(error, BrokerRefusedError):
        return error.code in _TRANSIENT
    return isinstance(error, ConnectionLostError | RequestTimeoutError)


def is_busy(error: BaseException) -> bool:
    """Return whether another consumer or producer holds the exclusive place, and may leave it."""
    return isinstance(error, BrokerRefusedError) and error.code in _BUSY


def is_unknown_consumer(error: BrokerRefusedError) -> bool:
    """Return whether the broker does not know the requesting consumer: it may just have closed it."""
    return error.code == "ConsumerNotFound" or (
        error.code == "MetadataError" and "consumer not found" in error.text.lower()
    )


def as_text(error: BaseException) -> str:
    """Return an error as text for a log line; foreign errors with their type, because their text may be empty."""
    return str(error) if isinstance(error, PulsarNackError) else shown(repr(error))
