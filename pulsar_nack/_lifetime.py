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
from _thread import get_ident
from types import SimpleNamespace
from typing import Any, Final, NoReturn, Protocol, Self, SupportsIndex

from .errors import WrongLoopError

_LOG: Final = logging.getLogger("pulsar_nack.lifetime")
running_loop = asyncio._get_running_loop
"""Returns the loop that runs in this thread, None without one. Too slow for the hottest calls: see :func:`home_of`."""


class Home(Protocol):
    """What a hot call looks at: in the thread of this id its loop runs now, and the call is right without more."""

    @property
    def _thread_id(self) -> int | None: ...


NOWHERE: Final[Home] = SimpleNamespace(_thread_id=None)
"""The home of what is closed, or not open yet."""


class _ForeignLoop:
    """The home of what belongs to a loop that does not show its thread, as uvloop's do not."""

    __slots__ = ("_is_running", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_running, self._thread = loop.is_running, get_ident()

    @property
    def _thread_id(self) -> int | None:
        return self._thread if self._is_running() else None


def home_of(loop: asyncio.AbstractEventLoop | None) -> Home:
    """Return the home of what belongs to a loop that runs here; without a loop, of what this thread uses."""
    if loop is None:
        return SimpleNamespace(_thread_id=get_ident())
    home: Any = loop if hasattr(loop, "_thread_id") else _ForeignLoop(loop)
    return home  # type: ignore[no-any-return]


def check_loop(loop: asyncio.AbstractEventLoop | None, what: str) -> None:
    """Raise :class:`WrongLoopError` unless ``loop`` is the one that runs here, or there is none for it yet."""
    if loop is not None and running_loop() is not loop:
        raise WrongLoopError(what)


def shown(it: object) -> str:
    """Return the ``repr`` of what is dropped; of a subclass it may fail, which is to keep nothing open."""
    try:
        return repr(it)
    except Exception:  # noqa: BLE001 - code of a user, who gets the warning all the same
        return object.__repr__(it)


class NotCopied:
    """The base of what runs: a copy would share all of it, and close it when dropped."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled."""
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: pass it on as it is")


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


class ClosesWhenDropped(NotCopied):
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
            name = shown(self)  # a record of the log may stay
            self._begin_close()
            _LOG.warning("%s was dropped without being closed; it is closed now", name)

    def __del__(self) -> None:
        inner = self._inner
        if inner is not None and inner is not self:
            loop = inner._open_in()
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(inner._close_dropped)
                warnings.warn(f"unclosed {shown(self)}", ResourceWarning, source=self, stacklevel=2)
