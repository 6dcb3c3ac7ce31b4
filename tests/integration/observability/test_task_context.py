"""One request id from the caller to the task, and lineage: with a relay and a real worker."""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import chain, chord, group
from celery.app.trace import build_tracer
from django.db import transaction
from structlog.contextvars import bound_contextvars, get_contextvars

from celery_outbox_steps.publishers import publisher_for
from django_integration import OutboxCelery, lineage
from tests.helpers import wait_for
from tests.proj.workers import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.result import AsyncResult

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


FIXED = {"task_id": "the-id", "reply_to": "replies"}
"""What would differ between two calls of different apps."""


class Seen:
    """What tasks see when they run, by the argument that names the call."""

    def __init__(self, **conf: Any) -> None:
        self.context: dict[str, Any] = {}
        self.lineage: dict[str, tuple[str, ...]] = {}
        self.ids: dict[str, str] = {}
        self.app = app = OutboxCelery(
            "seen", broker="memory://", backend="cache+memory://", set_as_current=False
        )
        app.conf.update({"task_default_queue": f"seen-{uuid4().hex[:8]}", **conf})

        @app.task(name="seen.look", bind=True, shared=False)
        def look(task: Any, *names: Any) -> str:
            return self.note(task, names[-1])

        @app.task(name="seen.again", bind=True, shared=False)
        def again(task: Any, name: str, countdown: float = 0) -> None:
            self.note(task, f"{name} {task.request.retries}")
            if task.request.retries == 0:
                raise task.retry(countdown=countdown)

        @app.task(name="seen.parent", bind=True, shared=False)
        def parent(task: Any, work: str) -> None:
            self.note(task, "parent")
            CALLS[work](self)

    def note(self, task: Any, name: str) -> str:
        self.context[name] = get_contextvars()
        self.lineage[name] = lineage()
        self.ids[name] = task.request.id
        return name

    def task(self, name: str) -> Any:
        return self.app.tasks[f"seen.{name}"]

    def ancestors(self, name: str) -> list[str]:
        """The names of a call's ancestors."""
        wait_for(lambda: name in self.lineage, 20, lambda: f"no {name} in {self.lineage}")
        named = {task_id: each for each, task_id in self.ids.items()}
        return [named.get(each, each) for each in self.lineage[name]]


def in_bulk(seen: Seen) -> None:
    with seen.app.outbox_bulk():
        seen.task("look").delay("child")


CALLS: dict[str, Callable[[Seen], Any]] = {
    "call": lambda seen: seen.task("look").delay("child"),
    "held": lambda seen: seen.task("look").apply_async(("child",), countdown=0.01),
    "bulk": in_bulk,
    "retry": lambda seen: seen.task("again").delay("child"),
    "link": lambda seen: seen.task("look").apply_async(
        ("child",), link=seen.task("look").si("linked")
    ),
    "chain": lambda seen: chain(seen.task("look").si("a"), seen.task("look").si("b"))(),
    "group": lambda seen: group(seen.task("look").si("a"), seen.task("look").si("b"))(),
    "chord": lambda seen: chord([seen.task("look").si("a")], seen.task("look").si("body"))(),
}
EXPECTED = {
    "call": {"child": ["parent"]},
    "held": {"child": ["parent"]},
    "bulk": {"child": ["parent"]},
    "retry": {"child 0": ["parent"], "child 1": ["parent"]},
    "link": {"child": ["parent"], "linked": ["parent", "child"]},
    "chain": {"a": ["parent"], "b": ["parent", "a"]},
    "group": {"a": ["parent"], "b": ["parent"]},
    "chord": {"a": ["parent"], "body": ["parent", "a"]},
}


@pytest.fixture
def make_seen(watch: Callable[..., Any]) -> Iterator[Callable[..., Seen]]:
    """`make_seen(outbox_lineage=True)`: an app whose calls a relay publishes."""
    made: list[Seen] = []

    def make(**conf: Any) -> Seen:
        made.append(Seen(**conf))
        return made[-1]

    yield make
    for each in made:
        each.app.close()


def call(app: Any, name: str = "seen.look", *args: str, **options: Any) -> AsyncResult:
    with transaction.atomic():
        result: AsyncResult = app.send_task(name, args, **options)
        return result


def published(watch: Callable[..., Any], app: Any, count: int = 1) -> list[Any]:
    relay = watch(app)
    relay.counted("published", count)
    messages: list[Any] = relay.publisher.published
    relay.stop()
    return messages


def test_with_the_settings_a_message_differs_from_celerys_by_one_header_each(
    make_seen: Callable[..., Seen], watch: Callable[..., Any]
) -> None:
    plain = make_seen().app
    settings = {"outbox_structlog_bind_in_tasks": True, "outbox_lineage": True}
    carrying = make_seen(**settings, task_default_queue=plain.conf.task_default_queue).app
    with bound_contextvars(request_id="r-1"):
        call(plain, **FIXED)
        (before,) = deepcopy(published(watch, plain))
        call(carrying, **FIXED)
        (after,) = published(watch, carrying)
    assert json.loads(after.headers.pop("outbox_context")) == {"request_id": "r-1"}
    assert after == before
    assert list(after.headers) == list(before.headers)


def test_with_lineage_a_tasks_call_differs_by_one_header(
    make_seen: Callable[..., Seen], watch: Callable[..., Any]
) -> None:
    def called_by_a_task(seen: Seen) -> Any:
        def body() -> str:
            return str(call(seen.app, **FIXED).id)

        task = seen.app.task(body, name="seen.caller", shared=False)
        request = {"id": "root", "is_eager": True, "delivery_info": {}}
        assert build_tracer(task.name, task, app=seen.app)("root", [], {}, request).retval
        (message,) = published(watch, seen.app)
        return deepcopy(message)

    plain = make_seen()
    queue = plain.app.conf.task_default_queue
    before = called_by_a_task(plain)
    after = called_by_a_task(make_seen(outbox_lineage=True, task_default_queue=queue))
    assert json.loads(after.headers.pop("outbox_lineage")) == ["root"]
    assert after == before
    assert list(after.headers) == list(before.headers)


def test_one_request_id_from_the_call_to_the_tasks_it_causes(
    make_seen: Callable[..., Seen], watch: Callable[..., Any]
) -> None:
    """The worker has no relay; the relay is in this process, as in another worker."""
    seen = make_seen(outbox_structlog_bind_in_tasks=True)
    with running(seen.app):
        watch(seen.app, publisher_factory=publisher_for)
        with bound_contextvars(request_id="r-1"):
            call(seen.app, "seen.parent", "retry")
        wait_for(lambda: "child 1" in seen.context)
        call(seen.app, "seen.look", "unbound")
        wait_for(lambda: "unbound" in seen.context)
    assert seen.context == {
        **{name: {"request_id": "r-1"} for name in ("parent", "child 0", "child 1")},
        "unbound": {},
    }


def test_an_excluded_task_and_a_held_retry_have_the_context_too(
    make_seen: Callable[..., Seen], watch: Callable[..., Any]
) -> None:
    seen = make_seen(
        outbox_structlog_bind_in_tasks=True,
        outbox_exclude_tasks=["seen.look"],
        outbox_hold_retries=0,
    )
    with running(seen.app):
        watch(seen.app, publisher_factory=publisher_for)
        with bound_contextvars(request_id="r-1"):
            seen.task("look").delay("excluded")
            seen.task("again").delay("held", 0.01)
        wait_for(lambda: {"excluded", "held 1"} <= seen.context.keys())
    assert list(seen.context.values()) == [{"request_id": "r-1"}] * 3


@pytest.mark.parametrize("work", CALLS)
def test_every_way_to_call_a_task_from_a_task_carries_the_lineage(
    make_seen: Callable[..., Seen], watch: Callable[..., Any], work: str
) -> None:
    seen = make_seen(outbox_lineage=True)
    with running(seen.app):
        watch(seen.app, publisher_factory=publisher_for)
        call(seen.app, "seen.parent", work)
        found = {name: seen.ancestors(name) for name in EXPECTED[work]}
    assert found == EXPECTED[work]
    assert seen.lineage["parent"] == ()


def test_an_excluded_task_has_a_lineage(
    make_seen: Callable[..., Seen], watch: Callable[..., Any]
) -> None:
    seen = make_seen(outbox_lineage=True, outbox_exclude_tasks=["seen.look"])
    with running(seen.app):
        watch(seen.app, publisher_factory=publisher_for)
        call(seen.app, "seen.parent", "call")
        assert seen.ancestors("child") == ["parent"]


def test_sentrys_inner_headers_do_not_hide_ours_from_a_retry(
    make_seen: Callable[..., Seen], watch: Callable[..., Any]
) -> None:
    """A retry repeats the inner headers alone, if there are some."""
    seen = make_seen(outbox_lineage=True, outbox_structlog_bind_in_tasks=True)
    with running(seen.app):
        watch(seen.app, publisher_factory=publisher_for)
        headers = {"outbox_lineage": '["root"]', "headers": {"sentry-trace": "a-b-1"}}
        with bound_contextvars(request_id="r-1"):
            call(seen.app, "seen.again", "child", headers=headers)
        wait_for(lambda: "child 1" in seen.lineage)
    assert seen.lineage["child 1"] == ("root",)
    assert seen.context["child 1"] == {"request_id": "r-1"}


def test_celerys_own_line_about_a_task_has_the_context(
    make_seen: Callable[..., Seen], watch: Callable[..., Any], records: list[logging.LogRecord]
) -> None:
    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines[record.getMessage().partition("[")[2].partition("]")[2]] = get_contextvars()

    lines: dict[str, Any] = {}
    handler, logger = Keep(), logging.getLogger("celery.app.trace")
    logger.addHandler(handler)
    seen = make_seen(outbox_structlog_bind_in_tasks=True)
    try:
        with running(seen.app):
            watch(seen.app, publisher_factory=publisher_for)
            with bound_contextvars(request_id="r-1"):
                call(seen.app, "seen.look", "x")
            wait_for(lambda: any("succeeded" in line for line in lines), message=lambda: str(lines))
    finally:
        logger.removeHandler(handler)
    assert all(context == {"request_id": "r-1"} for context in lines.values())
