"""Fails a test of the fast tier that takes more than a second of processor time without a marker that allows it."""

from __future__ import annotations

import resource
from collections.abc import Generator

import pytest

from tests.patience import processor_slowness

LIMIT_S = 1.0
"""The limit of one test, with its own fixtures and the processes that it waited for."""


class Check:
    """A plugin that measures each test; the marker ``smoke`` exempts a test."""

    def __init__(self) -> None:
        self._begun = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        """Begin to count."""
        self._begun = _processor_time()
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """Do not count fixtures that several tests share."""
        begun = _processor_time()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._begun += _processor_time() - begun

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test that passed but took too long."""
        result = yield
        if item.get_closest_marker("smoke") is None:
            check(_processor_time() - self._begun)
        return result


def check(taken: float) -> None:
    """Fail a test that took more than the limit, which grows on a slow machine."""
    if taken > LIMIT_S and taken > (limit := LIMIT_S * processor_slowness()):
        pytest.fail(
            f"took {taken:.2f} s of processor time, of {limit:.2f}: make it cheaper, or slow (tests/README.md)",
            pytrace=False,
        )


def _processor_time() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
