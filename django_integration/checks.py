"""System checks: wrong settings and unusable databases, each reported with an id and a hint.

`python manage.py check --tag celery_outbox` checks the settings; with `--database default` it also
checks the tables. The allowed values are defined in `celery_outbox_steps.settings` only; this
module turns its errors into Django's messages. Ids are stable: one per kind of problem.

    E001 an invalid value                E004 a database alias that does not exist
    E002 a setting that does not exist   E005 settings that contradict each other
    E003 a path that can't be imported   E006 an outbox in tenant schemas
    E007 a relay without its bootstep    E008 the app is not installed: see `app.py`
    E009 a table of another package that is in the way of the migrations
    E010 a destination whose URL has no transport here, or none that can be imported
    W001 unapplied migrations            W002 a database that a relay can't work on
    W003 LISTEN does not work: the relay will poll
    W004 a task with @once that Celery acknowledges too early
    W005 a task with @once in a database whose inbox is never purged
    W006 calls of @shared_task that bypass the outbox
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from celery_outbox_steps.errors import ConfigurationError, StoreError
from celery_outbox_steps.publishers.broker import connection_for
from celery_outbox_steps.settings import (
    SETTINGS,
    Setting,
    meant_by,
    read,
    refuse_contradictions,
    unknown,
)
from celery_outbox_steps.worker.options import ADD_THE_STEP, has_step
from django_integration.app import OutboxCelery
from django_integration.conf import celery_app, django_settings, is_imported_by_project
from django_integration.inbox.once import Protection, protection_of
from django_integration.schema import APP_LABEL, OUTBOX
from django_integration.store.session import write_alias
from django_integration.store.setup import others_table
from django_integration.tenancy import HINT, wrong_settings
from django_integration.upstream.celery import app_of_shared_tasks, default_app

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

TAG = "celery_outbox"
CORRECT_PATH = "Correct the path, or install the package that it names."
INSTALL_THE_TRANSPORT = (
    "A worker with --outbox-relay would not start. kombu has extras for the libraries, such as"
    " kombu[redis] and kombu[confluentkafka]."
)
REMOVE_THE_TABLES = (
    "If it is that of django-celery-outbox, publish what is in it and remove its tables, while that"
    " package is still installed: python manage.py migrate django_celery_outbox zero"
)
IMPORT_THE_APP = """Import your app in the __init__.py of the project:

    from proj.celery import app as celery_app

    __all__ = ("celery_app",)

If the project has several Celery apps, create the OutboxCelery last, and call app.set_default()."""


@register(TAG)
def check_settings(app_configs: Any = None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Check every `CELERY_OUTBOX_*` setting; the Celery app's own values take precedence."""
    try:
        app = celery_app()
    except ConfigurationError as exc:
        return [Error(str(exc), hint=CORRECT_PATH, id="celery_outbox.E003")]
    conf = app.conf
    values = {**django_settings(), **{name: conf[name] for name in conf if _is_ours(name)}}
    found = [*_unknown(values), *_bad_values(values)]
    return found or [
        *_not_importable(values),
        *_unknown_databases(values),
        *_contradictions(values),
        *_unusable_destinations(values),
        *_tenant_schemas(),
        *_missing_step(app, values),
    ]


@register(TAG)
def check_shared_tasks(app_configs: Any = None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Check that calls of `@shared_task` use an `OutboxCelery`, in this thread and in others."""
    try:
        app = celery_app()
    except ConfigurationError:
        return []  # `check_settings` reports it
    if not is_imported_by_project(app):
        return [_bypassed("nothing imports the app of CELERY_OUTBOX_APP")]
    in_use = [each for each in (app_of_shared_tasks(), default_app()) if each is not None]
    others = [each.main for each in in_use if not isinstance(each, OutboxCelery)]
    return [_bypassed(f"they use the app {name!r}, no OutboxCelery") for name in others[:1]]


@register(TAG)
def check_once(app_configs: Any = None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Check the tasks that `@once` protects: what it promises depends on two options of Celery."""
    try:
        app = celery_app()
        aliases = read(app.conf, "databases")
    except ConfigurationError:
        return []  # `check_settings` reports it
    protected = _protected_tasks(app)
    return [
        *(_acknowledged_early(task) for task, _ in protected if not _is_acknowledged_late(task)),
        *(
            _never_purged(task, each.using)
            for task, each in protected
            if each.using not in (None, *(aliases or [write_alias()]))
        ),
    ]


@register(TAG, Tags.database)
def check_databases(
    app_configs: Any = None,  # noqa: ARG001
    databases: Sequence[str] | None = None,
    **_: Any,
) -> list[CheckMessage]:
    """Check the databases that `--database` names and that hold an outbox."""
    try:
        conf = celery_app().conf
        notify, aliases = read(conf, "notify"), read(conf, "databases") or [write_alias()]
    except ConfigurationError:
        return []  # `check_settings` reports it
    return [
        message
        for alias in aliases
        if alias in (databases or ())
        for message in _check_database(alias, notify=notify)
    ]


def _protected_tasks(app: Any) -> list[tuple[Any, Protection]]:
    """The tasks with `@once`: all of them for `manage.py check`, else those that are imported."""
    if sys.argv[1:2] == ["check"]:
        _import_tasks(app)
    found = ((task, protection_of(task)) for task in app.tasks.values())
    return [(task, protection) for task, protection in found if protection is not None]


def _import_tasks(app: Any) -> None:
    """Not in a worker, which runs the checks before it has imported its own tasks."""
    modules = [f"{each.name}.tasks" for each in apps.get_app_configs()]
    for name in (*modules, *app.loader.default_modules):
        with suppress(Exception):  # a worker reports tasks that can't be imported
            app.loader.import_task_module(name)


def _is_acknowledged_late(task: Any) -> bool:
    return bool(task.acks_late and task.reject_on_worker_lost)


def _acknowledged_early(task: Any) -> CheckMessage:
    return Warning(
        f"{task.name} has @once, but a worker that is lost takes its message with it.",
        hint="Set acks_late=True and reject_on_worker_lost=True for the task, or"
        " CELERY_TASK_ACKS_LATE and CELERY_TASK_REJECT_ON_WORKER_LOST.",
        id="celery_outbox.W004",
    )


def _never_purged(task: Any, alias: str | None) -> CheckMessage:
    return Warning(
        f"{task.name} has @once in database {alias!r}, whose inbox no purge looks at.",
        hint="Add the database to CELERY_OUTBOX_DATABASES.",
        id="celery_outbox.W005",
    )


def _is_ours(name: Any) -> bool:
    return isinstance(name, str) and name.startswith("outbox_")


def _unknown(values: Iterable[str]) -> Iterator[CheckMessage]:
    for name in unknown(values):
        yield Error(f"{name} is not a setting.", hint=meant_by(name), id="celery_outbox.E002")


def _bad_values(values: dict[str, Any]) -> Iterator[CheckMessage]:
    for setting in SETTINGS:
        try:
            setting.parse(values.get(setting.conf_name, setting.default))
        except ConfigurationError as exc:  # noqa: PERF203  all of them are reported
            yield Error(str(exc), hint=_hint(setting), id="celery_outbox.E001")


def _hint(setting: Setting) -> str:
    return f"{setting.help} The default is {setting.default!r}."


def _not_importable(values: dict[str, Any]) -> Iterator[CheckMessage]:
    for setting in SETTINGS:
        try:
            setting.load(values.get(setting.conf_name, setting.default))
        except ConfigurationError as exc:  # noqa: PERF203  all of them are reported
            yield Error(str(exc), hint=CORRECT_PATH, id="celery_outbox.E003")


def _unknown_databases(values: dict[str, Any]) -> Iterator[CheckMessage]:
    for alias in values.get("outbox_databases") or ():
        if alias not in connections:
            yield Error(
                f"CELERY_OUTBOX_DATABASES names {alias!r}, which is not in DATABASES.",
                hint=f"DATABASES has {', '.join(map(repr, connections))}.",
                id="celery_outbox.E004",
            )


def _contradictions(values: dict[str, Any]) -> Iterator[CheckMessage]:
    try:
        refuse_contradictions(values)
    except ConfigurationError as exc:
        yield Error(str(exc), hint="Change one of the two.", id="celery_outbox.E005")


def _unusable_destinations(values: dict[str, Any]) -> Iterator[CheckMessage]:
    """Transports are imported, nothing is connected."""
    for destination in read(values, "destinations").values():
        try:
            connection_for(destination)
        except ConfigurationError as exc:  # noqa: PERF203  all of them are reported
            yield Error(str(exc), hint=INSTALL_THE_TRANSPORT, id="celery_outbox.E010")


def _tenant_schemas() -> Iterator[CheckMessage]:
    for name in wrong_settings():
        yield Error(
            f"{name} names django_integration, but no relay reads the tables in tenant schemas.",
            hint=f"{HINT}.",
            id="celery_outbox.E006",
        )


def _missing_step(app: Any, values: dict[str, Any]) -> Iterator[CheckMessage]:
    if values.get("outbox_relay") and not has_step(app):
        yield Error(
            "CELERY_OUTBOX_RELAY is on, but the Celery app lacks the relay's bootstep.",
            hint=ADD_THE_STEP,
            id="celery_outbox.E007",
        )


def _bypassed(why: str) -> CheckMessage:
    return Warning(
        f"Calls of @shared_task bypass the outbox: {why}.",
        hint=IMPORT_THE_APP,
        id="celery_outbox.W006",
    )


def _check_database(alias: str, *, notify: bool) -> Iterator[CheckMessage]:
    if _has_unapplied_migrations(alias):
        if others_table(connections[alias]):
            yield Error(
                f"Database {alias!r} has a table {OUTBOX} of another package.",
                hint=REMOVE_THE_TABLES,
                id="celery_outbox.E009",
            )
            return
        if _is_migrating():
            return  # `migrate` runs the checks before it applies migrations
        yield Warning(
            f"Migrations of the outbox are not applied in database {alias!r}.",
            hint=f"Run: python manage.py migrate --database={alias} {APP_LABEL}",
            id="celery_outbox.W001",
        )
    else:
        yield from _check_store(alias, notify=notify)


def _is_migrating() -> bool:
    return len(sys.argv) > 1 and sys.argv[1].startswith("migrate")


def _has_unapplied_migrations(alias: str) -> bool:
    executor = MigrationExecutor(connections[alias])
    targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == APP_LABEL]
    return bool(executor.migration_plan(targets))


def _check_store(alias: str, *, notify: bool) -> Iterator[CheckMessage]:
    from django_integration.store import DjangoStore

    store = DjangoStore(alias, notify=notify)
    try:
        store.check()
        store.listen()
        if notify and connections[alias].vendor == "postgresql" and not store.listening:
            yield Warning(
                f"LISTEN does not work on database {alias!r}, so the relay will poll.",
                hint="Bypass the connection pooler, or set CELERY_OUTBOX_NOTIFY = False.",
                id="celery_outbox.W003",
            )
    except StoreError as exc:
        hint = "No relay can publish from this database until this is corrected."
        yield Warning(f"{exc}.", hint=hint, id="celery_outbox.W002")
    finally:
        store.close()
