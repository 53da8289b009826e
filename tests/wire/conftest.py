"""Fixtures of tests over real sockets: each kind of event loop, and certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest

from tests.patience import patience
from tests.wire.certificates import Certificate, make_authority, make_certificate, missing_tool
from tests.wire.served import Served, served

Run = Callable[..., None]
"""Runs a test with a served broker; further arguments are those of :func:`served`."""


class Files(NamedTuple):
    """All certificates of these tests."""

    authority: Certificate
    other_authority: Certificate
    server: Certificate
    client: Certificate
    stranger: Certificate


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Make two authorities: one certifies a server at localhost and a client, the other a stranger."""
    reason = missing_tool()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("certificates")
    authority, other = make_authority(folder), make_authority(folder, "other")
    return Files(
        authority,
        other,
        make_certificate(folder, authority, "server", "DNS:localhost"),
        make_certificate(folder, authority, "client", "DNS:client"),
        make_certificate(folder, other, "stranger", "DNS:stranger"),
    )


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test with a served broker on each kind of loop; nothing of it may be left."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop

    def run_on_it(test: Callable[[Served], Coroutine[Any, Any, None]], **settings: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(patience(10)), served(**settings) as there:
                await test(there)
            assert len(asyncio.all_tasks()) == 1

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run_on_it
