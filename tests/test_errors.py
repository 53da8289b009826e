"""Errors: one hierarchy, messages that name field and value, and all of them can be pickled."""

from __future__ import annotations

import copy
import pickle

import pulsar_nack
from pulsar_nack import (
    AlreadySettledError,
    BrokerError,
    ClosedError,
    InvalidArgumentError,
    MessageId,
    PulsarNackError,
    RedeliveryError,
    WouldBlockError,
    errors,
)
from pulsar_nack.errors import (
    AcknowledgeError,
    AlreadyEnteredError,
    BrokerRefusedError,
    ConnectionLostError,
    CursorFormatError,
    InjectedError,
    LeaseExpiredError,
    LedgerError,
    LogCorruptedError,
    LogExistsError,
    LogFencedError,
    LogForeignFilesError,
    LogLockedError,
    LogNotFoundError,
    LogSealedError,
    LogStorageError,
    LogVersionError,
    MissingExtraError,
    NoDeadLetterError,
    NotDurableError,
    NotOpenError,
    ProtocolError,
    RequestTimeoutError,
    SnapshotError,
    SnapshotFormatError,
    SnapshotNotFoundError,
    TopicFormatError,
    TopicNotFoundError,
    UndecodableMessageError,
    VirtualDeadlockError,
    WrongLoopError,
)
from tests.for_each import for_each

EXAMPLES: list[PulsarNackError] = [
    PulsarNackError("base"),
    InvalidArgumentError("delay", -1, "at least 0"),
    ClosedError("the tracker"),
    ClosedError(),
    AlreadyEnteredError("the subscription"),
    NotOpenError("the tracker"),
    WrongLoopError("the consumer"),
    WouldBlockError("the tracker", wanted=5, room=2),
    MissingExtraError("the demo", "rich", "demo"),
    RedeliveryError("broken", failed=[MessageId(1, 2, topic="t")]),
    RedeliveryError(),
    BrokerError("refused"),
    BrokerRefusedError("ConsumerBusy", "Exclusive consumer is already connected"),
    ConnectionLostError("pulsar://broker:6650: the broker closed the connection"),
    ProtocolError("frame at byte 0: no command"),
    RequestTimeoutError("no answer to SUBSCRIBE within 30 s"),
    UndecodableMessageError("payload: encrypted", batch_size=3),
    NoDeadLetterError(MessageId(1, 2)),
    NotDurableError("the nack holds in memory only", OSError("full")),
    InjectedError("create"),
    CursorFormatError("record", "truncated"),
    TopicFormatError("entry", "truncated"),
    TopicNotFoundError("TopicNotFound", "it does not exist"),
    SnapshotError("no answer"),
    SnapshotFormatError("snapshot metadata", "truncated"),
    SnapshotNotFoundError(7),
    AcknowledgeError([MessageId(1, 2)], 3),
    AlreadySettledError(MessageId(1, 2), "acknowledged"),
    LeaseExpiredError(MessageId(1, 2), "past its lease"),
    VirtualDeadlockError("nothing to do", 1.5, ["task a"]),
    LedgerError("nacks", "something"),
    LogCorruptedError("nacks", "1.segment", 24, "checksum"),
    LogExistsError("nacks"),
    LogFencedError("nacks"),
    LogForeignFilesError("nacks", ["notes.txt"]),
    LogLockedError("nacks"),
    LogNotFoundError("nacks"),
    LogSealedError("nacks"),
    LogStorageError("nacks", "append", "No space left on device"),
    LogVersionError("nacks", "1.segment", 2),
]


def all_errors() -> list[type[PulsarNackError]]:
    """Return every error class that the module defines."""
    found = [
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    return [value for value in found if issubclass(value, PulsarNackError)]


def test_no_other_errors() -> None:
    """The module of errors defines no public class that lacks the common base."""
    defined = [value for name, value in vars(errors).items() if isinstance(value, type) and not name.startswith("_")]
    assert {value for value in defined if value.__module__ == errors.__name__} == set(all_errors())


def test_examples_are_complete() -> None:
    """Every error of the library is tested here."""
    assert {type(example) for example in EXAMPLES} == set(all_errors())


@for_each("kind", all_errors())
def test_hierarchy(kind: type[PulsarNackError]) -> None:
    """Every error has the one base, is exported, and is drawn in its module's docstring."""
    assert issubclass(kind, PulsarNackError)
    assert getattr(pulsar_nack, kind.__name__) is kind
    assert kind.__name__ in (errors.__doc__ or "")


@for_each("example", EXAMPLES)
def test_copies(example: PulsarNackError) -> None:
    """A copied or unpickled error is the same error, with its message, fields and notes."""
    pickled = [pickle.dumps(example, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in (*map(pickle.loads, pickled), copy.copy(example), copy.deepcopy(example)):
        assert type(again) is type(example)
        assert (str(again), again.args, vars(again)) == (str(example), example.args, vars(example))
    noted = copy.copy(example)
    noted.add_note("while testing")
    assert pickle.loads(pickle.dumps(noted)).__notes__ == ["while testing"]


def test_messages() -> None:
    """Messages name the field and value, the limit, the extra, the message."""
    assert str(InvalidArgumentError("delay", -1, "at least 0")) == "delay: expected at least 0, got -1"
    assert str(ClosedError("the tracker")) == "the tracker is closed"
    assert str(WouldBlockError("it", wanted=5, room=2)) == "it has room for 2 more, 5 wanted; nothing was added"
    assert "pip install 'pulsar-nack[demo]'" in str(MissingExtraError("the demo", "rich", "demo"))
    assert str(AlreadySettledError(MessageId(1, 2), "acknowledged")) == "MessageId(1, 2) is acknowledged already"


def test_standard_bases() -> None:
    """Wrong values are ValueErrors, missing packages ImportErrors with the package's name."""
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(MissingExtraError, ImportError)
    error = pickle.loads(pickle.dumps(MissingExtraError("the demo", "rich", "demo")))
    assert (error.name, error.extra, error.msg) == ("rich", "demo", str(error))


class Broken:
    """A value whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@for_each(
    ("value", "shown"),
    [
        (10**5000, "int that cannot be shown"),
        (Broken(), "Broken that cannot be shown"),
        ("x" * 10_000, "..."),
        (list(range(10_000)), "..."),
    ],
)
def test_any_value_can_be_shown(value: object, shown: str) -> None:
    """A long value, or one that cannot be printed, does not break the error about it."""
    message = str(InvalidArgumentError("field", value, "something else"))
    assert shown in message
    assert len(message) < 300
