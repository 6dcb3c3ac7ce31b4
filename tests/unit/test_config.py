"""The table of settings: what a value may be, which flag beats which setting, what contradicts."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.kinds import Address
from celery_outbox_steps.settings import BY_NAME, SETTINGS, RelayConfig, nearest, read


def app(**conf: Any) -> Any:
    return SimpleNamespace(conf={f"outbox_{name}": value for name, value in conf.items()})


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_default_is_valid_and_explained(setting: Any) -> None:
    parsed = setting.parse(setting.default)
    assert parsed == setting.default
    assert setting.help.endswith((".", '"datadog".'))
    assert setting.kind.words


def test_names_are_derived_in_one_way() -> None:
    setting = BY_NAME["stale_timeout"]
    assert (setting.django_name, setting.conf_name, setting.flag_name) == (
        "CELERY_OUTBOX_STALE_TIMEOUT", "outbox_stale_timeout", "--outbox-stale-timeout",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("batch_size", 1, 1),
        ("idle_time", 2, 2.0),
        ("stale_timeout", timedelta(minutes=10), 600.0),
        ("retention", timedelta(days=1), 86400.0),
        ("retention", None, None),
        ("exclude_tasks", ["a", "b"], ("a", "b")),
        ("exclude_tasks", {"a"}, ("a",)),
        ("metrics", None, ()),
        ("metrics", "datadog", ("datadog",)),
        ("metrics", "prometheus, datadog,prometheus", ("prometheus", "datadog")),
        ("metrics", ["prometheus", len], ("prometheus", len)),
        ("http", None, None),
        ("http", 9100, Address("127.0.0.1", 9100)),
        ("http", "9100", Address("127.0.0.1", 9100)),
        ("http", "0.0.0.0:9100", Address("0.0.0.0", 9100)),
        ("http", "[::1]:9100", Address("::1", 9100)),
        ("http", "a.host:1", Address("a.host", 1)),
        ("http", Address("::1", 9100), Address("::1", 9100)),
        ("redactor", len, len),
    ],
)
def test_values_that_work(name: str, value: Any, parsed: Any) -> None:
    assert read(app(**{name: value}).conf, name) == parsed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0), ("batch_size", True), ("batch_size", 1.0), ("batch_size", "500"),
        ("max_retries", -1), ("idle_time", 0), ("idle_time", float("nan")), ("idle_time", "1"),
        ("send_timeout", float("inf")), ("send_timeout", timedelta(0)), ("notify", 1),
        ("exclude_tasks", "a.task"), ("exclude_tasks", [""]), ("exclude_tasks", [1]),
        ("exclude_tasks", None), ("liveness_file", ""), ("store", None), ("redactor", 3),
        ("metrics", ""), ("metrics", "datadog,"), ("metrics", [3]), ("http", 0), ("http", 65536),
        ("http", True), ("http", ":9100"), ("http", "host:"), ("http", "::1:9100"), ("http", ""),
        ("http", "[]:1"), ("http", "[host]:1"), ("http", "http://host:1"), ("http", "host:+1"),
    ],
)  # fmt: skip
def test_values_that_do_not_are_refused_with_what_would(name: str, value: Any) -> None:
    setting = BY_NAME[name]
    with pytest.raises(ConfigurationError) as refused:
        read(app(**{name: value}).conf, name)
    assert str(refused.value) == (
        f"{setting.django_name} must be {setting.kind.words}, not {value!r}."
    )


def test_a_setting_beats_the_default() -> None:
    config = RelayConfig.from_app(app(batch_size=7))
    assert (config.batch_size, config.idle_time) == (7, 1.0)


@pytest.mark.parametrize(
    ("conf", "names"),
    [
        ({"stale_timeout": 10, "send_timeout": 10}, ("STALE_TIMEOUT", "SEND_TIMEOUT")),
        ({"backoff_time": 10, "max_backoff": 9}, ("MAX_BACKOFF", "BACKOFF_TIME")),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    conf: dict[str, Any], names: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RelayConfig.from_app(app(**conf))
    assert all(f"CELERY_OUTBOX_{name}" in str(refused.value) for name in names)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("CELERY_OUTBOX_BATCHSIZE", "CELERY_OUTBOX_BATCH_SIZE"),
        ("CELERY_OUTBOX_REDACTER", "CELERY_OUTBOX_REDACTOR"),
        ("CELERY_OUTBOX_DLQ_RETENTIONS", "CELERY_OUTBOX_DLQ_RETENTION"),
        ("CELERY_OUTBOX_METRICS_TASK_TAG", "CELERY_OUTBOX_METRICS_TASK_NAMES"),
        ("CELERY_OUTBOX_STRUCTLOG_ENABLED", "CELERY_OUTBOX_STRUCTLOG_CONTEXT_KEYS"),
        ("CELERY_OUTBOX_LOG_TRACEBACKS", None),
        ("SOMETHING_ELSE", None),
    ],
)
def test_the_nearest_known_name(written: str, meant: str | None) -> None:
    assert nearest(written) == meant
