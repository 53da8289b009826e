"""Which logs make up a consumer's state, and how they are found again.

::

    nacks-owner               held open by the one consumer that uses the store; empty
    nacks-0000000003-base     the picture of everything up to log 3; it counts once it is sealed
    nacks-0000000004          changes after it; sealed, for another one was begun
    nacks-0000000005          changes after those; appended to

A log is sealed before the first change goes to the next one. The seal of a base is the one commit point of a
compaction: from then on older logs do not count, and are deleted. Everything is opened for writing, also what is only
read: that makes it durable before anything is deleted in its favour, and tells another writer.

The store that all of this is done on is a part that its consumer took (:data:`STATE`): on object storage, which logs
there are changes through the owner's part only. So what was listed is what there is until the end of the opening, or
the next step is refused.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
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
from ._memory import Memory
from ._records import VERSION, UnreadableRecordError, decode

STATE: Final = "nacks"
"""The name under which a durable consumer takes its part of a store."""
OWNER: Final = "nacks-owner"
SLICE_S: Final = 0.004
_NAME: Final = re.compile(r"nacks-(\d{10})(-base)?")
_LOOK_AT_CLOCK: Final = 32
IN_USE: Final = "another consumer uses this durable state; each consumer needs a path, or a store, of its own"


def log_name(number: int) -> str:
    """Return the name of a log of changes; numbers begin at 1."""
    return f"nacks-{number:010}"


def base_name(number: int) -> str:
    """Return the name of the picture of everything up to and including a log."""
    return f"{log_name(number)}-base"


@dataclass
class Chain:
    """What was found: the log to append to, its number, and the sizes of the others by name."""

    log: Log
    number: int
    others: dict[str, int] = field(default_factory=dict)
    base: str | None = None


async def take_place(store: LogStore) -> Log:
    """Become the one consumer that uses the folder, for as long as the returned log is open.

    :raises LogLockedError: there is another one
    """
    try:
        with suppress(LogNotFoundError):
            return await store.open_log(OWNER)
        with suppress(LogExistsError):
            return await store.create(OWNER)
        return await store.open_log(OWNER)
    except LogLockedError as error:
        raise error.because(IN_USE) from error


async def recover(store: LogStore, memory: Memory) -> Chain:
    """Read everything that counts into an empty memory, delete what does not, and open or make the log to append to.

    If this fails, the logs that it opened stay open; the caller closes its part of the store.

    :raises LogCorruptedError: something is damaged or missing
    :raises LogVersionError: a later release wrote it
    """
    bases, logs = _numbers(await store.names())
    opened: list[Log] = []
    base = await _newest_base(store, bases, opened)
    number = await _open_logs(store, [number for number in logs if number > base], base, opened)
    for log in opened:
        await _replay(log, memory)
    stale = {base_name(number) for number in bases} | {log_name(number) for number in logs}
    await delete_all(store, sorted(stale - {log.name for log in opened}))
    if number == base or opened[-1].is_sealed:
        number += 1
        log = await store.create(log_name(number))
    else:
        log = opened.pop()
    for other in opened:
        await other.aclose()
    others = {other.name: other.size for other in opened}
    return Chain(log, number, others, base_name(base) if base else None)


async def delete_all(store: LogStore, names: Iterable[str]) -> list[str]:
    """Delete logs; return the names of those that could not be.

    :raises LogFencedError: they are not ours any more
    """
    left = []
    for name in names:
        try:
            await store.delete(name)
        except LogNotFoundError:
            continue
        except LogFencedError:
            raise
        except LedgerError:
            left.append(name)
    return left


def _numbers(names: Iterable[str]) -> tuple[list[int], list[int]]:
    """Return the numbers of the bases and of the logs, each from the lowest."""
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    bases, logs = ([int(match[1]) for match in found if bool(match[2]) is is_base] for is_base in (True, False))
    return sorted(bases), sorted(logs)


async def _newest_base(store: LogStore, bases: list[int], opened: list[Log]) -> int:
    """Return the number of the newest base that counts, and open it; 0: there is none."""
    for number in reversed(bases):
        base = await store.open_log(base_name(number))
        if base.is_sealed:
            opened.append(base)
            return number
        await base.aclose()
    return 0


async def _open_logs(store: LogStore, logs: list[int], base: int, opened: list[Log]) -> int:
    """Open the logs after a base, but for an empty one that was not begun; return the last number, or the base's."""
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


async def _replay(log: Log, memory: Memory) -> None:
    """Take over all records of a log, and let others run meanwhile."""
    paused_at = time.monotonic()
    async for record in log.records():
        try:
            memory.apply(decode(record.data))
        except (UnreadableRecordError, ValueError) as error:
            where = f"record {record.number}"
            if isinstance(error, UnreadableRecordError) and error.version > VERSION:
                raise LogVersionError(log.name, where, error.version) from error
            raise LogCorruptedError(log.name, where, 0, str(error)) from error
        if record.number % _LOOK_AT_CLOCK == 0 and time.monotonic() - paused_at > SLICE_S:
            await asyncio.sleep(0)
            paused_at = time.monotonic()
