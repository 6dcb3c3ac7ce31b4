"""Which scenarios run here, the stage that they run on, and the results that they leave.

Only `make ecosystem` has the libraries and says in ECOSYSTEM which environment this is; without it
nothing in this directory is collected.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.conftest import (  # noqa: F401  fixtures
    _database_access,
    databases,
    private_server,
    stage_with,
)
from tests.ecosystem import results
from tests.ecosystem.libraries import BY_NAME
from tests.ecosystem.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENVIRONMENT = os.environ.get("ECOSYSTEM")
if ENVIRONMENT is None:
    collect_ignore_glob = ["test_*.py"]
_outcomes: dict[str, dict[str, str]] = defaultdict(dict)
_expected: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "library(name): the library that the scenario is about")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if _library(item)]
    gone = [item for item in ours if BY_NAME[_library(item)].environment != ENVIRONMENT]
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if item not in gone]
    _expected.update(map(_library, items))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call" or report.outcome != "passed":
        _outcomes[_library(item)][item.name] = report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A library is judged by all of its scenarios: a run of some of them leaves no result."""
    whole = {name: done for name, done in _outcomes.items() if len(done) == _expected[name]}
    if ENVIRONMENT and whole:
        results.record(ENVIRONMENT, whole)


def _library(item: pytest.Item) -> str:
    mark = item.get_closest_marker("library")
    return str(mark.args[0]) if mark else ""


@pytest.fixture
def scene_with(stage_with: Callable[..., Any]) -> Iterator[Callable[..., Scene]]:  # noqa: F811
    """`scene_with("tests.ecosystem.project.locks", **settings)`: a project on real services."""
    scenes: list[Scene] = []

    def build(
        app: str = "tests.ecosystem.project.app",
        *,
        apps: tuple[str, ...] = (),
        broker: str = "rabbitmq",
        environment: dict[str, str] | None = None,
        **settings: Any,
    ) -> Scene:
        stage = stage_with("postgres", broker, **settings)
        stage.environment.update(environment or {})
        scenes.append(Scene(stage, app, apps))
        return scenes[-1]

    yield build
    for scene in scenes:
        scene.close()
