"""System checks: one id per kind of problem, and a hint with every message."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from celery import Celery
from django.core.checks import Tags, registry
from django.test.utils import modify_settings, override_settings

from celery_outbox_steps import OutboxRelayStep
from celery_outbox_steps.settings import BY_NAME, FORMER, SETTINGS
from django_integration import OutboxCelery, once
from django_integration.app import check_installed
from django_integration.checks import (
    check_databases,
    check_once,
    check_settings,
    check_shared_tasks,
)
from tests.proj.current import current

if TYPE_CHECKING:
    from collections.abc import Callable

BAD = object()
WRONG = {
    "relay": "yes", "app": 5, "store": None, "databases": "default", "batch_size": 0,
    "idle_time": 0, "backoff_time": -1, "max_backoff": "1h", "max_retries": -1,
    "stale_timeout": float("inf"), "send_timeout": True, "shutdown_timeout": None,
    "broker_outage_cooldown": float("nan"), "liveness_file": 3, "exclude_tasks": "name",
    "require_transaction": 1, "notify": None, "declare": "no", "retention": -1,
    "dlq_retention": "forever", "keep_failed_tasks": "name", "redactor": 3,
    "structlog_context_keys": "request_id", "structlog_bind_in_tasks": "yes", "lineage": 1,
    "metrics": 1, "sample_interval": 0,
}  # fmt: skip


@pytest.fixture
def check() -> Callable[..., list[tuple[str, str, str]]]:
    """`check(CELERY_OUTBOX_X=1)`: (id, message, hint) of what is found, for an app like users'."""

    def run(conf: dict[str, Any] | None = None, **settings: Any) -> list[tuple[str, str, str]]:
        app = OutboxCelery("checked", set_as_current=False)
        app.conf.update(conf or {})
        settings = {"CELERY_OUTBOX_APP": "tests.proj.celery.app", **settings}
        with patch("tests.proj.celery.app", app), override_settings(**settings):
            return [(m.id, m.msg, m.hint) for m in check_settings()]

    return run


def test_the_defaults_are_fine(check: Callable[..., Any]) -> None:
    assert check() == []


@pytest.mark.parametrize("name", [s.name for s in SETTINGS if s.name != "app"])
def test_every_setting_is_checked(check: Callable[..., Any], name: str) -> None:
    setting = BY_NAME[name]
    ((id_, message, hint),) = check(**{setting.django_name: WRONG.get(name, BAD)})
    assert id_ == "celery_outbox.E001"
    assert message.startswith(f"{setting.django_name} must be {setting.kind.words}, not ")
    assert setting.help in hint


def test_what_the_app_is_configured_with_counts(check: Callable[..., Any]) -> None:
    assert [id_ for id_, *_ in check({"outbox_batch_size": -1})] == ["celery_outbox.E001"]
    assert check({"outbox_batch_size": 5}, CELERY_OUTBOX_BATCH_SIZE=-1) == []


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("CELERY_OUTBOX_BATCHSIZE", "CELERY_OUTBOX_BATCH_SIZE"),
        ("CELERY_OUTBOX_STALE_TIME", "CELERY_OUTBOX_STALE_TIMEOUT"),
        ("CELERY_OUTBOX_EXCLUDED_TASKS", "CELERY_OUTBOX_EXCLUDE_TASKS"),
    ],
)
def test_an_unknown_name_is_reported_with_the_nearest_known_one(
    check: Callable[..., Any], wrong: str, right: str
) -> None:
    assert check(**{wrong: 1}) == [
        ("celery_outbox.E002", f"{wrong} is not a setting.", f"Did you mean {right}?")
    ]


def test_an_unknown_name_in_the_apps_configuration_is_reported(check: Callable[..., Any]) -> None:
    ((id_, message, hint),) = check({"outbox_redacter": None})
    assert (id_, message) == ("celery_outbox.E002", "CELERY_OUTBOX_REDACTER is not a setting.")
    assert hint == "Did you mean CELERY_OUTBOX_REDACTOR?"


@pytest.mark.parametrize("name", ["redactor", "metrics", "store"])
@pytest.mark.parametrize("path", ["no.such.module", "json.no_such_name", "json:nothing"])
def test_a_path_that_cannot_be_imported_is_reported(
    check: Callable[..., Any], name: str, path: str
) -> None:
    ((id_, message, _),) = check(**{f"CELERY_OUTBOX_{name.upper()}": path})
    assert id_ == "celery_outbox.E003"
    assert message.startswith(f"CELERY_OUTBOX_{name.upper()} = {path!r} can't be imported")


def test_an_app_that_cannot_be_imported_is_reported(check: Callable[..., Any]) -> None:
    ((id_, message, _),) = check(CELERY_OUTBOX_APP="no.such.app")
    assert (id_, "CELERY_OUTBOX_APP" in message) == ("celery_outbox.E003", True)


@pytest.mark.parametrize(
    "settings",
    [
        {"CELERY_OUTBOX_APP": "no.such.app"},
        {"CELERY_OUTBOX_APP": 5},
        {"CELERY_OUTBOX_NOTIFY": "no"},
        {"CELERY_OUTBOX_DATABASES": "default"},
    ],
)
def test_what_one_check_reports_is_no_traceback_of_the_other(settings: dict[str, Any]) -> None:
    with override_settings(**settings):
        assert check_settings() != []
        assert check_databases(databases=["default"]) == []


def test_an_unknown_database_is_reported(check: Callable[..., Any]) -> None:
    ((id_, message, hint),) = check(CELERY_OUTBOX_DATABASES=["default", "odrers"])
    assert (id_, "'odrers'" in message, "'default'" in hint) == ("celery_outbox.E004", True, True)


@pytest.mark.parametrize(
    "settings",
    [
        {"CELERY_OUTBOX_STALE_TIMEOUT": 10, "CELERY_OUTBOX_SEND_TIMEOUT": 10},
        {"CELERY_OUTBOX_BACKOFF_TIME": 100, "CELERY_OUTBOX_MAX_BACKOFF": 99},
    ],
)
def test_settings_that_contradict_each_other_are_reported(
    check: Callable[..., Any], settings: dict[str, Any]
) -> None:
    ((id_, message, _),) = check(**settings)
    assert id_ == "celery_outbox.E005"
    assert all(name in message for name in settings)


URL = "amqp://user:hunter2@host//"


@pytest.mark.parametrize(
    ("options", "id_", "named"),
    [
        ({}, "E001", '"url"'),
        ({"url": URL, "exchnage": "domain"}, "E001", "'exchnage'"),
        ({"url": "hunter2"}, "E001", '"url"'),
        ({"url": URL, "queue": "a", "exchange": "b"}, "E001", '"exchange"'),
        ({"url": URL, "routing_key": "{nmae}"}, "E001", '"routing_key"'),
        ({"url": URL, "serializer": "jsno"}, "E001", '"serializer"'),
        ({"url": URL, "mandatory": "hunter2"}, "E001", '"mandatory"'),
        ({"url": URL, "max_retries": -1}, "E001", '"max_retries"'),
        ({"url": URL, "transport_options": "hunter2"}, "E001", '"transport_options"'),
        ({"url": URL, "send_timeout": 500.0, "max_backoff": 1.0}, "E005", "MAX_BACKOFF"),
        ({"url": "nosuch://user:hunter2@host"}, "E010", "No such transport: nosuch"),
        ({"url": "confluentkafka://user:hunter2@host"}, "E010", "install the library"),
        ({"url": "amqp://user:hunter2/#@host//"}, "E010", "must be percent-encoded"),
    ],
)
def test_a_wrong_destination_is_reported_with_its_name_and_option_and_without_its_password(
    check: Callable[..., Any], options: dict[str, Any], id_: str, named: str
) -> None:
    if "kafka" in str(options.get("url")) and find_spec("confluent_kafka"):
        pytest.skip("its library is installed")
    right = {"url": "memory://"}
    ((found, message, hint),) = check(
        CELERY_OUTBOX_DESTINATIONS={"events": right, "partner": options}
    )
    assert found == f"celery_outbox.{id_}"
    assert "CELERY_OUTBOX_DESTINATIONS['partner']" in message
    assert named in message
    assert "hunter2" not in f"{message}{hint}"


def test_a_url_in_place_of_a_name_is_not_shown(check: Callable[..., Any]) -> None:
    ((found, message, _),) = check(CELERY_OUTBOX_DESTINATIONS={URL: {"exchange": "domain"}})
    assert (found, "hunter2" in message) == ("celery_outbox.E001", False)


@pytest.mark.parametrize("rate", ["600", "600/w", "0/m", "-1/s", 600, None])
def test_a_wrong_rate_is_reported_with_its_pattern(check: Callable[..., Any], rate: Any) -> None:
    rates = {"mail.*": "600/m", "report.*": rate}
    ((found, message, _),) = check(CELERY_OUTBOX_RATES=rates)
    assert (found, "report.*" in message) == ("celery_outbox.E001", True)
    assert "600/m" in message, "what would be right"


def test_a_rate_for_what_does_not_exist_yet_is_fine(check: Callable[..., Any]) -> None:
    assert check(CELERY_OUTBOX_RATES={"no.such.task": "1/s"}) == []


def test_a_relay_without_its_step_is_reported(check: Callable[..., Any]) -> None:
    plain = Celery("plain", set_as_current=False)
    plain.conf.outbox_relay = True
    assert check(CELERY_OUTBOX_RELAY=True) == [], "an OutboxCelery has it"
    with (
        patch("tests.proj.celery.other", plain, create=True),
        override_settings(CELERY_OUTBOX_APP="tests.proj.celery.other"),
    ):
        (message,) = check_settings()
        assert message.id == "celery_outbox.E007"
        assert "app.steps['worker'].add(OutboxRelayStep)" in str(message.hint)
        plain.steps["worker"].add(OutboxRelayStep)
        assert check_settings() == []


def test_a_package_that_is_not_installed_is_reported() -> None:
    assert check_installed() == []
    with modify_settings(INSTALLED_APPS={"remove": ["django_integration"]}):
        (message,) = check_installed()
    assert message.id == "celery_outbox.E008"
    assert 'INSTALLED_APPS += ["django_integration"]' in str(message.hint)


def test_shared_tasks_of_another_app_are_reported() -> None:
    ours = OutboxCelery("ours", set_as_current=False)
    other = Celery("other", set_as_current=False)
    with current(ours):
        assert check_shared_tasks() == []
    for app, default in ((other, ours), (ours, other)):
        with current(app, default):
            (message,) = check_shared_tasks()
        assert message.id == "celery_outbox.W006"
        assert "they use the app 'other'" in message.msg
        assert "from proj.celery import app as celery_app" in str(message.hint)


@pytest.mark.parametrize("name", FORMER)
def test_a_setting_of_another_outbox_is_not_guessed_at(
    check: Callable[..., Any], name: str
) -> None:
    ((id_, _, hint),) = check(**{f"CELERY_OUTBOX_{name}": ["shop.charge"]})
    assert id_ == "celery_outbox.E002"
    assert hint == f"It is a setting of django-celery-outbox. {FORMER[name]}"
    assert "EXCLUDE_TASKS" not in hint


def test_database_checks_run_only_where_a_database_is_named() -> None:
    assert Tags.database in check_databases.tags
    assert "celery_outbox" in check_settings.tags
    assert check_settings in registry.registry.get_checks()
    assert check_databases(databases=None) == []


APPS = ["django.contrib.auth", "django_integration.apps.OutboxConfig"]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"TENANT_APPS": ["django_integration"]}, "TENANT_APPS"),
        ({"TENANT_TYPES": {"public": {"APPS": APPS}, "shop": {"APPS": APPS}}}, "['shop']"),
    ],
)
def test_an_outbox_in_the_schemas_of_tenants_is_reported(
    check: Callable[..., Any], settings: dict[str, Any], name: str
) -> None:
    ((id_, message, hint),) = check(**settings)
    assert (id_, name in message, "SHARED_APPS" in hint) == ("celery_outbox.E006", True, True)


def test_an_outbox_in_the_schema_that_all_tenants_share_is_right(check: Callable[..., Any]) -> None:
    types = {"public": {"APPS": APPS}, "shop": {"APPS": ["shop"]}}
    assert check(SHARED_APPS=APPS, TENANT_APPS=["shop"], TENANT_TYPES=types) == []


def _once_warnings(conf: dict[str, Any], **options: Any) -> list[str]:
    app = OutboxCelery("checked", set_as_current=False)
    app.conf.update(conf)
    using = options.pop("using", None)

    @app.task(name="shop.charge", shared=False, autoretry_for=(OSError,), **options)
    @once(using=using)
    def charge() -> None:
        """Protected."""

    @app.task(name="shop.mail", shared=False)
    def mail() -> None:
        """Not protected."""

    settings = {"CELERY_OUTBOX_APP": "tests.proj.celery.app"}
    with patch("tests.proj.celery.app", app), override_settings(**settings):
        found = check_once()
    assert all("shop.charge" in each.msg and each.hint for each in found)
    return [str(each.id) for each in found]


LATE = {"acks_late": True, "reject_on_worker_lost": True}


@pytest.mark.parametrize(
    ("conf", "options", "warned"),
    [
        ({}, {}, ["celery_outbox.W004"]),
        ({}, {"acks_late": True}, ["celery_outbox.W004"]),
        ({}, {"reject_on_worker_lost": True}, ["celery_outbox.W004"]),
        ({}, LATE, []),
        ({f"task_{name}": True for name in LATE}, {}, []),
        ({}, {**LATE, "using": "orders"}, ["celery_outbox.W005"]),
        ({"outbox_databases": ["default", "orders"]}, {**LATE, "using": "orders"}, []),
        ({}, {**LATE, "using": "default"}, []),
    ],
)
def test_what_once_needs_is_checked(
    conf: dict[str, Any], options: dict[str, Any], warned: list[str]
) -> None:
    assert _once_warnings(conf, **options) == warned
