"""The settings of a consumer, checked before anything is opened for it; they need no event loop."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict, get_args

from .._check import check_clock, check_config, check_integer, check_metadata_limit, suggest_name
from .._delays import Delay, delay_ms, positive_delay_ms
from ..backoff import Backoff, as_backoff
from ..clock import Clock
from ..config import NackConfig
from ..errors import InvalidArgumentError
from ..nack import Hooks, RedeliveryCallback
from ._events import ConsumerHook, ConsumerTrace
from ._letter_rules import DeadLetterPolicy, RetryTopicPolicy
from ._port import PortTraits

if TYPE_CHECKING:
    from .durable import DurableHome

RedeliveryName = Literal["auto", "local", "broker"]
Redelivery = RedeliveryName | RedeliveryCallback
"""How a consumer's nacks are carried out: by name, or by the user's own callable that gets the ids which are due."""
_REDELIVERY_NAMES: Final = get_args(RedeliveryName)


class ConsumerOptions(TypedDict, total=False):
    """The settings of a :class:`~pulsar_nack.Consumer`.

    :param redelivery: ``"local"`` redelivers nacked messages from memory, exactly in time and one by one; ``"broker"``
        asks the broker for them, so that any consumer may get them; ``"auto"`` asks the broker except where it cannot
        do that: delays below the port's floor, Exclusive and Failover subscriptions, batches of which other messages
        are being processed or not due. A callable of yours gets the ids that are due and brings them back itself
    :param backoff: the delay of nacks that name none, from the redelivery count: a callable, a delay, or a list
    :param config: precision, default delay and bounds of the nacks
    :param max_local_bytes: most memory for payloads that are kept; beyond it the broker is asked, and on Exclusive and
        Failover subscriptions ``nack`` waits. Messages being processed, kept for nacks by id, take as much again
    :param unacked_limit: the broker's bound on unacknowledged messages: at 80 % it warns, then ``nack`` waits; or None
    :param ack_memory: how long an acknowledged message that comes back is acknowledged again and not delivered. If the
        port reports its sessions, this counts only within a session and after a lost connection
    :param lease: how long a message may be handled before it counts as nacked; see ``Message.in_progress``
    :param dead_letter: after how many redeliveries a message is sent to a dead-letter topic, and to which; one that
        cannot be read goes there at once. None: messages are redelivered without end, unreadable ones too
    :param retry_topic: where messages wait that are to be consumed later (``reconsume_later``), and nacks with long
        delays if the policy says so; the calls that subscribe read it too. Shared and Key_Shared only
    :param hooks: callables that take each :data:`~pulsar_nack.consumer.ConsumerEvent`, and each event of the tracker
    :param clock: by default the running loop's own
    :param durable: a folder, or a :class:`~pulsar_nack.ledger.LogStore`, where deadlines, attempts and recent
        acknowledgements are kept over restarts; for this consumer alone
    :param durable_ttl: how long a message that does not come is remembered there, after its deadline
    :param max_ack_state_bytes: most that the durable acknowledgements may take on storage: ``receive`` holds new
        messages back before; below 1: no bound
    :param trace: where each event of each message is noted, a :class:`~pulsar_nack.observe.TraceWriter`; off by default
    :param wall_clock: the clock of the deadlines there, in epoch time; the machine's by default
    """

    redelivery: Redelivery
    backoff: Backoff | Delay | Sequence[Delay] | None
    config: NackConfig | None
    max_local_bytes: int
    unacked_limit: int | None
    ack_memory: Delay
    lease: Delay | None
    dead_letter: DeadLetterPolicy | None
    retry_topic: RetryTopicPolicy | None
    hooks: Sequence[ConsumerHook]
    clock: Clock | None
    durable: DurableHome | None
    durable_ttl: Delay
    max_ack_state_bytes: int
    wall_clock: Clock | None
    trace: ConsumerTrace | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerSettings:
    """The settings of a consumer, with the defaults; see :class:`ConsumerOptions` for the meaning of each."""

    redelivery: Redelivery = "auto"
    backoff: Backoff | Delay | Sequence[Delay] | None = None
    config: NackConfig | None = None
    max_local_bytes: int = 64 * 1024 * 1024
    unacked_limit: int | None = 50_000
    ack_memory: Delay = 10.0
    lease: Delay | None = None
    dead_letter: DeadLetterPolicy | None = None
    retry_topic: RetryTopicPolicy | None = None
    hooks: Sequence[ConsumerHook] = ()
    clock: Clock | None = None
    durable: DurableHome | None = None
    durable_ttl: Delay = timedelta(days=7)
    max_ack_state_bytes: int = 5_242_880
    wall_clock: Clock | None = None
    trace: ConsumerTrace | None = None

    @classmethod
    def checked(cls, traits: PortTraits, settings: Mapping[str, Any]) -> Self:
        """Return settings that a consumer on a port with these traits can have.

        :raises InvalidArgumentError: names the first setting that is wrong
        :raises TypeError: names a setting that does not exist, as for a function's own parameters
        """
        for name in settings:
            if name not in CONSUMER_SETTINGS:
                raise TypeError(f"Consumer() got an unexpected keyword argument {name!r}")
        self = cls(**settings)
        check_config(self.config, NackConfig)
        check_clock(self.clock)
        check_clock(self.wall_clock, "wall_clock")
        if self.trace is not None and not hasattr(self.trace, "source"):
            raise InvalidArgumentError("trace", self.trace, "a TraceWriter")
        if self.dead_letter is not None and not isinstance(self.dead_letter, DeadLetterPolicy):
            raise InvalidArgumentError("dead_letter", self.dead_letter, "a DeadLetterPolicy or None")
        if self.retry_topic is not None and not isinstance(self.retry_topic, RetryTopicPolicy):
            raise InvalidArgumentError("retry_topic", self.retry_topic, "a RetryTopicPolicy or None")
        if self.retry_topic is not None and not traits.honours_ids:
            expected = "None on Exclusive and Failover subscriptions, where a broker delays no message"
            raise InvalidArgumentError("retry_topic", self.retry_topic, expected)
        if not callable(self.redelivery) and self.redelivery not in _REDELIVERY_NAMES:
            raise InvalidArgumentError("redelivery", self.redelivery, "'auto', 'local', 'broker' or a callable")
        Hooks(self.hooks)
        if self.durable is not None:
            from .durable import check_home

            check_home(self.durable)
        if self.backoff is not None:
            as_backoff(self.backoff)
        self._check_numbers(traits.receiver_queue_size)
        return self

    def _check_numbers(self, prefetched: int) -> None:
        check_integer("max_local_bytes", self.max_local_bytes, 0)
        limit = self.unacked_limit
        if limit is not None and (type(limit) is not int or limit <= prefetched):
            raise InvalidArgumentError("unacked_limit", limit, f"an integer above receiver_queue_size ({prefetched})")
        delay_ms(self.ack_memory, "ack_memory")
        if self.lease is not None:
            positive_delay_ms(self.lease, "lease")
        delay_ms(self.durable_ttl, "durable_ttl")
        check_metadata_limit("max_ack_state_bytes", self.max_ack_state_bytes)


CONSUMER_SETTINGS: Final = tuple(field.name for field in fields(ConsumerSettings))
"""The names of all settings."""


def check_settings(traits: PortTraits, settings: Mapping[str, Any]) -> None:
    """Raise if a :class:`Consumer` on a port with these traits would refuse the settings, or does not know one.

    :raises InvalidArgumentError: names the setting
    """
    refuse_unknown(settings.items(), CONSUMER_SETTINGS)
    ConsumerSettings.checked(traits, settings)


def refuse_unknown(settings: Iterable[tuple[str, Any]], known: Sequence[str]) -> None:
    """Raise if the name of a setting is unknown.

    :raises InvalidArgumentError: names the first, and a known one that is spelt nearly so
    """
    for name, value in settings:
        if name not in known:
            raise InvalidArgumentError(name, value, suggest_name(name, known))


def signature_with_settings(function: Any, *, has_others: bool = False) -> inspect.Signature:
    """Return a signature that names each setting in place of ``**settings``, for help() and documentation.

    :param has_others: whether there are settings that a consumer does not have; then ``**settings`` follows
    """
    signature = inspect.signature(function)
    *named, others = signature.parameters.values()
    settings = inspect.signature(ConsumerSettings).parameters.values()
    return signature.replace(parameters=[*named, *settings, *([others] if has_others else [])])
