"""Hooks that log the events of consumers and trackers: to the standard library's logging, and to structlog.

A bulk event is logged with its count and its first id; the other ids are never made.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, cast

from .._foreign import quoted
from ..consumer import (
    ConsumerConnected,
    ConsumerDisconnected,
    ConsumerDrained,
    ConsumerEvent,
    ConsumerHook,
    LeaseExpired,
    MessageDeadLettered,
)
from ..ids import MessageId
from ..nack import Cancelled, Cleared, Closed, Nacked, NackEvent, Redelivered, RedeliveryFailed

if TYPE_CHECKING:
    AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]

_INNER_CAPITAL: Final = re.compile("(?<!^)(?=[A-Z])")
_NAMES: Final[dict[type, str]] = {
    Nacked: "pulsar_nack.nack",
    Redelivered: "pulsar_nack.redeliver",
    RedeliveryFailed: "pulsar_nack.error",
    Cancelled: "pulsar_nack.cancel",
    Cleared: "pulsar_nack.clear",
    Closed: "pulsar_nack.close",
}
_METHODS: Final = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning"}


def logging_hook(logger: AnyLogger | None = None) -> ConsumerHook:
    """Return a hook that logs events to ``logger``, by default ``logging.getLogger("pulsar_nack")``.

    The message is the event's name, as :func:`structlog_hook` has it, followed by ``field=value``; the same fields
    are attributes of the record, its name as ``event`` among them. Levels are those of :func:`structlog_hook`. No
    handler is added and no level is set; for a level that is off, nothing is built.
    """
    target = logging.getLogger("pulsar_nack") if logger is None else logger

    def log(event: ConsumerEvent | NackEvent) -> None:
        level = _level(event)
        if not target.isEnabledFor(level):
            return
        name, values = _name(event), _fields(event)
        text = " ".join(f"{field}={value}" for field, value in values.items())
        _log(target, level, (name, text), {"event": name, **values})

    return log


def _log(logger: AnyLogger, level: int, words: tuple[str, str], attributes: Mapping[str, Any]) -> None:
    """Log two words with attributes of the record.

    An adapter replaces the attributes of a call by its own, except with ``merge_extra`` (Python 3.13). So the adapters
    of a chain are asked one after the other what they add, and the logger below them gets everything.
    """
    message, options = "%s %s", cast("MutableMapping[str, Any]", {"extra": attributes})
    while isinstance(logger, logging.LoggerAdapter):
        message, options = logger.process(message, options)
        attributes = {**(options.get("extra") or {}), **attributes}
        options["extra"] = attributes
        logger = logger.logger
    logger.log(level, message, *words, **options)


def structlog_hook(logger: Any = None) -> ConsumerHook:
    """Return a hook that logs events to ``logger``, by default ``structlog.get_logger("pulsar_nack")``.

    Event names of trackers are ``pulsar_nack.nack``, ``.redeliver``, ``.error``, ``.cancel``, ``.clear`` and
    ``.close``; fields are ``count``, ``first_id``, ``delay_ms``, ``attempt``, ``retry_at_ms`` and ``error`` where they
    apply. Events of consumers have the names of their classes, as ``pulsar_nack.message_dead_lettered``, and their
    fields but the time. Events of single messages are logged at debug; a failed redelivery, an expired lease and a lost
    connection at warning; the end of a failure, dead letters and other events at info. structlog is imported by this
    function, not before, and used as the application has configured it.

    ::

        async with NegativeAcksTracker(redeliver, hooks=[structlog_hook()]) as tracker: ...
    """
    if logger is None:
        import structlog

        logger = structlog.get_logger("pulsar_nack")

    def log(event: ConsumerEvent | NackEvent) -> None:
        getattr(logger, _METHODS[_level(event)])(_name(event), **_fields(event))

    return log


def _name(event: ConsumerEvent | NackEvent) -> str:
    kind = type(event)
    return _NAMES.get(kind) or _NAMES.setdefault(kind, f"pulsar_nack.{_INNER_CAPITAL.sub('_', kind.__name__).lower()}")


def _level(event: ConsumerEvent | NackEvent) -> int:
    """Return a level of :mod:`logging`; the success after a failure is INFO, so that logs show the end of trouble."""
    match event:
        case RedeliveryFailed() | LeaseExpired() | ConsumerDisconnected(reason="lost"):
            return logging.WARNING
        case Redelivered(attempt=attempt) if attempt > 1:
            return logging.INFO
        case Cleared() | Closed() | MessageDeadLettered():
            return logging.INFO
        case ConsumerConnected() | ConsumerDisconnected() | ConsumerDrained():
            return logging.INFO
    return logging.DEBUG


def _fields(event: ConsumerEvent | NackEvent) -> dict[str, Any]:
    """Return the fields of an event: ints and strings only."""
    match event:
        case Nacked(ids=ids, delay_ms=delay_ms, is_new=is_new):
            return {**_ids(ids), "delay_ms": delay_ms, **({} if is_new else {"is_new": False})}
        case Redelivered(ids=ids, attempt=attempt):
            return {**_ids(ids), "attempt": attempt}
        case RedeliveryFailed(ids=ids, attempt=attempt, error=error, retry_at_ms=retry_at_ms):
            return {**_ids(ids), "attempt": attempt, "error": quoted(error), "retry_at_ms": retry_at_ms}
        case Cancelled(id=message_id):
            return _ids([message_id])
        case Cleared(count=count) | Closed(pending=count):
            return {"count": count}
    values = {field.name: getattr(event, field.name) for field in fields(event) if field.name != "at_ms"}
    message_id = values.pop("id", None)
    return values if message_id is None else {"message_id": repr(message_id), **values}


def _ids(ids: Sequence[MessageId]) -> dict[str, Any]:
    return {"count": len(ids), "first_id": repr(ids[0])} if len(ids) else {"count": 0}
