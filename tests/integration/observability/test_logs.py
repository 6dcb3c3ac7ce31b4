"""Log lines of real failures: documented fields, no arguments of tasks."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from celery_outbox_steps.errors import Nacked
from celery_outbox_steps.testing import RecordingPublisher
from django_integration import signals
from django_integration.models import CeleryOutbox
from django_integration.store import DjangoStore
from tests.docs.test_observability import quoted, table

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]

SECRET = uuid.uuid4().hex
ORDINARY = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Exploding(RecordingPublisher):
    """Fails as a whole while `error` is set."""

    error: Exception | None = None

    def publish(self, messages: Any, timeout: float) -> Any:
        if self.error is not None:
            raise self.error
        return super().publish(messages, timeout)


class Unlucky(DjangoStore):
    """Its settle fails `bugs` times, with rows among the locals."""

    bugs = 0

    def settle(self, outcomes: Any, relay_id: str) -> int:
        if self.bugs:
            self.bugs -= 1
            raise RuntimeError(f"a bug with {len(outcomes)} rows in hand")
        return super().settle(outcomes, relay_id)


def events(records: list[logging.LogRecord]) -> list[str]:
    return [record.__dict__["event"] for record in records if hasattr(record, "event")]


def everything(record: logging.LogRecord) -> str:
    """All that any formatter could show of a record."""
    return logging.Formatter().format(record) + repr(vars(record))


def break_everything(app: Any, watch: Callable[..., Any]) -> None:
    """Every failure that has a line of its own, with a secret in the arguments each time."""

    def call(name: str) -> None:
        with transaction.atomic():
            app.send_task(name, [SECRET], {"card": SECRET})

    def complain(**_: Any) -> None:
        raise LookupError("receiver")

    store, publisher = Unlucky("default"), Exploding()
    publisher.fail_task("shop.again", Nacked("full"))
    publisher.fail_task("shop.never", ValueError("too large"))
    signals.outbox_message_sent.connect(complain)
    try:
        app.send_task("shop.unsafe", [SECRET])
        for name in ("shop.again", "shop.never", "shop.garbled", "shop.fine"):
            call(name)
        CeleryOutbox.objects.filter(task_name="shop.garbled").update(options='{"headers": 1')
        relay = watch(app, store=store, publisher_factory=lambda *_: publisher)
        relay.counted("dead", 2)
        store.bugs = 2
        call("shop.fine")
        relay.counted("errors", 2)
        relay.counted("published", 3)
        publisher.error = RuntimeError("the publisher is broken")
        call("shop.exploding")
        relay.counted("failed", 2)
        publisher.error, publisher.down = None, ConnectionResetError("gone")
        call("shop.away")
        relay.counted("deferred", 1)
        relay.stop()
    finally:
        signals.outbox_message_sent.disconnect(complain)


def broken_redactor(task_name: str, args: Any, kwargs: Any) -> Any:
    raise ValueError(f"can't redact {args}")


@pytest.fixture
def breakable(make_app: Callable[..., Any]) -> Any:
    return make_app(outbox_redactor=broken_redactor, outbox_metrics=lambda app: object())


def test_arguments_of_tasks_never_appear(
    breakable: Any, watch: Callable[..., Any], records: list[logging.LogRecord]
) -> None:
    break_everything(breakable, watch)
    assert set(events(records)) >= {
        "celery_outbox_not_in_transaction",
        "celery_outbox_redactor_failed",
        "celery_outbox_metrics_failed",
        "celery_outbox_relay_started",
        "celery_outbox_publish_failed",
        "celery_outbox_dead_letter",
        "celery_outbox_relay_error",
        "celery_outbox_relay_recovered",
        "celery_outbox_broker_unavailable",
        "celery_outbox_signal_error",
        "celery_outbox_relay_stopped",
    }
    assert [r.getMessage() for r in records if SECRET in everything(r)] == []


def test_fields_and_levels_are_those_of_the_page(
    breakable: Any, watch: Callable[..., Any], records: list[logging.LogRecord]
) -> None:
    break_everything(breakable, watch)
    page = table("log-events.md")
    for record in (each for each in records if hasattr(each, "event")):
        level, fields, _ = page[record.__dict__["event"]]
        assert record.levelname in level.split(", ")
        assert vars(record).keys() - ORDINARY - {"event"} == quoted(fields)
        assert record.name.split(".")[0] == "celery_outbox"


def test_an_error_is_told_in_full_once(
    breakable: Any, watch: Callable[..., Any], records: list[logging.LogRecord]
) -> None:
    break_everything(breakable, watch)
    told = [r for r in records if getattr(r, "event", "") == "celery_outbox_relay_error"]
    assert [(r.levelname, r.exc_info is not None) for r in told] == [
        ("ERROR", True),
        ("WARNING", False),
    ]


def test_an_idle_relay_is_silent(
    app: Any, watch: Callable[..., Any], records: list[logging.LogRecord]
) -> None:
    class Counting(DjangoStore):
        claims = 0

        def claim(self, *args: Any, **options: Any) -> Any:
            self.claims += 1
            return super().claim(*args, **options)

    from tests.helpers import wait_for

    store = Counting("default")
    watch(app, store=store)
    wait_for(lambda: store.claims >= 10)
    assert events(records) == ["celery_outbox_relay_started", "celery_outbox_relay_at_work"]
