"""Celery: an app's task class and task registry, how it looks up a setting, and the current app.

Replacements return what Celery's own part returns. `app.py` and `celery_hooks/` use them;
`testing/running.py` uses the tracer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from celery import Celery, _state
from celery._state import task_join_will_block
from celery.app.registry import TaskRegistry
from celery.app.trace import build_tracer
from celery.app.utils import Settings as CelerySettings
from celery.utils.collections import DictAttribute

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CelerySettings",
    "DictAttribute",
    "TaskRegistry",
    "build_tracer",  # runs a task as a worker does, signals and retries included, for tests
    "task_join_will_block",  # whether a task is running: the rpc backend asks before it declares
]


class DjangoTaskByDefault(Celery):  # type: ignore[misc]
    """A Celery whose subclasses get `DjangoTask` unless they name a task class of their own.

    Celery's Django fixup asks `_custom_task_cls_used` whether to install it. Celery 5.5 and 5.6
    answer yes for every subclass of Celery, and `delay_on_commit` would be missing.
    """

    @property
    def _custom_task_cls_used(self) -> bool:
        return bool(self.task_cls != Celery.task_cls)

    @_custom_task_cls_used.setter
    def _custom_task_cls_used(self, _: bool) -> None:
        """Ignores Celery's own answer, which is wrong in some versions."""


def app_of_shared_tasks() -> Celery | None:
    """The app that `@shared_task` uses in this thread; None if there is none so far.

    The public `current_app` would create one, and that would stay the default app: the project's
    own app, if it comes later, is current in the thread that imports it and in no other.
    """
    return cast("Celery | None", _state._tls.current_app or _state.default_app)


def default_app() -> Celery | None:
    """The app that `@shared_task` uses in threads that have created none, as those of a server."""
    return cast("Celery | None", _state.default_app)


def on_tasks_used(function: Callable[[Celery], Any]) -> None:
    """Call a function with every app whose tasks are used for the first time.

    The public signal `on_after_finalize` is of one app.
    """
    _state.connect_on_app_finalize(function)


def registry_of(app: Celery) -> TaskRegistry:
    """The app's registry. The public `app.tasks` would finalize the app, which is too early."""
    return cast("Any", app)._tasks


LOOKS_MAP_BY_MAP = (
    CelerySettings({"key": "map"}, [{"X_KEY": "spelling"}], prefix="X")["key"] == "map"
)
"""Whether this Celery searches its maps one after the other, as 5.7 does. Older versions search for
one spelling after the other, which may find another value: they can't use `MapByMapSettings`."""


class MapByMapSettings(CelerySettings):  # type: ignore[misc]
    """Celery's settings with the same values and a faster lookup.

    Celery tries each of four spellings in each of its maps, and a miss is an exception. Six such
    lookups per task call take a third of the call's time.
    """

    def __getitem__(self, key: str) -> Any:
        spellings = _spellings(self.prefix, self._keys, key)
        for mapping in self.maps:
            for name in spellings:
                if name in mapping:
                    return mapping[name]
        return super().__getitem__(key)  # raises Celery's own error


@lru_cache(maxsize=1024)
def _spellings(prefix: str | None, rules: Any, key: str) -> tuple[str, ...]:
    settings = CelerySettings({}, keys=rules, prefix=prefix)
    names: tuple[str, ...] = settings._to_keys(key)
    return names


def replace_settings_class(settings: CelerySettings, cls: type[CelerySettings]) -> None:
    """Change the class of an app's settings in place: other code already holds the object.

    A plain assignment to `__class__` would create a setting of this name.
    """
    object.__setattr__(settings, "__class__", cls)
