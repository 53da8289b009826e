"""``pulsar-nack inspect``: tables, JSON and exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NoReturn

import pytest

from pulsar_nack import Cursor
from pulsar_nack.errors import MissingExtraError
from pulsar_nack.inspection import _recovery
from tests.cli.test_app import call, call_without
from tests.inspection.folders import everything, segments, write_buckets, write_nacks, write_plain


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command; return its exit code and what it printed."""
    return call(["inspect", *arguments], capsys)


async def test_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each part of a folder is a table, and exit code 0 says that nothing is damaged."""
    await write_buckets(tmp_path / "delayed")
    await write_nacks(tmp_path / "nacks")
    await write_plain(tmp_path / "plain")
    code, out, err = run(capsys, str(tmp_path))
    assert (code, err) == (0, "")
    assert "cursor cursor: mark-delete 6:5" in out
    assert "2 buckets, 4,000 messages" in out
    assert "10 unsettled messages" in out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("events")] == [["events", "40"]]
    assert "No damage." in out
    assert max(map(len, out.splitlines())) <= 120


async def test_cursor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A cursor is printed with its position, and a line for each ledger."""
    async with await Cursor.open_local(tmp_path, {5: 100, 6: 100}) as cursor:
        await cursor.acknowledge([(5, 0), (5, 1), (5, 7), (6, 3)])
    code, out, _ = run(capsys, str(tmp_path))
    assert code == 0
    assert "cursor cursor: mark-delete 5:1" in out
    rows = [line.split()[:5] for line in out.splitlines()]
    assert ["5", "1", "1", "1", "0"] in rows
    assert ["6", "1", "1", "1", "0"] in rows


async def test_not_everything_was_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without protobuf the exit code is 2, and nothing claims that all is well; damage comes first."""
    await write_plain(tmp_path)
    async with await Cursor.open_local(tmp_path, {5: 100}) as cursor:
        await cursor.acknowledge([(5, 0)])

    def lack(*_arguments: object) -> NoReturn:
        raise MissingExtraError("the cursor", "protobuf>=5", "cursor")

    monkeypatch.setattr(_recovery, "kind_of", lack)
    code, out, _ = run(capsys, str(tmp_path))
    assert (code, "Not everything was read" in out, "pulsar-nack[cursor]" in out) == (2, True, True)
    assert "No damage." not in out
    code, out, _ = run(capsys, "--json", str(tmp_path))
    assert (code, json.loads(out)["is_complete"]) == (2, False)
    segments(tmp_path, "events")[0].write_bytes(b"x" * 100)
    assert run(capsys, str(tmp_path))[0] == 1


async def test_names_are_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """O39: file names are escaped, so that no terminal obeys them, and none fails."""
    folder = tmp_path / "a\x1b[31mred[bold]x"
    await write_plain(folder)
    for name in (b"\x1b]0;title\x07", b"\xff\xfe", b"two\nlines", "\u202eback".encode(), b"[bold]markup"):
        for place in (folder, folder / "events.log"):
            Path(os.fsdecode(bytes(place) + b"/" + name)).touch()
    code, out, _ = run(capsys, str(tmp_path), "--files")
    assert code == 0
    assert all(letter == "\n" or letter.isprintable() for letter in out)
    assert "\\x1b]0;title\\x07" in out
    assert "[bold]markup" in out
    assert "red[bold]x" in out.replace("\n", "")
    assert run(capsys, "--json", str(tmp_path))[0] == 0


async def test_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With --files each log and each of its files has a line."""
    await write_plain(tmp_path, seal=True)
    code, out, _ = run(capsys, str(tmp_path), "--files")
    assert code == 0
    assert "events (sealed)" in out
    assert all(file.name in out for file in segments(tmp_path, "events"))


async def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With --json only JSON is printed."""
    await write_nacks(tmp_path)
    code, out, _ = run(capsys, str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out)["stores"][0]["nacks"]["unsettled"] == 10


@pytest.mark.parametrize("options", [[], ["--json"]])
async def test_damage(capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str]) -> None:
    """Damage is printed with file, byte and reason, the exit code is 1, and nothing is repaired."""
    await write_plain(tmp_path)
    file = segments(tmp_path, "events")[-1]
    file.write_bytes(file.read_bytes()[:-5])
    before = everything(tmp_path)
    code, out, err = run(capsys, str(tmp_path), *options)
    assert (code, err) == (1, "")
    assert "torn" in out
    assert file.name in out
    assert everything(tmp_path) == before


def test_unknown_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A folder that is missing, or contains nothing of ours, is an error of one line, and exit code 2."""
    for path in (tmp_path / "missing", tmp_path):
        code, out, err = run(capsys, str(path))
        assert (code, out) == (2, "")
        assert err.startswith("pulsar-nack: path: expected a folder")
        assert err.count("\n") == 1


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a path, or with an unknown option, the exit code is 2."""
    assert run(capsys)[0] == 2
    assert run(capsys, "x", "--dance")[0] == 2


@pytest.mark.slow
async def test_without_rich(tmp_path: Path) -> None:
    """Without rich, tables name the extra that they need."""
    await write_plain(tmp_path)
    done = call_without("rich", "inspect", str(tmp_path))
    assert done.returncode == 2
    assert "pip install 'pulsar-nack[cli]'" in done.stderr


@pytest.mark.slow
async def test_without_protobuf(tmp_path: Path) -> None:
    """Buckets are printed without their counts, and a cursor, with what would show more."""
    await write_buckets(tmp_path / "delayed")
    async with await Cursor.open_local(tmp_path / "cursor", {5: 100}) as cursor:
        await cursor.acknowledge([(5, 0)])
    done = call_without("google", "inspect", str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert "2 buckets" in done.stdout
    for said in ("pulsar-nack[bucket]", "pulsar-nack[cursor]", "Not everything was read"):
        assert said in done.stdout
