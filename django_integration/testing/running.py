"""Stored tasks run in the test, one after the other, as a worker would run them.

Celery's own tracer runs them, in this process and on the test's connection; no relay and no broker
take part. The calls that ran are added to `Outbox.relayed`.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import Retry
from celery.result import EagerResult
from django.db.models import Q

from celery_outbox_steps.envelope import seconds_to_live
from django_integration.conf import celery_app
from django_integration.schema import DatabaseNow
from django_integration.testing.calls import Call, read_row
from django_integration.upstream.celery import build_tracer

if TYPE_CHECKING:
    from django_integration.models import WaitingMessage
    from django_integration.testing.outbox import Outbox


class Drain:
    """Empties the outbox by running the tasks in it, and the tasks that those call."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._app = celery_app()

    def __call__(
        self,
        *,
        until: datetime | timedelta | None = None,
        propagate: bool = True,
        limit: int = 1000,
    ) -> list[EagerResult]:
        """Results in the order of execution, which is the order of the due times.

        What is not due yet stays in the outbox, except what is due `until` a time, or within a
        timedelta from now: that runs at once. What expires before it is due is dropped, as by a
        relay. With `propagate` the first task that fails raises here, and the rest stays in the
        outbox.
        """
        self._app.loader.import_default_modules()
        last = _moment(until)
        results: list[EagerResult] = []
        while (row := self._next(last)) is not None:
            if _expires_before_it_is_due(row):
                row.delete()
                continue
            if len(results) == limit:
                raise RuntimeError(
                    f"Not empty after {limit} tasks; the next is {read_row(row)}. "
                    "Does a task call itself?"
                )
            results.append(self._run(row))
            if propagate:
                results[-1].get(disable_sync_subtasks=False)
        return results

    def _next(self, until: datetime | None) -> WaitingMessage | None:
        wanted = Q(due_at__lte=DatabaseNow())
        if until is not None:
            wanted |= Q(due_at__lte=until)
        return self._outbox.rows.filter(wanted).order_by("due_at", "pk").first()

    def _run(self, row: WaitingMessage) -> EagerResult:
        call = read_row(row)
        if call.task_name not in self._app.tasks:
            raise LookupError(
                f"{call.task_name} is not registered in {self._app!r}, so it can't be run here. "
                "Use fake_relay for tasks of other services."
            )
        row.delete()
        self._outbox.relayed.append(call)
        return _execute(self._app, call)


def _moment(until: datetime | timedelta | None) -> datetime | None:
    if isinstance(until, timedelta):
        return datetime.now(timezone.utc) + until
    if until is not None and (not isinstance(until, datetime) or until.utcoffset() is None):
        raise TypeError(f"until must be a timedelta, or a datetime with a time zone, not {until!r}")
    return until


def _expires_before_it_is_due(row: WaitingMessage) -> bool:
    lifetime = seconds_to_live(row.options)
    if row.eta is None or lifetime is None:
        return False
    return (row.eta - row.created_at).total_seconds() >= lifetime


def _execute(app: Any, call: Call) -> EagerResult:
    """With Celery's own tracer, so that links, chains and errbacks are called as in a worker."""
    task = app.tasks[call.task_name]
    tracer = build_tracer(task.name, task, eager=True, app=app)
    ended = tracer(call.task_id, call.args, call.kwargs, _request(call))
    value, traceback = ended.retval, None
    if hasattr(value, "exception"):  # Celery's ExceptionInfo
        value, traceback = getattr(value.exception, "exc", value.exception), value.traceback
    if isinstance(value, Retry) and value.sig is not None:
        return value.sig.apply(retries=call.headers.get("retries", 0) + 1)
    state = states.SUCCESS if ended.info is None else ended.info.state
    return EagerResult(call.task_id, value, state, traceback=traceback, name=task.name)


def _request(call: Call) -> dict[str, Any]:
    """Eager, so that retries run at once and nothing is written to a result backend."""
    message = call.message
    return {
        **call.headers,
        **call.embed,
        "is_eager": True,
        "delivery_info": {
            "exchange": message.exchange,
            "routing_key": message.routing_key,
            "priority": call.priority,
        },
    }
