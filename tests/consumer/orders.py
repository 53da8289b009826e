"""All orders of events up to a length, breadth first; equal states are continued from only once.

A consumer cannot be copied, so each step plays its order from the beginning, in a new round. Two orders lead to the
same state if their :class:`Picture` is the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from time import process_time
from typing import Any, Final, Self

from pulsar_nack import Consumer, Message, MessageId
from pulsar_nack.consumer._consumer_state import ConsumerState
from pulsar_nack.consumer._engine import ConsumerEngine
from pulsar_nack.consumer._receiver import Receiver
from pulsar_nack.consumer._settings import ConsumerSettings
from pulsar_nack.consumer._settler import Settler
from pulsar_nack.testing import VirtualClockEventLoop

from .two_workers import LEDGER, World, WrongError

_SEEN_THROUGH: Final = ("pulsar_nack.consumer.", "pulsar_nack.wire._consumer._ack_")
"""Objects of these modules are inspected; of others only the type counts."""
_NOT_SEEN_THROUGH: Final = {
    *(Consumer, ConsumerEngine, ConsumerSettings, ConsumerState),
    *(Message, Receiver, Settler),
}
_COUNTERS: Final = {
    *("acked", "acked_again", "done", "failures", "redelivered_local", "redelivered_broker"),
    *("requested_again", "request", "_tries", "id", "duplicates", "replayed"),
}
"""Counters, which make no difference to what can happen."""
_OLD: Final = object()
DISTURBANCES: Final = {
    *("copy", "fail", "refused", "seek", "reset", "clear", "closed", "lost", "late", "switch"),
}
"""Events that do not happen on a quiet day."""
_BEGIN_S: Final = 1_000_000.0
_ROUNDS: Final = 40
"""After this many rounds a new world is made, because a topic with many messages is slow."""


class Picture:
    """A state: all that is known of the round's messages at the broker, in the consumers, and in flight.

    All past times are equal. Later times count from now, and entries from the round's first one.
    """

    def __init__(self, world: World) -> None:
        self._base = world.start
        self._now_s = asyncio.get_running_loop().time()
        self._now_ms = round(self._now_s * 1000)
        self._known: dict[int, int] = {}

    def of(self, value: Any) -> Any:
        """Return a representation of a value; :data:`_OLD` for objects of earlier rounds."""
        kind = type(value)
        if kind is int:
            return self._number(value, self._now_ms, 1000)
        if kind is float:
            return self._number(value, self._now_s, 1)
        if value is None or kind in {bool, str} or isinstance(value, Enum):
            return value
        if kind is MessageId:
            return (value.entry - self._base, value.batch_index) if value.entry >= self._base else _OLD
        if kind is bytes:
            return value[:1]
        if isinstance(value, tuple):
            if len(value) > 1 and value[0] == LEDGER:
                return (value[1] - self._base, *value[2:]) if value[1] >= self._base else _OLD
            return tuple(map(self.of, value))
        if isinstance(value, (list, deque)):
            return tuple(one for one in map(self.of, value) if one is not _OLD and not _has_old(one))
        if isinstance(value, (set, frozenset)):
            return sorted(repr(one) for one in map(self.of, value) if one is not _OLD)
        if isinstance(value, dict):
            pairs = ((self.of(key), self.of(one)) for key, one in value.items())
            return tuple(pair for pair in pairs if pair[0] is not _OLD and not _has_old(pair))
        return self._object(value)

    def _number(self, value: Any, now: Any, second: int) -> Any:
        if value < 1_000_000:  # no time: the clock began later
            return value
        return "past" if value <= now else round((value - now) * 20 / second)

    def _object(self, value: Any) -> Any:
        kind = type(value)
        if not _is_looked_into(value):
            if isinstance(value, asyncio.Future):
                return value.done()
            return kind.__name__
        number = self._known.get(id(value))
        if number is not None:
            return number
        self._known[id(value)] = len(self._known)
        fields = getattr(value, "__dict__", None)
        if fields is None:
            fields = {name: getattr(value, name, None) for name in kind.__slots__}
        shown = [
            (name, self.of(fields[name]))
            for name in sorted(fields)
            if name not in _COUNTERS and fields[name] != getattr(kind, name, _OLD)
        ]
        return (kind.__name__, *shown)


def _has_old(value: Any) -> bool:
    return isinstance(value, tuple) and any(one is _OLD or _has_old(one) for one in value)


def picture(world: World) -> bytes:
    """Return a representation that is equal for equal states."""
    draw = Picture(world)
    subscription = world.subscription
    parts: list[Any] = [
        draw.of(sorted(place for place in subscription.acked if place[1] >= world.start)),
        draw.of({place: list(words) for place, words in subscription.unacked_indexes.items()}),
        draw.of(dict(subscription.counts)),
        draw.of(list(subscription._again)),
        subscription._next - world.start,
        [(each.name, each.is_active, draw.of(list(each.pending))) for each in subscription.consumers],
        [
            draw.of([(each.ledgerId, each.entryId, *each.ack_set) for each in call.body.message_id])
            for call in world.acks
        ],
        list(world.letters.waiting.values()),
        sorted((name, world.delivered_gone[name]) for name in world.gone_at),
        sorted(name for name, at in world.nacked_at.items() if at > world.gone_at.get(name, 0.0)),
    ]
    for worker in world.workers:
        consumer = worker.consumer
        parts.append((sorted(worker.hand), sorted(worker.acking), len(worker.calls)))
        engine = consumer._engine
        for owner in (engine, engine.state, engine.settler, engine.receiver):
            parts += [draw.of(part) for part in vars(owner).values() if _is_looked_into(part)]
        parts += [
            (each.is_connected, draw.of(each.acks._groups), draw.of(each.acks.sets))
            for each in consumer.port._consumers
        ]
    return blake2b(repr(parts).encode(), digest_size=16).digest()


def _is_looked_into(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.startswith(_SEEN_THROUGH) and kind not in _NOT_SEEN_THROUGH


@dataclass
class Explored:
    """The result.

    :param orders: how many were tried
    :param states: how many different states they led to
    :param wrong: what is wrong, with the first order, one of the shortest, that leads to it, and how many do
    """

    orders: int = 0
    states: int = 0
    seconds: float = 0.0
    wrong: dict[str, tuple[tuple[str, ...], int]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the sizes, and what is wrong."""
        size = f"{self.orders} orders, {self.states} states, {self.seconds:.1f} s of processor time"
        faults = [f"{what}\n    after {', '.join(order)} ({many} orders)" for what, (order, many) in self.wrong.items()]
        return "\n".join([size, *faults])


@dataclass(frozen=True)
class Bounds:
    """Which orders are tried.

    :param events: how many at most
    :param disturbances: how many of them at most may be in :data:`DISTURBANCES`
    :param about: the messages that workers act on, of ``a`` and ``b``
    :param placed: which worker has which message at first
    """

    kind: str
    events: int
    disturbances: int
    about: str = "ab"
    placed: Mapping[str, int] = field(default_factory=lambda: {"a": 1, "b": 1})

    def __str__(self) -> str:
        """Return them as short text."""
        where = " ".join(f"{name}{number}" for name, number in self.placed.items())
        return f"{self.kind} {self.events} events {self.disturbances} disturbances about {self.about} at {where}"


async def explore(bounds: Bounds) -> Explored:
    """Try all orders within the bounds; orders that end wrong are not continued. Call it on virtual time."""
    loop, found, began_at = asyncio.get_running_loop(), Explored(), process_time()
    assert isinstance(loop, VirtualClockEventLoop)
    if loop.time() < _BEGIN_S:
        loop.advance(_BEGIN_S)  # times are large numbers, and no other numbers are
    async with Stage(bounds) as stage:
        best = {await stage.play(()): bounds.disturbances}
        waiting: deque[tuple[tuple[str, ...], list[str], int]] = deque()
        waiting.append(((), stage.world.possible(), bounds.disturbances))
        if (wrong := await stage.judge()) is not None:
            _note(found, wrong, ())
        while waiting:
            before, possible, left = waiting.popleft()
            for event in possible:
                order, still = (*before, event), left - (event.partition(" ")[0] in DISTURBANCES)
                if still < 0:
                    continue
                state = await stage.play(order)
                found.orders += 1
                seen = best.get(state, -1)
                if seen < still:
                    best[state] = still
                events = stage.world.possible()
                if seen >= 0:
                    await stage.drop()
                elif (wrong := await stage.judge()) is not None:
                    _note(found, wrong, order)
                    best[state] = bounds.disturbances  # it is not continued
                    continue
                if seen < still and len(order) < bounds.events:
                    waiting.append((order, events, still))
        found.states = len(best)
    found.seconds = process_time() - began_at
    return found


def _note(found: Explored, wrong: str, order: tuple[str, ...]) -> None:
    """Note what is wrong, once for each kind of disturbances before it."""
    kinds = [kind for event in order if (kind := event.partition(" ")[0]) in DISTURBANCES]
    what = f"{wrong}, with {' and '.join(kinds) or 'no disturbance'}"
    first, many = found.wrong.get(what, (order, 0))
    found.wrong[what] = (first, many + 1)


class Stage:
    """Plays orders, each in a new round, and now and then in a new world."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._rounds = 0
        self.world = World(bounds.kind, bounds.about)

    async def __aenter__(self) -> Self:
        await self.world.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.world.aclose()

    async def play(self, order: Sequence[str]) -> bytes:
        """Play an order; return a representation of the state that it leads to."""
        self._rounds += 1
        await self.world.begin(self._bounds.placed)
        for event in order:
            await self.world.do(event)
        return picture(self.world)

    async def judge(self) -> str | None:
        """Play it to its end; return what is wrong then."""
        wrong = None
        try:
            await self.world.end()
        except WrongError as violation:
            wrong = str(violation)
        if wrong is not None or self._rounds % _ROUNDS == 0:
            await self._renew()
        return wrong

    async def drop(self) -> None:
        """Leave it: the state that it leads to is judged already."""
        if self._rounds % _ROUNDS == 0 or not await self.world.forget():
            await self._renew()

    async def _renew(self) -> None:
        await self.world.aclose()
        self.world = World(self._bounds.kind, self._bounds.about)
        await self.world.open()
