"""Logs on object storage: their requests and objects, damage, failed and lost puts, cancelling."""

from __future__ import annotations

import asyncio
import errno
import math
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore

from pulsar_nack.errors import (
    LogCorruptedError,
    LogExistsError,
    LogNotFoundError,
    LogSealedError,
    LogStorageError,
    LogVersionError,
)
from pulsar_nack.ledger import Log, ObjectLogStore
from pulsar_nack.ledger._object_requests import ObstoreClient
from pulsar_nack.ledger.faults import FaultyObjects
from pulsar_nack.ledger.format import SEGMENT_HEADER_SIZE
from tests.tiers import sample

from .homes import content, open_objects, reopened


@pytest.fixture
def memory() -> MemoryStore:
    """Return a store in memory."""
    return MemoryStore()


@pytest.fixture
def objects(memory: MemoryStore) -> FaultyObjects:
    """Return a client whose requests can be made to fail."""
    return FaultyObjects(memory)


@pytest.fixture
async def store(objects: FaultyObjects) -> AsyncIterator[ObjectLogStore]:
    """Open a store that tries each request once."""
    async with await open_objects(objects, attempts=1) as store:
        yield store


def keys(memory: MemoryStore) -> list[str]:
    """Return the keys of all objects."""
    return sorted(item["path"] for item in memory.list().collect())


def since(objects: FaultyObjects, begin: int) -> str:
    """Return the first letters of the requests from number ``begin`` on."""
    return "".join(sorted(request[0] for request in objects.history[begin:]))


async def filled(store: ObjectLogStore, records: int, name: str = "a") -> Log:
    """Make a log of small records, each appended separately."""
    log = await store.create(name)
    for number in range(records):
        await log.append(b"%d" % number)
    return log


async def test_requests(objects: FaultyObjects, memory: MemoryStore) -> None:
    """What each call costs in requests: create, get, list, delete."""
    async with await ObjectLogStore.open(objects) as store:
        steps: dict[str, str] = {"open a store": since(objects, 0)}

        async def step(name: str, call: object) -> object:
            begin = len(objects.history)
            result = await call  # type: ignore[misc]
            steps[name] = since(objects, begin)
            return result

        await step("create the first log", store.create("first"))
        log = await step("create", store.create("a"))
        assert isinstance(log, Log)
        await step("append", log.append(b"x"))
        await step("append again", log.append(b"y"))
        await step("read", log.read(0, 0))
        await step("seal", log.seal())
        await step("open for reading", store.open_log("a", read_only=True))
        await step("open for writing", store.open_log("a"))
        await step("names", store.names())
        await step("delete by name", store.delete("a"))
    assert steps == {
        "open a store": "lll",
        "create the first log": "ccllll",
        "create": "ccdlll",
        "append": "cg",
        "append again": "cg",
        "read": "g",
        "seal": "ccdddg",
        "open for reading": "gll",
        "open for writing": "cdglll",
        "names": "l",
        "delete by name": "cdddgllll",
    }


async def test_appends_share_requests(store: ObjectLogStore, objects: FaultyObjects) -> None:
    """Appends during a put share the next one."""
    log = await store.create("a")
    begin = len(objects.history)
    assert await asyncio.gather(*(log.append(b"%d" % number) for number in range(300))) == list(range(300))
    assert len(objects.history) - begin <= 4


async def test_bounds(memory: MemoryStore) -> None:
    """However many small appends there were, objects are few, and opening and reading take few requests."""
    objects = FaultyObjects(memory)
    async with await ObjectLogStore.open(objects, max_small_objects=8) as store:
        log = await filled(store, 700)
        assert len(keys(memory)) <= 8 + 10 + 2
        begin = len(objects.history)
        log = await reopened(store, log)
        assert await content(log) == [b"%d" % number for number in range(700)]
        assert len(objects.history) - begin < 60
        for number in range(30):
            await log.append(b"%d" % number)
            log = await reopened(store, log)
        assert len(keys(memory)) <= 8 + 10 + 2
        await log.seal()
        assert len(keys(memory)) <= 2 + 3
        assert log.length == 730
        assert log.size < 2 * sum(item["size"] for item in memory.list().collect())


async def test_large_objects_are_read_in_parts(memory: MemoryStore) -> None:
    """Only the needed parts of a large object are read."""
    read: list[int] = []

    class Counting(ObstoreClient):
        def get(self, key: str, start: int, length: int) -> bytes:
            data = super().get(key, start, length)
            read.append(len(data))
            return data

    async with await ObjectLogStore.open(Counting(memory)) as store:
        log = await store.create("a")
        records = [bytes([number % 251]) * 10_000 for number in range(700)]
        await log.append_many(records)
        await log.seal()
        log = await store.open_log("a", read_only=True)
        read.clear()
        assert await log.read(350, 351) == records[350:352]
        assert sum(read) < 300_000
        assert await content(log) == records


async def test_damaged_objects(memory: MemoryStore) -> None:
    """A flipped bit or a missing end of any object raises with its name, and nothing is changed."""
    async with await open_objects(memory, threads=1) as store:
        log = await filled(store, 11)
        await log.append(b"x" * 3000)
        await log.append(b"y")
    before = {key: bytes(memory.get(key).bytes()) for key in keys(memory)}
    assert len(before) >= 5
    for key, data in before.items():
        for broken in [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in sample(range(0, len(data), 7))] + [
            data[: len(data) // 2],
            data[:20],
            b"",
        ]:
            memory.put(key, broken)
            with pytest.raises(LogCorruptedError) as caught:
                async with await open_objects(memory, threads=1) as store:
                    await content(await store.open_log("a", read_only=True))
            assert key in str(caught.value)
        memory.put(key, data)
    assert {key: bytes(memory.get(key).bytes()) for key in keys(memory)} == before


@pytest.mark.parametrize("count", [4, 6])
async def test_damage_loses_the_records_of_one_frame(memory: MemoryStore, count: int) -> None:
    """Of an object with a damaged frame, read as a whole or in parts, earlier and later frames are read."""
    records = [bytes([number]) * 60_000 for number in range(count)]
    async with await open_objects(memory) as store:
        log = await store.create("a")
        await log.append(b"before")
        await log.append_many(records)
    key = keys(memory)[-1]
    whole = bytes(memory.get(key).bytes())
    for lost in range(0, count, 2):
        at = whole.index(records[lost])
        memory.put(key, whole[:at] + b"?" + whole[at + 1 :])
        async with await open_objects(memory) as store:
            log = await store.open_log("a", read_only=True)
            for number in {*range(0, count, 2)} - {lost}:
                assert await log.read(number + 1, number + 2) == records[number : number + 2]
            found = log.records()
            for record in (b"before", *records[:lost]):
                assert (await anext(found)).data == record
            with pytest.raises(LogCorruptedError, match=key):
                await anext(found)


async def test_missing_objects(memory: MemoryStore) -> None:
    """A missing object is damage too."""
    async with await open_objects(memory, threads=1) as store:
        log = await filled(store, 11)
        await log.append(b"x" * 3000)
        await log.append(b"y")
    pieces = [key for key in keys(memory) if key.startswith("logs/")][:-1]
    assert len(pieces) >= 3
    for key in pieces:
        data = bytes(memory.get(key).bytes())
        memory.delete(key)
        with pytest.raises((LogCorruptedError, LogNotFoundError)):
            async with await open_objects(memory, threads=1) as store:
                await content(await store.open_log("a", read_only=True))
        memory.put(key, data)


async def test_newer_and_wrong_objects(memory: MemoryStore) -> None:
    """Objects of a later version, under another's name, or of another kind raise errors."""
    async with await open_objects(memory, threads=1) as store:
        await (await filled(store, 2)).aclose()
        first, second, third = (key for key in keys(memory) if key.startswith("logs/"))
        before = [bytes(memory.get(key).bytes()) for key in (first, second, third)]
        memory.put(third, newer(before[2]))
        with pytest.raises(LogVersionError, match="version 2"):
            await store.open_log("a")
        memory.put(third, before[1])
        with pytest.raises(LogCorruptedError, match="says that its number is 1, its name says 2"):
            await store.open_log("a")
        memory.put(third, before[2])
        catalog = keys(memory)[0]
        memory.put(f"{catalog.rpartition('/')[0]}/{int(catalog.rpartition('/')[2]) + 1:020}", before[0])
        with pytest.raises(LogCorruptedError, match="log memory://: catalog/0"):
            await store.names()


async def test_objects_of_another_log(memory: MemoryStore) -> None:
    """O26: objects that were swapped between two logs are damage, and no record of them is read."""
    names = "a", "b"
    async with await open_objects(memory, threads=1) as store:
        for name in names:
            async with await store.create(name) as log:
                for number in range(3):
                    await log.append(f"{name}{number}".encode())
    for number in range(1, 5):
        one, other = ([key for key in keys(memory) if key.startswith(f"logs/{name}.")][number - 1] for name in names)
        before = {key: bytes(memory.get(key).bytes()) for key in (one, other)}
        memory.put(one, before[other])
        memory.put(other, before[one])
        for name in names:
            with pytest.raises(LogCorruptedError, match="it is a segment of another log"):
                async with await open_objects(memory, threads=1) as store:
                    await content(await store.open_log(name, read_only=True))
        for key, data in before.items():
            memory.put(key, data)


def newer(data: bytes) -> bytes:
    """Return an object as a later release would write it."""
    from zlib import crc32

    head = data[:4] + b"\0\2" + data[6 : SEGMENT_HEADER_SIZE - 4]
    return head + crc32(head).to_bytes(4, "big") + data[SEGMENT_HEADER_SIZE:]


async def test_foreign_objects_are_left_alone(memory: MemoryStore) -> None:
    """Foreign objects are neither listed nor deleted."""
    mine = ["logs/notes.txt", "logs/a/notes.txt", "catalog/notes", "other/x", "logs/x.0123456789abcdef/notes", "x"]
    for key in mine:
        memory.put(key, b"mine")
    async with await open_objects(memory) as store:
        log = await filled(store, 20)
        await log.delete()
        assert await store.names() == []
    async with await open_objects(memory):
        pass
    assert [key for key in keys(memory) if bytes(memory.get(key).bytes()) == b"mine"] == sorted(mine)
    assert len(keys(memory)) == len(mine) + 1


async def test_leftovers_are_deleted(memory: MemoryStore) -> None:
    """Leftovers of a deletion are removed when the store is opened, those of a merge with the log."""
    objects = FaultyObjects(memory)
    async with await open_objects(objects, attempts=1) as store:
        log = await filled(store, 7)
        objects.fail(errno.EIO, "delete", times=math.inf)
        await log.delete()
        assert await store.names() == []
        assert len(keys(memory)) > 5
        objects.heal()
        log = await store.create("a")
        objects.fail(errno.EIO, "delete", times=math.inf)
        for number in range(30):
            await log.append(b"%d" % number)
        await log.aclose()
        objects.heal()
    async with await open_objects(memory) as store:
        log = await store.open_log("a")
        assert len(keys(memory)) < 12
        assert log.length == 30


@pytest.mark.parametrize(("request_name", "is_done"), [("create", False), ("create", True), ("get", False)])
async def test_failed_append_is_not_in_the_log(memory: MemoryStore, request_name: str, is_done: bool) -> None:
    """Whether its put arrived or not, a failed append is not in the log when the next one was answered."""
    objects = FaultyObjects(memory)
    async with await ObjectLogStore.open(objects, attempts=1) as store:
        log = await store.create("a")
        for number in range(5):
            objects.fail(errno.EIO, request_name, times=1 + number % 2, is_done=is_done)
            for _ in range(1 + number % 2):
                with pytest.raises(LogStorageError, match="log a: cannot append: Input/output error"):
                    await log.append(b"lost")
            assert await log.append(b"kept") == number
        assert await content(log) == [b"kept"] * 5
    async with await open_objects(memory) as other:
        assert await content(await other.open_log("a")) == [b"kept"] * 5


async def test_a_put_that_arrives_late(memory: MemoryStore) -> None:
    """A failed put that arrives when the log has continued changes nothing."""
    objects = Late(memory)
    async with await open_objects(objects, attempts=1) as store:
        log = await store.create("a")
        objects.is_held = True
        with pytest.raises(LogStorageError):
            await log.append(b"late")
        objects.is_held = False
        assert await log.append(b"kept") == 0
        objects.land()
        assert await log.append(b"more") == 1
        assert await content(await reopened(store, log)) == [b"kept", b"more"]


class Late(FaultyObjects):
    """A client whose creates fail while they are held, and arrive later."""

    is_held = False

    def create(self, key: str, data: bytes) -> None:
        """Keep a create for later."""
        if self.is_held:
            self.late.append((key, data))
            raise OSError(errno.ETIMEDOUT, "timed out")
        super().create(key, data)


async def test_lost_answers(memory: MemoryStore) -> None:
    """A put whose answer is lost is found to be done, for each call, and done once."""
    objects = FaultyObjects(memory)
    async with await open_objects(objects) as store:
        for skip in range(12):
            objects.heal()
            objects.fail(errno.EIO, "create", skip=skip, times=2, is_done=True)
            log = await filled(store, 6, f"log-{skip}")
            assert await content(log) == [b"%d" % number for number in range(6)]
            await log.seal()
            await log.delete()
    assert await_names(memory) == []


def await_names(memory: MemoryStore) -> list[str]:
    """Return what is left in the folders of logs."""
    return [key for key in keys(memory) if key.startswith("logs/")]


async def test_seal_in_doubt(store: ObjectLogStore, objects: FaultyObjects) -> None:
    """A seal whose answer is lost counts if it was done, because others may have seen it. If not, the log continues."""
    log = await store.create("a")
    objects.fail(errno.EIO, "create", is_done=True)
    with pytest.raises(LogStorageError):
        await log.seal()
    with pytest.raises(LogSealedError):
        await log.append(b"x")
    assert log.is_sealed
    other = await store.create("b")
    objects.fail(errno.EIO, "create")
    with pytest.raises(LogStorageError):
        await other.seal()
    assert await other.append(b"x") == 0
    await other.seal()
    assert (await reopened(store, other)).is_sealed


async def test_merges_that_fail(memory: MemoryStore) -> None:
    """While segments cannot be written appends continue, and the merge is done later."""

    class NoSegments(FaultyObjects):
        is_full = True

        def create(self, key: str, data: bytes) -> None:
            if self.is_full and key.endswith(".segment"):
                raise OSError(errno.ENOSPC, "full")
            super().create(key, data)

    objects = NoSegments(memory)
    async with await open_objects(objects, attempts=1) as store:
        log = await filled(store, 40)
        assert len(keys(memory)) > 40
        objects.is_full = False
        for number in range(40, 60):
            assert await log.append(b"%d" % number) == number
        assert len(keys(memory)) < 20
        objects.is_full = True
        await log.seal()
        assert await content(await reopened(store, log)) == [b"%d" % number for number in range(60)]


async def test_merges_of_a_damaged_object(memory: MemoryStore) -> None:
    """A damaged object is not merged: the log takes further records and is sealed, and only that record is lost."""
    async with await open_objects(memory, attempts=1) as store:
        await (await filled(store, 3)).aclose()
    key = [key for key in keys(memory) if key.startswith("logs/")][2]
    memory.put(key, bytes(memory.get(key).bytes())[:-1] + b"?")
    async with await open_objects(memory, attempts=1) as store:
        log = await store.open_log("a")
        for number in range(3, 60):
            assert await log.append(b"%d" % number) == number
        await log.seal()
        assert await log.read(2, 59) == [b"%d" % number for number in range(2, 60)]
        with pytest.raises(LogCorruptedError, match=key):
            await log.read(1, 1)


async def test_segments_of_merges_that_failed(memory: MemoryStore) -> None:
    """When a segment was written and its manifest was not, the next manifest removes the segment."""

    class NoManifest(FaultyObjects):
        def create(self, key: str, data: bytes) -> None:
            super().create(key, data)
            if key.endswith(".segment") and key not in made:
                made.append(key)
                if len(made) == 1:
                    self.fail(errno.EIO, "create")

    made: list[str] = []
    objects = NoManifest(memory)
    async with await open_objects(objects, attempts=1) as store:
        log = await store.create("a")
        failed = 0
        for number in range(9):
            try:
                await log.append(b"%d" % number)
            except LogStorageError:
                failed += 1
        assert failed == 1
        assert log.length == 8
        assert len(made) >= 2
        assert made[0] not in keys(memory)


@pytest.mark.parametrize("is_done", [False, True])
async def test_failed_creation_and_deletion(
    store: ObjectLogStore, objects: FaultyObjects, memory: MemoryStore, is_done: bool
) -> None:
    """A log whose creation or deletion failed is there as a whole or not at all, and can be deleted or created."""
    for skip in range(2):
        objects.fail(errno.EIO, "create", skip=skip, is_done=is_done)
        with pytest.raises(LogStorageError):
            await store.create("a")
        if await store.names():
            log = await store.open_log("a")
            assert log.length == 0
        else:
            log = await store.create("a")
        await log.append(b"x")
        objects.fail(errno.EIO, "create", is_done=is_done)
        with pytest.raises(LogStorageError, match="cannot delete it"):
            await log.delete()
        if await store.names():
            assert await content(await store.open_log("a")) == [b"x"]
            await store.delete("a")
    async with await open_objects(memory):
        assert await_names(memory) == []


async def test_failed_opening(store: ObjectLogStore, objects: FaultyObjects) -> None:
    """Any request of an opening may fail; the log can be opened then."""
    await (await filled(store, 3)).aclose()
    for request in ("create", "get", "list"):
        for skip in range(2):
            objects.fail(errno.EIO, request, skip=skip)
            with pytest.raises(LogStorageError, match="log a: cannot"):
                await store.open_log("a")
            objects.heal()
    assert (await store.open_log("a")).length == 3


async def test_cancelled_while_being_put(memory: MemoryStore) -> None:
    """An append that is cancelled during its put is still carried out."""
    may_go = threading.Event()
    objects = FaultyObjects(memory)
    async with await open_objects(objects) as store:
        log = await store.create("a")
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hold() -> None:
            loop.call_soon_threadsafe(begun.set)
            assert may_go.wait(20)

        objects.call(len(objects.history), hold)
        first = asyncio.ensure_future(log.append_many([b"1", b"2"]))
        await begun.wait()
        second = asyncio.ensure_future(log.append(b"never begun"))
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await asyncio.wait([first, second])
        may_go.set()
        assert await log.append(b"3") == 2
        assert await content(log) == [b"1", b"2", b"3"]


async def test_cancelled_creation(memory: MemoryStore) -> None:
    """A log whose creation is cancelled is still created, and closed."""
    may_go = threading.Event()
    objects = FaultyObjects(memory)
    async with await open_objects(objects) as store:
        objects.call(len(objects.history), lambda: may_go.wait(20))
        creating = asyncio.ensure_future(store.create("a"))
        await asyncio.sleep(0.01)
        creating.cancel()
        await asyncio.wait([creating])
        assert creating.cancelled()
        may_go.set()
    async with await open_objects(memory) as store:
        with pytest.raises(LogExistsError):
            await store.create("a")


async def test_folder_without_rights(tmp_path: Path) -> None:
    """A folder without rights raises a clear error."""
    async with await open_objects(ObstoreClient(LocalStore(tmp_path))) as store:
        log = await filled(store, 2)
        for path in [*tmp_path.rglob("*"), tmp_path]:
            if path.is_dir():
                path.chmod(0o555)
        try:
            if obstore_can_write(tmp_path):
                pytest.skip("this user may write everywhere")
            with pytest.raises(LogStorageError, match=r"Permission denied|denied"):
                await log.append(b"x")
        finally:
            for path in [tmp_path, *tmp_path.rglob("*")]:
                path.chmod(0o755)


def obstore_can_write(path: Path) -> bool:
    """Return whether this user may write into a folder that forbids it."""
    try:
        obstore.put(LocalStore(path), "probe", b"")
    except (OSError, obstore.exceptions.BaseError):
        return False
    return True
