"""A consumer's settings, looked at before anything is opened for it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .._check import check_clock, check_config
from .._delays import Delay, delay_ms
from ..backoff import Backoff, as_backoff
from ..clock import Clock
from ..config import NackConfig
from ..errors import InvalidArgumentError
from ..nack import HookLike
from ..nack._events import Hooks
from ._dead_letter import DeadLetterPolicy
from ._port import PortTraits
from ._tracing import ConsumerTrace
from ._ways import Redelivery, Ways

if TYPE_CHECKING:
    from .durable import DurableHome

_LEAST_ACK_STATE_BYTES: Final = 1_024


class Checked(NamedTuple):
    """What there is of the settings once they are known to be right."""

    config: NackConfig
    backoff: Backoff | None
    max_local_bytes: int
    unacked_limit: int | None
    """Less what the port fetches ahead."""
    ack_memory_ms: int
    durable_ttl_ms: int
    max_ack_state_bytes: int


def checked(
    traits: PortTraits,
    *,
    redelivery: Redelivery,
    backoff: Backoff | Delay | Sequence[Delay] | None,
    config: NackConfig | None,
    max_local_bytes: int,
    unacked_limit: int | None,
    ack_memory: Delay,
    dead_letter: DeadLetterPolicy | None,
    hooks: Sequence[HookLike],
    durable: DurableHome | None,
    durable_ttl: Delay,
    max_ack_state_bytes: int,
    trace: ConsumerTrace | None,
    clock: Clock | None,
    wall_clock: Clock | None,
) -> Checked:
    """Return what a consumer on a port with such traits goes by; needs no event loop.

    :raises InvalidArgumentError: names the first setting that is wrong
    """
    check_config(config, NackConfig)
    check_clock(clock)
    check_clock(wall_clock, "wall_clock")
    if trace is not None and not hasattr(trace, "source"):
        raise InvalidArgumentError("trace", trace, "a TraceWriter")
    if dead_letter is not None and not isinstance(dead_letter, DeadLetterPolicy):
        raise InvalidArgumentError("dead_letter", dead_letter, "a DeadLetterPolicy or None")
    Ways(redelivery, traits)
    Hooks(hooks)
    if durable is not None:
        from .durable import check_home

        check_home(durable)
    prefetched = traits.receiver_queue_size
    return Checked(
        config=config or NackConfig(),
        backoff=None if backoff is None else as_backoff(backoff),
        max_local_bytes=_whole("max_local_bytes", max_local_bytes, 0),
        unacked_limit=None if unacked_limit is None else _above_prefetch(unacked_limit, prefetched) - prefetched,
        ack_memory_ms=delay_ms(ack_memory, "ack_memory"),
        durable_ttl_ms=delay_ms(durable_ttl, "durable_ttl"),
        max_ack_state_bytes=_gate_limit(max_ack_state_bytes),
    )


def refuse_unknown(settings: Iterable[tuple[str, Any]], known: Iterable[str]) -> None:
    """Raise for a setting that there is not.

    :raises InvalidArgumentError: names the first, and one that is spelt nearly so
    """
    names = list(known)
    for name, value in settings:
        if name not in names:
            raise InvalidArgumentError(name, value, a_setting(name, names))


def a_setting(name: str, known: Sequence[str]) -> str:
    """Return what was expected in place of a name that there is not."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"the name of a setting{f' ({near[0]}?)' if near else ''}"


def _whole(field: str, value: object, lowest: int) -> int:
    if type(value) is not int or value < lowest:
        raise InvalidArgumentError(field, value, f"an integer of at least {lowest}")
    return value


def _gate_limit(value: object) -> int:
    if type(value) is not int or 1 <= value < _LEAST_ACK_STATE_BYTES:
        what = f"whole bytes: at least {_LEAST_ACK_STATE_BYTES:,}, or below 1 for no bound"
        raise InvalidArgumentError("max_ack_state_bytes", value, what)
    return value


def _above_prefetch(limit: object, prefetched: int) -> int:
    if type(limit) is not int or limit <= prefetched:
        raise InvalidArgumentError("unacked_limit", limit, f"an integer above receiver_queue_size ({prefetched})")
    return limit
