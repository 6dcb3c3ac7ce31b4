"""What all suites share: marks by directory, services by mark, and a tally by suite.

A test in tests/unit is marked `unit`, and so on for each suite (tests/suites.py). A test marked
`postgresql`, `mysql`, `rabbitmq` or `redis` runs only if that server responds: without it the test
is skipped, and in CI (`CI` is set) it fails. The helpers themselves are in tests/helpers.py.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import helpers
from tests.suites import SUITES, TESTS, suite_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.services import Service

SERVICE_MARKS = ("postgresql", "mysql", "rabbitmq", "redis")
_counts: dict[str, Counter[str]] = defaultdict(Counter)
_seconds: defaultdict[str, float] = defaultdict(float)


@pytest.fixture(scope="session")
def services() -> helpers.Services:
    """`services.postgres`, `.mysql`, `.rabbitmq`, `.redis`: a Service, or None if missing."""
    return helpers.available_services()


@pytest.fixture(scope="session")
def require_service() -> Callable[[str], Service]:
    """`require_service("rabbitmq")` returns the Service; if missing, it skips, or fails in CI."""
    return helpers.require_service


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in SUITES.items():
        config.addinivalue_line("markers", f"{name}: {meaning} (set by directory)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        suite = suite_of(item.path)
        if suite in SUITES:
            item.add_marker(suite)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in SERVICE_MARKS:
        if item.get_closest_marker(name):
            helpers.require_service(name)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    suite = suite_of(TESTS.parent / report.nodeid.partition("::")[0])
    _seconds[suite] += report.duration
    if report.when == "call" or not report.passed:
        outcome = "errors" if report.failed and report.when != "call" else report.outcome
        _counts[suite][outcome] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the tally to the file that `make test` reads; with xdist, only in the controller."""
    target = os.environ.get("OUTBOX_TEST_REPORT")
    if target and not hasattr(session.config, "workerinput"):
        suites = {name: {**_counts[name], "seconds": _seconds[name]} for name in _counts}
        Path(target).write_text(json.dumps(suites))
