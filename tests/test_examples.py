"""Each example runs as users run it: in its own process, on its own broker or the one in the environment."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack.testing import EmbeddedBroker
from tests.patience import patience
from tests.processes import run_python, started_python, without_broker
from tests.tiers import seeds

EXAMPLES = Path(__file__).parent.parent / "examples"
REASON = EmbeddedBroker.unavailable_reason()

pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no embedded broker: {REASON}")


def run(example: str, *arguments: str, **env: str) -> str:
    """Run an example to its end and return what it printed; anything on stderr is a fault."""
    done = run_python(EXAMPLES / example, *arguments, env=without_broker(**env))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@contextmanager
def running_service() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the web service; give its process and its address."""
    with started_python(EXAMPLES / "web_service.py", env=without_broker()) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def get(url: str, data: bytes | None = None) -> Any:
    """Return what the service answers, decoded."""
    with urllib.request.urlopen(url, data, timeout=patience(10)) as answer:
        return json.load(answer)


def test_every_example_is_run_here() -> None:
    """Every example has a test, in this file or beside those of its package."""
    elsewhere = {
        "acknowledgements.py",
        "delayed.py",
        "delayed_buckets.py",
        "local_topic.py",
    }
    here = {
        "durable.py",
        "key_order.py",
        "lease.py",
        "rate_limited_api.py",
        "reader.py",
        "retry_topic.py",
        "taskiq_worker.py",
        "testing_a_handler.py",
        "web_service.py",
        "worker.py",
    }
    assert {path.name for path in EXAMPLES.glob("*.py")} == here | elsewhere


@pytest.mark.smoke
@pytest.mark.parametrize("is_given", seeds([False, True]), ids=["own broker", "broker in the environment"])
def test_worker(*, is_given: bool) -> None:
    """The worker settles every job, each after as many attempts as it fails, and gives up the hopeless one."""
    if is_given:
        with EmbeddedBroker() as broker:
            told = run("worker.py", "--once", PULSAR_SERVICE_URL=broker.service_url)
    else:
        told = run("worker.py", "--once")
    assert "send the invoice: done at attempt 1" in told
    assert "resize the picture: done at attempt 2" in told
    assert "call the slow partner: done at attempt 3" in told
    assert "parse the broken file: given up after 4 attempts" in told
    assert "6 failures came back" in told


@pytest.mark.slow
def test_key_order() -> None:
    """Each account's steps are booked in order; those of Bert wait for his deposit, the others do not."""
    told = run("key_order.py")
    booked = re.findall(r"(anna|bert|cleo): (\w+)$", told, re.MULTILINE)
    for account in ("anna", "bert", "cleo"):
        assert [step for name, step in booked if name == account] == ["open", "deposit", "withdraw", "close"]
    assert booked[-1] == ("bert", "close")
    assert "cancelled=0, left=0" in told


def test_testing_a_handler() -> None:
    """The tests of the handler pass, without a broker."""
    assert run("testing_a_handler.py") == "both pass\n"


@pytest.mark.slow
def test_durable() -> None:
    """The job continues with its next attempt after each kill, and is not delivered before its time."""
    told = run("durable.py")
    steps = ["attempt 1", "killed in the middle", "attempt 2", "nacked", "killed while", "attempt 3", "done"]
    places = [told.index(step) for step in steps]
    assert places == sorted(places)
    (seconds,) = re.findall(r"redelivered (\d+\.\d) s after the nack", told)
    assert float(seconds) >= 2.5


@pytest.mark.slow
def test_retry_topic() -> None:
    """Each order waits in the retry topic until its shop opens; the order whose shop never opens is dead-lettered."""
    told = run("retry_topic.py")
    assert "baker, attempt 1: delivered" in told
    assert re.search(r"1\.\d s: butcher, attempt 2: delivered", told)
    assert re.search(r"2\.\d s: florist, attempt 2: delivered", told)
    assert "dead letter: ghost, closed" in told
    assert "4 waited in the retry topic, 0 are unacknowledged" in told


@pytest.mark.slow
def test_lease() -> None:
    """The job that extends its lease is done at once; the one that hangs is done by another handler meanwhile."""
    told = run("lease.py", "--once")
    steps = ["leases that ended: 1", "done at attempt 2", "attempt 1 is too late", "1 lease ended"]
    places = [told.index(step) for step in steps]
    assert places == sorted(places)
    assert "render a film: done at attempt 1" in told


@pytest.mark.slow
def test_reader() -> None:
    """The second report has only what is new; the table follows the changes."""
    assert run("reader.py").splitlines() == [
        "first report: ['apple 1.0', 'pear 2.0', 'apple 1.2']",
        "second report: ['plum 3.5']",
        "prices: {'apple': 1.2, 'pear': 2.0, 'plum': 3.5}",
        "change: apple 0.9",
        "change: pear None",
        "prices: {'apple': 0.9, 'plum': 3.5}",
    ]


@pytest.mark.slow
def test_rate_limited_api() -> None:
    """All orders get through once, also those that the API refused at first with a time to retry."""
    told = run("rate_limited_api.py", "--once")
    through = re.findall(r"(order \d+): through", told)
    assert sorted(through) == sorted(f"order {number}" for number in range(12))
    assert re.search(r"order 4: too many calls, again in 0\.\d+ s", told)


@pytest.mark.slow
def test_taskiq_worker() -> None:
    """The delayed task, the retries and the dead letter happen in this order."""
    told = run("taskiq_worker.py")
    lines = re.findall(r"s  (.+)", told)
    assert lines == [
        "sent",
        "order 17: no answer",
        "order 17: no answer",
        "mail to ann@example.org",
        "order 17: done",
        "1 dead letter",
    ]


@pytest.mark.slow
def test_web_service_answers_and_stops_on_sigterm() -> None:
    """The service takes a job, reports that its consumer works, counts the retry, and stops cleanly on SIGTERM."""
    with running_service() as (process, url):
        assert get(f"{url}/health") == {"working": True}
        assert get(f"{url}/jobs", b"hello") == {"bytes": 5}
        while get(f"{url}/statistics")["done"] == 0:
            time.sleep(0.05)
        statistics = get(f"{url}/statistics")
        assert (statistics["nacked"], statistics["shown"]) == (1, 2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=patience(20))
        assert (process.returncode, out, err) == (0, "stopped\n", "")


@pytest.mark.slow
def test_web_service_refuses_bad_requests() -> None:
    """An unknown path gets 404, an invalid request no answer, and the service continues."""
    with running_service() as (process, url):
        with pytest.raises(urllib.request.HTTPError, match="404"):
            get(f"{url}/nothing")
        request = urllib.request.Request(f"{url}/jobs", b"x", {"Content-Length": "many"})
        with pytest.raises(OSError, match="closed connection"):
            urllib.request.urlopen(request, timeout=patience(10))
        assert get(f"{url}/health") == {"working": True}
        assert process.poll() is None


@pytest.mark.slow
def test_web_service_ends_after_seconds() -> None:
    """With ``--seconds`` it ends."""
    told = run("web_service.py", "--seconds", "0.5")
    assert told.splitlines()[-1] == "stopped"
