"""Celery's worker: the message that a failing task came in, as it was received.

Read from the call stack, and nothing is changed. Apart from `celery.py`, because it imports parts
of Celery that only a worker loads. `celery_hooks/failed_tasks.py` uses it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.app.trace import fast_trace_task, trace_task_ret
from celery.worker.request import Request

if TYPE_CHECKING:
    from types import FrameType

ADDED_BY_WORKER = {
    *("args", "kwargs", "callbacks", "errbacks", "chain", "chord"),  # from the body
    *("properties", "reply_to", "correlation_id", "delivery_info", "hostname"),
    *("called_directly", "is_eager", "loglevel", "logfile", "time_limit", "soft_time_limit"),
    "_children",
}
"""What a worker adds to the headers of a message to make the request of its task from them."""
_RUNS_A_TASK = {trace_task_ret.__code__, fast_trace_task.__code__}
_REPORTS_A_FAILURE = Request.on_failure.__code__


class Delivered(NamedTuple):
    """The message that a task came in."""

    request: Any
    """The request that the worker made of it."""
    headers: dict[str, Any]
    body: Any = None
    """None if it is decoded already, as with Celery's first protocol."""
    content_type: str | None = None
    encoding: str | None = None


def delivered_message(task: Any) -> Delivered:
    """The message of a task that fails, as the worker received it.

    Called below Celery's tracer, or below the function with which the main process reports a lost
    child. Only these have it: the arguments of `task.request` are objects that the task may have
    changed, what serialised them is not known there, and `request.headers` are not all headers. In
    the main process older versions of Celery have no `task.request` at all.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _RUNS_A_TASK:
            found = frame.f_locals
            body = found["body"], found["content_type"], found["content_encoding"]
            return _delivered(task.request, found["request"], *body)
        if frame.f_code is _REPORTS_A_FAILURE:
            lost = frame.f_locals["self"]
            body = lost.body, lost.content_type, lost.content_encoding
            return _delivered(lost._context, lost.request_dict, *body)
        frame = frame.f_back
    return _delivered(task.request, {**vars(task.request), "headers": None}, None, None, None)


def _delivered(
    request: Any, fields: dict[str, Any], body: Any, content_type: Any, encoding: Any
) -> Delivered:
    headers = {name: value for name, value in fields.items() if name not in ADDED_BY_WORKER}
    if headers.get("headers", 0) is None:
        del headers["headers"]
    if not content_type:
        return Delivered(request, headers)
    body = body if isinstance(body, str) else bytes(body)
    return Delivered(request, headers, body, content_type, encoding)
