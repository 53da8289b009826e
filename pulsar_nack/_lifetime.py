"""From the event loop that something is opened in to its end: in no other loop, and not without being closed.

What is to be closed by its user closes itself, with a warning, when the last user drops it instead. Its tasks, timers
and the callbacks that connections have keep it alive for as long as it runs. So there are two objects of one class that
share one ``__dict__``: users have the *outer* one, and everything of its own that outlives a call has the *inner* one.
The outer one goes with the last reference that a user has. Neither costs a call anything.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from typing import Any, Final, Self

from .errors import WrongLoopError

_LOG: Final = logging.getLogger("pulsar_nack.lifetime")
running_loop = asyncio._get_running_loop
"""Returns the loop that runs in this thread, None without one; as cheap as it can be."""


def check_loop(loop: asyncio.AbstractEventLoop | None, what: str) -> None:
    """Raise :class:`WrongLoopError` unless ``loop`` is the one that runs here, or there is none for it yet."""
    if loop is not None and running_loop() is not loop:
        raise WrongLoopError(what)


class OfOneLoop:
    """The base of what belongs to the event loop in which it is made, or used first."""

    _loop: asyncio.AbstractEventLoop | None

    def __new__(cls, *_args: Any, **_settings: Any) -> Self:
        """Note in which loop it is made, if one runs."""
        self = super().__new__(cls)
        self._loop = running_loop()
        return self

    def _check_loop(self, what: str) -> None:
        if self._loop is None:
            self._loop = running_loop()
        elif self._loop is not running_loop():
            raise WrongLoopError(what)


class ClosesWhenDropped:
    """The base of what warns and closes itself when its users drop it."""

    _inner: Any = None
    _keeps: object = None
    """What lives at least as long, as the client does."""

    def _twin(self) -> Self:
        """Return the other one of the two objects."""
        twin = object.__new__(type(self))
        twin.__dict__ = self.__dict__
        return twin

    def _open_in(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop in which it runs, None once it is closed, or before it is open."""
        raise NotImplementedError

    def _begin_close(self) -> object:
        """Begin to close; nobody waits for the end."""
        raise NotImplementedError

    def _close_dropped(self) -> None:
        if self._open_in() is not None:
            _LOG.warning("%s was dropped without being closed; it is closed now", repr(self))  # whose record may stay
            self._begin_close()

    def __del__(self) -> None:
        inner = self._inner
        if inner is not None and inner is not self:
            loop = inner._open_in()
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(inner._close_dropped)
                warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
