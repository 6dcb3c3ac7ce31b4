"""Every kind of app and caller: policy, configuration, subclasses, async code, threads, beat."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import VERSION, Celery, Task, beat, shared_task
from celery.app.defaults import _OLD_SETTING_KEYS, SETTING_KEYS
from celery.app.utils import Settings as CelerySettings
from django.conf import Settings, settings
from django.db import OperationalError, ProgrammingError, connection, connections, transaction
from django.test.utils import override_settings

from django_integration import OutboxCelery
from django_integration.celery_hooks.fast_settings import FastSettings
from django_integration.enqueue.enqueuer import TransactionRequired
from django_integration.upstream.celery import LOOKS_MAP_BY_MAP
from django_integration.upstream.django import FastDjangoSettings
from tests.proj.relaying import messages, rows

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


def names() -> list[str]:
    return [row.task_name for row in rows()]


# -- what bypasses the outbox --------------------------------------------------------------------


def test_excluded_names_and_patterns_go_directly_to_the_broker() -> None:
    app = OutboxCelery("excluded", broker="memory://", set_as_current=False)
    app.conf.update(
        task_default_queue=f"excluded-{uuid4().hex[:8]}",
        outbox_exclude_tasks=["exact.name", "pattern.*", "one.?", "set.[ab]"],
    )
    for name in ("exact.name", "pattern.x", "one.1", "set.a"):
        app.send_task(name)
    assert rows() == []
    for name in ("exact.name2", "Pattern.x", "one.12", "set.c"):
        app.send_task(name)
    assert names() == ["exact.name2", "Pattern.x", "one.12", "set.c"]
    with app.connection_for_write() as broker:
        assert broker.SimpleQueue(app.conf.task_default_queue).qsize() == 4


def test_an_excluded_task_needs_no_database_and_takes_a_database_option() -> None:
    app = OutboxCelery("excluded", broker="memory://", set_as_current=False)
    app.conf.update(task_default_queue=f"excluded-{uuid4().hex[:8]}", outbox_exclude_tasks=["*"])
    connection.close()
    app.send_task("a.task", outbox_using="nowhere")
    assert connection.connection is None


def test_eager_tasks_stay_celerys(make_app: Callable[..., Any]) -> None:
    app = make_app(task_always_eager=True)
    assert app.tasks["enqueue.add"].delay(1, 2).get() == 3
    assert rows() == []


# -- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["CELERY", None])
def test_django_settings_reach_the_app_with_and_without_a_namespace(namespace: str | None) -> None:
    with override_settings(CELERY_OUTBOX_BATCH_SIZE=7, CELERY_OUTBOX_EXCLUDE_TASKS=["a"]):
        app = OutboxCelery("configured", set_as_current=False)
        if namespace:
            app.config_from_object("django.conf:settings", namespace=namespace)
        assert (app.conf.outbox_batch_size, app.conf.outbox_exclude_tasks) == (7, ["a"])


def test_what_the_app_says_beats_djangos_settings() -> None:
    with override_settings(CELERY_OUTBOX_BATCH_SIZE=7):
        app = OutboxCelery("configured", set_as_current=False)
        app.conf.outbox_batch_size = 9
        assert app.conf.outbox_batch_size == 9


@pytest.fixture
def django_app() -> Any:
    app = OutboxCelery("configured", set_as_current=False)
    app.config_from_object("django.conf:settings", namespace="CELERY")
    assert app.conf.task_always_eager is False
    return app


def test_overridden_django_settings_reach_a_configured_app(django_app: Any) -> None:
    with override_settings(CELERY_TASK_ALWAYS_EAGER=True):
        assert django_app.conf.task_always_eager is True
    assert django_app.conf.task_always_eager is False


def test_a_django_setting_that_is_assigned_later_reaches_the_app(
    django_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "CELERY_TASK_ALWAYS_EAGER", True, raising=False)
    assert django_app.conf.task_always_eager is True


@pytest.fixture(params=["CELERY", None])
def used_app(request: pytest.FixtureRequest) -> Any:
    """An app that has stored a call already, with its settings from Django by either way."""
    app = OutboxCelery("configured", broker="memory://", set_as_current=False)
    if request.param:
        app.config_from_object("django.conf:settings", namespace=request.param)
    app.send_task("first.call")
    return app


def test_overridden_outbox_settings_count_at_once_and_no_longer(used_app: Any) -> None:
    with override_settings(CELERY_OUTBOX_REQUIRE_TRANSACTION=True):
        assert used_app.conf.outbox_require_transaction is True
        with pytest.raises(TransactionRequired):
            used_app.send_task("refused")
    used_app.send_task("allowed")
    assert names() == ["first.call", "allowed"]


def test_a_first_call_with_overridden_settings_does_not_keep_them() -> None:
    with override_settings(CELERY_OUTBOX_REQUIRE_TRANSACTION=True):
        app = OutboxCelery("configured", broker="memory://", set_as_current=False)
        with pytest.raises(TransactionRequired):
            app.send_task("refused")
    app.send_task("allowed")
    assert names() == ["allowed"]


def test_outbox_settings_of_the_app_count_when_they_are_changed(
    used_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_refused() -> bool:
        try:
            used_app.send_task("a.task")
        except TransactionRequired:
            return True
        return False

    used_app.conf.outbox_require_transaction = True
    assert is_refused()
    used_app.conf.update(outbox_require_transaction=False)
    assert not is_refused()
    with monkeypatch.context() as patch:
        patch.setitem(used_app.conf, "outbox_require_transaction", True)
        assert is_refused()
    assert not is_refused()
    used_app.conf.pop("outbox_require_transaction")
    assert not is_refused()


def test_cleared_settings_and_late_defaults_count_from_the_next_call_on(used_app: Any) -> None:
    used_app.conf.outbox_require_transaction = True
    with pytest.raises(TransactionRequired):
        used_app.send_task("refused")
    used_app.conf.clear()
    used_app.send_task("allowed")
    used_app.add_defaults({"outbox_require_transaction": True})
    with pytest.raises(TransactionRequired):
        used_app.send_task("refused")


def test_overridden_settings_of_any_namespace_count() -> None:
    app = OutboxCelery("configured", broker="memory://", set_as_current=False)
    app.config_from_object("django.conf:settings", namespace="PROJ")
    app.send_task("allowed")
    overridden = override_settings(PROJ_OUTBOX_REQUIRE_TRANSACTION=True)
    with overridden, pytest.raises(TransactionRequired):
        app.send_task("refused")
    app.send_task("allowed")


def test_metrics_can_be_switched_on_by_override_settings(used_app: Any) -> None:
    assert not used_app.outbox.settings.recorders.want_samples
    with override_settings(MONITORING_METRICS_ENABLED=True):
        assert used_app.outbox.settings.recorders.want_samples
    assert not used_app.outbox.settings.recorders.want_samples


def test_the_metrics_sink_is_made_once_whatever_other_settings_do(used_app: Any) -> None:
    made = []

    def factory(app: Any) -> Any:
        made.append(app)
        return SimpleNamespace()

    used_app.conf.outbox_metrics = factory
    used_app.send_task("a.task")
    used_app.conf.beat_schedule = {}
    used_app.conf.outbox_notify = False
    used_app.send_task("a.task")
    assert made == [used_app]
    used_app.conf.outbox_metrics_task_names = []
    used_app.send_task("a.task")
    assert made == [used_app] * 2


def test_what_was_warned_about_is_remembered_when_settings_change(
    used_app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(CELERY_OUTBOX_NOTIFY=False):
        used_app.send_task("first.call")
    assert caplog.text == ""


def spellings() -> list[str]:
    names = [*SETTING_KEYS, *_OLD_SETTING_KEYS, "outbox_batch_size", "TIME_ZONE", "nobody_has_it"]
    return [each for name in names for each in (name, f"CELERY_{name.upper()}", name.upper())]


@pytest.mark.skipif(not LOOKS_MAP_BY_MAP, reason="this Celery looks up settings by itself")
@pytest.mark.parametrize("namespace", ["CELERY", None])
def test_every_setting_is_what_celery_itself_says(namespace: str | None) -> None:
    """Including those that there are not, and what was changed later on."""
    app = OutboxCelery("configured", set_as_current=False, broker="memory://")
    if namespace:
        app.config_from_object("django.conf:settings", namespace=namespace)
    app.conf.task_default_queue = "changed"
    assert app.conf.task_default_queue == "changed"
    assert type(app.conf) is FastSettings
    for name in spellings():
        assert _read(app.conf, name) == _read(CelerySettings.__getitem__, app.conf, name), name


def _read(source: Any, *key: Any) -> Any:
    try:
        return source(*key) if callable(source) else source[key[0]]
    except KeyError as missing:
        return str(missing)


@pytest.mark.skipif(VERSION < (5, 7), reason="copying fails in older Celery")
def test_a_copy_of_the_configuration_is_one_of_its_own(django_app: Any) -> None:
    copied = django_app.conf.copy()
    copied.task_default_queue = "copied"
    assert (copied.task_default_queue, copied.task_always_eager) == ("copied", False)
    assert django_app.conf.task_default_queue != "copied"


def test_django_is_still_asked_for_settings_the_short_way(django_app: Any) -> None:
    """It relies on where Django keeps them; should that change, calls get slower, not wrong."""
    assert any(type(each) is FastDjangoSettings for each in django_app.conf.maps)
    assert type(settings._wrapped) is Settings
    assert {"CELERY_BROKER_URL", "DATABASES"} <= vars(settings._wrapped).keys()


IMPORTS = """
import sys
blocked = (
    "sentry_sdk", "structlog", "datadog", "ddtrace", "opentelemetry", "prometheus_client"
)
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
import celery_outbox_steps, django_integration
from django_integration import OutboxCelery
app = OutboxCelery("unconfigured")
app.conf.broker_url
from django.conf import settings
assert not settings.configured
print("ok")
"""


def test_importing_needs_no_configured_django_and_no_vendor() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False, timeout=60,
        env={"PYTHONPATH": ".", "PATH": ""},
    )  # fmt: skip
    assert done.stdout == "ok\n", done.stderr


# -- apps ----------------------------------------------------------------------------------------


def test_a_pickled_app_stores_as_well(app: Any) -> None:
    app.conf.outbox_exclude_tasks = ["excluded"]
    copy = pickle.loads(pickle.dumps(app))
    assert type(copy) is OutboxCelery
    assert copy.conf.outbox_exclude_tasks == ["excluded"]
    copy.send_task("from.the.copy")
    assert names() == ["from.the.copy"]


def test_a_subclass_stores_as_well(make_app: Callable[..., Any]) -> None:
    class Ours(OutboxCelery):  # type: ignore[misc]
        def send_task(self, *args: Any, **kwargs: Any) -> Any:
            kwargs.setdefault("headers", {})["ours"] = True
            return super().send_task(*args, **kwargs)

    make_app(Ours).send_task("a.task")
    assert messages(datetime.now(timezone.utc))[0].headers["ours"] is True


def test_an_app_that_is_not_current_stores_as_well() -> None:
    current = Celery("current", broker="memory://")
    try:
        app = OutboxCelery("other", broker="memory://", set_as_current=False)
        app.send_task("other.task")
        assert names() == ["other.task"]
    finally:
        current.close()


def test_task_classes_of_every_kind_store(make_app: Callable[..., Any]) -> None:
    class Base(Task):
        pass

    app = OutboxCelery("kinds", broker="memory://", set_as_current=False, task_cls=Base)

    class ClassBased(app.Task):  # type: ignore[misc, name-defined]
        name = "kinds.class"

        def run(self, x: int) -> int:
            return x

    @app.task(name="kinds.default", shared=False)
    def default(x: int) -> int:
        return x

    @app.task(name="kinds.based", base=Base, shared=False)
    def based(x: int) -> int:
        return x

    app.register_task(ClassBased()).delay(1)
    default.delay(2)
    based.delay(3)
    assert isinstance(default, Base)
    assert names() == ["kinds.class", "kinds.default", "kinds.based"]


def test_a_shared_task_stores_through_the_app_it_is_called_on(app: Any) -> None:
    @shared_task(name=f"shared.{uuid4().hex}")
    def shared() -> None:
        pass

    app.tasks[shared.name].delay()
    assert names() == [shared.name]


def test_producers_and_connections_of_the_caller_have_no_part_in_it(app: Any, add: Any) -> None:
    with app.connection_for_write() as unconnected:
        add.apply_async((1,), connection=unconnected)
        add.apply_async((1,), producer=app.amqp.Producer(unconnected, auto_declare=False))
        assert not unconnected.connected
    assert len(rows()) == 2


def test_beat_stores_and_is_not_warned(
    make_app: Callable[..., Any], caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    app = make_app(broker="memory://", beat_schedule={
        "by-name": {"task": "beat.unknown", "schedule": 1, "args": (1,)},
        "known": {"task": "enqueue.add", "schedule": 1, "args": (1, 2)},
        "later": {"task": "beat.later", "schedule": 1, "options": {"countdown": 60}},
    })  # fmt: skip
    service = beat.Service(app, schedule_filename=str(tmp_path / "schedule"))
    from celery import signals

    signals.beat_init.send(sender=service)
    scheduler = service.get_scheduler()
    for entry in scheduler.schedule.values():
        if entry.task in ("beat.unknown", "enqueue.add", "beat.later"):
            scheduler.apply_async(entry, producer=scheduler.producer, advance=False)
    scheduler.close()
    assert sorted(names()) == ["beat.later", "beat.unknown", "enqueue.add"]
    assert [row.task_name for row in rows() if row.eta] == ["beat.later"]
    assert "celery_outbox_not_in_transaction" not in caplog.text


def test_beat_goes_on_after_the_database_was_restarted(make_app: Callable[..., Any]) -> None:
    """No request ends in beat, so Django would never replace its connection."""
    from celery import signals

    app = make_app()
    signals.beat_init.send(sender=None)
    app.send_task("beat.before")
    with connection.cursor() as cursor, pytest.raises(OperationalError):
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    app.send_task("beat.after")
    assert names() == ["beat.before", "beat.after"]


def test_a_process_without_requests_recovers_from_a_lost_session(app: Any) -> None:
    """The call that meets the dead session fails, as with Django's ORM; the next one works."""
    app.send_task("before")
    end_session()
    with pytest.raises(OperationalError):
        app.send_task("lost")
    app.send_task("after")
    assert names() == ["before", "after"]


def test_a_session_that_works_is_kept_after_an_error(app: Any) -> None:
    """With it, what belongs to it: advisory locks, temporary tables, cursors."""
    with connection.cursor() as cursor, pytest.raises(ProgrammingError):
        cursor.execute("SELECT 1 FROM no_such_table")
    before = connection.connection
    app.send_task("after.an.error")
    assert connection.connection is before
    assert not connection.errors_occurred


def test_a_transaction_by_hand_is_not_rolled_back_by_a_call_after_an_error(app: Any) -> None:
    transaction.set_autocommit(False)
    try:
        app.send_task("first")
        connection.errors_occurred = True
        app.send_task("second")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert names() == ["first", "second"]


def end_session() -> None:
    """From outside, as a restart of the server does."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    other.close()


def test_many_threads_store_every_call_once(app: Any, add: Any) -> None:
    def work(start: int) -> None:
        for number in range(start, start + 25):
            with transaction.atomic():
                add.delay(number)
        connection.close()

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"[{100 * n + i}]" for n in range(6) for i in range(25)}
    assert {row.args for row in rows()} == expected
    assert len(rows()) == len(expected)


def test_threads_that_race_for_the_first_call_share_one_enqueue_side(
    make_app: Callable[..., Any],
) -> None:
    app, found, start = make_app(), [], threading.Barrier(8)

    def work() -> None:
        start.wait()
        found.append(app.outbox)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_the_task_sent_event_waits_in_the_row_and_is_dated_when_it_goes_out(
    make_app: Callable[..., Any],
) -> None:
    result = make_app(task_send_sent_event=True).send_task("a.task", (1,))
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    (message,) = messages(later)
    assert message.event is not None
    event = json.loads(message.event.body)
    assert (event["type"], event["uuid"]) == ("task-sent", result.id)
    assert event["timestamp"] == later.timestamp()
    assert message.event.exchange == "celeryev"
