"""The embedded broker and its child process: both end whatever happens, and it says plainly why it cannot run."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from pulsar_nack.errors import BrokerError, MissingExtraError
from pulsar_nack.testing import EmbeddedBroker, _embedded_broker
from pulsar_nack.testing._embedded_broker import GuardedProcess, free_port
from tests.patience import patience

REASON = EmbeddedBroker.unavailable_reason()
OWNER = """
import time
from pulsar_nack.testing import EmbeddedBroker
with EmbeddedBroker() as broker:
    print(broker.pid, flush=True)
    time.sleep(60)
"""
on_posix = pytest.mark.skipif(os.name != "posix", reason="process groups are a POSIX thing")
needs_broker = pytest.mark.skipif(REASON is not None, reason=f"no embedded broker: {REASON}")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the brokers of a test make their temporary folders."""
    place = tmp_path / "folders"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of the binary; it still answers ``--help``."""

    def put(body: str) -> None:
        script = tmp_path / "pulsar-lite"
        script.write_text(f'#!/bin/sh\n[ "$1" = --help ] && exit 0\n{body}\n')
        script.chmod(0o755)
        monkeypatch.setattr(_embedded_broker, "_find_binary", lambda: script)

    return put


def is_running(pid: int | None) -> bool:
    """Return whether a process lives; one that ended and was not waited for does not."""
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool]) -> bool:
    """Poll a condition of another process."""
    give_up_at = time.monotonic() + patience(5)
    while not condition() and time.monotonic() < give_up_at:
        time.sleep(0.02)
    return condition()


def refuses(port: int) -> bool:
    """Return whether nothing listens on a loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@needs_broker
async def test_serves_the_official_client(folders: Path) -> None:
    """Messages go through it, and afterwards the process, the port and the folder are gone."""
    client_module = pytest.importorskip("pulsar.asyncio")
    async with EmbeddedBroker() as broker:
        pid, port = broker.pid, int(broker.service_url.rpartition(":")[2])
        client = client_module.Client(broker.service_url)
        consumer = await client.subscribe("greetings", "reader")
        producer = await client.create_producer("greetings")
        await producer.send(b"hello")
        assert (await consumer.receive()).data() == b"hello"
        await client.close()
    assert not is_running(pid)
    assert refuses(port)
    assert list(folders.iterdir()) == []


@needs_broker
def test_ends_with_an_error_in_the_block(folders: Path) -> None:
    """An exception in the block ends the broker and comes through."""
    seen: list[int | None] = []

    def interrupted() -> None:
        with EmbeddedBroker() as broker:
            seen.append(broker.pid)
            assert is_running(broker.pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_running(seen[0])
    assert list(folders.iterdir()) == []


@needs_broker
def test_can_be_entered_again() -> None:
    """Entering a running broker is refused; after a block the same object starts another, each with its own port."""
    broker = EmbeddedBroker()
    with broker, EmbeddedBroker() as other:
        first = broker.pid
        assert broker.service_url != other.service_url
        with pytest.raises(BrokerError, match="already"):
            broker.__enter__()
        assert is_running(broker.pid)
        assert is_running(other.pid)
    with pytest.raises(BrokerError, match="does not run"):
        broker.service_url  # noqa: B018 - the access raises
    with broker:
        assert broker.pid != first
        assert is_running(broker.pid)


@needs_broker
def test_goes_with_a_killed_owner(folders: Path) -> None:
    """When the owner is killed with SIGKILL the broker ends and its folder is removed."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(folders)},
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_running(pid)
        assert len(list(folders.iterdir())) == 1
        owner.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not is_running(pid))
    assert wait_until(lambda: list(folders.iterdir()) == [])


@needs_broker
def test_takes_another_port_when_its_own_was_taken(monkeypatch: pytest.MonkeyPatch, folders: Path) -> None:
    """A port that is taken between the look and the bind costs another attempt, not an error."""
    real = free_port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr(_embedded_broker, "free_port", lambda host: next(ports, None) or real(host))
        with EmbeddedBroker() as broker:
            assert broker.service_url != f"pulsar://127.0.0.1:{taken.getsockname()[1]}"
            assert is_running(broker.pid)
    assert list(folders.iterdir()) == []


async def test_says_why_it_ended(stand_in: Callable[[str], None], folders: Path) -> None:
    """A broker that ends while starting raises an error with its exit code and its last output."""
    stand_in("echo no space left >&2; exit 3")
    with pytest.raises(BrokerError, match=r"exit code 3 while starting; .*no space left"):
        async with EmbeddedBroker():
            pass
    assert list(folders.iterdir()) == []


def test_gives_up_on_a_silent_one(stand_in: Callable[[str], None], folders: Path, tmp_path: Path) -> None:
    """A broker that runs and never answers is ended after the timeout, with an error."""
    stand_in(f"echo $$ > {tmp_path}/pid; exec sleep 600")
    seconds = round(patience(0.1), 1)
    with (
        pytest.raises(BrokerError, match=re.escape(f"did not answer within {seconds} s")),
        EmbeddedBroker(startup_timeout=seconds),
    ):
        pass
    assert not is_running(int((tmp_path / "pid").read_text()))
    assert list(folders.iterdir()) == []


async def test_cancelled_while_starting(stand_in: Callable[[str], None], folders: Path, tmp_path: Path) -> None:
    """Cancelling the start ends the process that is starting."""
    stand_in(f"echo $$ > {tmp_path}/pid; exec sleep 600")
    with anyio.move_on_after(patience(0.1)) as scope:
        async with EmbeddedBroker():
            pass
    assert scope.cancelled_caught
    assert not is_running(int((tmp_path / "pid").read_text()))
    assert list(folders.iterdir()) == []


def test_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the error names the extra to install, and so does the reason."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.delenv("PULSAR_LITE_BINARY", raising=False)
    assert not EmbeddedBroker.available()
    with pytest.raises(MissingExtraError, match=r"pulsar-nack\[demo\]"), EmbeddedBroker():
        pass


def test_a_binary_for_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A binary that cannot run here is distinguished from a missing one, before and on entering."""
    foreign = tmp_path / "pulsar-lite"
    foreign.write_bytes(b"\x7fELF\x00 for another processor")
    foreign.chmod(0o755)
    monkeypatch.setattr(_embedded_broker, "_find_binary", lambda: foreign)
    assert "does not run on this machine" in str(EmbeddedBroker.unavailable_reason())
    with pytest.raises(BrokerError, match="does not run on this machine"), EmbeddedBroker():
        pass


# --- the child process ----------------------------------------------------------------------------------------------


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


@on_posix
def test_stop_lets_it_finish(tmp_path: Path) -> None:
    """A child that obeys SIGTERM ends without a kill, and so does its watcher."""
    log = tmp_path / "log"
    process = shell("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.1; done", log)
    process.stop(grace=patience(10))
    assert process.exit_code == 7
    assert log.read_text() == "up\nbye\n"
    assert group_is_gone(process.pid)


@on_posix
def test_stop_kills_a_deaf_one(tmp_path: Path) -> None:
    """A child that ignores SIGTERM is killed after the grace time, with its own children."""
    process = shell("trap '' TERM; echo up; sleep 60 & while :; do sleep 0.1; done", tmp_path / "log")
    process.stop(grace=0.1)
    assert process.exit_code == -signal.SIGKILL
    assert group_is_gone(process.pid)


@on_posix
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


@on_posix
def test_standard_input_is_empty(tmp_path: Path) -> None:
    """The child reads nothing from the owner's pipe, which belongs to the watcher."""
    process = GuardedProcess(["/bin/sh", "-c", "cat; echo end; cat <&3"], log=tmp_path / "log")
    while process.exit_code is None:
        time.sleep(0.01)
    process.kill()
    assert (tmp_path / "log").read_text().startswith("end\n")
    assert process.exit_code != 0


@on_posix
def test_free_port() -> None:
    """A free port can be bound, and lies below those that the system uses for outgoing connections."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert 17_000 <= port < 32_000
