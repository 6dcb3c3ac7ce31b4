"""The options `outbox_key` and `outbox_on_conflict` of a call, or of its task.

Reads them and takes them out of the call, because Celery does not know them. A task's key is a
format of its arguments; that of a call is used as it is. A call that others wait for has no key: it
must not be dropped. The next step of the path is `keyed.py`.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from celery_outbox_steps.errors import OutboxError
from celery_outbox_steps.observe.log import log

KEEP, REPLACE = "keep", "replace"
KEY, ON_CONFLICT = "outbox_key", "outbox_on_conflict"
WAITED_FOR = {"chord": "is in a chord's header", "chain": "begins a chain", "link": "has a link"}
"""Options of a call whose end makes another call."""


class AskedKey(NamedTuple):
    """What a call or its task asks for."""

    key: Any
    on_conflict: str
    explicit: bool
    """The call itself has the key. That of a task is a format."""


class WantedKey(NamedTuple):
    """The key that a call is stored with."""

    text: str
    replace: bool


def take_key(task: Any, options: dict[str, Any]) -> AskedKey:
    """Take the two options out of those of a call. Raises `OutboxError` if they make no sense."""
    explicit = KEY in options
    key = options.pop(KEY) if explicit else getattr(task, KEY, None)
    on_conflict = options.pop(ON_CONFLICT, None)
    if on_conflict and key is None and not explicit:
        raise OutboxError(f"{ON_CONFLICT} needs an {KEY}.")
    on_conflict = on_conflict or getattr(task, ON_CONFLICT, None) or KEEP
    if on_conflict not in (KEEP, REPLACE):
        raise OutboxError(f'{ON_CONFLICT} must be "{KEEP}" or "{REPLACE}", not {on_conflict!r}.')
    return AskedKey(key, on_conflict, explicit)


def wanted_key(
    asked: AskedKey,
    task: Any,
    name: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    *,
    strict: bool,
) -> WantedKey | None:
    """The key of a call, if it has one. `args` and `options` are those of `send_task`.

    Raises `OutboxError` if it can't have this key. Not `strict`, it has none then: a worker makes
    the call that continues a chain, and an error would end the chain.
    """
    if asked.key is None:
        return None
    if not asked.explicit and any(map(options.get, WAITED_FOR)):
        return None
    try:
        return WantedKey(_text(asked, task, name, args, options), asked.on_conflict == REPLACE)
    except OutboxError as error:
        if strict:
            raise
        log("celery_outbox_key_ignored", name, str(error), task_name=name)
        return None


def _text(
    asked: AskedKey, task: Any, name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> str:
    if asked.explicit:
        _refuse_if_waited_for(name, options)
        key = asked.key
    else:
        key = _format(task, asked.key, *_arguments(args, options))
    if not isinstance(key, str) or not key:
        raise OutboxError(f"{KEY} of {name} must be a text that is not empty, not {key!r}.")
    return key


def drop_key(options: dict[str, Any]) -> None:
    """For a retry or a replacement, which must not be dropped for another call."""
    for name in (KEY, ON_CONFLICT):
        options.pop(name, None)


def _refuse_if_waited_for(name: str, options: dict[str, Any]) -> None:
    for option, what in WAITED_FOR.items():
        if options.get(option):
            raise OutboxError(
                f"{name} can't have an {KEY}, because this call {what}: if it were dropped for a"
                " call that waits, what comes after it would never run."
            )


def _arguments(args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
    """The task's own arguments, which `send_task` takes by position or by name."""
    _, positional, named, *_ = (*args, None, None, None)
    return positional or options.get("args") or (), named or options.get("kwargs") or {}


def _format(task: Any, template: Any, args: Any, kwargs: Any) -> str:
    try:
        bound = inspect.signature(task.run).bind(*args, **kwargs)
    except TypeError:  # arguments that the task does not take: it may be of a later version
        positional, named = args, kwargs
    else:
        bound.apply_defaults()
        positional, named = bound.args, {**bound.arguments, **bound.kwargs}
    try:
        return str(template.format(*positional, **named))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise OutboxError(
            f"{KEY} = {template!r} of {task.name} does not fit the arguments of this call"
            f" ({type(error).__name__}: {error}). Name them as the task does, as in"
            ' "reindex:{0}" or "reindex:{product_id}", or give the call a key.'
        ) from error
