"""The generations of logs that make up a consumer's state, and their recovery.

::

    nacks-owner               the consumer that owns the store keeps it open; empty
    nacks-0000000003-base     a base: the snapshot of everything up to log 3; valid once it is sealed
    nacks-0000000004          the changes after the base; sealed, since there is a next log
    nacks-0000000005          the changes after those; appended to

A log is sealed before the first change is written to the next one. The seal of a base is the commit point of a
compaction: the older logs are obsolete then, and are deleted. All logs are opened for writing, even if they are only
read: this makes them durable before older ones are deleted, and detects another writer.

The consumer works on its owned part of the store (:data:`STATE`). On object storage only the owner can create and
delete logs there. So the listed logs do not change until the state is open, or the next step is refused.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from ...errors import (
    LedgerError,
    LogCorruptedError,
    LogExistsError,
    LogFencedError,
    LogLockedError,
    LogNotFoundError,
    LogVersionError,
)
from ...ledger import Log, LogStore
from ._records import RECORD_VERSION, UnreadableRecordError, decode_record
from ._state import DurableState

STATE: Final = "nacks"
"""The name that a durable consumer owns in a store."""
OWNER_LOG: Final = "nacks-owner"
MAX_STEP_S: Final = 0.004
"""How long a piece of work may take before other tasks run."""
_NAME: Final = re.compile(r"nacks-(\d{10})(-base)?")
_CHECK_TIME_EACH: Final = 32
IN_USE: Final = "another consumer uses this durable state; each consumer needs its own path or store"


def log_name(number: int) -> str:
    """Return the name of a log of changes; numbers begin at 1."""
    return f"nacks-{number:010}"


def base_name(number: int) -> str:
    """Return the name of the snapshot of everything up to and including a log."""
    return f"{log_name(number)}-base"


async def acquire_ownership(store: LogStore) -> Log:
    """Become the one consumer that uses the store, for as long as the returned log is open.

    :raises LogLockedError: another consumer uses it
    """
    try:
        with suppress(LogNotFoundError):
            return await store.open_log(OWNER_LOG)
        with suppress(LogExistsError):
            return await store.create(OWNER_LOG)
        return await store.open_log(OWNER_LOG)
    except LogLockedError as error:
        raise error.because(IN_USE) from error


async def delete_all(store: LogStore, names: Iterable[str]) -> list[str]:
    """Delete logs; return the names of those that could not be deleted.

    :raises LogFencedError: another consumer has taken them over
    """
    undeleted = []
    for name in names:
        try:
            await store.delete(name)
        except LogNotFoundError:
            continue
        except LogFencedError:
            raise
        except LedgerError:
            undeleted.append(name)
    return undeleted


def numbers_of(names: Iterable[str]) -> tuple[list[int], list[int]]:
    """Return the sorted numbers of the bases and of the logs with these names."""
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    bases, logs = ([int(match[1]) for match in found if bool(match[2]) is is_base] for is_base in (True, False))
    return sorted(bases), sorted(logs)


async def open_base(store: LogStore, bases: list[int], opened: list[Log]) -> int:
    """Open the newest valid base and return its number; 0: there is no base."""
    for number in reversed(bases):
        base = await store.open_log(base_name(number))
        if base.is_sealed:
            opened.append(base)
            return number
        await base.aclose()
    return 0


async def open_logs(store: LogStore, logs: list[int], base: int, opened: list[Log]) -> int:
    """Open the logs after a base, except an unused empty one; return the last number, or that of the base.

    :raises LogCorruptedError: one is missing, or was left without a seal
    """
    last = base
    if (base and not logs) or logs != list(range(base + 1, base + 1 + len(logs))):
        missing = next(number for number in range(base + 1, base + len(logs) + 2) if number not in logs)
        raise LogCorruptedError(log_name(missing), log_name(missing), 0, "the log is missing")
    for number in logs:
        log = await store.open_log(log_name(number))
        if last == base or opened[-1].is_sealed:
            opened.append(log)
            last = number
            continue
        length = log.length
        await log.aclose()
        if length:
            name = log_name(last)
            raise LogCorruptedError(name, name, 0, f"it has no seal, and yet {log_name(number)} has records")
    return last


async def replay(log: Log, state: DurableState) -> None:
    """Apply all records of a log; other tasks run in between.

    :raises LogCorruptedError: a record is damaged
    :raises LogVersionError: a later release wrote it
    """
    paused_at = time.monotonic()
    async for record in log.records():
        try:
            state.apply(decode_record(record.data))
        except (UnreadableRecordError, ValueError) as error:
            where = f"record {record.number}"
            if isinstance(error, UnreadableRecordError) and error.version > RECORD_VERSION:
                raise LogVersionError(log.name, where, error.version) from error
            raise LogCorruptedError(log.name, where, 0, str(error)) from error
        if record.number % _CHECK_TIME_EACH == 0 and time.monotonic() - paused_at > MAX_STEP_S:
            await asyncio.sleep(0)
            paused_at = time.monotonic()
