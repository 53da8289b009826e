"""Several machines on one object store: the last opener of a log writes to it, and the others are fenced."""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from random import Random

import pytest
from obstore.store import MemoryStore

from pulsar_nack.errors import (
    ClosedError,
    LedgerError,
    LogExistsError,
    LogFencedError,
    LogNotFoundError,
    LogStorageError,
)
from pulsar_nack.ledger import Log, ObjectLogStore
from pulsar_nack.ledger._object_format import encode, slot_name
from pulsar_nack.ledger.faults import FaultyObjects, SimulatedCrash
from tests.for_each import for_each
from tests.tiers import sample, seeds

from .homes import content, open_objects

NAME = "a"
Others = Callable[["Shared"], Awaitable[None]]


class Shared:
    """A store that several machines use, and the answers to appends to its log."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.kept: dict[int, bytes] = {}
        self.refused: list[bytes] = []
        self.doubted: list[bytes] = []
        self.is_over = False
        self._numbers = count()

    async def append(self, log: Log, records: int = 1) -> bool:
        """Append records of this machine's size; return whether that succeeded."""
        data = [b"%d " % next(self._numbers) * (1 + each * 40) for each in range(records)]
        try:
            first = await log.append_many(data)
        except LogFencedError:
            self.refused += data
            return False
        except SimulatedCrash:
            self.doubted += data
            raise
        except LogStorageError as error:
            if "too many others opened it meanwhile" not in str(error):
                raise
            self.doubted += data  # on a busy machine this writer stood still during many takeovers
            return False
        for number, record in enumerate(data, first):
            assert number not in self.kept
            self.kept[number] = record
        return True

    async def check(self) -> None:
        """Everything that was answered is there, at its number, and nothing else."""
        async with await open_objects(self.store) as store:
            if NAME not in await store.names():
                assert self.kept == {}
                return
            log = await store.open_log(NAME)
            found = dict(enumerate(await content(log)))
            assert {number: record for number, record in found.items() if record not in self.doubted} == self.kept
            assert len(set(found.values())) == len(found)
        objects = self.store.list().collect()
        names = [item["path"] for item in objects]
        assert len(names) <= 1 + 12 + sum(item["size"] for item in objects) // 1024
        assert len({name.rpartition("/")[0] for name in names}) == 2


async def append_once(shared: Shared) -> None:
    """Another machine takes the log over and appends."""
    async with await open_objects(shared.store, threads=1) as store:
        assert await shared.append(await store.open_log(NAME))


async def append_often(shared: Shared) -> None:
    """Another machine takes the log over, and appends until objects are merged and deleted."""
    async with await open_objects(shared.store, threads=1) as store:
        log = await store.open_log(NAME)
        for _ in range(11):
            assert await shared.append(log, 2)


async def append_in_turns(shared: Shared) -> None:
    """Three more machines take the log over, one after the other."""
    for _ in range(3):
        await append_once(shared)


async def open_only(shared: Shared) -> None:
    """Many machines take the log over, and do nothing."""
    async with await open_objects(shared.store, threads=1) as store:
        for _ in range(40):
            await store.open_log(NAME)


async def delete(shared: Shared) -> None:
    """Another machine deletes the log."""
    async with await open_objects(shared.store, threads=1) as store:
        await store.delete(NAME)
    shared.kept.clear()
    shared.is_over = True


async def delete_and_create(shared: Shared) -> None:
    """Another machine deletes the log, and creates one of the same name."""
    await delete(shared)
    async with await open_objects(shared.store, threads=1) as store:
        log = await store.create(NAME)
        for _ in range(7):
            assert await shared.append(log)


async def delete_and_create_often(shared: Shared) -> None:
    """Others delete and create the log for longer than the catalog remembers."""
    for _ in range(25):
        await delete_and_create(shared)


OTHERS = (append_once, append_often, append_in_turns, open_only, delete, delete_and_create)


async def write(shared: Shared, log: Log) -> None:
    """Append, one by one and in groups, until the end or until fenced; then nothing more is possible."""
    was_fenced = False
    for step in range(13):
        is_done = await shared.append(log, 1 + step % 3)
        assert not (is_done and was_fenced)
        was_fenced = was_fenced or not is_done
    if was_fenced:
        for call in (log.append(b"x"), log.seal()):
            with pytest.raises(LogFencedError, match="opened it later"):
                await call
        with pytest.raises(LogFencedError):
            await log.delete()


async def play(shared: Shared, at: int | None, others: Others | None) -> FaultyObjects:
    """Make a log and write to it; before request ``at`` others do something to it."""
    objects = FaultyObjects(shared.store)
    async with await open_objects(objects, threads=1) as store:
        log = await store.create(NAME)
        await shared.append(log)
        if at is not None and others is not None:
            objects.call(len(objects.history) + at, lambda: asyncio.run(others(shared)))  # type: ignore[arg-type]
        await write(shared, log)
    return objects


async def requests() -> int:
    """Return how many requests an undisturbed writer makes."""
    return len((await play(Shared(), None, None)).history) - 6


@pytest.mark.parametrize("others", OTHERS)
async def test_taken_over_at_every_request(others: Others) -> None:
    """Before any request of the writer others work: answered appends hold, and then it is fenced."""
    total = await requests()
    assert total > 40
    for at in sample(range(total)):
        shared = Shared()
        await play(shared, at, others)
        await shared.check()


@pytest.mark.parametrize("others", OTHERS)
async def test_fenced(others: Others) -> None:
    """After a takeover appending, sealing and deleting fail clearly and have no effect; reading works."""
    shared = Shared()
    async with await open_objects(shared.store) as store:
        log = await store.create(NAME)
        for _ in range(9):
            await shared.append(log)
        before = dict(shared.kept)
        await others(shared)
        assert not await shared.append(log, 3)
        with pytest.raises(LogFencedError, match="log a: another writer opened it later, or it was deleted"):
            await log.seal()
        if not shared.is_over:
            assert dict(enumerate(await log.read(0, 8))) == before
        else:
            with pytest.raises(LogNotFoundError):
                await log.read(0, 8)
        with pytest.raises(LogFencedError):
            await log.delete()
        await shared.check()
        if NAME in await store.names():
            log = await store.open_log(NAME)
            assert await shared.append(log)
        await shared.check()


async def test_the_same_store_opens_it_again() -> None:
    """The newest opener wins also within one store."""
    async with await open_objects(MemoryStore()) as store:
        first = await store.create(NAME)
        await first.append(b"x")
        second = await store.open_log(NAME)
        with pytest.raises(LogFencedError):
            await first.append(b"y")
        assert await second.append(b"z") == 1
        await first.aclose()
        await second.delete()
        with pytest.raises(LogFencedError):
            await first_deleted(store)


async def first_deleted(store: ObjectLogStore) -> None:
    """Delete a log that another store deletes first."""
    log = await store.create("b")
    await store.delete("b")
    await log.delete()


@pytest.mark.parametrize("others", seeds([*OTHERS, delete_and_create_often], fast=len(OTHERS)))
async def test_opening_while_others_do(others: Others) -> None:
    """Before any request of an opening others work: the opening wins, or fails and removes nothing."""
    for at in sample(range(200)):
        shared = Shared()
        async with await open_objects(shared.store, threads=1) as store:
            log = await store.create(NAME)
            for _ in range(6):
                await shared.append(log)
        objects = FaultyObjects(shared.store)
        async with await open_objects(objects, threads=1) as store:
            begin = len(objects.history)
            objects.call(begin + at, lambda: asyncio.run(others(shared)))  # type: ignore[arg-type]  # noqa: B023
            try:
                log = await store.open_log(NAME)
            except (LogFencedError, LogNotFoundError):
                pass
            else:
                await write(shared, log)
            is_past = len(objects.history) <= begin + at
        await shared.check()
        if is_past:
            break
    else:
        pytest.fail("the opening makes too many requests")


async def test_opening_beside_a_busy_writer() -> None:
    """Before any request of an opening the old writer appends, merges and deletes: answered appends are there."""
    loop = asyncio.get_running_loop()
    for appends in (1, 3, 14):
        for at in range(16):
            shared = Shared()
            objects = FaultyObjects(shared.store)
            async with await open_objects(shared.store) as other, await open_objects(objects, threads=1) as store:
                old = await other.create(NAME)
                for _ in range(3):
                    await shared.append(old)

                async def work() -> None:
                    for _ in range(appends):  # noqa: B023
                        await shared.append(old)  # noqa: B023

                def hook() -> None:
                    asyncio.run_coroutine_threadsafe(work(), loop).result(20)

                begin = len(objects.history)
                objects.call(begin + at, hook)
                log = await store.open_log(NAME)
                if len(objects.history) <= begin + at:
                    break
                assert not await shared.append(old)
                for _ in range(3):
                    assert await shared.append(log)
                await log.seal()
            await shared.check()


async def open_once(shared: Shared) -> None:
    """Another machine opens the log."""
    async with await open_objects(shared.store, threads=1) as store:
        await store.open_log(NAME)


async def test_sealing_while_others_open() -> None:
    """Before any request of a seal another machine opens the log: it is sealed, or the old writer is fenced."""
    outcomes = set()
    for at in range(30):
        shared = Shared()
        objects = FaultyObjects(shared.store)
        async with await open_objects(objects, threads=1) as store:
            log = await store.create(NAME)
            for _ in range(3):
                await shared.append(log)
            begin = len(objects.history)
            objects.call(begin + at, lambda: asyncio.run(open_once(shared)))  # noqa: B023
            try:
                await log.seal()
            except LogFencedError:
                outcomes.add("fenced")
            else:
                outcomes.add("sealed")
                assert log.is_sealed
            if len(objects.history) <= begin + at:
                break
            assert (await store.open_log(NAME)).is_sealed == log.is_sealed
        await shared.check()
    assert outcomes == {"fenced", "sealed"}


async def test_of_two_openings_one_wins() -> None:
    """Before any request of an opening another one is made: exactly one of both then has the log."""
    loop = asyncio.get_running_loop()
    outcomes = set()
    for at in range(16):
        shared = Shared()
        objects = FaultyObjects(shared.store)
        async with await open_objects(shared.store) as other, await open_objects(objects, threads=1) as store:
            await shared.append(await other.create(NAME))
            logs: list[Log] = []

            async def open_too() -> None:
                logs.append(await other.open_log(NAME))  # noqa: B023

            def hook() -> None:
                asyncio.run_coroutine_threadsafe(open_too(), loop).result(20)

            begin = len(objects.history)
            objects.call(begin + at, hook)
            try:
                logs.append(await store.open_log(NAME))
            except LogFencedError:
                assert len(logs) == 1
            if len(objects.history) <= begin + at:
                break
            done = [await shared.append(log) for log in logs]
            assert sum(done) == 1
            outcomes.add(len(done))
        await shared.check()
    assert outcomes == {1, 2}


@pytest.mark.parametrize("others", [append_once, append_often, delete_and_create, delete_and_create_often])
async def test_deleting_while_others_open(others: Others) -> None:
    """Before any request of a deletion others open the log: the whole log is gone, or the deletion fails."""
    for at in range(200):
        shared = Shared()
        objects = FaultyObjects(shared.store)
        async with await open_objects(objects, threads=1) as store:
            log = await store.create(NAME)
            for _ in range(6):
                await shared.append(log)
            begin = len(objects.history)
            objects.call(begin + at, lambda: asyncio.run(try_it(others, shared)))  # noqa: B023
            try:
                await log.delete()
            except LogFencedError:
                pass
            else:
                if not shared.is_over:
                    shared.kept.clear()
            is_past = len(objects.history) <= begin + at
        await shared.check()
        if is_past:
            break
    else:
        pytest.fail("the deletion makes too many requests")


async def make_others(shared: Shared) -> None:
    """Others make other logs."""
    async with await open_objects(shared.store, threads=1) as store:
        for number in range(3):
            await store.create(f"other-{number}")


async def test_others_that_do_not_disturb() -> None:
    """Before any request of creating, opening and deleting a log others create other logs: none of it fails."""
    for at in range(40):
        shared = Shared()
        objects = FaultyObjects(shared.store)
        async with await open_objects(objects, threads=1) as store:
            objects.call(len(objects.history) + at, lambda: asyncio.run(make_others(shared)))  # noqa: B023
            log = await store.create(NAME)
            assert await shared.append(log)
            log = await store.open_log(NAME)
            assert await shared.append(log)
            await log.delete()
            assert NAME not in await store.names()


async def test_a_deletion_that_crashes() -> None:
    """A fenced writer stays fenced while a deletion of its log crashes anywhere, its own objects still there."""
    for at in range(30):
        shared = Shared()
        objects = FaultyObjects(shared.store)
        async with await open_objects(shared.store) as store:
            log = await store.create(NAME)
            await shared.append(log)
            async with await open_objects(objects, threads=1, attempts=1) as other:
                objects.fail(errno.EIO, "delete", times=math.inf)
                taken = await other.open_log(NAME)
                objects.heal()
                objects.crash(len(objects.history) + at)
                with suppress(SimulatedCrash):
                    await taken.delete()
            assert not await shared.append(log)
        if not objects.is_crashed:
            break
    else:
        pytest.fail("the deletion makes too many requests")


async def test_a_sweep_that_crashes() -> None:
    """A fenced writer stays fenced when others crash while they delete old manifests."""
    for at in range(20):
        shared = Shared()
        objects = FaultyObjects(shared.store)
        async with await open_objects(shared.store) as store:
            log = await store.create(NAME)
            await shared.append(log)
            with suppress(SimulatedCrash):
                async with await open_objects(objects, threads=1, attempts=1) as other:
                    objects.fail(errno.EIO, "delete", times=math.inf)
                    for _ in range(2):
                        taken = await other.open_log(NAME)
                        assert await shared.append(taken)
                    objects.heal()
                    begin = len(objects.history)
                    objects.crash(begin + at)
                    for _ in range(6):
                        await shared.append(taken)
            assert not await shared.append(log)
            assert "delete" in objects.history[begin:] or at < 12
        await shared.check()


async def test_a_writer_makes_way() -> None:
    """A writer that appends before each request of an opening soon notices it, and the opening succeeds."""
    shared = Shared()
    objects = FaultyObjects(shared.store)
    loop = asyncio.get_running_loop()
    async with await open_objects(shared.store) as other, await open_objects(objects, threads=1) as store:
        old = await other.create(NAME)

        def hook() -> None:
            asyncio.run_coroutine_threadsafe(shared.append(old), loop).result(20)

        begin = len(objects.history)
        for at in range(400):
            objects.call(begin + at, hook)
        log = await store.open_log(NAME)
        assert len(objects.history) - begin < 100
        assert len(shared.refused) > 0
        objects.call(len(objects.history), int)
        assert await log.append(b"x") == len(shared.kept)


async def try_it(others: Others, shared: Shared) -> None:
    """Let others try to open a log that may be gone."""
    try:
        await others(shared)
    except LogNotFoundError:
        shared.kept.clear()
        shared.is_over = True


async def make(shared: Shared) -> None:
    """Another machine creates the log, and many others that it deletes again."""
    async with await open_objects(shared.store, threads=1) as store:
        log = await store.create(NAME)
        assert await shared.append(log)
        for number in range(40):
            await (await store.create(f"other-{number}")).delete()


async def test_making_while_others_do() -> None:
    """Before any request of creating a log others create it: one of both has created it."""
    for at in range(30):
        shared = Shared()
        objects = FaultyObjects(shared.store)
        async with await open_objects(objects, threads=1) as store:
            begin = len(objects.history)
            objects.call(begin + at, lambda: asyncio.run(try_to_make(shared)))  # noqa: B023
            try:
                log = await store.create(NAME)
            except LogExistsError:
                assert len(shared.kept) == 1
            else:
                assert shared.kept == {}
                await shared.append(log)
            is_past = len(objects.history) <= begin + at
        await shared.check()
        if is_past:
            break
    else:
        pytest.fail("making a log makes too many requests")


async def try_to_make(shared: Shared) -> None:
    """Make the log unless it exists."""
    try:
        await make(shared)
    except LogExistsError:
        return


async def test_writers_that_race() -> None:
    """Machines that take a log from each other all the time: answered appends are there, once, and nothing else."""
    shared = Shared()
    async with await open_objects(shared.store) as store:
        await (await store.create(NAME)).aclose()

    async def race(rounds: int) -> int:
        done = 0
        async with await open_objects(shared.store) as store:
            for _ in range(rounds):
                try:
                    log = await store.open_log(NAME)
                except LogFencedError:
                    continue
                for _ in range(7):
                    results = await asyncio.gather(*(shared.append(log, 2) for _ in range(3)))
                    done += sum(results)
                    if not all(results):
                        break
        return done

    assert sum(await asyncio.gather(*(race(12) for _ in range(3)))) > 30
    assert shared.refused
    await shared.check()


async def test_readers_beside_a_writer() -> None:
    """A log that is open for reading continues when objects are merged and deleted, or sealed, meanwhile."""
    shared = Shared()
    async with await open_objects(shared.store) as store, await open_objects(shared.store) as other:
        log = await store.create(NAME)
        for _ in range(3):
            await shared.append(log)
        reader = await other.open_log(NAME, read_only=True)
        assert reader.length == 3
        for _ in range(30):
            await shared.append(log, 3)
        assert await reader.read(0, 2) == [shared.kept[number] for number in range(3)]
        await log.seal()
        assert await content(reader) == [shared.kept[number] for number in range(3)]
        await log.delete()
        with pytest.raises(LogNotFoundError):
            await reader.read(0, 2)
        with pytest.raises(LedgerError):
            await reader.delete()


async def crash_at_random(shared: Shared, random: Random) -> None:
    """Some machines take the log over and append, and all but the last crash at any of their requests."""
    for machine in range(random.randrange(1, 4)):
        objects = FaultyObjects(shared.store, random=random)
        if machine:
            objects.crash(random.randrange(60), after=random.random() < 0.5)
        try:
            async with await open_objects(objects, threads=1) as store:
                log = await store.open_log(NAME)
                for step in range(random.randrange(12)):
                    await shared.append(log, 1 + step % 3)
        except (SimulatedCrash, LedgerError):
            assert objects.is_crashed


@for_each("seed", sample(range(150)))
async def test_crashes_of_those_who_take_over(seed: int) -> None:
    """Others take the log over and crash in the middle, and the old writer continues: it cannot add a record."""
    random = Random(seed)
    shared = Shared()
    at = random.randrange(60)
    await play(shared, at, lambda shared: crash_at_random(shared, random))
    await shared.check()


async def test_a_part_has_one_owner() -> None:
    """O47: once another owner has the name, an older part creates, opens for writing and deletes nothing."""
    shared = MemoryStore()
    async with await open_objects(shared) as one, await open_objects(shared) as two:
        old = await one.take_ownership("state")
        first = await old.create("a")
        await first.append(b"x")
        new = await two.take_ownership("state")
        calls = (old.create("b"), old.open_log("a"), old.delete("a"), first.delete())
        for call in calls:
            with pytest.raises(LogFencedError):
                await call
        assert await new.names() == ["a"]
        assert await content(await old.open_log("a", read_only=True)) == [b"x"]
        taken = await new.open_log("a")
        assert await taken.append(b"y") == 1
        other = await one.take_ownership("other")  # owners of something else are not disturbed
        await (await other.create("b")).append(b"z")
        nested = await new.take_ownership("state")  # a part of an owned part is owned
        await nested.create("c")
        assert await new.names() == ["a", "b", "c"]


async def test_a_part_closes_what_was_opened_through_it() -> None:
    """Closing a part closes its logs, and leaves the store and logs of others open."""
    async with await open_objects(MemoryStore()) as store:
        part, log = await store.take_ownership("state"), await store.create("a")
        mine = await part.create("b")
        await part.aclose()
        with pytest.raises(ClosedError):
            await mine.append(b"x")
        with pytest.raises(ClosedError):
            await part.create("c")
        assert await log.append(b"x") == 0
        assert await store.names() == ["a", "b"]


async def test_a_catalog_without_owners() -> None:
    """An earlier release's catalog is read; owners under a later one have lost their parts."""
    shared = MemoryStore()
    async with await open_objects(shared) as store:
        part = await store.take_ownership("state")
        await part.create("a")
        version = store._directory._catalog._load()
        logs = {name: list(entry) for name, entry in version.logs.items()}
        older = encode("catalog", version.number + 1, {"logs": logs, "recent": version.recent})
        shared.put(f"catalog/{slot_name(version.number + 1)}", older)
        with pytest.raises(LogFencedError):
            await part.create("b")
        await (await store.take_ownership("state")).create("b")
        assert await store.names() == ["a", "b"]
