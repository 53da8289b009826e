"""The report as a file and in a real browser without a network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import Cursor, pipeline
from pulsar_nack.errors import InvalidArgumentError
from pulsar_nack.pipeline._report_page import bars, lines, number, size, span, ticks
from tests.patience import patience

from .rows import PLAIN, events
from .test_cli import run
from .test_internal_stats import STATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: the page is not looked at in a browser")
EVIL = '<script>document.title = "bad"</script>'


def rows() -> list[dict[str, Any]]:
    """Return a minute of nacks, each redelivered 20 ms late, except some."""
    found = []
    for entry in range(120):
        known = PLAIN | {"entry": entry, "topic": f"orders {EVIL}" if entry % 5 == 0 else "orders"}
        at = 1_763_990_000_000 + 500 * entry
        late = 20 if entry % 10 else 2_500
        found += [
            known | {"event": "nack", "time_ms": at, "delay_ms": 1_000, "deadline_ms": at + 1_000, "reason": EVIL},
            known
            | {"event": "arrive", "time_ms": at + 1_000 + late, "deadline_ms": at + 1_000, "attempt": 1}
            | {"actual_ms": at + 1_000 + late},
            known
            | {"event": "ack", "time_ms": at + 5_000, "attempt": 1, "reason": "ack" if entry % 9 else "dead-letter"},
        ]
    return found


@pytest.fixture(scope="module")
def page(spark: SparkSession) -> str:
    """Return the report of those rows, and of two subscriptions."""
    from pulsar_nack.pipeline.schemas import HOLES

    traces = events(spark, *rows())
    grown = [("a", 1_763_990_000_000, 2_000_000), ("a", 1_763_990_060_000, 5_000_000), ("b", 1_763_990_060_000, 90)]
    state = [("t", name, at, "cursor", 1, 1, 1, octets) for name, at, octets in grown]
    holes = pipeline.holes(spark.createDataFrame(state, HOLES))
    return pipeline.report(traces, holes=holes, title=f"Report {EVIL}")


class Tags(HTMLParser):
    """Gathers the tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep one tag."""
        self.found.append((tag, dict(attrs)))


def test_page_stands_alone(page: str) -> None:
    """The page has all sections, and no script, image, link or address that leads out of it; names are text."""
    tags = Tags(page).found
    assert {tag for tag, _ in tags}.isdisjoint({"script", "img", "link", "iframe", "object", "image", "use"})
    assert [each["href"] for tag, each in tags if tag == "a"] == ["#overview", "#accuracy", "#retries", "#holes"]
    assert not re.search(r"https?://|url\(|@import", page)
    assert "&lt;script&gt;" in page
    assert sum(tag == "svg" for tag, _ in tags) == 7


@needs_chromium
def test_page_in_a_browser(page: str, tmp_path: Path) -> None:
    """A real browser shows the page: the title is right, every section has height, and the picture is not empty."""
    file, shot = tmp_path / "report.html", tmp_path / "report.png"
    pipeline.write_report(page, file)
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(CHROMIUM), *options, "--proxy-server=127.0.0.1:9", "--window-size=1000,3600"]
    done = subprocess.run(
        [*command, f"--screenshot={shot}", file.as_uri()], timeout=patience(90), capture_output=True, check=True
    )
    assert done.returncode == 0
    assert shot.read_bytes().startswith(b"\x89PNG")
    assert shot.stat().st_size > 50_000
    dumped = subprocess.run(
        [*command, "--dump-dom", file.as_uri()], timeout=patience(90), capture_output=True, check=True
    )
    tags = Tags(dumped.stdout.decode()).found
    assert [each["id"] for tag, each in tags if tag == "section"] == ["overview", "accuracy", "retries", "holes"]
    assert "<title>Report &lt;script&gt;" in dumped.stdout.decode()


def test_no_events(spark: SparkSession) -> None:
    """A report without events says so."""
    text = pipeline.report(events(spark))
    assert "No events." in text
    assert "nothing to show" in text


def test_file_that_exists(tmp_path: Path) -> None:
    """A file that exists is only replaced on demand; one that cannot be written is named."""
    file = tmp_path / "a.html"
    pipeline.write_report("1", file)
    with pytest.raises(InvalidArgumentError, match="out: expected a file that does not exist yet"):
        pipeline.write_report("2", file)
    assert file.read_text() == "1"
    pipeline.write_report("3", file, overwrite=True)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["3"]
    with pytest.raises(InvalidArgumentError, match="out: expected a file that can be written"):
        pipeline.write_report("2", tmp_path / "none" / "a.html")


async def test_command_with_everything(spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With cursors, internal stats and a plan the page has all sections; refused lines are counted on stderr.

    An existing page is refused, and so are missing folders.
    """
    lines = [json.dumps(row) for row in rows()[:30]]
    (tmp_path / "trace-1-ab-1.jsonl").write_text("\n".join([*lines, "{"]))
    async with await Cursor.open_local(tmp_path / "cursors" / "bills", {1: 100}) as cursor:
        await cursor.acknowledge([(1, 3), (1, 5)])
        await cursor.flush()
    (tmp_path / "stats").mkdir()
    (tmp_path / "stats" / "invoices@1000.json").write_text(json.dumps(STATS))
    out = tmp_path / "r.html"
    options = ("--cursors", str(tmp_path / "cursors"), "--stats", str(tmp_path / "stats"), "--plan", "--title", "Mine")
    code, said, err = run(capsys, "report", str(tmp_path / "trace-1-ab-1.jsonl"), *options, "--out", str(out))
    assert (code, said) == (0, f"written: {out}\n")
    assert err == "left out 1 lines: not a JSON object of this schema\n"
    page = out.read_text()
    ids = [each["id"] for tag, each in Tags(page).found if tag == "section"]
    assert ids == ["overview", "accuracy", "retries", "holes", "plan"]
    assert "<title>Mine</title>" in page
    holes_of_all = page[page.index('id="holes"') : page.index('id="plan"')]
    assert "cursor of bills" in holes_of_all
    assert "work of invoices" in holes_of_all
    assert "Set " in page[page.index('id="plan"') :]
    code, _, err = run(capsys, "report", str(tmp_path / "trace-1-ab-1.jsonl"), "--out", str(out))
    assert code == 2
    assert "--overwrite" in err
    for option in ("--cursors", "--stats"):
        missing, other = str(tmp_path / "none"), tmp_path / "other.html"
        code, _, err = run(capsys, "report", str(tmp_path), option, missing, "--out", str(other))
        assert code == 2
        assert missing in err
        assert not other.exists()


def test_numbers() -> None:
    """Numbers are rounded for readers, and ticks are round."""
    assert [number(each) for each in (0, 3, 1_234_567, 0.12345, 1_234.5)] == ["0", "3", "1,234,567", "0.123", "1,234"]
    assert [span(each) for each in (-20, 999, 1_500, 90_000, 180_000, 8e6, 2e8)] == [
        "-20 ms", "999 ms", "1.5 s", "90 s", "3 min", "2.22 h", "2.31 d",
    ]  # fmt: skip
    assert [size(each) for each in (0, 1_023, 1_024, 5_242_880)] == ["0 bytes", "1,023 bytes", "1 KiB", "5 MiB"]
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(-3, 0.5) == [-3, -2, -1, 0]
    assert ticks(5, 5) == [5]


def test_plots_of_little() -> None:
    """A plot of nothing says so, and one of a single point, or of equal ones, is drawn."""
    assert "nothing to show" in bars("x", [])
    assert "nothing to show" in lines("x", {"a": []})
    for points in ([(1_000.0, 0.0)], [(1_000.0, 5.0), (1_000.0, 5.0)], [(0.0, -3.0), (1.0, -3.0)]):
        assert "nan" not in lines("x", {"a": points}, mark=3)
    assert 'width="1"' in bars("x", [("a", -5)])
