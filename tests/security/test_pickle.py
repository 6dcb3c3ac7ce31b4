"""The relay loads no pickle: what a row carries is bytes to it, and goes on as it is."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.services import ROOT

if TYPE_CHECKING:
    from tests.security.conftest import Bench

pytestmark = [pytest.mark.postgresql, pytest.mark.rabbitmq]

PICKLE = "application/x-python-serialize"
PACKAGES = ("celery_outbox_steps", "django_integration")
RESULTS = "django_integration/inbox/results.py"
"""Loads results that a task returned before, with the serializers of the app and no other."""
LOADERS = {"pickle", "cPickle", "marshal", "shelve", "dill", "yaml", "kombu.serialization"}


class Bomb:
    """Creates the file `trace` when its pickle is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (Path.touch, (self.trace,))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Exists once a bomb exploded."""
    return tmp_path / "exploded"


def test_the_bomb_is_real(trace: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists()


def test_a_pickle_is_published_verbatim_and_never_loaded(bench: Bench, trace: Path) -> None:
    bench.call("task", Bomb(trace), serializer="pickle")
    (stored,) = bench.sql("SELECT payload FROM celery_outbox")
    assert bench.tick().published == 1
    (message,) = bench.arrived()
    assert message.content_type == PICKLE
    assert bytes(message.body) == bytes(stored[0])
    assert b"exploded" in bytes(message.body)
    assert not trace.exists()


def test_nor_one_that_lies_about_its_type(bench: Bench, trace: Path) -> None:
    bomb = pickle.dumps([(Bomb(trace),), {}, {}])
    bench.call()
    ((options,),) = bench.sql("SELECT options FROM celery_outbox")
    bench.insert(payload=bomb, options=options)
    assert bench.tick().published == 2
    assert bomb in [message.body for message in bench.arrived()]
    assert not trace.exists()


def test_nor_on_its_way_to_the_dead_letters_and_back(bench: Bench, trace: Path) -> None:
    from celery_outbox_steps.store import DeadLetters

    bomb = pickle.dumps(Bomb(trace))
    task_id = bench.insert(payload=bomb, options="{")
    bench.tick()
    assert set(bench.dead()) == {task_id}
    assert bench.store.replay(DeadLetters()) == 1
    ((stored,),) = bench.sql("SELECT payload FROM celery_outbox")
    assert bytes(stored) == bomb
    assert not trace.exists()


def test_the_packages_import_no_loader_of_objects() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in _imports(ast.parse(path.read_text()))
        if name in LOADERS
        and str(path.relative_to(ROOT)) != RESULTS
        and path.parent.name != "testing"  # for tests, which read their own calls
    ]
    assert found == []


def _imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if {alias.name for alias in node.names} == {"dumps"}:
                continue  # writes, and loads nothing
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
