"""Calls that fail or wait when a test says so."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from ..errors import InjectedError


class StorageFaults:
    """Fails or holds up the calls of a storage or a cursor, by their short names.

    Those of a storage are ``create``, ``metadata``, ``segment``, ``delete`` and ``list``, those of a cursor ``put``,
    ``remove`` and ``mark``.

    - ``fail["create"] = 2`` lets the next two calls raise :class:`~pulsar_nack.errors.InjectedError` before anything
      is done; -1: all from now on, 0: none.
    - ``fail_after["create"] = 1`` lets one raise when all is done and only the answer is missing.
    - ``calls["create"]`` is how many were begun.
    """

    def __init__(self) -> None:
        self.fail: dict[str, int] = defaultdict(int)
        self.fail_after: dict[str, int] = defaultdict(int)
        self.calls: Counter[str] = Counter()
        self._gates: dict[str, asyncio.Event] = {}

    def hold(self, name: str) -> asyncio.Event:
        """Let calls of this name wait, before anything is done, until the event that is returned is set."""
        return self._gates.setdefault(name, asyncio.Event())

    def heal(self) -> None:
        """Let nothing fail or wait any more."""
        self.fail.clear()
        self.fail_after.clear()
        for gate in self._gates.values():
            gate.set()
        self._gates.clear()

    async def enter(self, name: str) -> None:
        """Begin a call."""
        self.calls[name] += 1
        await asyncio.sleep(0)
        if name in self._gates:
            await self._gates[name].wait()
        _spend(self.fail, name)

    async def leave(self, name: str) -> None:
        """End a call: what it is for has been done."""
        await asyncio.sleep(0)
        _spend(self.fail_after, name)


def _spend(faults: dict[str, int], name: str) -> None:
    if faults[name]:
        faults[name] -= faults[name] > 0
        raise InjectedError(name)
