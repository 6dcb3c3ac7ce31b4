"""The lineage of a call: root first, bounded, the same for a retry, and safe to read."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer

from django_integration import LineageFilter, lineage
from django_integration.ancestors import LONGEST, lineage_header

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def run() -> Callable[..., Any]:
    """`run(work, id, header)`: what `work(app)` returns in a running task with that header."""
    app = Celery("lineage", broker="memory://", set_as_current=False)

    def run(work: Callable[[Any], Any], task_id: str = "self", header: Any = None) -> Any:
        def body() -> Any:
            return work(app)

        task = app.task(body, name=f"lineage.{len(app.tasks)}", shared=False)
        headers = {} if header is None else {"outbox_lineage": header}
        request = {"id": task_id, "is_eager": True, "delivery_info": {}, **headers}
        return build_tracer(task.name, task, app=app)(task_id, [], {}, request).retval

    return run


def called_by(app: Any, task_id: str | None = None) -> list[str] | None:
    """The lineage of a call with this id."""
    found = lineage_header(app, task_id).get("outbox_lineage")
    return None if found is None else json.loads(found)


def test_a_call_outside_a_task_has_no_lineage() -> None:
    app = Celery("lineage", set_as_current=False)
    assert called_by(app) is None
    assert lineage() == ()


def test_a_call_has_the_lineage_of_its_task_and_that_tasks_id(run: Callable[..., Any]) -> None:
    assert run(called_by, "root") == ["root"]
    assert run(called_by, "c", '["root", "b"]') == ["root", "b", "c"]


def test_a_retry_has_the_same_ancestors(run: Callable[..., Any]) -> None:
    assert run(lambda app: called_by(app, "c"), "c", '["root", "b"]') == ["root", "b"]
    assert run(lambda app: called_by(app, "root"), "root") is None


def test_of_a_long_lineage_the_root_and_the_newest_ids_are_kept(run: Callable[..., Any]) -> None:
    ids = ["root", *map(str, range(LONGEST - 1))]
    assert run(called_by, "new", json.dumps(ids)) == ["root", *ids[2:], "new"]
    assert len(run(called_by, "new", json.dumps(ids * 5))) == LONGEST


def test_ids_that_make_a_header_too_long_are_left_out(run: Callable[..., Any]) -> None:
    assert run(called_by, "x" * 20_000) is None


def test_a_task_reads_its_ancestors_root_first(run: Callable[..., Any]) -> None:
    assert run(lambda _: lineage(), header='["root", "b"]') == ("root", "b")
    assert run(lambda _: lineage()) == ()


@pytest.mark.parametrize(
    "header",
    [
        5,
        b"[]",
        "",
        "{not json",
        '{"a": 1}',
        "[1, 2]",
        "[[]]",
        "[" * 9_000,
        json.dumps(["x"] * 9_000),
    ],
    ids=lambda header: repr(header)[:12],
)
def test_a_header_that_is_no_lineage_counts_as_none(run: Callable[..., Any], header: Any) -> None:
    assert run(lambda _: lineage(), header=header) == ()
    assert run(called_by, "c", header) == ["c"]


def test_the_filter_gives_each_log_record_the_lineage(run: Callable[..., Any]) -> None:
    def line(_: Any = None) -> str:
        record = logging.LogRecord("shop", logging.INFO, "", 0, "hello", (), None)
        assert LineageFilter().filter(record)
        return logging.Formatter("[%(lineage)s] %(message)s").format(record)

    assert run(line, header='["root", "b"]') == "[root b] hello"
    assert run(line, header='["root\\nERROR forged"]') == "[root\\nERROR forged] hello"
    assert line() == "[] hello"
