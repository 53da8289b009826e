"""Fixtures on a real broker: the user's own or one that is started for the session.

PULSAR_SERVICE_URL and PULSAR_ADMIN_URL name the user's own, PULSAR_VERSION the version of those that are started. Every
test in this folder is marked ``broker``; without a broker and without Java and Maven to make one it is skipped.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker._admin import Admin, AdminError
from tests.broker._assembly import AssemblyError, assemble, missing_tools
from tests.broker.standalone import Standalone, external, is_healthy

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; the time limit holds for the start of the broker too, on a busy machine."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.broker)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(180))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch the broker before the first test's time limit starts to run."""
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
    """A second broker, as Pulsar comes by default: it does not keep acknowledgements of single batch members."""
    _skip_without_tools()
    with Standalone(index_acks=False) as broker:
        yield broker


@pytest.fixture(scope="session")
def mortal_broker() -> Iterator[Standalone]:
    """A broker that is killed again and again."""
    _skip_without_tools()
    with Standalone() as broker:
        yield broker


@pytest.fixture
def own_broker(mortal_broker: Standalone) -> Standalone:
    """A broker that the test may kill and restart; only one test at a time uses it, each with a topic of its own."""
    if not is_healthy(mortal_broker.admin_url):  # a test has left it dead
        mortal_broker.restart(kill=True)
    return mortal_broker


@pytest.fixture
def own_topic(request: pytest.FixtureRequest) -> str:
    """The full name of a topic that nobody used, for a broker of which topics are not removed."""
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
    """Makes fresh topics of a given number of partitions, removed afterwards."""
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
    """A topic name that nobody used, readable from the test's name."""
    readable = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"persistent://public/default/{readable[:60]}-{uuid.uuid4().hex[:8]}"


def _skip_without_tools() -> None:
    reason = missing_tools()
    if reason is not None:
        pytest.skip(f"{reason}; or set PULSAR_SERVICE_URL and PULSAR_ADMIN_URL")
