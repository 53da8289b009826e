"""Which trackers of a factory are open: those that were closed, or that nobody holds any more, are forgotten."""

from __future__ import annotations

import weakref
from typing import Final

from ..errors import ClosedError, InvalidArgumentError, WrongLoopError
from ._factory_records import OpenTracker
from ._protocol import DelayedDeliveryTracker

_LEAST: Final = 16


def is_open(tracker: DelayedDeliveryTracker) -> bool:
    """Return whether a tracker is open, by a call that every tracker has to support. O(1)."""
    try:
        tracker.contains_message(0, 0)
    except ClosedError:
        return False
    except WrongLoopError:  # called from a thread that exports metrics: it is open
        pass
    return True


class OpenTrackers:
    """Trackers by topic and subscription, held weakly. May be read by another thread."""

    def __init__(self) -> None:
        self._trackers: dict[tuple[str, str], weakref.ref[DelayedDeliveryTracker]] = {}
        self._reserved: set[tuple[str, str]] = set()
        self._look_at = _LEAST

    def reserve(self, topic_name: str, cursor_name: str) -> None:
        """Say that a tracker is being made.

        :raises InvalidArgumentError: there is one, or another one is being made
        """
        key = topic_name, cursor_name
        if key in self._reserved or self._open(key) is not None:
            raise InvalidArgumentError(
                "cursor_name", cursor_name, "a subscription of the topic without an open tracker"
            )
        self._reserved.add(key)

    def settle(self, topic_name: str, cursor_name: str, tracker: DelayedDeliveryTracker | None) -> None:
        """End a reservation, with the tracker that was made or with none."""
        key = topic_name, cursor_name
        self._reserved.discard(key)
        if tracker is not None:
            self._trackers[key] = weakref.ref(tracker)
            self._forget_closed()

    def all(self) -> list[OpenTracker]:
        """Return those that are open."""
        found = ((key, self._open(key)) for key in list(self._trackers))
        return [OpenTracker(*key, tracker) for key, tracker in found if tracker is not None]

    def _open(self, key: tuple[str, str]) -> DelayedDeliveryTracker | None:
        reference = self._trackers.get(key)
        tracker = None if reference is None else reference()
        return tracker if tracker is not None and is_open(tracker) else None

    def _forget_closed(self) -> None:
        """Look through all, but not before there are twice as many as were left the last time."""
        if len(self._trackers) >= self._look_at:
            for key in [key for key in self._trackers if self._open(key) is None]:
                del self._trackers[key]
            self._look_at = max(_LEAST, 2 * len(self._trackers))
