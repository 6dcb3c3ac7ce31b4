"""structlog: what was bound around the call stands in the relay's lines about that message."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from django.db import transaction
from structlog.contextvars import bound_contextvars, get_contextvars

from celery_outbox_steps.errors import Nacked
from celery_outbox_steps.testing import RecordingPublisher
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


class Lines(logging.Handler):
    """Formats with structlog, as a project that uses it for stdlib logging would."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                processor=structlog.processors.JSONRenderer(sort_keys=True),
                foreign_pre_chain=[structlog.contextvars.merge_contextvars],
            )
        )
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def about(self, task_name: str) -> str:
        (line,) = [line for line in self.lines if task_name in line]
        return line


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logging.getLogger("celery_outbox").addHandler(handler)
    yield handler
    logging.getLogger("celery_outbox").removeHandler(handler)


class Nosy(RecordingPublisher):
    """Looks at the context while it publishes."""

    lazy = False

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []

    def publish(self, messages: Any, timeout: float) -> Any:
        self.seen.append(get_contextvars())
        return super().publish(messages, timeout)


def call(app: Any, *names: str, **context: Any) -> None:
    with bound_contextvars(**context), transaction.atomic():
        for name in names:
            app.send_task(name)


def test_lines_about_a_message_have_its_callers_context(
    app: Any, watch: Callable[..., Any], lines: Lines
) -> None:
    call(app, "shop.again", request_id="req-1")
    call(app, "shop.never", request_id="req-2")
    call(app, "shop.bare")
    publisher = Nosy()
    publisher.fail_task("shop.again", Nacked("full"))
    publisher.fail_task("shop.bare", Nacked("full"))
    publisher.fail_task("shop.never", ValueError("too large"))
    watch(app, publisher_factory=lambda *_: publisher)
    wait_for(lambda: str(lines.lines).count("shop.") >= 3, message=lambda: str(lines.lines))
    assert '"request_id": "req-1"' in lines.about("shop.again")
    assert '"request_id": "req-2"' in lines.about("shop.never")
    assert "request_id" not in lines.about("shop.bare")


def test_what_all_messages_share_is_bound_while_they_are_published(
    app: Any, watch: Callable[..., Any]
) -> None:
    call(app, "shop.ship_order", "shop.bill_order", request_id="req-1")
    publisher = Nosy()
    relay = watch(app, publisher_factory=lambda *_: publisher)
    relay.counted("published", 2)
    assert publisher.seen == [{"request_id": "req-1"}]

    relay.service.pause("two callers")
    call(app, "shop.ship_order", request_id="req-2")
    call(app, "shop.ship_order", request_id="req-3")
    relay.service.resume()
    relay.counted("published", 4)
    assert publisher.seen[1] == {}


def test_only_allowed_variables_are_kept(make_app: Callable[..., Any]) -> None:
    from django_integration.models import CeleryOutbox

    call(make_app(outbox_structlog_context_keys=["request_id"]), "a", request_id="1", user="x")
    call(make_app(outbox_structlog_context_keys=[]), "b", request_id="2")
    kept = CeleryOutbox.objects.order_by("id").values_list("structlog_context", flat=True)
    assert list(kept) == ['{"request_id": "1"}', None]


def test_a_context_that_is_no_json_is_left_alone(app: Any, watch: Callable[..., Any]) -> None:
    from django_integration.models import CeleryOutbox

    call(app, "shop.ship_order", request_id="req-1")
    CeleryOutbox.objects.update(structlog_context="{not json")
    publisher = Nosy()
    watch(app, publisher_factory=lambda *_: publisher).counted("published", 1)
    assert publisher.seen == [{}]
