"""Lifetime rules: an object is used in one event loop only, and closes itself if it is dropped without being closed.

An open consumer cannot notice that its user dropped it: its tasks, timers and the callbacks in connections keep it
alive. So there are two objects of one class that share one ``__dict__``. Users have the *outer* one; everything
internal that outlives a call has the *inner* one. When the last reference of the user goes, the outer object is
collected, which warns and closes the inner one. Calls cost nothing extra.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from _thread import get_ident
from collections.abc import Callable, Coroutine, Generator
from types import SimpleNamespace
from typing import Any, Final, Generic, NoReturn, Self, SupportsIndex, TypeAlias, TypeVar

from ._foreign import quoted
from .errors import AlreadyEnteredError, ClosedError, WrongLoopError

_LOG: Final = logging.getLogger("pulsar_nack.lifetime")
running_loop = asyncio._get_running_loop
"""Returns the loop that runs in this thread, or None. Too slow for the hottest calls: see :func:`loop_thread_of`."""


class _OtherLoop:
    """For an object whose loop does not show its thread, such as that of uvloop."""

    __slots__ = ("_is_running", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_running, self._thread = loop.is_running, get_ident()

    @property
    def _thread_id(self) -> int | None:
        return self._thread if self._is_running() else None


LoopThread: TypeAlias = SimpleNamespace | _OtherLoop
"""The thread in which hot calls need no further check: ``_thread_id``, while the loop of the object runs there."""
NO_THREAD: Final[LoopThread] = SimpleNamespace(_thread_id=None)
"""For an object that is closed, or not open yet."""


def loop_thread_of(loop: asyncio.AbstractEventLoop | None) -> LoopThread:
    """Return the thread of an object that belongs to a loop, which runs here; without a loop, the present thread."""
    if loop is None:
        return SimpleNamespace(_thread_id=get_ident())
    thread: Any = loop if hasattr(loop, "_thread_id") else _OtherLoop(loop)
    return thread  # type: ignore[no-any-return]


def check_loop(loop: asyncio.AbstractEventLoop | None, what: str) -> None:
    """Raise :class:`WrongLoopError` if ``loop`` is not None and not the loop that runs in this thread."""
    if loop is not None and running_loop() is not loop:
        raise WrongLoopError(what)


class ClosesOnExit:
    """Base class of objects that are closed at the end of an ``async with`` block."""

    __slots__ = ()

    async def aclose(self) -> object:
        """Close the object."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


class LoopBound(ClosesOnExit):
    """Base class of what is used in one event loop, that in which it is made or first used, until it is closed.

    A subclass sets ``_is_closed``.
    """

    _what: str
    """What errors call it."""
    _is_closed = False
    _loop: asyncio.AbstractEventLoop | None

    def __new__(cls, *_args: Any, **_settings: Any) -> Self:
        """Note the running event loop, if there is one."""
        self = super().__new__(cls)
        self._loop = running_loop()
        return self

    async def __aenter__(self) -> Self:
        self._ensure_open()
        return self

    def _check_loop(self, what: str = "") -> None:
        if self._loop is None:
            self._loop = running_loop()
        elif self._loop is not running_loop():
            raise WrongLoopError(what or self._what)

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ClosedError(self._what)
        self._check_loop()


_C = TypeVar("_C", bound=ClosesOnExit)


class Opening(Generic[_C]):
    """An object to be opened: enter it with ``async with``, or await it and close the object yourself.

    :param make: makes the object, which is then entered; called at each ``await`` or ``async with``
    :param what: what is opened, for errors
    """

    _what = "object"

    def __init__(self, make: Callable[[], Coroutine[Any, Any, _C]], what: str) -> None:
        self._make = make
        self._what = what
        self._opened: _C | None = None
        self._is_entered = False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"no {name!r} yet: enter it with `async with`, or await it, to have the {self._what}", name=name
        )

    def __await__(self) -> Generator[Any, None, _C]:
        return self._open().__await__()

    async def __aenter__(self) -> _C:
        if self._is_entered:
            raise AlreadyEnteredError(f"the {self._what}")  # leaving would close the later one twice, and not this
        self._is_entered = True
        try:
            self._opened = await self._open()
        except BaseException:
            self._is_entered = False
            raise
        return self._opened

    async def __aexit__(self, *_error: object) -> None:
        opened, self._opened, self._is_entered = self._opened, None, False
        if opened is not None:
            await opened.aclose()

    async def _open(self) -> _C:
        return await (await self._make()).__aenter__()


class ClosesWhenDropped(ClosesOnExit):
    """Base class of objects that warn and close themselves when they are dropped without being closed.

    They cannot be copied, because a dropped copy would close the parts it shares.
    """

    _inner: Any = None
    _keeps: object = None
    """An object that must live as long as this one, such as the client of a consumer."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise, because the object cannot be copied or pickled."""
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: pass it on as it is")

    def _twin(self) -> Self:
        """Return a second object with the same ``__dict__``, to be the inner one."""
        twin = object.__new__(type(self))
        twin.__dict__ = self.__dict__
        return twin

    def _open_in(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop of an open object; None before it is opened and after it is closed."""
        raise NotImplementedError

    def _begin_close(self) -> object:
        """Begin to close, without waiting for the end."""
        raise NotImplementedError

    def _close_dropped(self) -> None:
        if self._open_in() is not None:
            name = quoted(self)  # as text: a log record that is kept must not keep the object
            self._begin_close()
            _LOG.warning("%s was dropped without being closed; it is closed now", name)

    def __del__(self) -> None:
        inner = self._inner
        if inner is not None and inner is not self:
            loop = inner._open_in()
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(inner._close_dropped)
                warnings.warn(f"unclosed {quoted(self)}", ResourceWarning, source=self, stacklevel=2)
