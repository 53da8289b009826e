"""How long an event loop was blocked: its longest callback, and the largest delay of a timer that is due every 5 ms."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Self

TICK_S = 0.005


class Blocked:
    """Measures inside a ``with`` block; ``callback_ms`` is work of the loop's thread, ``late_ms`` real time."""

    def __init__(self) -> None:
        self.callback_ms = 0.0
        self.late_ms = 0.0
        self._ran: Any = asyncio.Handle._run

    def __enter__(self) -> Self:
        ran = self._ran

        def measured(handle: asyncio.Handle) -> None:
            began = time.thread_time_ns()
            ran(handle)
            self.callback_ms = max(self.callback_ms, (time.thread_time_ns() - began) / 1e6)

        asyncio.Handle._run = measured  # type: ignore[method-assign, assignment]
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(TICK_S, self._tick, self._loop.time() + TICK_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        asyncio.Handle._run = self._ran  # type: ignore[method-assign]

    def _tick(self, due: float) -> None:
        now = self._loop.time()
        self.late_ms = max(self.late_ms, 1000 * (now - due))
        self._timer = self._loop.call_at(now + TICK_S, self._tick, now + TICK_S)

    def figures(self) -> dict[str, float]:
        """Return both figures."""
        return {"callback_ms": self.callback_ms, "late_ms": self.late_ms}
