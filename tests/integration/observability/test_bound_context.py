"""The caller's structlog variables around a running task: bound, undone, and never in its way."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gevent
import pytest
from celery import signals
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject
from structlog.contextvars import bind_contextvars, bound_contextvars, get_contextvars

from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.observe.recorders.structlog import bind_in_tasks
from celery_outbox_steps.settings import read
from django_integration import OutboxCelery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ON = {"outbox_structlog_bind_in_tasks": True}
CALLER = {"request_id": "r-1", "user": 7}


class Worker:
    """An app as a worker runs it: `run` traces a task as a pool does."""

    def __init__(self, **conf: Any) -> None:
        self.app = OutboxCelery("context", broker="memory://", set_as_current=False)
        self.app.conf.update(conf)
        self.seen: list[dict[str, Any]] = []
        bind_in_tasks(self.app)

    def run(self, work: Callable[[], Any] | None = None, **headers: Any) -> Any:
        def body() -> Any:
            self.seen.append(get_contextvars())
            return work() if work is not None else None

        task = self.app.task(body, name=f"context.{len(self.app.tasks)}", shared=False)
        request = {"id": "1", "is_eager": True, "delivery_info": {}, **headers}
        return build_tracer(task.name, task, app=self.app)("1", [], {}, request)


@pytest.fixture(autouse=True)
def _no_receivers_are_left() -> Iterator[None]:
    before = [list(each.receivers) for each in (signals.task_prerun, signals.task_postrun)]
    yield
    for signal, kept in zip((signals.task_prerun, signals.task_postrun), before, strict=True):
        signal.receivers[:] = kept
        signal.sender_receivers_cache.clear()


def test_the_variables_are_bound_while_the_task_runs_and_not_after_it() -> None:
    worker = Worker(**ON)
    worker.run(outbox_context=json.dumps(CALLER))
    worker.run()
    assert worker.seen == [CALLER, {}]
    assert get_contextvars() == {}


@pytest.mark.parametrize(
    "context",
    [
        json.dumps({"a": "\ud800"}),
        json.dumps({"\udfff": 1}),
        json.dumps({"a\x00": 1}),
        '{"a":' + "[" * 900 + "]" * 900 + "}",
    ],
)
def test_a_context_that_a_log_line_could_fail_with_is_not_bound(context: str) -> None:
    worker = Worker(**ON)
    worker.run(outbox_context=context)
    assert worker.seen == [{}]


def test_values_from_before_the_task_are_there_again_after_it() -> None:
    worker = Worker(**ON)
    with bound_contextvars(request_id="of the worker"):
        worker.run(outbox_context=json.dumps(CALLER))
        assert get_contextvars() == {"request_id": "of the worker"}


@pytest.mark.parametrize("error", [ValueError, Ignore, Reject, KeyboardInterrupt])
def test_a_task_that_raises_leaves_nothing_bound(error: type[BaseException]) -> None:
    worker = Worker(**ON)

    def fail() -> None:
        raise error

    with suppress(BaseException):
        worker.run(fail, outbox_context=json.dumps(CALLER))
    assert worker.seen == [CALLER]
    assert get_contextvars() == {}


def test_a_task_may_clear_the_context_itself() -> None:
    from structlog.contextvars import clear_contextvars

    worker = Worker(**ON)
    worker.run(clear_contextvars, outbox_context=json.dumps(CALLER))
    assert get_contextvars() == {}


def test_a_task_that_runs_inside_of_a_task_undoes_only_its_own_context() -> None:
    worker = Worker(**ON)
    inner = json.dumps({"request_id": "inner"})

    def outer() -> None:
        worker.run(outbox_context=inner)
        worker.seen.append(get_contextvars())

    worker.run(outer, outbox_context=json.dumps(CALLER))
    assert worker.seen == [CALLER, {"request_id": "inner", "user": 7}, CALLER]
    assert get_contextvars() == {}


@pytest.mark.parametrize(
    "header",
    [
        None, 5, b"{}", "", "{not json", "[1]", '"text"', "[" * 8_000, '{"a": ' * 1_300, {"a": 1},
        json.dumps({"key": "x" * 10_000}), '{"": 1, "a b": 2, "self": 3, "\\u0000": 4}',
    ],
    ids=lambda header: repr(header)[:12],
)  # fmt: skip
def test_what_a_header_contains_never_makes_a_task_fail(
    header: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(**ON)
    assert worker.run(lambda: "done", outbox_context=header).retval == "done"
    assert get_contextvars() == {}
    assert caplog.text == ""


def test_only_the_variables_that_the_setting_names_are_bound() -> None:
    worker = Worker(**ON, outbox_structlog_context_keys=["request_id"])
    worker.run(outbox_context=json.dumps(CALLER))
    assert worker.seen == [{"request_id": "r-1"}]


def test_a_worker_that_is_started_twice_binds_once() -> None:
    worker = Worker(**ON)
    bind_in_tasks(worker.app)
    worker.run(lambda: bind_contextvars(user="changed"), outbox_context=json.dumps(CALLER))
    assert get_contextvars() == {}


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_tasks_that_run_at_the_same_time_have_their_own_variables(pool: str) -> None:
    worker = Worker(**ON)
    both_run = Barrier(2)

    def run(number: int) -> None:
        def work() -> None:
            gevent.sleep(0) if pool == "gevent" else both_run.wait(5)
            worker.seen.append(get_contextvars())

        worker.run(work, outbox_context=json.dumps({"request_id": number}))

    if pool == "gevent":
        gevent.joinall([gevent.spawn(run, number) for number in range(2)], raise_error=True)
    else:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(run, range(2)))
    for moment in (worker.seen[:2], worker.seen[2:]):
        assert sorted(each["request_id"] for each in moment) == [0, 1]


def test_the_tasks_of_another_app_are_left_alone() -> None:
    Worker(**ON)
    other = Worker()
    other.run(outbox_context=json.dumps(CALLER))
    assert other.seen == [{}]


def test_without_the_setting_a_worker_has_no_receiver() -> None:
    before = len(signals.task_prerun.receivers), len(signals.task_postrun.receivers)
    Worker()
    assert (len(signals.task_prerun.receivers), len(signals.task_postrun.receivers)) == before


def test_the_setting_is_refused_where_structlog_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "structlog", None)
    with pytest.raises(ConfigurationError, match="if structlog is installed"):
        read(ON, "structlog_bind_in_tasks")
    assert read({}, "structlog_bind_in_tasks") is False


def test_a_context_that_is_too_long_for_a_header_stays_in_its_row() -> None:
    from celery_outbox_steps.messages import ClaimedMessage, Message

    row = ClaimedMessage(1, "i", "t", "[]", "{}", "{}", None, 0, 1, None, None, "", None, 0.0)
    recorders = recorders_for(SimpleNamespace(conf=ON))
    for context, arrives in ((json.dumps({"a": "x" * 8_000}), True), ("x" * 9_000, False)):
        message = Message(b"", "", "", {}, {}, None, "", "")
        recorders.restore(row._replace(structlog_context=context), message)
        assert ("outbox_context" in message.headers) == arrives
