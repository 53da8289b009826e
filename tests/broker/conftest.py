"""Fixtures on a real broker: the user's own, or one that is started for the session.

PULSAR_SERVICE_URL and PULSAR_ADMIN_URL name the user's own broker; PULSAR_VERSION is the version of brokers that are
started. Every test in this folder is marked ``broker``, and skipped without a broker or Java and Maven to make one.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tests.broker._admin import Admin, AdminError
from tests.broker._assembly import AssemblyError, assemble, cache_folder, missing_tools
from tests.broker._java_client import JavaClient
from tests.broker.standalone import Standalone, external, is_healthy

HERE = Path(__file__).parent
COSTLY = {"mortal_broker", "broker_without_index_acks", "guarded", "java", "spark"}
"""Fixtures that start a JVM: of several workers (``-n 2 --dist loadgroup``) one runs all tests with such a fixture."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; the time limit also covers the start of the broker on a busy machine."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.broker)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(180))
            groups = sorted(COSTLY.intersection(getattr(item, "fixturenames", ())))
            if item.get_closest_marker("alone") is not None:
                groups = ["alone"]
            if groups and item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(groups[0]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Run a test that is marked ``alone`` while no other worker runs one; its time limit begins after the wait."""
    is_alone = item.get_closest_marker("alone") is not None
    turns.enter(alone=is_alone)
    try:
        return (yield)
    finally:
        if not is_alone or nextitem is None or nextitem.get_closest_marker("alone") is None:
            turns.leave()


class Turns:
    """Two file locks: a worker that waits to run alone holds the first one, so no other test begins before its own."""

    def __init__(self) -> None:
        self._files: list[TextIO] = []
        self._is_in = False

    def enter(self, *, alone: bool) -> None:
        """Wait until a test may run: beside other tests, or alone."""
        if self._is_in:
            return
        if not self._files:
            cache_folder().mkdir(parents=True, exist_ok=True)
            self._files = [(cache_folder() / name).open("w") for name in ("turn.lock", "running.lock")]
        turn, running = self._files
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        self._is_in = True

    def leave(self) -> None:
        """Let other workers continue."""
        fcntl.flock(self._files[1], fcntl.LOCK_UN)
        self._is_in = False

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


turns = Turns()


def pytest_unconfigure() -> None:
    """Close all files at the end."""
    turns.close()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch the broker before the first test's time limit starts."""
    wanted = any(item.path.is_relative_to(HERE) for item in session.items)
    if wanted and not session.config.option.collectonly:
        try:
            if missing_tools() is None and external() is None:
                assemble()
        except AssemblyError as error:
            raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def broker_urls() -> Iterator[tuple[str, str]]:
    """The service URL and the admin URL of the broker under test."""
    given = external()
    if given is not None:
        yield given
        return
    _skip_without_tools()
    with Standalone() as broker:
        yield broker.service_url, broker.admin_url


@pytest.fixture(scope="session")
def service_url(broker_urls: tuple[str, str]) -> str:
    """Where clients connect."""
    return broker_urls[0]


@pytest.fixture(scope="session")
def admin_url(broker_urls: tuple[str, str]) -> str:
    """Where the admin API listens."""
    return broker_urls[1]


@pytest.fixture(scope="session")
def admin(admin_url: str) -> Admin:
    """Admin calls on the broker under test."""
    return Admin(admin_url)


@pytest.fixture(scope="session")
def broker_without_index_acks() -> Iterator[Standalone]:
    """A second broker with Pulsar's default settings: it does not store acknowledgements of single batch members."""
    _skip_without_tools()
    with Standalone(index_acks=False) as broker:
        yield broker


@pytest.fixture(scope="session")
def mortal_broker() -> Iterator[Standalone]:
    """A broker that the tests kill again and again."""
    _skip_without_tools()
    with Standalone() as broker:
        yield broker


@pytest.fixture(scope="session")
def java(service_url: str) -> Iterator[JavaClient]:
    """The Java client."""
    try:
        client = JavaClient(service_url)
    except AssemblyError as error:
        pytest.skip(str(error))
    with client:
        yield client


@pytest.fixture
def own_broker(mortal_broker: Standalone) -> Iterator[Standalone]:
    """A broker that the test may kill and restart; one test at a time uses it, each with its own topic.

    The end of its log is printed if the test fails.
    """
    if not is_healthy(mortal_broker.admin_url):  # a test has left it dead
        mortal_broker.restart(kill=True)
    yield mortal_broker
    sys.stdout.write(mortal_broker.log_tail(20_000))


@pytest.fixture
def own_topic(request: pytest.FixtureRequest) -> str:
    """The full name of a new topic, for a broker whose topics are not removed."""
    return fresh_topic(request)


@pytest.fixture
def topic(request: pytest.FixtureRequest, admin: Admin) -> Iterator[str]:
    """The full name of a fresh topic, removed afterwards."""
    name = fresh_topic(request)
    yield name
    with contextlib.suppress(AdminError):
        admin.delete(name)


@pytest.fixture
def partitioned_topic(request: pytest.FixtureRequest, admin: Admin) -> Iterator[Callable[[int], str]]:
    """Makes new topics with a given number of partitions, removed afterwards."""
    made: list[str] = []

    def make(partitions: int) -> str:
        name = fresh_topic(request)
        admin.create_partitions(name, partitions)
        made.append(name)
        return name

    yield make
    for name in made:
        with contextlib.suppress(AdminError):
            admin.delete(name, partitioned=True)


def fresh_topic(request: pytest.FixtureRequest) -> str:
    """Return an unused topic name that contains the test's name."""
    readable = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"persistent://public/default/{readable[:60]}-{uuid.uuid4().hex[:8]}"


def _skip_without_tools() -> None:
    reason = missing_tools()
    if reason is not None:
        pytest.skip(f"{reason}; or set PULSAR_SERVICE_URL and PULSAR_ADMIN_URL")
