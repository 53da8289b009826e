"""A hook that writes to structlog."""

from __future__ import annotations

import logging
from typing import Any, Final

from ..nack import NackEvent, NackHook
from ._fields import fields_of, level_of, name_of

_METHODS: Final = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning"}


def structlog_hook(logger: Any = None) -> NackHook:
    """Return a hook that logs a tracker's events to ``logger``, by default ``structlog.get_logger("pulsar_nack")``.

    Event names are ``pulsar_nack.nack``, ``.redeliver``, ``.error``, ``.cancel``, ``.clear`` and ``.close``; fields are
    ``count``, ``first_id``, ``delay_ms``, ``attempt``, ``retry_at_ms`` and ``error`` where they apply. What happens for
    each message is logged at debug, a failed redelivery at warning, its end and the rest at info. structlog is
    imported here, not before, and used as the application has configured it.

    ::

        async with NegativeAcksTracker(redeliver, hooks=[structlog_hook()]) as tracker: ...
    """
    if logger is None:
        import structlog

        logger = structlog.get_logger("pulsar_nack")

    def log(event: NackEvent) -> None:
        getattr(logger, _METHODS[level_of(event)])(name_of(event), **fields_of(event))

    return log
