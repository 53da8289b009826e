"""What can be wrong with what lies in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DamageKind = Literal["torn", "damaged", "missing", "newer", "unreadable", "inconsistent"]
"""What kind it is.

- ``torn``: the end of the last write is missing, as a crash leaves it; the next opening cuts it off, nothing is lost
- ``damaged``: bytes are not what was written
- ``missing``: a file or a log is not there that something else names
- ``newer``: a later release wrote it
- ``unreadable``: the operating system refused
- ``inconsistent``: the bytes are whole, and what they say is not
"""


@dataclass(frozen=True, slots=True)
class Damage:
    """Something wrong: in which log, in which of its files and at which byte, where that is known, and what."""

    log: str
    file: str
    offset: int | None
    kind: DamageKind
    reason: str
