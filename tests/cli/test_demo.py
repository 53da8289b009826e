"""``pulsar-nack demo`` on the embedded broker, and on the fake port if that cannot run."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import LocalTopic
from pulsar_nack.cli import _demo, _demo_play
from pulsar_nack.cli._demo_play import LocalDemo
from pulsar_nack.errors import BrokerError
from pulsar_nack.testing import EmbeddedBroker, FakePort, FakeTopic
from pulsar_nack.testing import run as run_on_virtual_time
from tests.patience import patience
from tests.processes import run_python, started_python, without_broker

from .test_app import call

REASON = EmbeddedBroker.unavailable_reason()
DEMO = ("-m", "pulsar_nack.cli", "demo")
PNG = b"\x89PNG\r\n\x1a\n"

needs_broker = pytest.mark.skipif(REASON is not None, reason=f"no embedded broker: {REASON}")


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the demo believe that pulsar-lite has no binary here, and run on virtual time."""
    monkeypatch.delenv("PULSAR_SERVICE_URL", raising=False)
    monkeypatch.setattr(EmbeddedBroker, "unavailable_reason", staticmethod(lambda: "no wheel for this machine"))
    monkeypatch.setattr(asyncio, "run", run_on_virtual_time)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make the demo run on virtual time, and create its folders where the test sees them."""
    monkeypatch.setattr(asyncio, "run", run_on_virtual_time)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def break_port(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[FakePort], None]], None]:
    """Takes a function that injects faults into the demo's port before it is used."""

    def use(injects: Callable[[FakePort], None]) -> None:
        def make(topic: FakeTopic, **settings: Any) -> FakePort:
            port = FakePort(topic, **settings)
            injects(port)
            return port

        monkeypatch.setattr(_demo_play, "FakePort", make)

    return use


@needs_broker
@pytest.mark.slow
def test_small_demo_on_the_embedded_broker(tmp_path: Path) -> None:
    """All messages come back once, JSON has each consumer, the plot is there, and nothing is left behind."""
    plot = tmp_path / "demo.png"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = run_python(
        *DEMO,
        "--messages",
        "40",
        "--seconds",
        "1",
        "--json",
        "--plot",
        str(plot),
        env=without_broker(TMPDIR=str(temporary)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert report["broker"] == "pulsar-lite, embedded"
    assert report["plot"] == str(plot)
    official, over, native = report["consumers"]
    assert [each["name"] for each in (over, native)] == ["pulsar-nack over it", "pulsar-nack native"]
    for ours in (over, native):
        assert (ours["missing"], ours["duplicates"]) == (0, 0)
        assert ours["total"]["messages"] == sum(row["messages"] for row in ours["rows"]) == 40
        assert ours["total"]["error_p50_ms"] <= ours["total"]["error_p99_ms"] <= ours["total"]["error_max_ms"]
    assert native["total"]["error_p50_ms"] < over["total"]["error_p99_ms"]
    assert official["name"] == "official client"
    assert official["total"]["messages"] == 40
    assert plot.read_bytes().startswith(PNG)
    assert [line for line in done.stderr.splitlines() if not line.startswith(("40 messages", "Picture"))] == []
    assert list(temporary.iterdir()) == []


@needs_broker
@pytest.mark.slow
@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"])
def test_interrupted_demo_leaves_nothing(tmp_path: Path, stop: signal.Signals, code: int) -> None:
    """Ctrl-C and SIGTERM end the demo without a traceback, and its broker and folders are gone."""
    with started_python(*DEMO, "--no-plot", env=without_broker(TMPDIR=str(tmp_path))) as process:
        while not list(tmp_path.glob("pulsar-nack-demo-*")):
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.5)
        process.send_signal(stop)
        out, err = process.communicate(timeout=patience(20))
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.smoke
@pytest.mark.usefixtures("faked")
def test_fake_port_takes_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an embedded broker the demo says why, runs on the fake port alone, to the millisecond, and succeeds."""
    plot = tmp_path / "demo.svg"
    code, out, err = call(["demo", "--messages", "40", "--json", "--plot", str(plot)], capsys)
    assert code == 0
    assert "No embedded broker: no wheel for this machine." in err
    assert "fake port" in err
    report = json.loads(out)
    assert report["broker"] == "fake port, in memory"
    (ours,) = report["consumers"]
    assert (ours["missing"], ours["duplicates"]) == (0, 0)
    assert ours["total"]["error_max_ms"] <= 2
    assert ours["total"]["due_meanwhile"] == ours["total"]["back_meanwhile"] > 0
    assert "<svg" in plot.read_text()


@pytest.mark.usefixtures("local")
def test_local_topic_takes_the_place_on_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --local the demo runs on a local topic, whatever broker is in the environment, and leaves no folder."""
    monkeypatch.setenv("PULSAR_SERVICE_URL", "pulsar://127.0.0.1:1")
    code, out, err = call(["demo", "--local", "--messages", "40", "--json", "--no-plot"], capsys)
    assert code == 0
    assert "local topic" in err
    report = json.loads(out)
    assert (report["broker"], report["ok"]) == ("local topic, in a folder", True)
    ours, delayed = report["consumers"]
    assert (ours["name"], ours["missing"], ours["duplicates"], ours["total"]["messages"]) == ("pulsar-nack", 0, 0, 40)
    assert (delayed["name"], delayed["missing"], delayed["total"]["messages"]) == ("delayed delivery", 0, 8)
    assert max(ours["total"]["error_max_ms"], delayed["total"]["error_max_ms"]) <= 2
    assert report["restart"]["at_s"] == 3.0
    assert report["restart"]["nacked"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("messages", [1, 5, 6, 7, 8, 40])
@pytest.mark.usefixtures("local")
def test_local_topic_publishes_everything_once(
    messages: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message is published once, three of ten in a batch, two of ten delayed; all come back, after a restart."""
    sent: list[tuple[list[bytes], dict[str, Any]]] = []
    publish = LocalTopic.publish

    async def noted(topic: LocalTopic, payloads: Any, **options: Any) -> Any:
        sent.append((payloads, options))
        return await publish(topic, payloads, **options)

    monkeypatch.setattr(LocalTopic, "publish", noted)
    code, out, _ = call(["demo", "--local", "--messages", str(messages), "--seconds", "0.5", "--no-plot"], capsys)
    assert code == 0
    assert "0 missing, 0 duplicates" in out
    assert "were closed and opened again after 0.2 s" in out or "opened again after 0.3 s" in out
    assert [int(each) for payloads, _ in sent for each in payloads] == list(range(messages))
    batched = [int(each) % 10 for payloads, options in sent if options.get("batch") for each in payloads]
    delayed = [int(each) % 10 for payloads, options in sent if "deliver_after" in options for each in payloads]
    assert batched == [number % 10 for number in range(messages) if number % 10 in (5, 6, 7)]
    assert delayed == [number % 10 for number in range(messages) if number % 10 in (4, 9)]
    assert max(len(payloads) for payloads, _ in sent) == min(max(messages - 5, 1), 3)


@pytest.mark.usefixtures("local")
def test_local_topic_that_loses_deadlines_fails_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a restart delivers messages a second time, the demo counts them and exits with 1."""
    reopen = LocalDemo.reopen

    async def forgetful(demo: LocalDemo) -> None:
        await reopen(demo)
        async with demo.topic() as topic:
            await topic.publish([b"0", b"1"])

    monkeypatch.setattr(LocalDemo, "reopen", forgetful)
    code, _, err = call(["demo", "--local", "--messages", "40", "--no-plot"], capsys)
    assert code == 1
    assert "FAILED: 0 messages missing, 2 duplicates." in err


@pytest.mark.usefixtures("local")
def test_local_demo_draws_nothing_without_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without matplotlib the local demo draws no picture, but fails if one was requested."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    code, _, err = call(["demo", "--local", "--messages", "5", "--seconds", "0.5"], capsys)
    assert code == 0
    assert "No picture: it needs matplotlib, of the extra demo." in err
    code, _, err = call(["demo", "--local", "--messages", "5", "--plot", "mine.png"], capsys)
    assert code == 2
    assert "matplotlib" in err
    assert list(tmp_path.iterdir()) == []


def test_local_topic_and_broker_exclude_each_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker beside --local is refused: it needs none."""
    monkeypatch.delenv("PULSAR_SERVICE_URL", raising=False)
    code, _, err = call(["demo", "--local", "--url", "pulsar://127.0.0.1:1", "--no-plot"], capsys)
    assert code == 2
    assert "--local" in err


@pytest.mark.usefixtures("faked")
def test_table_and_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The table on stdout fits into 80 columns, and on a terminal stderr shows how many are back."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    code, out, err = call(["demo", "--messages", "25", "--no-plot"], capsys)
    assert code == 0
    assert "error p50" in out
    assert "back after (s)" in out
    assert "…" not in out
    assert "pulsar-nack: " in out.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert "back: pulsar-nack" in err
    assert "25/25" in err


@pytest.mark.usefixtures("faked")
def test_missing_messages_fail_it(
    break_port: Callable[[Callable[[FakePort], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """When no redelivery arrives, the demo does not wait for ever, counts the missing messages, and exits with 1."""
    break_port(lambda port: port.fail_next("redeliver", 100_000))
    code, out, err = call(["demo", "--messages", "20", "--no-plot", "--json"], capsys)
    assert code == 1
    assert "FAILED: 20 messages missing, 0 duplicates." in err
    report = json.loads(out)
    assert report["ok"] is False
    assert report["consumers"][0]["missing"] == 20
    assert report["consumers"][0]["total"]["error_p50_ms"] is None


@pytest.mark.usefixtures("faked")
def test_duplicate_fails_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """When a message is redelivered once more than it was nacked, the demo counts it and exits with 1."""
    publish_once = FakeTopic.publish

    def publish(topic: FakeTopic, data: bytes) -> None:
        for _ in range(2 if data == b"7" else 1):
            publish_once(topic, data)

    monkeypatch.setattr(FakeTopic, "publish", publish)
    code, _, err = call(["demo", "--messages", "20", "--no-plot"], capsys)
    assert code == 1
    assert "FAILED: 0 messages missing, 1 duplicates." in err


@pytest.mark.usefixtures("faked")
def test_broken_transport_is_reported(
    break_port: Callable[[Callable[[FakePort], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """When the transport fails for good, the demo says so in a line and exits with 2."""
    break_port(lambda port: port.fail_next("receive", error=BrokerError("the cable is out")))
    code, out, err = call(["demo", "--messages", "20", "--no-plot"], capsys)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == "pulsar-nack: the cable is out"


def test_unreachable_broker_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer, and an invalid address, end in a line that names it and exit code 2."""
    monkeypatch.setattr(_demo_play, "_TIMEOUT", 1)
    for url in ("pulsar://127.0.0.1:1", "nonsense"):
        code, out, err = call(["demo", "--no-plot", "--url", url], capsys)
        assert (code, out) == (2, "")
        assert err.splitlines()[-1].startswith(f"pulsar-nack: {url}: ")


@pytest.mark.parametrize("plot", ["demo.gif", "nowhere/demo.png", "folder.png"])
def test_plot_that_cannot_be_written_is_refused_first(
    plot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown format, a missing folder, or a folder in the file's place is refused before anything runs."""
    (tmp_path / "folder.png").mkdir()
    monkeypatch.setattr(_demo, "_run", lambda *_: pytest.fail("it ran"))
    code, _, err = call(["demo", "--plot", str(tmp_path / plot)], capsys)
    assert code == 2
    assert "--plot" in err


@pytest.mark.parametrize(
    "arguments", [["--messages", "0"], ["--seconds", "0"], ["--seconds", "nan"], ["--precision-bits", "63"]]
)
def test_bad_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A value out of range exits with 2 and names the option."""
    code, _, err = call(["demo", "--no-plot", *arguments], capsys)
    assert code == 2
    assert arguments[0] in err
