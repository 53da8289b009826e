"""A hook that writes to the standard library's logging."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..nack import NackEvent, NackHook
from ._fields import fields_of, level_of, name_of

if TYPE_CHECKING:
    AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]


def logging_hook(logger: AnyLogger | None = None) -> NackHook:
    """Return a hook that logs a tracker's events to ``logger``, by default ``logging.getLogger("pulsar_nack")``.

    The message is the event's name, as :func:`structlog_hook` has it, followed by ``field=value``; the same fields
    are attributes of the record, its name as ``event`` among them. Levels are those of :func:`structlog_hook`. No
    handler is added and no level is set; for a level that is off, nothing is built.
    """
    target = logging.getLogger("pulsar_nack") if logger is None else logger

    def log(event: NackEvent) -> None:
        level = level_of(event)
        if not target.isEnabledFor(level):
            return
        name, fields = name_of(event), fields_of(event)
        text = " ".join(f"{field}={value}" for field, value in fields.items())
        target.log(level, "%s %s", name, text, extra={"event": name, **fields})

    return log
