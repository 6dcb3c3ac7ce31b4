"""Stored tasks run in the test, one after the other, as a worker would run them.

Celery's own tracer runs them, in this process and on the test's connection; no relay and no broker
take part. The calls that ran are added to `Outbox.relayed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import Retry
from celery.result import EagerResult

from django_integration.conf import celery_app
from django_integration.testing.calls import Call, read_row
from django_integration.upstream.celery import build_tracer

if TYPE_CHECKING:
    from django_integration.models import CeleryOutbox
    from django_integration.testing.outbox import Outbox


class Drain:
    """Empties the outbox by running the tasks in it, and the tasks that those call."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._app = celery_app()

    def __call__(self, *, propagate: bool = True, limit: int = 1000) -> list[EagerResult]:
        """Results in the order of execution. An `eta` is not waited for.

        With `propagate` the first task that fails raises here, and the rest stays in the outbox.
        """
        self._app.loader.import_default_modules()
        results: list[EagerResult] = []
        while (row := self._outbox.rows.first()) is not None:
            if len(results) == limit:
                raise RuntimeError(
                    f"Not empty after {limit} tasks; the next is {read_row(row)}. "
                    "Does a task call itself?"
                )
            results.append(self._run(row))
            if propagate:
                results[-1].get(disable_sync_subtasks=False)
        return results

    def _run(self, row: CeleryOutbox) -> EagerResult:
        call = read_row(row)
        if call.task_name not in self._app.tasks:
            raise LookupError(
                f"{call.task_name} is not registered in {self._app!r}, so it can't be run here. "
                "Use fake_relay for tasks of other services."
            )
        row.delete()
        self._outbox.relayed.append(call)
        return _execute(self._app, call)


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
