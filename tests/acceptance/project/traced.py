"""A project that is set up with the code of docs/how-to/tracing.md: OpenTelemetry, structlog."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import structlog
from celery.signals import worker_init
from opentelemetry import trace
from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor

from tests.acceptance.project.app import app, write
from tests.docs.pages import DOCS, blocks

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("shop")


def documented(function: str) -> Callable[[], None]:
    """The function that a block of the page defines, and connects to its signal."""
    (block,) = [
        each for each in blocks(DOCS / "how-to/tracing.md") if f"def {function}" in each.text
    ]
    defined: dict[str, Any] = {}
    exec(block.text, defined)
    found: Callable[[], None] = defined[function]
    return found


set_up_tracing = documented("set_up_tracing")
documented("set_up_logging")
worker_init.connect(lambda **_: PsycopgInstrumentor().instrument(), weak=False)


@app.task(name="ship", bind=True, ignore_result=True)
def ship(self: Any) -> None:
    log.info("shipping")
    bill.delay()
    write(self.request.id, "ship")


@app.task(name="bill", bind=True, ignore_result=True)
def bill(self: Any) -> None:
    log.info("billing")
    write(self.request.id, "bill")


def request() -> None:
    """What a web process does."""
    import django
    from django.db import transaction

    django.setup()
    set_up_tracing()
    with (
        trace.get_tracer("shop").start_as_current_span("request"),
        structlog.contextvars.bound_contextvars(request_id="r-1"),
        transaction.atomic(),
    ):
        print(ship.delay().id)
    trace.get_tracer_provider().force_flush()  # type: ignore[attr-defined]
