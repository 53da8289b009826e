"""Errors that brokers respond with: as exceptions, whether a retry may help, and as text for logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..._foreign import shown
from ...errors import (
    BrokerRefusedError,
    ConnectionLostError,
    PulsarNackError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from .._protocol import _pulsar_pb2 as pb

_TRANSIENT: Final = frozenset(
    {"UnknownError", "MetadataError", "PersistenceError", "ServiceNotReady", "TooManyRequests"}
)
_WITH_RESULT: Final = (pb.BaseCommand.LOOKUP_RESPONSE, pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
_WITH_CODE: Final = (pb.BaseCommand.GET_SCHEMA_RESPONSE, pb.BaseCommand.CONSUMER_STATS_RESPONSE)
_BUSY: Final = frozenset({"ConsumerBusy", "ProducerBusy"})


def broker_error(code: int, text: str, without_secrets: Callable[[str], str] = str) -> BrokerRefusedError:
    """Return the exception for an error code of the protocol and the broker's text.

    :param without_secrets: replaces credentials in the text
    """
    known = pb.ServerError.DESCRIPTOR.values_by_number.get(code)
    kind = TopicNotFoundError if code == pb.TopicNotFound else BrokerRefusedError
    return kind(f"ServerError {code}" if known is None else known.name, without_secrets(text))


def error_in(kind: int, body: Any, without_secrets: Callable[[str], str] = str) -> BrokerRefusedError | None:
    """Return the error that the body of a response of this kind holds, or None."""
    if (
        kind == pb.BaseCommand.ERROR
        or (kind == pb.BaseCommand.ACK_RESPONSE and body.HasField("error"))
        or (kind in _WITH_RESULT and body.response == body.Failed)
    ):
        return broker_error(body.error, body.message, without_secrets)
    if kind in _WITH_CODE and body.HasField("error_code"):
        return broker_error(body.error_code, body.error_message, without_secrets)
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
