"""The pure parts of logs on object storage: bytes of an object, manifests and merging, names, repeated requests."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from pulsar_nack.backoff import Steps
from pulsar_nack.errors import LogCorruptedError, LogVersionError
from pulsar_nack.ledger._object_format import (
    EMPTY_MANIFEST,
    Head,
    Manifest,
    ObjectLocation,
    ObjectRef,
    as_manifest,
    decode_head,
    decode_records,
    decode_whole,
    encode,
    folder_name,
    is_log_folder,
    new_segment_name,
    new_token,
    segment_epoch,
    slot_name,
    slot_number,
)
from pulsar_nack.ledger._object_requests import RetryingClient
from pulsar_nack.ledger._object_writer import count_small, plan_merge
from pulsar_nack.ledger.faults import FaultyObjects
from pulsar_nack.ledger.format import Incomplete, encode_frame, encode_segment_header, seed_of

PLACE = ObjectLocation("a", "logs/a/1")
MOST = 1024
sizes = st.lists(st.integers(60, 700), max_size=60)


def refs_of(lengths: list[int]) -> list[ObjectRef]:
    """Return objects with one record each and these sizes."""
    return [ObjectRef(slot_name(at), at, 1, size, at) for at, size in enumerate(lengths)]


@given(st.lists(st.binary(max_size=300_000), max_size=5) | st.lists(st.binary(max_size=20), max_size=300), st.data())
def test_an_object_gives_back_its_records(records: list[bytes], data: st.DataObject) -> None:
    """Any range of records is read from the frames that the head names, and from no others."""
    whole = encode("data", 7, {"writer": "w"}, records, 40)
    head = decode_whole(whole, PLACE, 7, "data")
    assert (head.kind, head.number, head.fields["writer"]) == ("data", 7, "w")
    if not records:
        assert head.firsts == ()
        return
    first = data.draw(st.integers(0, len(records) - 1)) + 40
    last = data.draw(st.integers(first, len(records) + 39))
    number, begin, end = head.part(first, last, len(whole), 1 << 40)
    frames = whole[begin:end]
    assert (
        decode_records(frames, PLACE, first, last, seed=head.seed, begin=(number, begin))
        == records[first - 40 : last - 39]
    )
    number, begin, end = head.part(first, last, len(whole), 1)
    part = decode_records(whole[begin:end], PLACE, first, last, seed=head.seed, begin=(number, begin))
    assert part == records[first - 40 :][: len(part)]
    assert part


def test_any_flipped_bit_is_found() -> None:
    """Each bit of an object counts, and each byte of it is needed."""
    records = [b"first", b"", b"x" * 30]
    whole = encode("data", 7, {"writer": "w"}, records, 0)

    def read(data: bytes) -> list[bytes]:
        head = decode_whole(data, PLACE, 7, "data")
        begin = head.offsets[0]
        return decode_records(data[begin:], PLACE, 0, 2, seed=head.seed, begin=(0, begin))

    assert read(whole) == records
    for at in range(len(whole)):
        for bit in range(8):
            broken = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
            with pytest.raises((LogCorruptedError, LogVersionError)):
                read(broken)
        with pytest.raises(LogCorruptedError):
            read(whole[:at])


def test_heads_that_are_refused() -> None:
    """Another kind of head, other JSON, and a truncated head raise different errors."""
    whole = encode("data", 7, {"writer": "w" * 5000})
    with pytest.raises(LogCorruptedError, match="of the kind 'data', not 'manifest'"):
        decode_whole(whole, PLACE, 7, "manifest")
    found = decode_head(whole[:100], PLACE, 7)
    assert isinstance(found, Incomplete)
    assert isinstance(decode_head(whole[: found.size], PLACE, 7), Head)
    with pytest.raises(LogCorruptedError, match="ends before its head"):
        decode_whole(whole[:100], PLACE, 7, "data")
    for text in (b"[]", b"[" * 100_000):
        with pytest.raises(LogCorruptedError, match="a head that cannot be read"):
            decode_head(encode_segment_header(7, 3, "") + encode_frame(7, [text], seed_of(3, "")), PLACE, 7)


@given(sizes)
def test_what_is_merged(lengths: list[int]) -> None:
    """Runs of small adjacent objects at the end are merged, each into what a segment may hold."""
    objects = refs_of(lengths)
    small = count_small(objects, MOST)
    assert all(each.size < MOST // 2 for each in objects[len(objects) - small :])
    runs = plan_merge(objects, MOST)
    for begin, end in runs:
        assert len(objects) - small <= begin < end - 1 < len(objects)
        assert sum(each.size for each in objects[begin:end]) <= MOST
    assert all(end <= begin for (_, end), (begin, _) in pairwise(runs))


def test_merging_pays() -> None:
    """Over many small appends objects stay few, and bytes are copied as often as the logarithm of their number."""
    objects: list[ObjectRef] = []
    copied, most, count = 0, 1 << 20, 20_000
    for number in range(count):
        objects.append(ObjectRef(slot_name(number), number, 1, 100, number))
        if count_small(objects, most) >= 32:
            for begin, end in reversed(plan_merge(objects, most)):
                run = objects[begin:end]
                size = sum(each.size for each in run)
                copied += size
                objects[begin:end] = [ObjectRef(f"s{number}", run[0].first, sum(each.records for each in run), size, 0)]
        assert len(objects) < 32 + 4 * count * 100 // most + 8
    assert copied < 14 * count * 100
    assert objects[-1].end == count


def manifest_of(change: Callable[[dict[str, object]], object]) -> Manifest:
    """Return a manifest that was encoded, changed and decoded."""
    manifest = EMPTY_MANIFEST.with_objects(refs_of([100, 200])).taken_over(3, "w", 5)
    fields = manifest.fields()
    change(fields)
    return as_manifest(decode_whole(encode("manifest", 5, fields), PLACE, 5, "manifest"), PLACE)


def test_manifests() -> None:
    """A manifest is equal when read; one with holes, or without a field, is damage."""
    manifest = manifest_of(lambda fields: None)
    assert manifest == EMPTY_MANIFEST.with_objects(refs_of([100, 200])).taken_over(3, "w", 5)
    assert manifest.length == 2
    for change in (
        lambda fields: fields.pop("epoch"),
        lambda fields: fields.update(pieces=5),
        lambda fields: fields.update(takeovers=[[1]]),
        lambda fields: fields.update(epoch="x"),
    ):
        with pytest.raises(LogCorruptedError, match="cannot be read"):
            manifest_of(change)
    holes = refs_of([1, 2, 3])
    for refs in (holes[1:], [holes[0], holes[2]]):
        with pytest.raises(LogCorruptedError, match="do not follow each other"):
            manifest_of(lambda fields, refs=refs: fields.update(pieces=refs))  # type: ignore[misc]


def test_who_fenced_whom() -> None:
    """A writer finds the takeover after its own, unless that is so old that it is forgotten."""
    manifest = EMPTY_MANIFEST
    for epoch in range(1, 400):
        manifest = manifest.taken_over(epoch, "w", 10 * epoch)
    assert manifest.fence_after(399, 3990) is None
    assert manifest.fence_after(398, 3980) == 3990
    assert manifest.fence_after(300, 3000) == 3010
    assert manifest.fence_after(300, 3001) is None
    assert manifest.fence_after(1, 10) is None
    assert len(manifest.takeovers) < 300


def test_names() -> None:
    """Names of slots, segments and folders are distinguished from foreign names."""
    assert slot_number(slot_name(42)) == 42
    assert [slot_number(name) for name in ("42", "x" * 20, slot_name(1) + "x", "")] == [None] * 4
    assert segment_epoch(new_segment_name(7, 12)) == 12
    assert [segment_epoch(name) for name in (slot_name(1), "x.segment", "7-1-x.segment")] == [None] * 3
    assert is_log_folder(folder_name("#a.b", new_token()))
    assert not any(map(is_log_folder, ("a", "a.b", "a.0123", "", ".0123456789abcdef")))
    assert new_segment_name(1, 1) != new_segment_name(1, 1)


def test_requests_are_made_again() -> None:
    """A failed request is repeated after the delays of the backoff, and no more often than configured."""
    slept: list[float] = []
    objects = FaultyObjects(MemoryStore())
    requests = RetryingClient(objects, "p", attempts=4, backoff=Steps([1.0, 2.0, 4.0]), sleep=slept.append)
    objects.fail(errno.EIO, "create", times=3)
    assert requests.create("k", b"x")
    assert slept == [1.0, 2.0, 4.0]
    objects.fail(errno.EIO, "get", times=4)
    with pytest.raises(OSError, match="Input/output"):
        requests.get("k")
    assert len(slept) == 6
    assert requests.get("k") == b"x"
    for answer in (errno.ENOENT, errno.EACCES):
        objects.heal()
        objects.fail(answer, "get")
        with pytest.raises((FileNotFoundError, PermissionError)):
            requests.get("k")
    assert len(slept) == 6


def test_creates_are_distinguished() -> None:
    """A create says whether the existing object is the one that it was to write."""
    memory = MemoryStore()
    objects = FaultyObjects(memory)
    requests = RetryingClient(objects, attempts=2, sleep=lambda _: None)
    objects.fail(errno.EIO, "create", is_done=True)
    assert requests.create("k", b"mine")
    assert not requests.create("k", b"other")
    assert requests.is_same("k", b"mine")
    requests.delete(["k", "missing"])
    assert requests.list("") == {}
    assert requests.create("k", b"other")
