"""A task that failed for good in a worker is kept as a dead letter: `keep_failed_tasks`.

`OutboxCelery` connects it to Celery's signal `task_failure`. The dead letter has the message as the
worker received it, so that a replay runs the task again: same id, no retries yet. It must not
affect the task, its result or the worker: whatever fails here is logged, and ends here. Next:
`store/failed_tasks.py` writes the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry
from django.db import connections

from celery_outbox_steps.errors import describe
from celery_outbox_steps.messages import ETA_HEADER
from celery_outbox_steps.observe.log import log
from celery_outbox_steps.store import LONGEST_REASON
from django_integration.enqueue.capture import CapturingProducer
from django_integration.store.base import DjangoStore
from django_integration.store.failed_tasks import Failure
from django_integration.store.session import is_open, write_alias
from django_integration.upstream.celery_worker import delivered_message

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.schema import Row
    from django_integration.upstream.celery_worker import Delivered

LONGEST_TRACEBACK = 20_000
"""Characters. Of a longer one, the beginning and the end are kept."""
NOT_FAILURES = (Ignore, Reject, Retry)
"""Celery 5.7 reports a task that rejects its message as a failure."""
FRESH = {"retries": 0, "eta": None, "expires": None}
"""Headers of a task that may run again at any time."""
PROPERTIES = ("correlation_id", "reply_to", "delivery_mode")


def keep_failed_task(app: Any, task: Any, failure: dict[str, Any]) -> None:
    """Keep a task that failed, if the setting names it. Never raises.

    `failure` has the arguments of Celery's signal.
    """
    name, task_id = task.name, failure["task_id"]
    about = {"task_id": task_id, "task_name": name}
    try:
        alias = _keep(app, task, **failure) if _is_named(app, task) else None
    except Exception as exc:  # noqa: BLE001  the failure of the task goes on as without us
        error = describe(exc)
        log("celery_outbox_failed_task_not_kept", name, task_id, error, **about, error=error)
        return
    if alias is not None:
        log("celery_outbox_failed_task_kept", name, task_id, **about, database=alias)
        app.outbox.settings.recorders.report_failed_task(alias, name)


def _is_named(app: Any, task: Any) -> bool:
    names = app.outbox.settings.keep_failed_tasks
    return bool(names) and names.match(task.name)


def _keep(app: Any, task: Any, task_id: str, exception: Any, einfo: Any, **_: Any) -> str | None:
    """Write the dead letter. Returns the database; None if it is no failure of a worker's task."""
    message = delivered_message(task)
    request = message.request
    # Celery 5.7 reports a hard time limit twice, the second time without its request.
    if request.id != task_id or request.is_eager or isinstance(exception, NOT_FAILURES):
        return None
    alias, row = write_alias(), _row(app, task, message)
    reason, traceback = describe(exception, LONGEST_REASON), shortened(str(einfo.traceback))
    _write(app, alias, row, Failure(reason, traceback, request.retries + 1))
    return alias


def _row(app: Any, task: Any, message: Delivered) -> Row:
    producer, request = CapturingProducer(app.connection_for_write()), message.request
    embed = {name: request.get(name) for name in ("callbacks", "errbacks", "chain", "chord")}
    producer.body = (request.args, request.kwargs, embed)
    headers = {name: each for name, each in message.headers.items() if name != ETA_HEADER}
    compression = headers.pop("compression", None)  # the body was decompressed
    if message.body is None:
        content = {"serializer": task.serializer}
    else:
        content = {"content_type": message.content_type, "content_encoding": message.encoding}
    producer.publish(
        producer.body if message.body is None else message.body,
        headers={**headers, **FRESH},
        compression=compression,
        **content,
        **_destination(app, request),
    )
    row: Row = app.outbox.captured_row(task.name, request.id, producer)
    return row


def _destination(app: Any, request: Any) -> dict[str, Any]:
    """Where the message came from, as options of a producer."""
    delivered, properties = request.delivery_info or {}, request.properties or {}
    exchange, routing_key = delivered.get("exchange") or "", delivered.get("routing_key") or ""
    queues = app.amqp.queues
    bound = [
        queue
        for queue in queues.values()
        if (queue.exchange.name, queue.routing_key) == (exchange, routing_key)
        or (not exchange and queue.name == routing_key)
    ]
    return {
        **{name: properties[name] for name in PROPERTIES if properties.get(name) is not None},
        "exchange": exchange,
        "routing_key": routing_key,
        "priority": delivered.get("priority") or 0,
        "declare": bound[:1],
    }


def shortened(text: str) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= LONGEST_TRACEBACK:
        return text
    half = LONGEST_TRACEBACK // 2 - 50  # the mark has less than 100
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def _write(app: Any, alias: str, row: Row, failure: Failure) -> None:
    store = DjangoStore(alias, connection=_own_connection(app, alias))
    try:
        store.keep_failed_task(row, failure)
    finally:
        store.close()


def _own_connection(app: Any, alias: str) -> BaseDatabaseWrapper | None:
    """The task's connection, if that commits at once. None: take another one.

    The main process has no task. It forks, and a child must not inherit an open connection.
    """
    if app.current_worker_task is None:
        return None
    connection = connections[alias]
    if is_open(connection):
        return None
    if not connection.is_usable():
        connection.close()  # the task may have run for longer than a session
    return connection
