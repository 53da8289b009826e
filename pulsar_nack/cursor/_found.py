"""What recovery hands to a cursor's log."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ledger import Log
from ._chain import Contents
from ._leftovers import Leftover
from ._records import Stored


@dataclass(slots=True)
class Found:
    """What recovery found in the logs of a cursor, and where to go on.

    ``contents`` and ``index`` are what the last usable marker says; without one, contents is None. ``is_single``: it is
    a record of the old form. ``must_roll``: nothing can be appended to the log. ``is_damaged``: it is to be kept when
    the cursor has gone on in a new one. ``snapshot``: what the last snapshot says, when there is no marker. ``kept``:
    other logs that are open, and are not touched.
    """

    log: Log
    generation: int
    next_generation: int
    sequence: int = 0
    contents: Contents | None = None
    index: dict[int, Stored] = field(default_factory=dict)
    is_single: bool = False
    must_roll: bool = False
    is_damaged: bool = False
    snapshot: Contents | None = None
    leftovers: list[Leftover] = field(default_factory=list)
    kept: list[Log] = field(default_factory=list)
