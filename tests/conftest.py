"""What all tests share: how Hypothesis searches, and a word on which tests were chosen."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A time limit for each example would make a busy machine look like a fault; each test has one of its own.
settings.register_profile("here", deadline=None)
settings.register_profile("in-ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("in-ci" if os.environ.get("CI") else "here")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which tests were chosen, and how to run the others."""
    return f"chosen: {config.option.markexpr or 'all'}  (make test, make test-slow, make test-broker)"
