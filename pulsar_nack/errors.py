"""All errors of the library.

::

    PulsarNackError
    ├── InvalidArgumentError  (ValueError)   a value that was refused before anything changed
    ├── ClosedError                          you closed it, or its consumer
    ├── AlreadyEnteredError                  it was entered with ``async with`` and not left
    ├── NotOpenError                         it has to be entered with ``async with`` first
    ├── WrongLoopError                       it was opened in another event loop than the one that runs
    ├── WouldBlockError                      a ``*_nowait`` call found no room
    ├── MissingExtraError     (ImportError)  an optional dependency is not installed
    ├── RedeliveryError                      a port could not ask for a redelivery; the ids stay pending
    ├── BrokerError                          the broker or its client refused or lost something
    │   ├── BrokerRefusedError               the broker said no; has its code and its words
    │   │   └── TopicNotFoundError           the topic is not there, or not any more, and may not be created
    │   ├── ConnectionLostError              a connection broke, or none could be had
    │   ├── ProtocolError                    bytes came in that are not the protocol
    │   ├── RequestTimeoutError (TimeoutError)   no answer in time
    │   └── UndecodableMessageError          a message that cannot be read: encrypted, damaged, of an unknown kind
    ├── SnapshotError                        a snapshot of a bucket could not be read or written
    │   ├── SnapshotNotFoundError            there is none of this id
    │   └── SnapshotFormatError  (ValueError)   its bytes are corrupt, truncated or something else
    ├── CursorFormatError     (ValueError)   a record of acknowledgement state is corrupt, truncated or something else
    ├── TopicFormatError      (ValueError)   an entry of a local topic is corrupt, truncated or something else
    ├── InjectedError                        a test asked for it
    ├── VirtualDeadlockError                 a virtual loop would have slept for ever
    ├── AlreadySettledError                  the message was acknowledged or negatively acknowledged already
    ├── NotDurableError                      a nack holds in this process, but not over a restart
    ├── NoDeadLetterError                    there is no dead-letter topic that a message could be sent to
    └── LedgerError                          anything about the append-only logs on storage
        ├── LogNotFoundError                 there is no log of this name
        ├── LogExistsError                   there is one already
        ├── LogLockedError                   somebody else writes to it
        ├── LogFencedError                   somebody else took it over, on object storage
        ├── LogSealedError                   it was sealed: nothing can be added any more
        ├── LogCorruptedError                damage that no crash explains; names file, offset and reason
        ├── LogVersionError                  a later release wrote it
        ├── LogForeignFilesError             its folder holds files that are not its own
        └── LogStorageError                  the operating system or the store refused: full, no rights, broken
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ._foreign import quoted, shown

__all__ = [
    "AlreadyEnteredError",
    "AlreadySettledError",
    "BrokerError",
    "BrokerRefusedError",
    "ClosedError",
    "ConnectionLostError",
    "CursorFormatError",
    "InjectedError",
    "InvalidArgumentError",
    "LedgerError",
    "LogCorruptedError",
    "LogExistsError",
    "LogFencedError",
    "LogForeignFilesError",
    "LogLockedError",
    "LogNotFoundError",
    "LogSealedError",
    "LogStorageError",
    "LogVersionError",
    "MissingExtraError",
    "NoDeadLetterError",
    "NotDurableError",
    "NotOpenError",
    "ProtocolError",
    "PulsarNackError",
    "RedeliveryError",
    "RequestTimeoutError",
    "SnapshotError",
    "SnapshotFormatError",
    "SnapshotNotFoundError",
    "TopicFormatError",
    "TopicNotFoundError",
    "UndecodableMessageError",
    "VirtualDeadlockError",
    "WouldBlockError",
    "WrongLoopError",
]

if TYPE_CHECKING:
    from .ids import MessageId


class PulsarNackError(Exception):
    """The base of every error that this library raises on purpose. All of them can be pickled and copied."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args), self.__dict__


class InvalidArgumentError(PulsarNackError, ValueError):
    """A value was refused; nothing has changed.

    ``field`` names the argument and ``value`` is what was given.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"{field}: expected {expected}, got {quoted(value)}")


class ClosedError(PulsarNackError):
    """The object was closed by its owner, so the call cannot be carried out."""

    def __init__(self, what: str = "this object") -> None:
        self.what = what
        super().__init__(f"{what} is closed")


class AlreadyEnteredError(PulsarNackError):
    """The object was entered before and not left yet; it has room for one consumer or producer at a time."""

    def __init__(self, what: str = "this object") -> None:
        self.what = what
        super().__init__(f"{what} was entered already: each 'async with' needs a call of its own")


class NotOpenError(PulsarNackError):
    """The object was used before it was entered."""

    def __init__(self, what: str = "this object") -> None:
        self.what = what
        super().__init__(f"{what} is not open yet: use it inside 'async with'")


class WrongLoopError(PulsarNackError):
    """The object belongs to the event loop that it was opened in, and another one is running."""

    def __init__(self, what: str = "this object") -> None:
        self.what = what
        super().__init__(f"{what} was opened in another event loop than the one that runs now")


class WouldBlockError(PulsarNackError):
    """A call that must not wait found no room for ``wanted`` more; ``room`` were free."""

    def __init__(self, what: str, *, wanted: int, room: int) -> None:
        self.what = what
        self.wanted = wanted
        self.room = room
        super().__init__(f"{what} has room for {room} more, {wanted} wanted; nothing was added")


class MissingExtraError(PulsarNackError, ImportError):
    """An optional dependency is missing; the message says which extra brings it."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{feature} needs {package}: pip install 'pulsar-nack[{extra}]'", name=package)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args), {**self.__dict__, "name": self.name, "msg": self.msg}


class RedeliveryError(PulsarNackError):
    """A redelivery could not be asked for; the ids stay pending and are tried again.

    A redelivery callback that raises it with ``failed`` says which ids to try again; without, all of the command are.
    """

    def __init__(self, *args: object, failed: Iterable[MessageId] | None = None) -> None:
        self.failed = None if failed is None else tuple(failed)
        super().__init__(*args)


class BrokerError(PulsarNackError):
    """The broker, or the client library in front of it, refused or lost an operation."""


class BrokerRefusedError(BrokerError):
    """The broker refused a request: ``code`` is the protocol's name of the reason, ``text`` the broker's words, cut."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        self.text = shown(text)
        super().__init__(f"{code}: {self.text}")


class TopicNotFoundError(BrokerRefusedError):
    """The topic does not exist and may not be created; a consumer of a topic that was deleted raises it in ``receive``.

    The consumer goes on trying: once the topic is created again, so is its subscription, from the first message on.
    """


class ConnectionLostError(BrokerError):
    """The connection to a broker broke, or none could be had; what was not confirmed may have happened or not."""


class ProtocolError(BrokerError):
    """Bytes came in that are not Pulsar's protocol."""


class RequestTimeoutError(BrokerError, TimeoutError):
    """The broker did not answer in time; what was asked for may have happened or not."""


class UndecodableMessageError(BrokerError):
    """A message cannot be read: it is encrypted, damaged, too large, or of an unknown kind.

    ``batch_size`` is how many messages its entry holds, as far as that can be told, 0 if it is not a batch.
    ``is_local`` is true if another program may be able to read it: one that has the key, knows the codec, or takes
    messages of that size.
    """

    def __init__(self, *args: object, batch_size: int = 0, is_local: bool = False) -> None:
        self.batch_size = batch_size
        self.is_local = is_local
        super().__init__(*args)


class AlreadySettledError(PulsarNackError):
    """A message was acknowledged or negatively acknowledged before, and this call lost the race."""

    def __init__(self, message_id: object, state: str) -> None:
        self.message_id = message_id
        self.state = state
        super().__init__(f"{message_id!r} is {state} already")


class InjectedError(PulsarNackError):
    """A test asked for this fault; ``call`` names what failed."""

    def __init__(self, call: str) -> None:
        self.call = call
        super().__init__(f"{call} fails because a test wants it to")


class NotDurableError(PulsarNackError):
    """What was asked for could not be written to the consumer's durable state; the cause tells why.

    A nack is in effect all the same: the message comes back in time, as long as this consumer lives.
    """

    def __init__(self, what: str, error: BaseException) -> None:
        self.what = what
        super().__init__(f"{what}: {error}")


class NoDeadLetterError(PulsarNackError):
    """The consumer has no dead-letter topic, so a message cannot be sent there; nothing has changed."""

    def __init__(self, message_id: object) -> None:
        self.message_id = message_id
        super().__init__(
            f"{message_id!r} cannot be sent to a dead-letter topic, for its consumer has none:"
            " give it dead_letter=DeadLetterPolicy(max_redeliveries=...)"
        )


class VirtualDeadlockError(PulsarNackError):
    """A virtual loop would have waited for ever; ``waiting`` describes the tasks that it held."""

    def __init__(self, reason: str, at: float, waiting: Sequence[str]) -> None:
        self.waiting = tuple(waiting)
        tasks = "".join(f"\n  {line}" for line in sorted(waiting))
        super().__init__(f"at virtual second {at:.6g}: {reason}; tasks that wait:{tasks or ' none'}")


class LedgerError(PulsarNackError):
    """Something about an append-only log; ``log`` is its name, or its path."""

    def __init__(self, log: str, problem: str) -> None:
        self.log = log
        super().__init__(f"log {log}: {problem}")


class LogNotFoundError(LedgerError):
    """There is no log of this name, or it was deleted."""

    def __init__(self, log: str) -> None:
        super().__init__(log, "does not exist")


class LogExistsError(LedgerError):
    """A log of this name exists already; nothing has changed."""

    def __init__(self, log: str) -> None:
        super().__init__(log, "exists already")


class LogLockedError(LedgerError):
    """Another writer, in this process or another, has the log open; a log has one writer at a time.

    ``folder`` is the log's folder, and ``owner`` the id of the process that has it open; None if not known.
    """

    def __init__(
        self,
        log: str,
        problem: str = "another writer has it open; close that one first, or open this one with read_only=True",
        *,
        folder: str | None = None,
        owner: int | None = None,
    ) -> None:
        self.folder = folder
        self.owner = owner
        who = "" if owner is None else f"; process {owner} has it"
        where = "" if folder is None else f" ({folder})"
        super().__init__(log, f"{problem}{who}{where}")

    def because(self, problem: str) -> LogLockedError:
        """Return this error in other words, which say what the log is for."""
        return LogLockedError(self.log, problem, folder=self.folder, owner=self.owner)


class LogFencedError(LedgerError):
    """Another writer took the log over, or it was deleted: on object storage the one who opened it last writes to it.

    Nothing of the call counts. The log is of no use here any more but for reading; open it again to take it back.
    """

    def __init__(self, log: str) -> None:
        super().__init__(log, "another writer opened it later, or it was deleted; nothing was changed here")


class LogSealedError(LedgerError):
    """The log was sealed; nothing was added."""

    def __init__(self, log: str) -> None:
        super().__init__(log, "is sealed; nothing can be added")


class LogCorruptedError(LedgerError):
    """What lies on storage is damaged in a way that a crash does not explain.

    ``file`` and ``offset`` (bytes) tell where, ``reason`` what was expected. Nothing was changed or dropped.
    """

    def __init__(self, log: str, file: str, offset: int, reason: str) -> None:
        self.file = file
        self.offset = offset
        self.reason = reason
        super().__init__(log, f"{file} is damaged at byte {offset}: {reason}")


class LogVersionError(LedgerError):
    """A later release of this library wrote the log, in a form that this one cannot read."""

    def __init__(self, log: str, file: str, version: int) -> None:
        self.file = file
        self.version = version
        super().__init__(log, f"{file} has version {version} of the format, which this release does not know")


class LogForeignFilesError(LedgerError):
    """The log cannot be deleted because its folder holds files that are not its own; nothing has changed."""

    def __init__(self, log: str, files: Sequence[str]) -> None:
        self.files = tuple(files)
        super().__init__(
            log, f"its folder holds files that are not its own: {quoted(list(files))}; move them away first"
        )


class LogStorageError(LedgerError):
    """The operating system or the store refused an operation; the cause is its own error.

    A log that could not append stays usable: the next append tries anew. The records of the failed one are not in the
    log, but for one case: if the process ends before another append succeeded, they may be found after a restart.
    """

    def __init__(self, log: str, action: str, reason: str, *, folder: str | None = None) -> None:
        self.action = action
        self.reason = reason
        self.folder = folder
        where = "" if folder is None else f" ({folder})"
        super().__init__(log, f"cannot {action}: {reason}{where}")


class SnapshotError(PulsarNackError):
    """A snapshot of a bucket of delayed messages could not be read or written; a storage may raise its own errors."""


class SnapshotNotFoundError(SnapshotError):
    """There is no snapshot of this id, or it was deleted."""

    def __init__(self, snapshot_id: int) -> None:
        self.snapshot_id = snapshot_id
        super().__init__(f"snapshot {snapshot_id} does not exist")


class SnapshotFormatError(SnapshotError, ValueError):
    """The bytes of a snapshot are corrupt, truncated or something else; ``part`` says which part of it."""

    def __init__(self, part: str, reason: str) -> None:
        self.part = part
        self.reason = reason
        super().__init__(f"{part}: {reason}")


class CursorFormatError(PulsarNackError, ValueError):
    """A record of acknowledgement state is corrupt, truncated or something else; ``part`` says which part of it."""

    def __init__(self, part: str, reason: str) -> None:
        self.part = part
        self.reason = reason
        super().__init__(f"{part}: {reason}")


class TopicFormatError(PulsarNackError, ValueError):
    """An entry of a local topic is corrupt, truncated or something else; ``part`` says which part of it."""

    def __init__(self, part: str, reason: str) -> None:
        self.part = part
        self.reason = reason
        super().__init__(f"{part}: {reason}")


def _rebuild(kind: type[PulsarNackError], args: tuple[object, ...]) -> PulsarNackError:
    """Make an error from its message: the constructors take other arguments than the message that they build."""
    return kind.__new__(kind, *args)
