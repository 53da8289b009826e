"""Child processes of the testing tools: stopped in order, killed if they ignore it, on free ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from pulsar_nack.testing._embedded_broker import GuardedProcess, free_port
from tests.patience import patience

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups are a POSIX thing")


def shell(script: str, log: Path) -> GuardedProcess:
    """Run a shell script; returns when it has written its first line."""
    process = GuardedProcess(["/bin/sh", "-c", script], log=log)
    while not log.read_bytes():
        assert process.exit_code is None
        time.sleep(0.01)
    return process


def group_is_gone(pid: int) -> bool:
    """Return whether no process of the group is left; zombies that nobody waits for do not count."""
    give_up_at = time.monotonic() + patience(5)
    while living := [state for state, group in processes() if group == pid and state != "Z"]:
        if time.monotonic() > give_up_at:
            break
        time.sleep(0.02)
    return not living


def read(path: Path) -> str:
    """Return the text of a file that may vanish meanwhile; empty then."""
    try:
        return path.read_text()
    except OSError:
        return ""


def processes() -> list[tuple[str, int]]:
    """The state and the process group of every process."""
    if Path("/proc/self/stat").exists():
        fields = [text.rpartition(")")[2].split() for text in map(read, Path("/proc").glob("[0-9]*/stat")) if text]
        return [(state, int(group)) for state, _, group, *_ in fields]
    listed = subprocess.run(["ps", "-A", "-o", "stat=,pgid="], capture_output=True, text=True, check=True).stdout
    return [(line.split()[0][0], int(line.split()[1])) for line in listed.splitlines()]


def test_stop_lets_it_finish(tmp_path: Path) -> None:
    """A child that obeys SIGTERM ends without a kill, and so does its watcher."""
    log = tmp_path / "log"
    process = shell("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.1; done", log)
    process.stop(grace=patience(10))
    assert process.exit_code == 7
    assert log.read_text() == "up\nbye\n"
    assert group_is_gone(process.pid)


def test_stop_kills_a_deaf_one(tmp_path: Path) -> None:
    """A child that ignores SIGTERM is killed after the grace time, with its own children."""
    process = shell("trap '' TERM; echo up; sleep 60 & while :; do sleep 0.1; done", tmp_path / "log")
    process.stop(grace=0.1)
    assert process.exit_code == -signal.SIGKILL
    assert group_is_gone(process.pid)


def test_ends_without_a_stop(tmp_path: Path) -> None:
    """The exit code of a child that ended is known, and stopping it then, or twice, does no harm."""
    process = GuardedProcess(["/bin/sh", "-c", "echo done; exit 5"], log=tmp_path / "log")
    while process.exit_code is None:
        time.sleep(0.01)
    assert process.exit_code == 5
    process.stop()
    process.kill()
    assert (tmp_path / "log").read_text() == "done\n"
    assert group_is_gone(process.pid)


def test_standard_input_is_empty(tmp_path: Path) -> None:
    """The child reads nothing from the owner's pipe, which belongs to the watcher."""
    process = GuardedProcess(["/bin/sh", "-c", "cat; echo end; cat <&3"], log=tmp_path / "log")
    while process.exit_code is None:
        time.sleep(0.01)
    process.kill()
    assert (tmp_path / "log").read_text().startswith("end\n")
    assert process.exit_code != 0


def test_free_port() -> None:
    """A free port can be bound, and lies below those that the system uses for outgoing connections."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert 17_000 <= port < 32_000
