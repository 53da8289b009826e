"""Errors of the broker, with what was tried."""

from __future__ import annotations

from copy import copy

from ..errors import BrokerError, PulsarNackError


def told(what: str, error: BrokerError) -> BrokerError:
    """Return the same error, with what was tried before its words; itself unchanged, as others may get it too."""
    copied = copy(error)
    copied.args = (f"{what}: {error}",)
    return copied


def as_text(error: BaseException) -> str:
    """Return an error as text for a log line; foreign errors with their type, as they may have no words."""
    return str(error) if isinstance(error, PulsarNackError) else repr(error)
