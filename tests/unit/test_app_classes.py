"""What an `OutboxCelery` keeps of Celery's classes, on every version of Celery."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task
from celery.app.registry import TaskRegistry
from celery.contrib.django.task import DjangoTask
from django.test.utils import override_settings

from django_integration import OutboxCelery
from django_integration.celery_hooks.fast_settings import WatchedSettings
from django_integration.celery_hooks.tasks import OutboxTaskRegistry, bypasses_outbox


class OwnTask(Task):
    """The base class of a project that has one."""


class Watched(Task):
    """Knows whether its retry was kept out of the outbox."""

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        return bypasses_outbox.get()


class OtherRegistry(TaskRegistry):
    """What another extension of Celery brings along."""

    def register(self, task: Any) -> None:
        task.registered_by = "the other one"
        super().register(task)


class OtherCelery(Celery):
    registry_cls = f"{__name__}:OtherRegistry"


class OutboxFirst(OutboxCelery, OtherCelery):
    pass


class OutboxLast(OtherCelery, OutboxCelery):
    pass


class SilentCelery(Celery):
    """Does not call the `on_init` of the classes behind it, and reads the settings too early."""

    def on_init(self) -> None:
        assert self.conf.task_default_queue


class OutboxBehindASilentOne(SilentCelery, OutboxCelery):
    pass


class OwnRegistry(OutboxCelery):
    registry_cls = OtherRegistry


def make(cls: type = OutboxCelery, **arguments: Any) -> Any:
    return cls("classes", broker="memory://", set_as_current=False, **arguments)


def task_of(app: Any, **options: Any) -> Any:
    @app.task(name="classes.it", shared=False, **options)
    def it() -> None:
        pass

    return it


def test_delay_on_commit_is_there_as_with_plain_celery() -> None:
    for app in (make(Celery), make()):
        task = task_of(app)
        assert isinstance(task._get_current_object(), DjangoTask)
        assert callable(task.delay_on_commit)
        assert callable(task.apply_async_on_commit)


def test_a_subclass_of_the_app_has_it_too() -> None:
    assert callable(task_of(make(OwnRegistry)).delay_on_commit)


def test_a_task_class_given_as_an_argument_is_kept() -> None:
    assert issubclass(make(task_cls=OwnTask).Task, OwnTask)


def test_a_task_class_of_the_apps_class_is_kept() -> None:
    class App(OutboxCelery):
        task_cls = OwnTask

    assert issubclass(make(App).Task, OwnTask)
    assert not issubclass(make(App).Task, DjangoTask)


@pytest.mark.parametrize(
    "cls", [OutboxCelery, OutboxFirst, OutboxLast, OutboxBehindASilentOne, OwnRegistry]
)
def test_a_retry_stays_out_of_the_outbox_whatever_the_registry(cls: type) -> None:
    assert task_of(make(cls), base=Watched).retry() is True


def test_the_settings_do_not_depend_on_the_on_init_of_others() -> None:
    with override_settings(CELERY_OUTBOX_BATCH_SIZE=7):
        conf = make(OutboxBehindASilentOne).conf
        assert (conf.outbox_batch_size, isinstance(conf, WatchedSettings)) == (7, True)


@pytest.mark.parametrize("cls", [OutboxLast, OwnRegistry])
def test_a_registry_of_another_class_keeps_its_behaviour(cls: type) -> None:
    app, task = make(cls), Watched()
    task.name = "classes.registered"
    task.bind(app)
    app.tasks.register(task)
    assert isinstance(app.tasks, OtherRegistry)
    assert (task.registered_by, task.retry()) == ("the other one", True)


@pytest.mark.parametrize("kind", [dict, TaskRegistry, OtherRegistry, OutboxTaskRegistry])
def test_a_retry_of_tasks_given_to_the_app_stays_out_of_the_outbox(kind: Any) -> None:
    task = Watched()
    task.name = "classes.given"
    app = make(tasks=kind({task.name: task}))
    assert app.tasks[task.name].retry() is True
