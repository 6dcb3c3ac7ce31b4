"""`@once`: a task that is delivered again does not do its work again, and returns the same result.

The task's work and an entry of the inbox are one transaction. A Retry, a failure or a lost worker
rolls both back. A duplicate returns the stored result, so that Celery sends the continuation (the
rest of a chain, a chord's body, callbacks) once more, with the same ids: if the first run died
between its COMMIT and that, nothing is missing, and if not, the next `@once` drops it.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from celery import Task, current_task

from celery_outbox_steps.envelope import stored_id
from celery_outbox_steps.errors import OutboxError
from celery_outbox_steps.observe.log import log
from celery_outbox_steps.settings import read
from django_integration.inbox.continuation import fix_callback_ids
from django_integration.keys import stored_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
T = TypeVar("T")
Keep = timedelta | float | None

MARK = "outbox_once"
"""The attribute of a protected function. Decorators around it carry it on, as `functools.wraps`
copies attributes."""
RUNNING = "outbox_once_running"
"""The attribute of a delivery whose work is being done."""


@overload
def once(function: Callable[P, T], /) -> Callable[P, T]: ...


@overload
def once(
    *, key: Callable[..., str] | None = None, using: str | None = None, keep: Keep = None
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def once(
    function: Any = None,
    /,
    *,
    key: Callable[..., str] | None = None,
    using: str | None = None,
    keep: Keep = None,
) -> Any:
    """Protect a task's function: `@shared_task(...)` above, `@once` below.

    `key`: makes the key of a call from the task's arguments; by default it is the task's id.
    `using`: the database that the work writes to; by default that of the outbox.
    `keep`: how long a duplicate is recognised; by default `CELERY_OUTBOX_INBOX_RETENTION`.
    Called directly or eagerly it is a plain function.
    """
    protection = Protection(key, using, keep)
    return protection if function is None else protection(function)


class Protection:
    """What `@once` was given."""

    def __init__(self, key: Callable[..., str] | None, using: str | None, keep: Keep) -> None:
        self.using = using
        self._key = key
        self._keep = _seconds(keep)

    def __call__(self, function: Any) -> Any:
        if isinstance(function, Task) or not callable(function):
            raise TypeError("@once belongs below the decorator that makes the task.")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(f"@once can't protect {function!r}: its work is done after it returns.")

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            task = _delivered_task()
            if task is None or self._is_called_directly(function, task):
                return function(*args, **kwargs)
            with _running(task.request):
                return self._run(task, functools.partial(function, *args, **kwargs))

        # Celery compares the arguments of a call with it, and does not look through `wraps`.
        run.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        setattr(run, MARK, self)
        return run

    def _is_called_directly(self, function: Any, task: Any) -> bool:
        """Whether the running task calls its own function once more, or that of another task."""
        if protection_of(task) is self:
            return getattr(task.request, RUNNING, False)
        if any(protection_of(each) is self for each in task.app.tasks.values()):
            return True
        raise OutboxError(_not_the_task(function, task))

    def _run(self, task: Any, call: functools.partial[Any]) -> Any:
        # Imported here: models need a configured Django, and decorating a task must not.
        from django_integration.inbox.entries import entered, record_result
        from django_integration.inbox.results import dump_result, load_result

        fix_callback_ids(task.request)
        entry = _entry(task.app, self._key_of(task, call), task.name, self.using, self._keep)
        with entered(entry) as work:
            if work.before is None:
                value = call()
                record_result(entry, dump_result(task, call.func, value))
            else:
                value = load_result(task, call.func, work.before)
        if work.before is not None:
            log(
                "celery_outbox_duplicate",
                task.name,
                task.request.id,
                task_name=task.name,
                task_id=task.request.id,
            )
        return value if work.recovered is None else load_result(task, call.func, work.recovered)

    def _key_of(self, task: Any, call: functools.partial[Any]) -> str:
        if self._key is None:
            return str(task.request.id)
        is_bound = bool(call.args) and isinstance(call.args[0], Task)
        key = self._key(*call.args[is_bound:], **call.keywords)
        if not isinstance(key, str) or not key:
            raise OutboxError(
                f"The key of @once for {task.name} must be a text that is not empty, not {key!r}."
            )
        return key


@contextmanager
def _running(request: Any) -> Iterator[None]:
    """While the work of this delivery is done, or looked up."""
    setattr(request, RUNNING, True)
    try:
        yield
    finally:
        setattr(request, RUNNING, False)


@contextmanager
def once_in(app: Any, key: str, using: str | None, keep: Keep) -> Iterator[bool]:
    """See `Enqueuer.once`."""
    from django_integration.inbox.entries import NO_RESULT, entered, record_result

    if not isinstance(key, str) or not key:
        raise OutboxError(f"The key must be a text that is not empty, not {key!r}.")
    entry = _entry(app, key, "", using, _seconds(keep))
    with entered(entry) as work:
        yield work.before is None
        if work.before is None:
            record_result(entry, NO_RESULT)


def protection_of(task: Any) -> Protection | None:
    """What `@once` was given for this task; None if it is not protected."""
    found = getattr(task.run, MARK, None)
    return found if isinstance(found, Protection) else None


def _entry(app: Any, key: str, task_name: str, using: str | None, keep: float | None) -> Any:
    from django_integration.inbox.entries import Entry
    from django_integration.store.session import write_alias

    seconds = read(app.conf, "inbox_retention") if keep is None else keep
    name = stored_id(task_name)
    return Entry(using or write_alias(), stored_key(key, task_name), name, seconds)


def _delivered_task() -> Any:
    """The task that a worker runs from a message; None if it is called directly or eagerly."""
    if not current_task:
        return None
    request = current_task.request
    plain = request.called_directly or request.is_eager
    return None if plain else current_task._get_current_object()


def _not_the_task(function: Any, task: Any) -> str:
    return (
        f"@once protects the function of a task, and {function.__qualname__} is not that of"
        f" {task.name}. Use `with app.outbox.once(key)` inside a task. If it is the"
        " function of this task, a decorator above @once lacks functools.wraps."
    )


def _seconds(keep: Keep) -> float | None:
    if isinstance(keep, timedelta):
        keep = keep.total_seconds()
    if keep is not None and not (isinstance(keep, (int, float)) and keep > 0):
        raise ValueError(f"keep must be a timedelta or seconds above 0, not {keep!r}.")
    return keep
