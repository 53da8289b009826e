"""All errors of the library.

::

    PulsarNackError
    ├── InvalidArgumentError  (ValueError)   an argument was refused before anything changed
    ├── ClosedError                          the object, or its consumer, was closed
    ├── AlreadyEnteredError                  the object was entered with ``async with`` and not left
    ├── NotOpenError                         the object must be entered with ``async with`` first
    ├── WrongLoopError                       the object was opened in another event loop than the running one
    ├── WouldBlockError                      a ``*_nowait`` call would have to wait for capacity
    ├── MissingExtraError     (ImportError)  an optional dependency is not installed
    ├── RedeliveryError                      a port could not request a redelivery; the ids stay pending
    ├── BrokerError                          the broker or its client refused or lost an operation
    │   ├── BrokerRefusedError               the broker refused a request; has its code and text
    │   │   └── TopicNotFoundError           the topic does not exist, or was deleted, and may not be created
    │   ├── ConnectionLostError              a connection broke, or could not be made
    │   ├── ProtocolError                    the broker sent bytes that are not the protocol
    │   ├── RequestTimeoutError (TimeoutError)   no answer in time
    │   └── UndecodableMessageError          a message cannot be read: encrypted, damaged, of an unknown kind
    ├── SnapshotError                        a bucket snapshot could not be read or written
    │   ├── SnapshotNotFoundError            no snapshot has this id
    │   └── SnapshotFormatError  (ValueError)   its bytes are corrupt, truncated or something else
    ├── CursorFormatError     (ValueError)   a record of acknowledgement state is corrupt, truncated or something else
    ├── TopicFormatError      (ValueError)   an entry of a local topic is corrupt, truncated or something else
    ├── InjectedError                        a fault that a test has injected
    ├── VirtualDeadlockError                 a virtual event loop would have waited forever
    ├── AcknowledgeError                     some messages of a list were not acknowledged
    ├── AlreadySettledError                  the message was acknowledged or negatively acknowledged already
    │   └── LeaseExpiredError                its lease ended, and it was redelivered or given up
    ├── NotDurableError                      a nack is in effect, but will not survive a restart
    ├── NoDeadLetterError                    the consumer has no dead-letter topic
    └── LedgerError                          anything about the append-only logs on storage
        ├── LogNotFoundError                 no log has this name
        ├── LogExistsError                   a log of this name exists
        ├── LogLockedError                   another writer has the log open
        ├── LogFencedError                   another writer took the log over, on object storage
        ├── LogSealedError                   the log is sealed: nothing can be added
        ├── LogCorruptedError                damage that no crash explains; names file, offset and reason
        ├── LogVersionError                  a later release wrote the log
        ├── LogForeignFilesError             the folder of the log has other files in it
        └── LogStorageError                  the operating system or the store refused: full, no rights, broken
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ._foreign import quoted, shown

__all__ = [
    "AcknowledgeError",
    "AlreadyEnteredError",
    "AlreadySettledError",
    "BrokerError",
    "BrokerRefusedError",
    "ClosedError",
    "ConnectionLostError",
    "CursorFormatError",
    "InjectedError",
    "InvalidArgumentError",
    "LeaseExpiredError",
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


class PulsarNackError(Exception):
    """The base of all errors that this library raises on purpose. They can be pickled and copied."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args), self.__dict__


class InvalidArgumentError(PulsarNackError, ValueError):
    """An argument was refused; nothing has changed. ``field`` is its name, ``value`` the given value."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"{field}: expected {expected}, got {quoted(value)}")


class ClosedError(PulsarNackError):
    """The object is closed."""

    def __init__(self, what: str = "this object") -> None:
        self.what = what
        super().__init__(f"{what} is closed")


class AlreadyEnteredError(PulsarNackError):
    """The object was entered and not left; it stands for one consumer, producer or topic at a time."""

    def __init__(self, what: str = "this object") -> None:
        self.what = what
        super().__init__(f"{what} was entered already: make a new one for each 'async with'")


class NotOpenError(PulsarNackError):
    """The object was used before it was entered."""

    def __init__(self, what: str = "this object") -> None:
        self.what = what
        super().__init__(f"{what} is not open yet: use it inside 'async with'")


class WrongLoopError(PulsarNackError):
    """The object belongs to the event loop in which it was opened, and another one is running."""

    def __init__(self, what: str = "this object") -> None:
        self.what = what
        super().__init__(f"{what} was opened in another event loop than the one that runs now")


class WouldBlockError(PulsarNackError):
    """A call that must not wait had capacity for ``room`` more, and ``wanted`` were given; nothing was added."""

    def __init__(self, what: str, *, wanted: int, room: int) -> None:
        self.what = what
        self.wanted = wanted
        self.room = room
        super().__init__(f"{what} has room for {room} more, {wanted} wanted; nothing was added")


class MissingExtraError(PulsarNackError, ImportError):
    """An optional dependency is missing; the message names the extra that installs it."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{feature} needs {package}: pip install 'pulsar-nack[{extra}]'", name=package)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args), {**self.__dict__, "name": self.name, "msg": self.msg}


class RedeliveryError(PulsarNackError):
    """A redelivery could not be requested; the ids in ``failed``, without it all of the call, are retried."""

    def __init__(self, *args: object, failed: Iterable[Any] | None = None) -> None:
        self.failed = None if failed is None else tuple(failed)
        super().__init__(*args)


class BrokerError(PulsarNackError):
    """The broker, or the client library in front of it, refused or lost an operation."""


class BrokerRefusedError(BrokerError):
    """The broker refused a request; ``code`` is the protocol's name of the reason, ``text`` the broker's text, cut."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        self.text = shown(text)
        super().__init__(f"{code}: {self.text}")


class TopicNotFoundError(BrokerRefusedError):
    """The topic does not exist and may not be created; ``receive`` raises it when the topic of a consumer is deleted.

    The consumer keeps trying: when the topic is created again, so is its subscription, from the first message on.
    """


class ConnectionLostError(BrokerError):
    """The connection to a broker broke or could not be made; an unconfirmed operation may have happened or not."""


class ProtocolError(BrokerError):
    """The broker sent bytes that are not Pulsar's protocol."""


class RequestTimeoutError(BrokerError, TimeoutError):
    """The broker did not answer in time; the operation may have happened or not."""


class UndecodableMessageError(BrokerError):
    """A message cannot be read: it is encrypted, damaged, too large, or of an unknown kind.

    ``batch_size`` is the number of messages in its entry as far as it can be read, 0 if it is not a batch. ``is_local``
    is true if another program may be able to read it: one that has the key or the codec, or accepts such a size.
    """

    def __init__(self, *args: object, batch_size: int = 0, is_local: bool = False) -> None:
        self.batch_size = batch_size
        self.is_local = is_local
        super().__init__(*args)


class AlreadySettledError(PulsarNackError):
    """The message was settled before this call: acknowledged, negatively acknowledged, or dead-lettered."""

    def __init__(self, message_id: object, state: str) -> None:
        self.message_id = message_id
        self.state = state
        super().__init__(f"{message_id!r} is {state} already")


class LeaseExpiredError(AlreadySettledError):
    """The lease ended, and the message is requested, redelivered or given up; later calls of the attempt raise too."""


class AcknowledgeError(PulsarNackError):
    """Some of several messages were not acknowledged: those with the ids in ``failed``; the others are."""

    def __init__(self, failed: Iterable[Any], count: int) -> None:
        self.failed = tuple(failed)
        super().__init__(f"{len(self.failed)} of {count} messages were not acknowledged, first {self.failed[0]!r}")


class InjectedError(PulsarNackError):
    """A fault that a test has injected; ``call`` is the call that fails."""

    def __init__(self, call: str) -> None:
        self.call = call
        super().__init__(f"{call} fails by an injected fault")


class NotDurableError(PulsarNackError):
    """An operation could not be written to the durable state of the consumer; ``__cause__`` is the reason.

    A nack is in effect nevertheless: the message is redelivered in time while this consumer lives.
    """

    def __init__(self, what: str, error: BaseException) -> None:
        self.what = what
        super().__init__(f"{what}: {error}")


class NoDeadLetterError(PulsarNackError):
    """The consumer has no dead-letter topic; nothing has changed."""

    def __init__(self, message_id: object) -> None:
        self.message_id = message_id
        fix = "give it dead_letter=DeadLetterPolicy(max_redeliveries=...)"
        super().__init__(f"{message_id!r} cannot be dead-lettered: its consumer has no dead-letter topic; {fix}")


class VirtualDeadlockError(PulsarNackError):
    """A virtual event loop would have waited forever; ``waiting`` describes its tasks."""

    def __init__(self, reason: str, at: float, waiting: Sequence[str]) -> None:
        self.waiting = tuple(waiting)
        tasks = "".join(f"\n  {line}" for line in sorted(waiting))
        super().__init__(f"at virtual second {at:.6g}: {reason}; waiting tasks:{tasks or ' none'}")


class LedgerError(PulsarNackError):
    """A problem with an append-only log; ``log`` is its name or path."""

    _problem = ""

    def __init__(self, log: str, problem: str | None = None) -> None:
        self.log = log
        super().__init__(f"log {log}: {self._problem if problem is None else problem}")


class LogNotFoundError(LedgerError):
    """No log has this name, or it was deleted."""

    _problem = "does not exist"


class LogExistsError(LedgerError):
    """A log of this name exists already; nothing has changed."""

    _problem = "exists already"


class LogLockedError(LedgerError):
    """Another writer has the log open; ``folder`` is the log's, ``owner`` the writer's process id, None if unknown."""

    _problem = "another writer has it open; close that one first, or open this one with read_only=True"

    def __init__(self, log: str, problem: str = "", *, folder: str | None = None, owner: int | None = None) -> None:
        self.folder = folder
        self.owner = owner
        who = "" if owner is None else f"; process {owner} has it"
        where = "" if folder is None else f" ({folder})"
        super().__init__(log, f"{problem or self._problem}{who}{where}")

    def because(self, problem: str) -> LogLockedError:
        """Return this error with another text, which names the purpose of the log."""
        return LogLockedError(self.log, problem, folder=self.folder, owner=self.owner)


class LogFencedError(LedgerError):
    """Another writer took the log over or deleted it, on object storage; nothing was written. Reopen it to own it."""

    _problem = "another writer opened it later, or it was deleted; nothing was changed here"


class LogSealedError(LedgerError):
    """The log is sealed; nothing was added."""

    _problem = "is sealed; nothing can be added"


class LogCorruptedError(LedgerError):
    """``file`` is damaged at byte ``offset`` in a way that no crash explains; nothing was changed or dropped."""

    def __init__(self, log: str, file: str, offset: int, reason: str) -> None:
        self.file = file
        self.offset = offset
        self.reason = reason
        super().__init__(log, f"{file} is damaged at byte {offset}: {reason}")


class LogVersionError(LedgerError):
    """A later release of this library wrote the log, in a format that this one cannot read."""

    def __init__(self, log: str, file: str, version: int) -> None:
        self.file = file
        self.version = version
        super().__init__(log, f"{file} has version {version} of the format, which this release does not know")


class LogForeignFilesError(LedgerError):
    """The log cannot be deleted because its folder has other files in it; nothing has changed."""

    def __init__(self, log: str, files: Sequence[str]) -> None:
        self.files = tuple(files)
        super().__init__(log, f"its folder has files that are not its own: {quoted(list(files))}; move them away first")


class LogStorageError(LedgerError):
    """The operating system or the store refused an operation; ``__cause__`` is its error.

    After a failed append the log stays usable, and its records are not in the log. There is one exception: if the
    process ends before another append succeeds, they may be there after a restart.
    """

    def __init__(self, log: str, action: str, reason: str, *, folder: str | None = None) -> None:
        self.action = action
        self.reason = reason
        self.folder = folder
        where = "" if folder is None else f" ({folder})"
        super().__init__(log, f"cannot {action}: {reason}{where}")


class _DamagedPartError(ValueError):
    def __init__(self, part: str, reason: str) -> None:
        self.part, self.reason = part, reason
        super().__init__(f"{part}: {reason}")


class SnapshotError(PulsarNackError):
    """A bucket snapshot could not be read or written; a storage may raise other errors too."""


class SnapshotNotFoundError(SnapshotError):
    """No snapshot has this id, or it was deleted."""

    def __init__(self, snapshot_id: int) -> None:
        self.snapshot_id = snapshot_id
        super().__init__(f"snapshot {snapshot_id} does not exist")


class SnapshotFormatError(SnapshotError, _DamagedPartError):
    """The bytes of a snapshot are corrupt, truncated or something else; ``part`` names the damaged part."""


class CursorFormatError(PulsarNackError, _DamagedPartError):
    """A record of acknowledgement state is corrupt, truncated or something else; ``part`` names the damaged part."""


class TopicFormatError(PulsarNackError, _DamagedPartError):
    """An entry of a local topic is corrupt, truncated or something else; ``part`` names the damaged part."""


def _rebuild(kind: type[PulsarNackError], args: tuple[object, ...]) -> PulsarNackError:
    """Make an error from its message, because constructors take other arguments than the message."""
    return kind.__new__(kind, *args)
