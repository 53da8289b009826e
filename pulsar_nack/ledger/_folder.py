"""What may be the path of a folder."""

from __future__ import annotations

import re
from os import PathLike, fspath
from pathlib import Path
from typing import Final

from ..errors import InvalidArgumentError

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def as_folder(field: str, path: object) -> Path:
    """Return what was given as a path.

    :raises InvalidArgumentError: it is no path, an empty one, or a URL, which would become a folder of that name
    """
    text = fspath(path) if isinstance(path, str | PathLike) else None
    if not isinstance(text, str) or not text:
        raise InvalidArgumentError(field, path, "the path of a folder")
    if _URL.match(text):
        raise InvalidArgumentError(field, path, "the path of a folder; for object storage ObjectLogStore.from_url")
    return Path(text)
