"""Requests that are tried again, and whose lost answers are found out; blocking, for any thread.

A put that failed may have been carried out, or may still be: an object of our own has random bytes in its head, so
whether one that is there is ours can be read. A put that is repeated changes nothing when the first one went through.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from .._delays import delay_seconds
from ..backoff import Backoff, Exponential, as_backoff
from ._object_requests import Objects

_T = TypeVar("_T")
_HEAD: Final = 256
_ANSWERS: Final = (FileExistsError, FileNotFoundError, PermissionError)
ALL: Final = 1 << 40


class Requests:
    """Requests below a prefix.

    :param attempts: how many times a request is made at most
    :param backoff: how long to wait between them
    """

    def __init__(
        self,
        objects: Objects,
        prefix: str = "",
        *,
        attempts: int = 5,
        backoff: Backoff | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._objects = objects
        self._begin = f"{prefix}/" if prefix else ""
        self._attempts = attempts
        self._backoff = Exponential(0.1, 5.0) if backoff is None else as_backoff(backoff)
        self._sleep = sleep

    @property
    def url(self) -> str:
        """Return where the objects are, without secrets."""
        return f"{self._objects.url.rstrip('/')}/{self._begin}".rstrip("/") if self._begin else self._objects.url

    def create(self, key: str, data: bytes) -> bool:
        """Write an object; return whether the one that is there now is this one, or was until it was deleted.

        :raises OSError: it is not known whether it was written, or will be yet
        """
        try:
            self._again(lambda: self._objects.create(self._begin + key, data))
        except FileExistsError:
            try:
                return self.is_same(key, data)
            except FileNotFoundError:
                return False
        return True

    def is_same(self, key: str, data: bytes) -> bool:
        """Return whether an object is the one that was written with these bytes, by its random head.

        :raises FileNotFoundError: there is none
        """
        return self.get(key, 0, _HEAD) == data[:_HEAD]

    def get(self, key: str, start: int = 0, length: int = ALL) -> bytes:
        """Read a part of an object."""
        return self._again(lambda: self._objects.get(self._begin + key, start, length))

    def list(self, folder: str) -> dict[str, int]:
        """Return the keys below a folder, relative to it, with their sizes."""
        return self._again(lambda: self._objects.list(self._begin + folder))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects in any order."""
        if keys:
            self._again(lambda: self._objects.delete([self._begin + key for key in keys]))

    def delete_in_order(self, keys: Sequence[str]) -> None:
        """Delete objects one after the other: when this fails, those before one that is gone are gone."""
        for key in keys:
            self.delete([key])

    def pause(self, count: int) -> None:
        """Wait before something that others were faster with is tried again."""
        self._sleep(delay_seconds(self._backoff(count), "backoff") / 10)

    def _again(self, request: Callable[[], _T]) -> _T:
        for attempt in range(self._attempts):
            try:
                return request()
            except _ANSWERS:
                raise
            except OSError:
                if attempt + 1 == self._attempts:
                    raise
            self._sleep(delay_seconds(self._backoff(attempt), "backoff"))
        raise AssertionError("unreachable")
