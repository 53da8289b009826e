"""The logging hooks: names, levels and fields, and no work for disabled levels."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, overload

import pytest
import structlog
from structlog.testing import capture_logs

from pulsar_nack import MessageId
from pulsar_nack.consumer import (
    ConsumerDisconnected,
    ConsumerDrained,
    ConsumerEvent,
    LeaseExpired,
    MessageDeadLettered,
    MessageRedelivered,
)
from pulsar_nack.nack import Cancelled, Cleared, Closed, Nacked, NackEvent, NackHook, Redelivered, RedeliveryFailed
from pulsar_nack.observe import logging_hook, structlog_hook
from tests.for_each import for_each

ID = MessageId(3, 7, 2, 1)
SHOWN = "MessageId(3, 7, partition=2, batch_index=1)"


class Unprintable(Exception):  # noqa: N818
    """Cannot be printed."""

    def __repr__(self) -> str:
        raise ValueError("no name")


CASES: list[tuple[ConsumerEvent | NackEvent, str, str, dict[str, Any]]] = [
    (
        Nacked([ID], at_ms=1, delay_ms=500, deadline_ms=501),
        "pulsar_nack.nack",
        "debug",
        {"count": 1, "first_id": SHOWN, "delay_ms": 500},
    ),
    (
        Nacked([ID, ID], at_ms=1, delay_ms=500, deadline_ms=501, is_new=False),
        "pulsar_nack.nack",
        "debug",
        {"count": 2, "first_id": SHOWN, "delay_ms": 500, "is_new": False},
    ),
    (
        Redelivered([ID], at_ms=2),
        "pulsar_nack.redeliver",
        "debug",
        {"count": 1, "first_id": SHOWN, "attempt": 1},
    ),
    (
        Redelivered([ID], at_ms=2, attempt=2),
        "pulsar_nack.redeliver",
        "info",
        {"count": 1, "first_id": SHOWN, "attempt": 2},
    ),
    (
        RedeliveryFailed([ID], at_ms=2, attempt=1, error=OSError("gone"), retry_at_ms=102),
        "pulsar_nack.error",
        "warning",
        {"count": 1, "first_id": SHOWN, "attempt": 1, "error": "OSError('gone')", "retry_at_ms": 102},
    ),
    (
        RedeliveryFailed([ID], at_ms=2, attempt=1, error=Unprintable(), retry_at_ms=102),
        "pulsar_nack.error",
        "warning",
        {
            "count": 1,
            "first_id": SHOWN,
            "attempt": 1,
            "error": "Unprintable that cannot be shown",
            "retry_at_ms": 102,
        },
    ),
    (Cancelled(ID, at_ms=3), "pulsar_nack.cancel", "debug", {"count": 1, "first_id": SHOWN}),
    (Cleared(9, at_ms=4), "pulsar_nack.clear", "info", {"count": 9}),
    (Closed(5, at_ms=5), "pulsar_nack.close", "info", {"count": 5}),
    (Redelivered([], at_ms=2), "pulsar_nack.redeliver", "debug", {"count": 0, "attempt": 1}),
    (
        MessageRedelivered(ID, 2, 9, is_local=True, lateness_ms=3),
        "pulsar_nack.message_redelivered",
        "debug",
        {"message_id": SHOWN, "attempt": 2, "is_local": True, "lateness_ms": 3},
    ),
    (
        MessageDeadLettered(ID, 3, 9, "orders-billing-DLQ", "bad"),
        "pulsar_nack.message_dead_lettered",
        "info",
        {"message_id": SHOWN, "attempt": 3, "topic": "orders-billing-DLQ", "reason": "bad"},
    ),
    (LeaseExpired(ID, 1, 9), "pulsar_nack.lease_expired", "warning", {"message_id": SHOWN, "attempt": 1}),
    (
        ConsumerDisconnected("orders", -1, 9, "lost"),
        "pulsar_nack.consumer_disconnected",
        "warning",
        {"topic": "orders", "partition": -1, "reason": "lost"},
    ),
    (
        ConsumerDisconnected("orders", -1, 9, "closed"),
        "pulsar_nack.consumer_disconnected",
        "info",
        {"topic": "orders", "partition": -1, "reason": "closed"},
    ),
    (ConsumerDrained(9, 4, 1), "pulsar_nack.consumer_drained", "info", {"given_back": 4, "left": 1}),
]


class LazyIds(Sequence[MessageId]):
    """A million ids that remembers which of them were made."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __len__(self) -> int:
        return 1_000_000

    @overload
    def __getitem__(self, index: int) -> MessageId: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MessageId]: ...
    def __getitem__(self, index: int | slice) -> MessageId | Sequence[MessageId]:
        assert isinstance(index, int)
        self.made.append(index)
        return MessageId(1, index)


@for_each(("event", "name", "level", "fields"), CASES)
def test_structlog(event: NackEvent, name: str, level: str, fields: dict[str, Any]) -> None:
    """Each event arrives at structlog with its name, level and fields, and nothing else."""
    with capture_logs() as logs:
        structlog_hook()(event)
    assert logs == [{"event": name, "log_level": level, **fields}]


@for_each(("event", "name", "level", "fields"), CASES)
def test_stdlib(
    caplog: pytest.LogCaptureFixture, event: NackEvent, name: str, level: str, fields: dict[str, Any]
) -> None:
    """Each event arrives at the logger ``pulsar_nack`` as a message and as attributes of the record."""
    caplog.clear()
    caplog.set_level(logging.DEBUG, logger="pulsar_nack")
    logging_hook()(event)
    (record,) = caplog.records
    assert (record.name, record.levelname.lower()) == ("pulsar_nack", level)
    assert record.getMessage().split()[0] == name
    assert all(f"{field}={value}" in record.getMessage() for field, value in fields.items())
    assert {key: record.__dict__[key] for key in ("event", *fields)} == {"event": name, **fields}


@pytest.mark.parametrize("make_hook", [structlog_hook, logging_hook])
def test_bulk_events_make_one_id(make_hook: Callable[[], NackHook], caplog: pytest.LogCaptureFixture) -> None:
    """Of a bulk event's ids only the first is made, whatever their number."""
    caplog.set_level(logging.DEBUG, logger="pulsar_nack")
    ids = LazyIds()
    with capture_logs() as logs:
        make_hook()(Nacked(ids, at_ms=1, delay_ms=2, deadline_ms=3))
    assert ids.made == [0]
    assert len(logs) + len(caplog.records) == 1


def test_stdlib_builds_nothing_when_off(caplog: pytest.LogCaptureFixture) -> None:
    """For a level that is off not even the first id is made."""
    caplog.set_level(logging.INFO, logger="quiet")
    ids = LazyIds()
    logging_hook(logging.getLogger("quiet"))(Nacked(ids, at_ms=1, delay_ms=2, deadline_ms=3))
    assert ids.made == []


def test_own_loggers(caplog: pytest.LogCaptureFixture) -> None:
    """A user's logger is used, with its bound values."""
    with capture_logs() as logs:
        structlog_hook(structlog.get_logger().bind(worker=4))(Cleared(1, at_ms=0))
    assert logs == [{"event": "pulsar_nack.clear", "log_level": "info", "worker": 4, "count": 1}]
    caplog.set_level(logging.DEBUG, logger="mine")
    logging_hook(logging.getLogger("mine"))(Cleared(1, at_ms=0))
    assert caplog.record_tuples == [("mine", logging.INFO, "pulsar_nack.clear count=1")]


class Prefixed(logging.LoggerAdapter[Any]):
    """An adapter that changes the message and adds nothing."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Put a word before the message."""
        return f"[worker] {msg}", kwargs


def test_adapters(caplog: pytest.LogCaptureFixture) -> None:
    """Through adapters of a logger, even several, the record has the event's attributes and theirs."""
    caplog.set_level(logging.DEBUG, logger="mine")
    inner: Any = logging.LoggerAdapter(logging.getLogger("mine"), {"worker": 4, "event": "theirs"})
    for logger, words in (
        (inner, ""),
        (logging.LoggerAdapter(inner, {"zone": "eu"}), ""),
        (Prefixed(inner), "[worker] "),
        (logging.LoggerAdapter(logging.getLogger("mine")), ""),
    ):
        caplog.clear()
        logging_hook(logger)(Cleared(1, at_ms=0))
        (record,) = caplog.records
        assert record.getMessage() == f"{words}pulsar_nack.clear count=1"
        assert (record.__dict__["event"], record.__dict__["count"]) == ("pulsar_nack.clear", 1)
        assert record.__dict__.get("worker", 4) == 4
    caplog.clear()
    logging_hook(logging.LoggerAdapter(inner, {"zone": "eu"}))(Cleared(1, at_ms=0))
    (record,) = caplog.records
    assert (record.__dict__["worker"], record.__dict__["zone"]) == (4, "eu")


def test_nothing_is_configured() -> None:
    """Making hooks adds no handler, sets no level and leaves structlog unconfigured."""
    logger = logging.getLogger("pulsar_nack")
    before = (list(logger.handlers), logger.level, structlog.is_configured(), list(logging.getLogger().handlers))
    logging_hook()
    structlog_hook()
    assert before == (logger.handlers, logger.level, structlog.is_configured(), logging.getLogger().handlers)
    assert logger.handlers == []
