"""An embedded broker for demos and tests: pulsar-lite as a child process.

The package ``pulsar-lite`` contains a binary. Its own Python starter prints, uses a few fixed ports, logs to a fixed
file and opens a metrics port on all addresses, so this module runs the binary itself: on a free loopback port, in a
temporary folder, and under a watcher that ends it if this process dies.

The child leads its own process group, so that Ctrl-C in a terminal reaches only the owner, which decides. The watcher
is in the same group and reads a pipe that only the owner holds. When the owner ends in any manner, even by kill -9, the
pipe ends, and the watcher kills the child and removes its folder. A death signal set with ``prctl`` was rejected: it
fires when the *thread* that started the child ends, and brokers are often started on a worker thread.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import anyio
import anyio.to_thread

from ..errors import BrokerError, MissingExtraError

_HOST = "127.0.0.1"
_BINARY = "pulsar-lite"
_CONF = "[metrics]\nenabled = false\n"
_START_ATTEMPTS = 3  # another process may take the port before it is bound
_POLL_INTERVAL = 0.02

# A CONNECT command of the binary protocol with client version "probe" and protocol version 19, as a frame: total size
# and command size, then the command. The answer holds at the same place a command of type CONNECTED.
_CONNECT = bytes.fromhex("00000011 0000000d 0802 1209 0a05 70726f6265 2013")
_CONNECTED = bytes.fromhex("0803")

# $$ is the pid of the child itself, since the shell execs it; the watcher keeps the group alive, so that the pid is not
# given to anyone else while the watcher may still use it.
_WATCHED = """
exec 3<&0 </dev/null
folder=$1
shift
(
  cat <&3 >/dev/null
  kill -9 $$
  if [ -n "$folder" ]; then sleep 0.2; rm -rf -- "$folder"; fi
) 2>/dev/null &
exec "$@" 3<&-
"""

# Below the ranges from which Linux and macOS take the ports of outgoing connections: a client that keeps reconnecting
# to a stopped broker could otherwise be given the broker's own port and connect to itself.
_PORTS = range(17_000, 32_000)


class EmbeddedBroker:
    """A pulsar-lite broker that runs during a ``with`` or ``async with`` block, and leaves nothing behind.

    ``startup_timeout`` is in seconds. Entering raises MissingExtraError without the package, and BrokerError if the
    binary does not run on this machine or does not start. It may be entered again after it was left, with no data.
    """

    def __init__(self, *, startup_timeout: float = 15.0) -> None:
        self._startup_timeout = startup_timeout
        self._folder: Path | None = None
        self._process: GuardedProcess | None = None
        self._port = 0
        self._attempt = 0
        self._give_up_at = 0.0

    @staticmethod
    def available() -> bool:
        """Return whether this machine can run the broker."""
        return EmbeddedBroker.unavailable_reason() is None

    @staticmethod
    def unavailable_reason() -> str | None:
        """Return why this machine cannot run the broker, for the user; None if it can."""
        if os.name != "posix":
            return f"the embedded broker needs Linux or macOS, this is {sys.platform}"
        binary = _find_binary()
        if binary is None:
            return "pulsar-lite is not installed (extra: demo), or has no binary for this machine"
        return _why_not_run(binary)

    @property
    def service_url(self) -> str:
        """Return the URL for clients while the broker runs."""
        if self._process is None:
            raise BrokerError("the embedded broker does not run")
        return f"pulsar://{_HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Return the process id of the broker, None while it does not run."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        self._begin()
        try:
            self._spawn()
            while not self._is_ready(answers=_answers(self._port)):
                time.sleep(_POLL_INTERVAL)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            self._spawn()
            await self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the broker at once and remove its data. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _wait_until_ready(self) -> None:
        while True:
            if self._is_ready(answers=await anyio.to_thread.run_sync(_answers, self._port)):
                return
            await anyio.sleep(_POLL_INTERVAL)

    def _begin(self) -> None:
        if self._process is not None:
            raise BrokerError("the embedded broker runs already")
        self._attempt = 0
        self._give_up_at = time.monotonic() + self._startup_timeout

    def _spawn(self) -> None:
        binary = _require_binary()
        self._attempt += 1
        self._port = free_port(_HOST)
        self._folder = Path(tempfile.mkdtemp(prefix="pulsar-nack-lite-"))
        (self._folder / "pulsar-lite.toml").write_text(_CONF)
        self._process = GuardedProcess(
            [str(binary), "--addr", f"{_HOST}:{self._port}", "--db-path", "data", "--log-level", "error"],
            log=self._folder / "log",
            folder=self._folder,
            cwd=self._folder,
        )

    def _is_ready(self, *, answers: bool) -> bool:
        """Return whether the broker is up; restart it if another process took its port, raise if it ended otherwise."""
        assert self._process is not None
        exit_code = self._process.exit_code
        if exit_code is None:
            if not answers and time.monotonic() > self._give_up_at:
                raise BrokerError(f"pulsar-lite did not answer within {self._startup_timeout} s; {self._log_tail()}")
            return answers
        log = self._log_tail()
        if "AddrInUse" not in log or self._attempt == _START_ATTEMPTS:
            raise BrokerError(f"pulsar-lite ended with exit code {exit_code} while starting; {log}")
        self.close()
        self._spawn()
        return False

    def _log_tail(self) -> str:
        assert self._folder is not None
        return f"its log ends: {(self._folder / 'log').read_text(errors='replace')[-2_000:]!r}"


def _find_binary() -> Path | None:
    """Return the binary of the installed package (without importing it), of the environment, or of the path."""
    spec = importlib.util.find_spec("pulsar_lite")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    candidates = [*(Path(folder, "bin", _BINARY) for folder in folders)]
    candidates += [Path(found) for found in (os.environ.get("PULSAR_LITE_BINARY"), shutil.which(_BINARY)) if found]
    return next((path.absolute() for path in candidates if path.is_file()), None)


def _require_binary() -> Path:
    binary = _find_binary()
    if binary is None and importlib.util.find_spec("pulsar_lite") is None:
        raise MissingExtraError("the embedded broker", "pulsar-lite>=0.2", "demo")
    reason = EmbeddedBroker.unavailable_reason()
    if binary is None or reason is not None:
        raise BrokerError(reason or "pulsar-lite has no binary for this machine")
    return binary


@functools.cache
def _why_not_run(binary: Path) -> str | None:
    """Return why the binary cannot run here: it may be for another processor or C library."""
    try:
        done = subprocess.run(  # noqa: S603 - found by us, not from input
            [str(binary), "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"pulsar-lite does not run on this machine: {error}"
    if done.returncode:
        return f"pulsar-lite does not run on this machine: {done.stderr.strip()[-300:]}"
    return None


def _answers(port: int) -> bool:
    """Return whether a broker on the port answers the handshake of the binary protocol; takes at most a second."""
    try:
        with socket.create_connection((_HOST, port), timeout=0.5) as connection:
            connection.settimeout(0.5)
            connection.sendall(_CONNECT)
            return connection.recv(64)[8:10] == _CONNECTED
    except OSError:
        return False


# --- the child process ----------------------------------------------------------------------------------------------


class GuardedProcess:
    """A running child with its output in a log file; ``folder`` is removed if the owner dies."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        folder: Path | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        with log.open("ab") as output:
            self._popen = subprocess.Popen(  # noqa: S603 - the command comes from this package, not from input
                ["/bin/sh", "-c", _WATCHED, "sh", str(folder or ""), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the process id of the child, which is also that of its group."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, None while the child runs; minus the signal's number if one ended it."""
        return self._popen.poll()

    def stop(self, grace: float = 5.0) -> None:
        """Ask the child to end, and kill it after ``grace`` seconds; it is gone when this returns or raises."""
        try:
            self._popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the child and its watcher at once, as ``kill -9`` does. Idempotent."""
        if self._popen.stdin is None or self._popen.stdin.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        self._popen.stdin.close()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port on which nobody listens now; another process may take it before you do."""
    for port in random.SystemRandom().sample(_PORTS, 200):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise OSError(f"no free port on {host} in {_PORTS.start} to {_PORTS.stop - 1}")
