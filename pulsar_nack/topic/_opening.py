"""Opening a local topic and entering its ``async with`` in one step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from os import PathLike
from types import TracebackType
from typing import Any

from ..clock import Clock
from ..config import DelayedDeliveryConfig, TopicConfig
from ..ledger import LogStore
from ._topic import LocalTopic


class OpeningTopic:
    """What :func:`open_local` returns: ``async with`` it, or ``await`` it and close the topic yourself."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, LocalTopic]]) -> None:
        self._make = make
        self._topic: LocalTopic | None = None

    def __await__(self) -> Generator[Any, None, LocalTopic]:
        return self._make().__await__()

    async def __aenter__(self) -> LocalTopic:
        self._topic = await self._make()
        return self._topic

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._topic is not None:
            await self._topic.aclose()


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
