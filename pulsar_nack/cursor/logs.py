"""The log of a cursor that has a position and properties only, for other cursors than :class:`~pulsar_nack.Cursor`."""

from ._log import CursorLog
from ._opening import open_without_acks

__all__ = ["CursorLog", "open_without_acks"]
