"""The log of a cursor that has a position and properties only, for other cursors than :class:`~pulsar_nack.Cursor`."""

from __future__ import annotations

from ..config import CursorConfig
from ..errors import InvalidArgumentError, LogCorruptedError
from ..ledger import LogStore
from ..ledger.ownership import close_on_error, take_ownership
from ._log import CursorLog
from ._recovery import recover
from .format import LogNames
from .format._protobuf import messages

__all__ = ["CursorLog", "open_without_acks"]


async def open_without_acks(store: LogStore, names: LogNames, config: CursorConfig) -> CursorLog:
    """Open the log of a cursor that has a position and properties, and acknowledges nothing beyond the position.

    :raises InvalidArgumentError: a cursor with acknowledgements has this name
    :raises LogCorruptedError: the log is damaged, or is not that of a cursor; nothing was changed
    :raises LedgerError: it cannot be opened
    :raises MissingExtraError: protobuf is not installed
    """
    messages()
    part = await take_ownership(store, names.cursor)
    async with close_on_error([part]):
        found, loaded = await recover(part, names, None, None, salvage=False)
        if loaded.states:
            raise InvalidArgumentError("name", names.cursor, "a name that no Cursor with acknowledgements has")
        if found.snapshot is not None:
            raise LogCorruptedError(found.log.name, "its last record", 0, "it is missing: there is a snapshot of it")
        log = CursorLog(part, names, config, found)
        await log.clean()
        return log
