"""Two machines that want one state on object storage, run in every order in which their requests can be paused.

Each machine is a thread with its own loop, whose requests are made in that thread: while one is paused before a
request, the whole machine stops, as a process that is stopped or cut off does, and the other one runs. So a run depends
only on its order.

The orders have few switches: A runs until before one of its requests, B runs until after it has created one of its
objects, A runs to its end, then B. This covers every request of A with every step of B that A can notice, except B's
deletions of objects that nothing names any more; both machines do the same, so it covers the other way round too.
Orders with more switches are drawn at random.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import product
from random import Random
from threading import Semaphore, Thread
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, TypeVarTuple, Unpack

from pulsar_nack.backoff import Fixed
from pulsar_nack.errors import LogFencedError, LogStorageError
from pulsar_nack.ledger import ObjectLogStore
from pulsar_nack.ledger._object_requests import RetryingClient
from pulsar_nack.ledger._object_store import ObjectDirectory
from pulsar_nack.ledger.memory import InPlaceExecutor

Fate = Literal["", "failed", "lost"]
_STUCK_S: Final = 50
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class MemoryObjects:
    """Objects in a dict; a machine may be called before and after each request."""

    url = "memory://"

    def __init__(self, objects: dict[str, bytes], machine: Machine | None = None) -> None:
        self.objects = objects
        self._is_lost = _never if machine is None else machine.loses_answer
        self._before = _nothing if machine is None else machine.before_request
        self._made = _nothing if machine is None else machine.after_create

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist."""
        if self._is_lost():
            self.objects.setdefault(key, data)
        self._before()
        if key in self.objects:
            raise FileExistsError(key)
        self.objects[key] = data
        self._made()

    def get(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object."""
        self._before()
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key][start : start + length]

    def list(self, folder: str) -> dict[str, int]:
        """List the objects below a folder."""
        self._before()
        begin = folder + "/"
        return {key[len(begin) :]: len(data) for key, data in self.objects.items() if key.startswith(begin)}

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, one after the other."""
        for key in keys:
            self._before()
            self.objects.pop(key, None)


def _nothing() -> None:
    """Do nothing."""


def _never() -> bool:
    """Return False."""
    return False


def store_of(objects: MemoryObjects) -> ObjectLogStore:
    """Return an unopened store with small parts, whose requests are made in its loop's thread."""
    requests = RetryingClient(objects, attempts=1, backoff=Fixed(0), sleep=lambda _: None)
    return ObjectLogStore(ObjectDirectory(requests, 2048, 4, None), InPlaceExecutor(1), InPlaceExecutor(1))


@dataclass
class Confirmed:
    """What was reported as durable to the machines."""

    done: set[str] = field(default_factory=set)


class _Loop(asyncio.SelectorEventLoop):
    """Does the jobs of an executor at once, in its own thread, without waking the loop from another one."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        done: asyncio.Future[_T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - raised where the job is awaited
            done.set_exception(error)
        return done


def _run(life: Coroutine[Any, Any, None]) -> None:
    """Run on a new loop."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(life)


class State(Protocol):
    """A kind of state that two machines want: what a machine does to it, and what is read from it afterwards."""

    async def live(self, store: ObjectLogStore, name: str, confirmed: Confirmed) -> None:
        """Open it, change it so that it begins new logs, close it."""
        ...

    async def find(self, store: ObjectLogStore) -> set[str]:
        """Open it, return which of the possibly confirmed changes it has, change something, close it."""
        ...


class Machine:
    """One process: a thread that runs until it pauses or ends."""

    def __init__(
        self, name: str, state: State, objects: dict[str, bytes], confirmed: Confirmed, fate: Fate = ""
    ) -> None:
        self.name = name
        self._fate = fate
        self.requests = self.creates = 0
        self.error: BaseException | None = None
        self._is_over = False
        self.token = ""
        self._state = state
        self._confirmed = confirmed
        self._objects = MemoryObjects(objects, self)
        self._go, self._has_paused = Semaphore(0), Semaphore(0)
        self._pause_before = self._pause_after = -1
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def loses_answer(self) -> bool:
        """Return whether the next request is carried out and its answer is lost."""
        return self.requests == self._pause_before and self._fate == "lost"

    def go_on(self, *, before_request: int = -1, after_create: int = -1) -> bool:
        """Run until before a request, or after an object was created, counted from the start; return if it paused."""
        if self._thread.is_alive() and self.requests != before_request:
            self._pause_before, self._pause_after = before_request, after_create
            self._go.release()
            assert self._has_paused.acquire(timeout=_STUCK_S), "the machine is stuck"
            if self._is_over:
                self._thread.join()
        return not self._is_over

    def before_request(self) -> None:
        """Pause here if the order says so, and then fail if the order says so."""
        is_chosen = self.requests == self._pause_before
        if is_chosen:
            self._pause()
        self.requests += 1
        if is_chosen and self._fate:
            raise OSError(f"this request was {self._fate}")

    def after_create(self) -> None:
        """Pause here if the order says so."""
        self.creates += 1
        if self.creates == self._pause_after:
            self._pause()

    def _pause(self) -> None:
        self._has_paused.release()
        self._go.acquire()

    def _run(self) -> None:
        self._go.acquire()
        try:
            _run(self._live())
        except BaseException as error:  # noqa: BLE001 - looked at in the thread of the test
            self.error = error
        self._is_over = True
        self._has_paused.release()

    async def _live(self) -> None:
        async with store_of(self._objects) as store:
            store._directory.open()
            try:
                await self._state.live(store, self.name, self._confirmed)
            finally:
                claims = [part._directory._claim for part in store._owned]
                self.token = claims[0].token if claims and claims[0] else ""


class Order(NamedTuple):
    """The request before which A pauses, and which object B creates before it pauses; then how many more each makes.

    ``fate``: what happens to the request before which A pauses: it fails, or its answer is lost.
    """

    a: int
    b: int
    more: tuple[int, ...] = ()
    fate: Fate = ""


def run(state: State, begin: dict[str, bytes], order: Order) -> None:
    """Run both machines in an order, and check that no confirmed change is missing.

    The machine that owns the state in the end was never fenced; the other one may have been, and had no other error,
    unless one of its requests failed.
    """
    objects, confirmed = dict(begin), Confirmed()
    a = Machine("A", state, objects, confirmed, order.fate)
    b = Machine("B", state, objects, confirmed)
    a.go_on(before_request=order.a)
    b.go_on(after_create=order.b)
    for count, step in enumerate(order.more):
        machine = (a, b)[count % 2]
        machine.go_on(after_create=machine.creates + step)
    a.go_on()
    b.go_on()
    try:
        _run(_check(state, objects, confirmed, (a, b), order.fate))
    except AssertionError as error:
        raise AssertionError(f"{order}: {error}") from error


async def _check(
    state: State, objects: dict[str, bytes], confirmed: Confirmed, machines: Sequence[Machine], fate: Fate
) -> None:
    for machine in machines:
        is_fair = isinstance(machine.error, LogFencedError)
        if machine.name == "A" and fate:
            is_fair |= isinstance(machine.error, LogStorageError)
        if machine.error is not None and not is_fair:
            raise AssertionError(f"{machine.name} ended with {machine.error!r}") from machine.error
    async with store_of(MemoryObjects(objects)) as store:
        store._directory.open()
        owners = set(store._directory._catalog._load().owners.values())
        for machine in machines:
            if machine.token in owners:
                assert not isinstance(machine.error, LogFencedError), f"{machine.name} is the owner, and was fenced"
        found = await state.find(store)
        missing = confirmed.done - found
        assert not missing, f"confirmed, and not there: {sorted(missing)}; there: {sorted(found)}"
    folders = {key.split("/")[1] for key in objects if key.startswith("logs/")}
    logs = store._directory._catalog._load().logs
    assert len(folders) <= len(logs), f"{folders} are there, and the catalog has {sorted(logs)}"


def begun(state: State) -> dict[str, bytes]:
    """Return the objects that a machine leaves that ran alone."""
    objects: dict[str, bytes] = {}
    machine = Machine("first", state, objects, Confirmed())
    machine.go_on()
    assert machine.error is None, machine.error
    return objects


def orders(state: State, begin: dict[str, bytes], *, share: int = 1) -> list[Order]:
    """Return all orders with one pause of each machine, or one of ``share`` of them, spread evenly."""
    alone = _alone(state, begin)
    pauses = product(range(alone.requests), range(1, alone.creates + 1))
    return [Order(a, b) for a, b in pauses if (a + b) % share == 0]


def doubts(state: State, begin: dict[str, bytes], *, share: int = 1) -> list[Order]:
    """Return all orders in which a request of A fails, or loses its answer, and B runs before A learns of it.

    Also those in which B only begins.
    """
    alone = _alone(state, begin)
    fates: tuple[Fate, ...] = ("failed", "lost")
    every = product(range(alone.requests), (1, 2, alone.creates // 2, 10**9), fates)
    return [Order(a, b, fate=fate) for a, b, fate in every][::share]


def random_orders(state: State, begin: dict[str, bytes], many: int, seed: int) -> list[Order]:
    """Draw orders with more pauses."""
    random, alone = Random(seed), _alone(state, begin)
    return [
        Order(
            random.randrange(alone.requests),
            random.randrange(1, alone.creates + 1),
            tuple(random.choice((1, 1, 2, 3, 5)) for _ in range(random.randrange(1, 8))),
        )
        for _ in range(many)
    ]


def _alone(state: State, begin: dict[str, bytes]) -> Machine:
    machine = Machine("A", state, dict(begin), Confirmed())
    machine.go_on()
    assert machine.error is None, machine.error
    return machine
