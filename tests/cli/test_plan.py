"""``pulsar-nack plan``: what it prints, draws and refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.test_app import call
from tests.for_each import for_each


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command; return its exit code and what it printed."""
    return call(["plan", *arguments], capsys)


def test_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Without options the plan is for 10 000 nacks a second that wait a minute, with a row for each width."""
    code, out, _ = run(capsys)
    assert code == 0
    assert "600,000 messages wait at once" in out
    rows = [line.split() for line in out.splitlines()[4:] if line[:4].strip().isdigit()]
    assert [row[0] for row in rows] == [str(bits) for bits in range(16)]
    assert [row[0] for row in rows if "asked" in row] == ["8"]
    assert [row[0] for row in rows if "recommended" in row] == ["4"]
    assert "Recommended: 4 bits. Set negativeAckPrecisionBitCnt=4:" in out


def test_plans_for_delayed_messages(capsys: pytest.CaptureFixture[str]) -> None:
    """P1: for delayed messages the default is the bits of a tick of a second, compared with a heap."""
    code, out, _ = run(capsys, "--kind", "delayed", "--rate", "1000", "--delay", "10000")
    assert code == 0
    assert "With 9 bits, buckets of 512 ms" in out
    assert "Proposal: 19.1 MiB. A heap: 229 MiB." in out
    assert "delayedDeliveryTickTimeMillis=" in out


def test_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    """P1: ``--json`` prints everything and nothing else, sizes in bytes."""
    options = ("--kind", "delayed", "--rate", "8000", "--delay", "1250", "--bits", "15", "--json")
    code, out, _ = run(capsys, *options)
    plan = json.loads(out)
    assert code == 0
    assert plan["pending"] == 10_000_000
    assert plan["asked"]["bits"] == plan["bits"] == 15
    assert round(plan["asked"]["proposal_bytes"] / 2**20, 2) == 1.79
    assert round(plan["asked"]["proposal_limit_bytes"] / 2**20, 2) == 1.55
    assert plan["asked"]["bytes"] < 500_000
    assert set(plan["recommendation"]) == {"bits", "reason"}


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str, start: bytes) -> None:
    """``--plot`` draws a picture in the format of the file's name."""
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plan{suffix}"
    code, out, _ = run(capsys, "--share", "0.3", "--plot", str(path))
    assert code == 0
    assert "30 % of them" in out
    assert path.read_bytes().startswith(start)


def test_refuses_other_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A picture of an unknown format is refused before anything is printed."""
    code, out, err = run(capsys, "--plot", str(tmp_path / "plan.txt"))
    assert (code, out) == (2, "")
    assert "plot: expected a file that ends in .png" in err


@pytest.mark.slow
def test_refuses_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A picture that cannot be written is an error of one line."""
    pytest.importorskip("matplotlib")
    code, _, err = run(capsys, "--plot", str(tmp_path / "missing" / "plan.png"))
    assert code == 2
    assert "plot: expected a file that can be written" in err


def test_names_the_missing_extra(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without matplotlib ``--plot`` says what to install, after the table."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run(capsys, "--plot", str(tmp_path / "plan.png"))
    assert code == 2
    assert "Recommended" in out
    assert "pip install 'pulsar-nack[demo]'" in err


def test_json_needs_typer_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rich the table says what to install, and JSON is still printed."""
    monkeypatch.setitem(sys.modules, "rich", None)
    assert run(capsys, "--json")[0] == 0
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "pip install 'pulsar-nack[cli]'" in err


@for_each(
    ("options", "message"),
    [
        (("--share", "2"), "share"),
        (("--rate", "nan"), "rate"),
        (("--delay", "-1"), "delay"),
        (("--bits", "63"), "bits"),
        (("--kind", "delayed", "--batch-size", "5"), "batch_size"),
        (("--entries-per-ledger", "0"), "entries_per_ledger"),
        (("--kind", "other"), "other"),
        (("--memory", "30"), "memory: expected to be given with --bucket only"),
        (("--scattered",), "scattered: expected to be given with --bucket only"),
        (("--bucket", "--memory", "0"), "memory_bytes"),
        (("--bucket", "--memory", "nan"), "memory_bytes"),
        (("--bucket", "--batch-size", "5"), "batch_size"),
        (("--bucket", "--plot", "x.png"), "plot"),
        (("--bucket", "--bits", "8"), "bits: expected not to be given with --bucket"),
        (("--bucket", "--kind", "nack"), "kind: expected not to be given with --bucket"),
        (("--bucket", "--delay", "0"), "delay"),
    ],
)
def test_refuses_bad_options(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str) -> None:
    """Invalid options, and options that do not apply to buckets, are refused by name with exit code 2."""
    code, out, err = run(capsys, *options)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.slow
def test_plans_buckets(capsys: pytest.CaptureFixture[str]) -> None:
    """With --bucket the maximum of buckets is planned, and the size of segments, within a memory limit."""
    options = ("--bucket", "--rate", "27778", "--delay", "3600", "--scattered", "--memory", "30")
    code, out, _ = run(capsys, *options)
    assert code == 0
    assert "100,000,800 delayed messages wait" in out
    assert "in any order" in out
    assert "recommended" in out
    said = " ".join(out.split())
    assert "delayedDeliveryMaxIndexesPerBucketSnapshotSegment=1000" in said
    code, out, _ = run(capsys, *options, "--json")
    assert code == 0
    plan = json.loads(out)
    assert f"delayedDeliveryMaxNumBuckets={plan['recommended']['buckets']} " in said
    assert plan["recommended"]["bytes"] <= plan["memory_bytes"] == 30 * 2**20
