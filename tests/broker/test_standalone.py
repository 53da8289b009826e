"""The broker of these tests: it keeps data and ports over a crash, and ends with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from tests.broker._admin import Admin
from tests.broker._assembly import version
from tests.broker.standalone import (
    ADMIN_URL,
    MAX_LOST_LOCKS,
    SERVICE_URL,
    RegistrationLoopError,
    Standalone,
    StandaloneError,
    is_healthy,
)
from tests.broker.wire_topic import publish
from tests.consumer.official import official_client
from tests.patience import patience

COMMAND = [sys.executable, "-m", "tests.broker.standalone", "run", "--"]
ROOT = Path(__file__).parents[2]

# a start takes 6 s, and much longer on a busy machine
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("mortal_broker")]


def without_urls() -> dict[str, str]:
    """Return the environment without a broker's URLs."""
    return {key: value for key, value in os.environ.items() if key not in {SERVICE_URL, ADMIN_URL}}


async def receive(url: str, topic: str, count: int) -> list[bytes]:
    """Receive ``count`` payloads from the start of a topic."""
    async with official_client(url) as client:
        consumer = await client.subscribe(topic, "reader", initial_position=pulsar.InitialPosition.Earliest)
        return [(await consumer.receive()).data() for _ in range(count)]


async def test_survives_kill_and_stop(own_broker: Standalone, own_topic: str) -> None:
    """After kill -9, or an orderly stop, a new process uses the same ports and has the stored data."""
    topic, pid = own_topic, own_broker.pid
    urls = (own_broker.service_url, own_broker.admin_url)
    await publish(own_broker.service_url, topic, [b"one", b"two"])
    with pytest.raises(StandaloneError, match="already"):
        own_broker.start()
    own_broker.kill()
    assert not is_healthy(own_broker.admin_url)
    own_broker.start()
    assert (own_broker.service_url, own_broker.admin_url) == urls
    assert own_broker.pid != pid
    assert await receive(own_broker.service_url, topic, 2) == [b"one", b"two"]
    await publish(own_broker.service_url, topic, [b"three"])
    own_broker.restart()
    assert await receive(own_broker.service_url, topic, 3) == [b"one", b"two", b"three"]


def test_starts_again_while_storage_registers_in_a_loop(
    own_broker: Standalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker whose storage registers in a loop after a kill is restarted until one comes up without."""
    launch = Standalone._launch
    launched: list[int] = []

    def loop_first(self: Standalone) -> None:
        launched.append(1)
        if len(launched) <= 3:
            raise RegistrationLoopError("in a loop")
        launch(self)

    own_broker.kill()
    monkeypatch.setattr(Standalone, "_launch", loop_first)
    own_broker.start()
    assert len(launched) > 3
    assert is_healthy(own_broker.admin_url)


@pytest.mark.parametrize(("lost", "is_loop"), [(MAX_LOST_LOCKS, False), (MAX_LOST_LOCKS + 1, True)])
def test_a_registration_loop_is_seen_in_the_log(tmp_path: Path, *, lost: int, is_loop: bool) -> None:
    """A few lost registrations are no loop; many since the last start are; those before it do not count."""
    line = "12:00 - INFO  - Lock on resource /ledgers/available/127.0.0.1:3181 was invalidated. state Valid\n"
    other = "12:00 - INFO  - Lock on resource /loadbalance/brokers/127.0.0.1:8080 was invalidated. state Valid\n"
    broker = Standalone()
    broker._folder = tmp_path
    (tmp_path / "log").write_text(1_000 * line + other)
    broker._log_begins_at = (tmp_path / "log").stat().st_size
    with (tmp_path / "log").open("a") as log:
        log.write(lost * (line + other))
    if is_loop:
        with pytest.raises(RegistrationLoopError, match=str(lost)):
            broker._check_registration()
    else:
        assert broker._check_registration() == lost


@pytest.mark.parametrize("ends_after", [0, 1, 5, 1_000])
def test_a_registration_loop_that_begins_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, ends_after: int
) -> None:
    """A start waits as long as the storage of a healthy broker loses its registration, which may be a loop."""
    line = "12:00 - INFO  - Lock on resource /ledgers/available/127.0.0.1:3181 was invalidated. state Valid\n"
    lines, pauses = [line], 0

    def sleep(seconds: float) -> None:
        nonlocal pauses
        assert seconds >= 1
        pauses += 1
        if pauses <= ends_after:
            lines.append(line)
        (tmp_path / "log").write_text("".join(lines))

    broker = Standalone()
    broker._folder = tmp_path
    (tmp_path / "log").write_text(line)
    monkeypatch.setattr(time, "sleep", sleep)
    if ends_after > MAX_LOST_LOCKS:
        with pytest.raises(RegistrationLoopError):
            broker._wait_until_registered()
    else:
        broker._wait_until_registered()
        assert pauses == ends_after + 1


def test_says_why_it_did_not_start() -> None:
    """A setting that the broker refuses raises an error that ends with its log; nothing is left behind."""
    broker = Standalone(settings={"managedLedgerDefaultEnsembleSize": "many"})
    with pytest.raises(StandaloneError, match=r"(?s)ended with \d+ while starting.*managedLedgerDefaultEnsembleSize"):
        broker.start()
    assert broker.log_tail() == ""


def test_run_uses_a_broker_that_is_named() -> None:
    """With both URLs set the command runs without a new broker, and its exit code is returned."""
    named = without_urls() | {SERVICE_URL: "pulsar://named:1", ADMIN_URL: "http://named:2"}
    script = f"echo ${SERVICE_URL} ${ADMIN_URL}; exit 7"
    done = subprocess.run(
        [*COMMAND, "sh", "-c", script], env=named, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 7
    assert done.stdout == "pulsar://named:1 http://named:2\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_run_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    """Stopping the runner with SIGTERM or SIGKILL removes the broker and its folder."""
    env = without_urls() | {"TMPDIR": str(tmp_path)}
    command = [*COMMAND, "sh", "-c", f"echo ${ADMIN_URL}; exec cat"]  # cat ends when this test closes its input
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as runner:
        assert runner.stdout is not None
        url = runner.stdout.readline().strip()
        assert is_healthy(url)
        assert any(tmp_path.iterdir())
        runner.send_signal(number)
        runner.wait()
    assert wait_until(lambda: not is_healthy(url))
    assert wait_until(lambda: not any(tmp_path.iterdir()))


def wait_until(condition: Callable[[], bool], timeout: float = 15.0) -> bool:
    """Poll until another process meets a condition."""
    give_up_at = time.monotonic() + patience(timeout)
    while not condition() and time.monotonic() < give_up_at:
        time.sleep(0.1)
    return condition()


async def test_index_acks_can_be_off(broker_without_index_acks: Standalone, service_url: str) -> None:
    """The second broker is separate, and stores no acknowledgements of single batch members."""
    assert broker_without_index_acks.service_url != service_url
    admin = Admin(broker_without_index_acks.admin_url)
    settings = admin.request("GET", "brokers/configuration/runtime")
    assert settings["acknowledgmentAtBatchIndexLevelEnabled"] == "false"


def test_index_acks_are_on(admin: Admin) -> None:
    """The broker under test stores acknowledgements of single batch members: other tests rely on it."""
    settings = admin.request("GET", "brokers/configuration/runtime")
    assert settings["acknowledgmentAtBatchIndexLevelEnabled"] == "true"


def test_the_version_is_the_one_that_was_asked_for(own_broker: Standalone) -> None:
    """The broker that is started reports the version of PULSAR_VERSION."""
    with urllib.request.urlopen(f"{own_broker.admin_url}/admin/v2/brokers/version", timeout=60) as answer:
        assert version() in answer.read().decode()


async def test_admin_calls(service_url: str, topic: str, partitioned_topic: Callable[[int], str], admin: Admin) -> None:
    """The admin helper sees a backlog, clears it, moves a subscription back and creates partitions."""
    started_ms = int(time.time() * 1_000) - 60_000
    await publish(service_url, topic, [b"one", b"two", b"three"])
    admin.create_subscription(topic, "reader")
    assert admin.backlog(topic, "reader") == 3
    admin.skip(topic, "reader", 1)
    assert admin.backlog(topic, "reader") == 2
    admin.clear(topic, "reader")
    assert admin.backlog(topic, "reader") == 0
    admin.reset_cursor(topic, "reader", started_ms)
    assert admin.backlog(topic, "reader") == 3
    assert admin.subscription(topic, "reader")["consumers"] == []
    admin.unload(topic)
    assert "reader" in admin.internal_stats(topic)["cursors"]
    parted = partitioned_topic(3)
    async with official_client(service_url) as client:
        assert len(await client.get_topic_partitions(parted)) == 3
