"""Apache Pulsar standalone as a child process: start, wait until healthy, stop, kill -9, and restart on the same data.

As a command, ``python -m tests.broker.standalone run -- CMD ...`` runs CMD with PULSAR_SERVICE_URL and PULSAR_ADMIN_URL
set and ends with its exit code. If both are set already, that broker is used and none is started. PULSAR_VERSION
chooses the version of the broker that is started.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, Self

from pulsar_nack.testing._embedded_broker import GuardedProcess, free_port
from tests.broker._assembly import AssemblyError, assemble, find_java, version
from tests.broker._settings import HOST, JVM, SETTINGS
from tests.patience import load, patience

SERVICE_URL = "PULSAR_SERVICE_URL"
ADMIN_URL = "PULSAR_ADMIN_URL"
START_ATTEMPTS = 3  # another process may take a port between the look and the bind
RESTART_ATTEMPTS = 20
LOST_LOCK = b"/ledgers/available/"
LOST_LOCK_END = b"was invalidated"
MAX_LOST_LOCKS = 20


class StandaloneError(RuntimeError):
    """The broker did not start; the message ends with the tail of its log."""


class RegistrationLoopError(StandaloneError):
    """The storage registers, finds its registration gone, and registers again, for ever; see ``Standalone.start``."""


class Standalone:
    """A broker in a temporary folder, removed with all its data at the end of the ``with`` block.

    ``index_acks`` switches acknowledgmentAtBatchIndexLevelEnabled, ``settings`` are further lines of the conf file, and
    ``startup_timeout`` is in seconds; if None, it is long enough for this machine. One owner uses it from one thread at
    a time.
    """

    def __init__(
        self,
        *,
        index_acks: bool = True,
        settings: Mapping[str, str] | None = None,
        startup_timeout: float | None = None,
    ) -> None:
        self._settings = (
            SETTINGS | {"acknowledgmentAtBatchIndexLevelEnabled": str(index_acks).lower()} | dict(settings or {})
        )
        self._startup_timeout = startup_timeout or patience(30)
        self._process: GuardedProcess | None = None
        self._folder: Path | None = None
        self._ports = (0, 0, 0)
        self._log_begins_at = 0

    @property
    def service_url(self) -> str:
        """Where clients connect; the same after a restart."""
        return f"pulsar://{HOST}:{self._ports[0]}"

    @property
    def admin_url(self) -> str:
        """Where the admin API listens; the same after a restart."""
        return f"http://{HOST}:{self._ports[1]}"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise StandaloneError("the broker does not run")
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start it and wait until it is healthy; after ``kill`` or ``stop``, on the same ports and data.

        After a kill Pulsar 3.0.7 finds the old registration of its storage, and sometimes begins to delete and write it
        in an endless loop (apache/pulsar#17759). A topic that a client requests at the wrong moment of that loop fails
        to load, and once loaded it cannot be read until the broker ends (#23654, mended by #23368): a consumer is
        connected and gets nothing. That proves nothing about clients, so such a broker is started again.
        """
        if self._process is not None:
            raise StandaloneError("the broker runs already")
        try:
            if self._folder is None:
                self._start_first()
            else:
                self._start_again()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Shut it down in order; its data stays for ``start``."""
        if self._process is not None:
            self._process.stop(grace=20.0)
            self._process = None

    def kill(self) -> None:
        """End it as ``kill -9`` does; its data stays for ``start``."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self, *, kill: bool = False) -> None:
        """Stop or kill it and start it again on the same ports and data."""
        self.kill() if kill else self.stop()
        self.start()

    def close(self) -> None:
        """End it, if it runs, and remove its data. There is no orderly shutdown: nothing needs saving."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def log_tail(self, size: int = 4_000) -> str:
        """The last ``size`` characters of its log."""
        if self._folder is None:
            return ""
        return (self._folder / "log").read_text(errors="replace")[-size:]

    def _start_first(self) -> None:
        for attempt in range(1, START_ATTEMPTS + 1):
            self._folder = Path(tempfile.mkdtemp(prefix="pulsar-standalone-"))
            self._ports = (free_port(HOST), free_port(HOST), free_port(HOST))
            try:
                self._launch()
            except StandaloneError:
                if attempt == START_ATTEMPTS or "Address already in use" not in self.log_tail(100_000):
                    raise
                self.close()
            else:
                return

    def _start_again(self) -> None:
        for attempt in range(1, RESTART_ATTEMPTS + 1):
            try:
                self._launch()
            except RegistrationLoopError:
                if attempt == RESTART_ATTEMPTS:
                    raise
                self.kill()
            else:
                return

    def _launch(self) -> None:
        folder = self._folder
        assert folder is not None
        lib, java = assemble(), find_java()
        self._write_conf(folder / "standalone.conf")
        log = folder / "log"
        self._log_begins_at = log.stat().st_size if log.exists() else 0
        self._process = GuardedProcess(self._command(java, lib, folder), log=folder / "log", folder=folder, cwd=folder)
        self._wait_until_healthy(self._process)

    def _write_conf(self, path: Path) -> None:
        service, web, _ = self._ports
        lines = self._settings | {"brokerServicePort": str(service), "webServicePort": str(web)}
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
        if loopback is not None:
            lines = lines | {"listeningInterface": loopback}
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    def _command(self, java: str, lib: Path, folder: Path) -> list[str]:
        return [
            java,
            *JVM,
            "-cp",
            f"{lib}/*",
            "org.apache.pulsar.PulsarStandaloneStarter",
            *("-c", "standalone.conf", "-nfw", "-nss", "-a", HOST),
            *("--num-bookies", "1", "--bookkeeper-port", str(self._ports[2])),
            *("--bookkeeper-dir", str(folder / "bookkeeper"), "--metadata-dir", str(folder / "metadata")),
        ]

    def _wait_until_healthy(self, process: GuardedProcess) -> None:
        give_up_at = time.monotonic() + self._startup_timeout
        while not is_healthy(self.admin_url):
            if process.exit_code is not None:
                raise StandaloneError(f"the broker ended with {process.exit_code} while starting:\n{self.log_tail()}")
            if time.monotonic() > give_up_at:
                raise StandaloneError(
                    f"the broker was not healthy after {self._startup_timeout:.0f} s:\n{self.log_tail()}"
                )
            self._check_registration()
            time.sleep(0.1)
        self._wait_until_registered()

    def _wait_until_registered(self) -> None:
        """Wait until the storage has kept its registration for a moment: the loop may have only just begun."""
        lost, before = self._check_registration(), 0
        while lost > before:
            time.sleep(max(1.0, load()))
            lost, before = self._check_registration(), lost

    def _check_registration(self) -> int:
        """Return how often the storage lost its registration since the start; raise if it is in the loop."""
        assert self._folder is not None
        with (self._folder / "log").open("rb") as log:
            log.seek(self._log_begins_at)
            lost = sum(LOST_LOCK in line and LOST_LOCK_END in line for line in log)
        if lost > MAX_LOST_LOCKS:
            raise RegistrationLoopError(f"the storage registered itself {lost} times")
        return lost


def is_healthy(admin_url: str) -> bool:
    """Return whether the broker's health check says "ok", for which it sends itself a message."""
    try:
        with urllib.request.urlopen(f"{admin_url}/admin/v2/brokers/health", timeout=10) as answer:
            return bool(answer.read().strip() == b"ok")
    except OSError:
        return False


def external() -> tuple[str, str] | None:
    """Return the service and the admin URL of the user's own broker, if both are given."""
    service, admin = os.environ.get(SERVICE_URL), os.environ.get(ADMIN_URL)
    return (service, admin) if service and admin else None


def run(command: Sequence[str], broker: Standalone) -> int:
    """Run a command beside a broker and return its exit code."""
    given = external()
    if given is not None:
        return _run_command(command, given)
    with broker:
        print(
            f"Apache Pulsar {version()} runs at {broker.service_url}, {broker.admin_url}", file=sys.stderr, flush=True
        )
        return _run_command(command, (broker.service_url, broker.admin_url))


def _run_command(command: Sequence[str], urls: tuple[str, str]) -> int:
    child = subprocess.Popen(command, env=os.environ | dict(zip((SERVICE_URL, ADMIN_URL), urls, strict=True)))
    try:
        try:
            return child.wait()
        except KeyboardInterrupt:  # the terminal signalled the command too: let it finish, until the next signal
            return child.wait()
    finally:
        if child.poll() is None:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(10)
    finally:
        child.kill()
        child.wait()


def _exit_on_signal(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.broker.standalone", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("assemble", help="fetch the broker into the cache folder, and end")
    runner = actions.add_parser("run", help="run a command beside a broker: run -- CMD ...")
    runner.add_argument("--no-index-acks", action="store_true", help="switch acknowledging single batch members off")
    runner.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    try:
        if options.action == "assemble":
            print(assemble())
            return 0
        return run(options.command, Standalone(index_acks=not options.no_index_acks))
    except (AssemblyError, StandaloneError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
