"""The private parts of Celery that `OutboxCelery` depends on, each with the reason.

Nothing else in the app's class touches one. tests/unit/test_app_classes.py holds them against every
supported version of Celery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from celery import Celery
from celery.utils.objects import FallbackContext

if TYPE_CHECKING:
    from celery.app.registry import TaskRegistry


class DjangoTaskByDefault(Celery):  # type: ignore[misc]
    """A Celery whose subclasses get `DjangoTask` unless they name a task class of their own.

    Celery's Django fixup asks `_custom_task_cls_used` whether to install it. Celery 5.5 and 5.6
    answer yes for every subclass of Celery, and `delay_on_commit` would be gone.
    """

    @property
    def _custom_task_cls_used(self) -> bool:
        return bool(self.task_cls != Celery.task_cls)

    @_custom_task_cls_used.setter
    def _custom_task_cls_used(self, _: bool) -> None:
        """Celery's own answer, which is not the right one in all versions."""


class ProducerContext(FallbackContext):  # type: ignore[misc]
    """Celery's, which before 5.7 keeps what a context gives in the place of the context, and so
    can't leave one of another class. To be deleted when Celery 5.6 is no longer supported.
    """

    def __enter__(self) -> Any:
        if self.provided is not None:
            return self.provided
        context = self.fallback()
        value = context.__enter__()
        self._context = context
        return value


def registry_of(app: Celery) -> TaskRegistry:
    """The app's registry. The public `app.tasks` would finalize the app, which is too early."""
    return cast("Any", app)._tasks  # noqa: SLF001
