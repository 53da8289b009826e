"""One event of a trace, and the line that it becomes. Pure; called in the writer's thread."""

from __future__ import annotations

import functools
import json
from typing import Final, NamedTuple

from ..ids import MessageId

VERSION: Final = 1
_ACTUAL: Final = ("redeliver", "arrive")


class Source(NamedTuple):
    """Who tells; each is empty where it is not known."""

    topic: str
    subscription: str
    consumer: str


Row = tuple[
    str, int, int, Source, MessageId, int | None, int | None, int | None, str | None
]  # event, time_ms, mono_ns, source, id, attempt, delay_ms, due_in_ms, reason


def line_of(row: Row) -> str:
    """Return the JSON object of a row, with its line end."""
    event, time_ms, mono_ns, source, message_id, attempt, delay_ms, due_in_ms, reason = row
    topic = message_id.topic or source.topic
    deadline = None if due_in_ms is None else time_ms + due_in_ms
    return (
        f'{{"v":{VERSION},"event":"{event}","time_ms":{time_ms},"mono_ns":{mono_ns},"topic":{_quoted(topic)},'
        f'"partition":{message_id.partition},"subscription":{_quoted(source.subscription)},'
        f'"consumer":{_quoted(source.consumer)},"ledger":{message_id.ledger},"entry":{message_id.entry},'
        f'"batch_index":{message_id.batch_index},"attempt":{_number(attempt)},"delay_ms":{_number(delay_ms)},'
        f'"deadline_ms":{_number(deadline)},"actual_ms":{time_ms if event in _ACTUAL else "null"},'
        f'"reason":{"null" if reason is None else _quoted(reason)}}}\n'
    )


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


@functools.lru_cache(maxsize=1_024)
def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
