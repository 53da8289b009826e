"""Random and nearly right bytes: never a hang, never much memory, always an error that says what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.errors import ProtocolError
from pulsar_nack.wire._protocol._frames import Frame, FrameDecoder
from tests.patience import patience, processor_slowness
from tests.tiers import seeds, size
from tests.wire.fuzz import fuzz
from tests.wire.mutations import LIMIT, MUTATORS, mended, mutations, read, read_entry
from tests.wire.recorded import recorded

RESULTS = {
    "a command",
    "a message",
    "incomplete",
    "no protocol",
    "unreadable: batch",
    "unreadable: broker entry metadata",
    "unreadable: checksum",
    "unreadable: metadata",
    "unreadable: payload",
}


@given(st.binary(max_size=300))
def test_any_bytes_are_frames_or_an_error(data: bytes) -> None:
    """Any bytes give frames or an error."""
    assert read(data) in RESULTS


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x0e\x01", b"\x0e\x02"]))
def test_any_bytes_are_an_entry_or_an_error(data: bytes, magic: bytes) -> None:
    """Any bytes after a command, with a valid checksum, give an entry or an error."""
    assert read_entry(mended(magic + data)) in RESULTS


@given(st.data())
def test_a_stream_that_is_damaged_reads_the_same_in_any_pieces(data: st.DataObject) -> None:
    """The frames before the damage, and the error, are the same in any pieces."""
    frames = data.draw(st.lists(st.sampled_from(recorded()), min_size=1, max_size=4))
    stream = bytearray(b"".join(one.frame for one in frames))
    chance = data.draw(st.randoms(use_true_random=False))
    for mutate in data.draw(st.lists(st.sampled_from(MUTATORS), max_size=2)):
        if stream:
            mutate(stream, chance)
    size = data.draw(st.integers(1, 64))
    assert outcome(bytes(stream), size) == outcome(bytes(stream), len(stream) or 1)


def outcome(stream: bytes, size: int) -> tuple[list[Frame], str]:
    """Return the frames and the error of a stream in pieces; frames in the error's piece are not returned."""
    decoder, frames = FrameDecoder(LIMIT), []
    try:
        for at in range(0, len(stream), size):
            frames += decoder.feed(stream[at : at + size])
    except ProtocolError as error:
        return [], str(error)
    return frames, ""


@pytest.mark.parametrize("seed", seeds(range(4)))
def test_mutations_of_recorded_frames(seed: int) -> None:
    """Each outcome occurs, and no other; the test's time limit catches a hang."""
    results = Counter(read(data) for data in islice(mutations(seed), 5_000))
    assert set(results) == RESULTS


@pytest.mark.parametrize("seed", seeds(range(4), fast=1))
def test_a_client_in_front_of_mutated_frames(seed: int) -> None:
    """O32, O34: the loop is not blocked, memory is bounded, and an error that ends a connection names its frame."""
    found = fuzz(size(4_000, fast=400), seed)
    assert found.received > found.frames // 4
    assert found.by_kind["ProtocolError"] > found.frames // 10
    assert set(found.by_kind) <= {"ProtocolError", "BrokerRefusedError", "TopicNotFoundError", "incomplete"}
    assert (found.unnamed, found.faults) == ([], [])
    assert found.longest_ms < 50 * processor_slowness()
    assert found.more_mb < 64


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
@pytest.mark.parametrize(("protobuf", "count"), [("upb", 200_000), ("python", 20_000)])
def test_many_mutations_in_little_memory(protobuf: str, count: int) -> None:
    """In a process that may take 16 MiB more than at its start, with a limit of 1 MiB for frames and payloads.

    With protobuf's C parser and with its Python one, which raises other errors.
    """
    run = subprocess.run(
        [sys.executable, "-m", "tests.wire.mutations", str(count), "16"],
        env=os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": protobuf},
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=patience(70),
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2_000:]
    assert {line.split(maxsplit=1)[1] for line in run.stdout.splitlines()} == RESULTS
