"""What a handler's exceptions mean: exceptions as verbs, the user's rules for all others, and how a message is settled.

An exception that names no verb, and that no rule maps to one, is a failure: the message is nacked by the backoff.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, TypeAlias

from .._delays import Delay, delay_ms
from .._foreign import error_text, quoted
from ..errors import InvalidArgumentError
from ._letter_rules import as_reason

Message: TypeAlias = Any
"""Stands for :class:`~pulsar_nack.Message`, which is built on this."""

_log = logging.getLogger("pulsar_nack.consumer")
_VERBS: Final = "Retry, Defer, DeadLetter, Ignore, or a callable that takes the exception and the message"


class Verb(Exception):  # noqa: N818 - an instruction, not an error
    """Base class of the exceptions that say how a message is settled; raise one in a handler, or map errors to it."""

    reason: str = ""

    async def _settle(self, message: Message, cause: str) -> None:
        """Settle a message; ``cause`` is the reason, unless the verb has a reason."""
        raise NotImplementedError


class Retry(Verb):
    """Negatively acknowledge the message: it comes back after ``delay``, and the attempt counts.

    :param delay: seconds or a timedelta; None: what the backoff says
    :param reason: is traced, and written with the dead letter if this was the last attempt
    """

    def __init__(self, delay: Delay | None = None, reason: str = "") -> None:
        if delay is not None:
            delay_ms(delay)
        self.delay = delay
        self.reason = as_reason(reason)
        super().__init__(delay, reason)

    async def _settle(self, message: Message, cause: str) -> None:
        """Nack the message."""
        await message.nack(self.delay, reason=self.reason or cause)


class Defer(Verb):
    """Postpone the message: it comes back after ``delay``, as the same attempt; see :meth:`Message.defer`.

    :param delay: seconds or a timedelta
    """

    def __init__(self, delay: Delay) -> None:
        delay_ms(delay)
        self.delay = delay
        super().__init__(delay)

    async def _settle(self, message: Message, cause: str) -> None:  # noqa: ARG002 - nothing failed
        """Defer the message."""
        await message.defer(self.delay)


class DeadLetter(Verb):
    """Give the message up: it goes to the dead-letter topic now, whatever attempt this is.

    :param reason: is written there, up to 1 000 characters
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = as_reason(reason)
        super().__init__(reason)

    async def _settle(self, message: Message, cause: str) -> None:
        """Send the message to the dead-letter topic."""
        await message.dead_letter(self.reason or cause)


class Ignore(Verb):
    """Acknowledge the message although the work failed.

    :param reason: is logged
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = as_reason(reason)
        super().__init__(reason)

    async def _settle(self, message: Message, cause: str) -> None:  # noqa: ARG002 - it is logged
        """Acknowledge the message."""
        await message.ack()


ErrorRule = Verb | type[Verb] | Callable[[Exception, Message], "Verb | type[Verb] | None"]
"""A verb, its class if it needs no argument, or a callable that chooses one; None: nack by the backoff."""
OnError = Mapping[type[Exception], ErrorRule]
"""What happens to a message whose handler raises, by the type of the exception."""

Rules = Mapping[type, ErrorRule]
"""The user's rules after their check; of the types that match an exception, the most derived one counts."""


def checked_rules(on_error: OnError | None, *, has_dead_letters: bool) -> Rules:
    """Return the user's rules, as they are now.

    :param has_dead_letters: whether the consumer has a dead-letter topic
    :raises InvalidArgumentError: a key is no exception type, or a value no verb that this consumer can carry out
    """
    if on_error is not None and not isinstance(on_error, Mapping):
        raise InvalidArgumentError("on_error", on_error, "a mapping from exception types to verbs, or None")
    rules: dict[Any, Any] = dict(on_error or {})
    for kind, rule in rules.items():
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise InvalidArgumentError("on_error", kind, "exception types (subclasses of Exception) as keys")
        field = f"on_error[{kind.__name__}]"
        if isinstance(rule, type) and issubclass(rule, Defer):
            raise InvalidArgumentError(field, rule, "a Defer with its delay, as Defer(5)")
        is_verb = isinstance(rule, Verb) or (isinstance(rule, type) and issubclass(rule, Verb))
        if not is_verb and (isinstance(rule, type) or not callable(rule) or inspect.iscoroutinefunction(rule)):
            raise InvalidArgumentError(field, rule, _VERBS)
        if not has_dead_letters and (rule is DeadLetter or isinstance(rule, DeadLetter)):
            raise InvalidArgumentError(field, rule, "another verb, as this consumer has no dead_letter setting")
    return rules


def _verb_for(error: Exception, message: Message, rules: Rules) -> Verb | None:
    """Return the verb for an exception, the exception itself if it is one; None: nack by the backoff."""
    if isinstance(error, Verb):
        return error
    rule = next((rules[kind] for kind in type(error).__mro__ if kind in rules), None)
    if rule is None or isinstance(rule, Verb):
        return rule
    chosen = rule() if isinstance(rule, type) else rule(error, message)
    if isinstance(chosen, type) and issubclass(chosen, Verb):
        chosen = chosen()
    if chosen is not None and not isinstance(chosen, Verb):
        raise InvalidArgumentError(f"on_error, for {type(error).__name__}", chosen, "a verb or None")
    return chosen


async def settle_failed(message: Message, error: Exception, rules: Rules) -> Verb | None:
    """Settle a message whose handler raised, unless the handler has settled it; return the verb, None for a nack.

    If the verb cannot be carried out, the message is nacked by the backoff and the reason is raised.
    """
    cause = "" if isinstance(error, Verb) else error_text(error)
    try:
        verb = _verb_for(error, message, rules)
        if message.is_settled:
            return verb
        if verb is not None:
            await verb._settle(message, cause)
    except Exception as fault:
        if not message.is_settled:
            await message.nack(reason=cause or f"{quoted(error)}, and then {quoted(fault)}")
        raise
    if verb is None:
        await message.nack(reason=cause)
    elif verb is not error or isinstance(verb, Ignore):
        _log.info("%r is settled by %r after %s", message.id, verb, cause or "its handler ended")
    return verb


def needs_ack(message: Message) -> bool:
    """Return whether a handled message is to be acknowledged: also if another call is about to, as that may fail."""
    return not message.is_settled or (message.settled_by is None and message._settler.is_acking(message.id))


class Processing:
    """The block of :meth:`Message.process`."""

    __slots__ = ("_message", "_rules")

    def __init__(self, message: Message, rules: Rules) -> None:
        self._message = message
        self._rules = rules

    async def __aenter__(self) -> Message:
        return self._message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        message = self._message
        if error is None:
            if needs_ack(message):
                await message.ack()
        elif isinstance(error, Exception):
            return await settle_failed(message, error, self._rules) is not None
        return False
