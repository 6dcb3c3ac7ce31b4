"""Redacts the arguments that people see. The message itself is never changed.

A redactor is `(task_name, args, kwargs) -> (args, kwargs)`. It is called for the task, for every
signature in its arguments (chord bodies, callbacks) and for every call of a map or of chunks, each
under its own task name. If it fails, people see a placeholder and never the original, and the
enqueue continues. The results are columns of the row; the admin shows them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from kombu.utils.json import loads

from celery_outbox_steps.envelope import PLAIN_EMBED
from celery_outbox_steps.observe.log import log

Redactor = Callable[[str, Any, Any], tuple[Any, Any]]
PLACEHOLDER = "[the redactor failed]"
MAPS = ("celery.map", "celery.starmap", "celery.chunks")
"""Celery's own tasks that hold the arguments of many calls (`it`) beside the task to call."""


def redact(
    redactor: Redactor, task_name: str, copy_arguments: Callable[[], tuple[Any, Any]]
) -> tuple[str, str]:
    """Redacted args and kwargs as text. A redactor may modify its arguments: it gets copies."""
    try:
        seen_args, seen_kwargs = _call(redactor, task_name, *copy_arguments())
        return _text(_nested(redactor, seen_args)), _text(_nested(redactor, seen_kwargs))
    except Exception as exc:  # noqa: BLE001  users' code, and it must not block an enqueue
        error = type(exc).__name__
        log("celery_outbox_redactor_failed", error, task_name, task_name=task_name)
        return _text(PLACEHOLDER), _text(PLACEHOLDER)


def visible_options(options: str, redactor: Redactor | None) -> dict[str, Any]:
    """The options of a row for display: routing and headers, with redacted signatures."""
    shown: dict[str, Any] = json.loads(options)
    for name in ("argsrepr", "kwargsrepr"):
        shown.get("headers", {}).pop(name, None)
    shown.pop("event", None)
    embed = shown.get("embed", PLAIN_EMBED)
    shown["embed"] = _nested_safely(redactor, embed) if redactor else json.loads(embed)
    return shown


def _nested_safely(redactor: Redactor, embed: str) -> Any:
    try:
        return json.loads(_text(_nested(redactor, loads(embed))))
    except Exception:  # noqa: BLE001  the redactor is users' code, and so are the callbacks
        return PLACEHOLDER


def _nested(redactor: Redactor, value: Any) -> Any:
    """The value with every signature in it redacted under its own task name."""
    if isinstance(value, dict):
        if isinstance(value.get("task"), str) and "args" in value and "kwargs" in value:
            args, kwargs = _call(redactor, value["task"], value["args"], value["kwargs"])
            value = {**value, "args": args, "kwargs": kwargs}
        return {key: _nested(redactor, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nested(redactor, item) for item in value]
    return value


def _call(redactor: Redactor, task_name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """One call redacted; for a map, also each of the calls that it makes."""
    args, kwargs = redactor(task_name, args, kwargs)
    items = kwargs.get("it") if task_name in MAPS and isinstance(kwargs, dict) else None
    if isinstance(items, Iterable) and not isinstance(items, str):
        called = kwargs["task"]["task"]
        each_args = ([item] if task_name == "celery.map" else list(item) for item in items)
        kwargs = {**kwargs, "it": [redactor(called, each, {})[0] for each in each_args]}
    return args, kwargs


def _text(value: Any) -> str:
    return json.dumps(value, default=repr)
