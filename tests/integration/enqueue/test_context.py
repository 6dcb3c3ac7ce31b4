"""What surrounds a call reaches its row: signals, tracing headers, context, redaction, metrics."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, signals
from django.db import connection, transaction

from django_integration.enqueue.redaction import visible_options
from django_integration.signals import outbox_message_created
from tests.proj.relaying import messages, rows

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


def headers() -> dict[str, Any]:
    (message,) = messages(datetime.now(timezone.utc))
    return message.headers


# -- Celery's own signals ------------------------------------------------------------------------


def test_what_before_task_publish_changes_is_in_the_message(add: Any) -> None:
    def receive(headers: Any, properties: Any, body: Any, **_: Any) -> None:
        headers["added"] = {"by": "a receiver"}
        properties["priority"] = 9
        body[1]["y"] = 5

    signals.before_task_publish.connect(receive)
    try:
        add.delay(1, y=2)
    finally:
        signals.before_task_publish.disconnect(receive)
    (message,) = messages(datetime.now(timezone.utc))
    assert message.headers["added"] == {"by": "a receiver"}
    assert message.priority == 9
    assert rows()[0].kwargs == '{"y": 5}'


def test_after_task_publish_fires_once_per_call(add: Any) -> None:
    seen = []

    def receive(sender: str, headers: Any, routing_key: str, **_: Any) -> None:
        seen.append((sender, headers["id"], routing_key))

    signals.after_task_publish.connect(receive)
    try:
        result = add.delay(1)
    finally:
        signals.after_task_publish.disconnect(receive)
    assert seen == [("enqueue.add", result.id, "celery")]


def test_a_receiver_that_raises_in_before_task_publish_is_celerys_affair(add: Any) -> None:
    def receive(**_: Any) -> None:
        raise RuntimeError

    signals.before_task_publish.connect(receive)
    try:
        add.delay(1)
    finally:
        signals.before_task_publish.disconnect(receive)
    assert len(rows()) == 1


def test_a_receiver_may_make_a_call_of_its_own(app: Any, add: Any) -> None:
    def receive(sender: str, **_: Any) -> None:
        if sender == "enqueue.add":
            app.send_task("audit.log", (sender,))

    signals.before_task_publish.connect(receive)
    try:
        with transaction.atomic():
            add.delay(1)
    finally:
        signals.before_task_publish.disconnect(receive)
    assert [row.task_name for row in rows()] == ["audit.log", "enqueue.add"]
    assert [message.headers["task"] for message in messages(datetime.now(timezone.utc))] == [
        "audit.log", "enqueue.add",
    ]  # fmt: skip


# -- vendors, each in a process of its own because they patch Celery for good ----------------------


PREAMBLE = """
import os, json, django
django.setup()
from django.db import transaction
from django_integration import OutboxCelery
from tests.proj.relaying import messages, rows
from datetime import datetime, timezone
"""
EPILOGUE = """
app = OutboxCelery("vendors", broker="amqp://guest@127.0.0.1:1//")

@app.task(name="vendors.add")
def add(x):
    return x

with surrounding(), transaction.atomic():
    add.delay(1)
(message,) = messages(datetime.now(timezone.utc))
(row,) = rows()
print(json.dumps({"headers": message.headers, "sentry": [row.sentry_trace_id, row.sentry_baggage],
                  "structlog": row.structlog_context}))
"""


def run(code: str) -> Any:
    settings = connection.settings_dict
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.proj.settings",
        "OUTBOX_TEST_DB": "postgresql",
        "OUTBOX_TEST_DB_NAME": settings["NAME"],
    }
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code + EPILOGUE],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_sentrys_celery_integration_puts_its_headers_into_the_message() -> None:
    found = run("""
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
sentry_sdk.init("http://key@127.0.0.1:1/1", traces_sample_rate=1.0, transport=lambda event: None,
                integrations=[CeleryIntegration()])
surrounding = lambda: sentry_sdk.start_transaction(name="a view")
""")
    trace, baggage = found["sentry"]
    assert found["headers"]["sentry-trace"].split("-")[0] == trace.split("-")[0]
    assert "sentry-trace_id=" in found["headers"]["baggage"]
    assert "sentry-trace_id=" in baggage


def test_without_an_initialised_sentry_nothing_is_caught() -> None:
    found = run("import sentry_sdk\nfrom contextlib import nullcontext as surrounding\n")
    assert found["sentry"] == [None, None]
    assert "sentry-trace" not in found["headers"]


def test_opentelemetrys_instrumentation_puts_its_headers_into_the_message() -> None:
    found = run("""
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.instrumentation.celery import CeleryInstrumentor
trace.set_tracer_provider(TracerProvider())
CeleryInstrumentor().instrument()
surrounding = lambda: trace.get_tracer("t").start_as_current_span("a view")
""")
    assert found["headers"]["traceparent"].startswith("00-")


def test_structlogs_context_is_caught() -> None:
    found = run("""
import structlog
surrounding = lambda: structlog.contextvars.bound_contextvars(request_id="r-1", user=7)
""")
    assert json.loads(found["structlog"]) == {"request_id": "r-1", "user": 7}


def test_structlogs_context_can_be_limited_and_switched_off(make_app: Callable[..., Any]) -> None:
    structlog = pytest.importorskip("structlog")
    with structlog.contextvars.bound_contextvars(request_id="r-1", secret="s"):
        make_app(outbox_structlog_context_keys=["request_id"]).send_task("a")
        make_app(outbox_structlog_context_keys=[]).send_task("b")
    assert [row.structlog_context for row in rows()] == ['{"request_id": "r-1"}', None]


def test_a_context_that_cannot_be_written_down_does_not_stop_the_call(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    structlog = pytest.importorskip("structlog")
    circular: list[Any] = []
    circular.append(circular)
    with structlog.contextvars.bound_contextvars(bad=circular):
        app.send_task("a")
    assert rows()[0].structlog_context is None
    assert "celery_outbox_context_failed" in caplog.text


# -- redaction -----------------------------------------------------------------------------------


def hide(task_name: str, args: Any, kwargs: Any) -> Any:
    """Hides everything but the task name, and damages what it is given."""
    if isinstance(args, list):
        args.clear()
    kwargs.clear()
    return [f"<{task_name}>"], {}


def fail(task_name: str, args: Any, kwargs: Any) -> Any:
    raise RuntimeError(f"can't redact {args}")


def test_people_see_the_redacted_arguments_and_the_message_has_the_original(
    make_app: Callable[..., Any],
) -> None:
    make_app(outbox_redactor=hide).tasks["enqueue.add"].delay("secret", y="secret")
    (row,) = rows()
    assert (row.visible_args, row.visible_kwargs) == ('["<enqueue.add>"]', "{}")
    assert (row.args, row.kwargs) == ('["secret"]', '{"y": "secret"}')


def test_the_redactor_gets_copies_whatever_the_serializer(make_app: Callable[..., Any]) -> None:
    add = make_app(outbox_redactor=hide).tasks["enqueue.add"]
    given: tuple[list[Any], dict[str, Any]] = (["secret"], {"y": ["secret"]})
    add.apply_async(*given)
    add.apply_async(*given, serializer="pickle")
    assert given == (["secret"], {"y": ["secret"]})
    assert [row.visible_args for row in rows()] == ['["<enqueue.add>"]'] * 2


def test_the_redactor_named_by_its_path(make_app: Callable[..., Any]) -> None:
    app = make_app(outbox_redactor=f"{__name__}:hide")
    app.send_task("named", ("secret",))
    assert rows()[0].visible_args == '["<named>"]'


def test_nested_signatures_are_redacted_under_their_own_names(make_app: Callable[..., Any]) -> None:
    app = make_app(outbox_redactor=hide, backend="cache+memory://")
    add = app.tasks["enqueue.add"]
    app.send_task("outer", (1,), link=add.s("secret"), link_error=add.s("secret"))
    chain(add.s("secret"), app.signature("next", ("secret",)))()
    chord([add.s("secret")], app.signature("body", ("secret",)))()
    for row in rows():
        shown = json.dumps(visible_options(row.options, hide))
        assert "secret" not in shown + row.visible_args + row.visible_kwargs
    names = json.dumps([visible_options(row.options, hide)["embed"] for row in rows()])
    assert all(name in names for name in ("<enqueue.add>", "<next>", "<body>"))


def test_signatures_among_the_arguments_are_redacted(make_app: Callable[..., Any]) -> None:
    app = make_app(outbox_redactor=lambda name, args, kwargs: (
        (args, kwargs) if name == "outer" else hide(name, args, kwargs)
    ))  # fmt: skip
    app.send_task("outer", (app.signature("inner", ("secret",)), "open"))
    assert "secret" not in rows()[0].visible_args
    assert "<inner>" in rows()[0].visible_args


@pytest.mark.parametrize(
    "args",
    [("secret",), ({"__type__": "secret", "__value__": "secret"},)],
    ids=["plain", "hostile"],
)
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_failing_redactor_blocks_nothing_and_shows_nothing(
    make_app: Callable[..., Any], caplog: pytest.LogCaptureFixture, args: Any, serializer: str
) -> None:
    make_app(outbox_redactor=fail).send_task("x", args, serializer=serializer)
    (row,) = rows()
    assert "secret" not in row.visible_args + row.visible_kwargs
    assert "secret" not in json.dumps(visible_options(row.options, fail))
    assert "celery_outbox_redactor_failed" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("answer", [None, 1, (1,), ({1: {2, 3}}, object()), ("\ud800", "\x00")])
def test_a_redactor_may_answer_what_it_likes(make_app: Callable[..., Any], answer: Any) -> None:
    make_app(outbox_redactor=lambda *_: answer).send_task("x", ("secret",))
    assert "secret" not in rows()[0].visible_args


def test_without_a_redactor_nothing_is_stored_twice(add: Any) -> None:
    add.delay("open")
    (row,) = rows()
    assert (row.redacted_args, row.visible_args) == (None, '["open"]')


# -- Django's signal and the metric --------------------------------------------------------------


def test_outbox_message_created_fires_when_the_row_is_written(app: Any, add: Any) -> None:
    seen = []

    def receive(sender: Any, task_id: str, task_name: str, **_: Any) -> None:
        seen.append((sender, task_id, task_name))

    outbox_message_created.connect(receive)
    try:
        with transaction.atomic():
            result = add.delay(1)
            assert seen == [(type(app), result.id, "enqueue.add")]
    finally:
        outbox_message_created.disconnect(receive)


def test_a_failing_receiver_does_not_stop_the_call(
    add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def receive(**_: Any) -> None:
        raise RuntimeError("no")

    outbox_message_created.connect(receive)
    try:
        with transaction.atomic():
            add.delay(1)
    finally:
        outbox_message_created.disconnect(receive)
    assert len(rows()) == 1
    assert "celery_outbox_signal" in caplog.text


class Sink:
    def __init__(self) -> None:
        self.counted: list[tuple[str, int, dict[str, str]]] = []

    def increment(self, name: str, value: int, tags: Any) -> None:
        self.counted.append((name, value, dict(tags)))

    def gauge(self, *_: Any) -> None: ...

    def timing(self, *_: Any) -> None: ...


def test_enqueued_messages_are_counted_at_the_commit_and_only_then(
    make_app: Callable[..., Any],
) -> None:
    sink = Sink()
    app = make_app(outbox_metrics=lambda app: sink)
    with transaction.atomic():
        app.send_task("a")
        app.send_task("a")
        with suppress(ZeroDivisionError), transaction.atomic():
            app.send_task("rolled.back")
            1 / 0  # noqa: B018
        assert sink.counted == []
    with suppress(ZeroDivisionError), transaction.atomic():
        app.send_task("rolled.back")
        1 / 0  # noqa: B018
    assert [(name, value, tags["task_name"]) for name, value, tags in sink.counted] == [
        ("messages.enqueued", 2, "a")
    ]


def test_a_failing_sink_does_not_stop_the_call(
    make_app: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(outbox_metrics=lambda app: object())
    with caplog.at_level(logging.ERROR):
        app.send_task("a")
        app.send_task("a")
    assert len(rows()) == 2
    assert caplog.text.count("celery_outbox_metrics_failed") == 1
