"""Opening a local topic and entering its ``async with`` in one step."""

from __future__ import annotations

from os import PathLike

from .._lifetime import Opening
from ..clock import Clock
from ..config import DelayedDeliveryConfig, TopicConfig
from ..ledger import LogStore
from ._topic import LocalTopic


class OpeningTopic(Opening[LocalTopic]):
    """What :func:`open_local` returns: ``async with`` it, or ``await`` it and close the topic yourself."""

    _what = "topic"


def open_local(
    home: str | PathLike[str] | LogStore,
    config: TopicConfig | None = None,
    *,
    name: str = "persistent://public/default/local",
    delayed: DelayedDeliveryConfig | None = None,
    clock: Clock | None = None,
) -> OpeningTopic:
    """Open a local topic; the parameters and errors are those of :meth:`~pulsar_nack.LocalTopic.open`.

    ::

        async with pulsar_nack.open_local("data/orders") as topic:
            await topic.publish(b"an order")
    """
    return OpeningTopic(lambda: LocalTopic.open(home, config, name=name, delayed=delayed, clock=clock))
