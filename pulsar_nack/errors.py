"""All errors of the library.

::

    PulsarNackError
    ├── InvalidArgumentError  (ValueError)   a value that was refused before anything changed
    ├── ClosedError                          you closed it, or its consumer
    ├── WouldBlockError                      a ``*_nowait`` call found no room
    ├── MissingExtraError     (ImportError)  an optional dependency is not installed
    ├── RedeliveryError                      a port could not ask for a redelivery; the ids stay pending
    ├── BrokerError                          the broker or its client refused or lost something
    └── AlreadySettledError                  the message was acknowledged or negatively acknowledged already
"""

from __future__ import annotations


class PulsarNackError(Exception):
    """The base of every error that this library raises on purpose."""


class InvalidArgumentError(PulsarNackError, ValueError):
    """A value was refused; nothing has changed.

    ``field`` names the argument and ``value`` is what was given.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"{field}: expected {expected}, got {value!r}")

    def __reduce__(self) -> tuple[type[InvalidArgumentError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.expected)


class ClosedError(PulsarNackError):
    """The object was closed by its owner, so the call cannot be carried out."""

    def __init__(self, what: str = "this object") -> None:
        self.what = what
        super().__init__(f"{what} is closed")

    def __reduce__(self) -> tuple[type[ClosedError], tuple[str]]:
        return type(self), (self.what,)


class WouldBlockError(PulsarNackError):
    """A call that must not wait found no room for ``wanted`` more; ``room`` were free."""

    def __init__(self, what: str, *, wanted: int, room: int) -> None:
        self.wanted = wanted
        self.room = room
        super().__init__(f"{what} has room for {room} more, {wanted} wanted; nothing was added")


class MissingExtraError(PulsarNackError, ImportError):
    """An optional dependency is missing; the message says which extra brings it."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{feature} needs {package}: pip install 'pulsar-nack[{extra}]'", name=package)


class RedeliveryError(PulsarNackError):
    """A redelivery could not be asked for; the ids stay pending and are tried again."""


class BrokerError(PulsarNackError):
    """The broker, or the client library in front of it, refused or lost an operation."""


class AlreadySettledError(PulsarNackError):
    """A message was acknowledged or negatively acknowledged before, and this call lost the race."""

    def __init__(self, message_id: object, state: str) -> None:
        self.message_id = message_id
        self.state = state
        super().__init__(f"{message_id!r} is {state} already")
