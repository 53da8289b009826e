"""The command line as a whole: what it lists, what it refuses, and its errors for missing packages."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from pulsar_nack import __version__
from pulsar_nack.cli import main
from pulsar_nack.cli._terminal import write_or_print
from tests.processes import run_python

EXTRAS = {"typer": "cli", "rich": "cli", "matplotlib": "demo", "pulsar": "demo"}
BLOCKED = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Blocker())
from pulsar_nack.cli import main
main({arguments!r})
"""


def call(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run the command line in this process; return its exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    code = caught.value.code
    return (code if isinstance(code, int) else 0), out, err


def call_without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process in which a package cannot be imported."""
    script = BLOCKED.format(blocked={package}, arguments=list(arguments))
    return run_python("-c", script)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """``--version`` names the version."""
    assert call(["--version"], capsys) == (0, f"pulsar-nack {__version__}\n", "")


def test_help_has_no_line_breaks_of_the_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each paragraph of a command's help is wrapped for the terminal's width."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 400)
    _, out, _ = call(["demo", "--help"], capsys)
    lines = [line.strip() for line in out.splitlines()]
    assert any(line.startswith("An embedded broker") and line.endswith("for one nack.") for line in lines)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the help is shown, with every command."""
    code, out, err = call([], capsys)
    assert code == 2
    assert "demo" in out + err


def test_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown command exits with 2 and is named."""
    code, _, err = call(["dance"], capsys)
    assert code == 2
    assert "dance" in err


class _Table:
    """A table of a job, with one row of foreign text."""

    columns = ("topic", "reason", "late")

    def limit(self, _rows: int) -> _Table:
        return self

    def collect(self) -> list[tuple[object, ...]]:
        return [("a\x1b]0;title\x07", "two\nlines" + "x" * 1_000, 1.25)]


def test_tables_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """Topics, reasons and files in a job's tables are escaped, so that no terminal obeys them, and cut."""
    table: Any = _Table()
    write_or_print({"found": table}, out=None, as_json=False)
    out = capsys.readouterr().out
    assert all(letter == "\n" or letter.isprintable() for letter in out)
    assert out.splitlines()[4].startswith("a\\x1b]0;title\\x07  two\\nlinesxxx")
    assert out.endswith("xxx...  1.2\n")


@pytest.mark.slow
@pytest.mark.parametrize("package", EXTRAS)
def test_missing_package_is_named(package: str) -> None:
    """Without one of its packages the demo names the extra in one line, and exits with 2."""
    done = call_without(package, "demo", "--url", "pulsar://127.0.0.1:1")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert package in last
    assert f"pip install 'pulsar-nack[{EXTRAS[package]}]'" in last
    assert "Traceback" not in done.stderr
