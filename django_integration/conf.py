"""Django's `CELERY_OUTBOX_*` and `MONITORING_*` settings as defaults of the app's configuration.

A project that loads its settings with `namespace="CELERY"` has the former there already; for all
others this is how they arrive. Everything in the package reads `app.conf` and nothing else.
"""

from __future__ import annotations

from typing import Any

from celery_outbox_steps.settings import BY_NAME

MONITORING = (
    "MONITORING_METRICS_ENABLED",
    "MONITORING_STATSD_HOST",
    "MONITORING_STATSD_PORT",
    "MONITORING_STATSD_PREFIX",
    "MONITORING_STATSD_TAGS",
)


def django_settings() -> dict[str, Any]:
    """What Django's settings say; nothing where Django is not configured."""
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    try:
        # Unknown names come along, so that a worker can refuse a misspelled one.
        found = {
            name.removeprefix("CELERY_").lower(): getattr(settings, name)
            for name in dir(settings)
            if name.startswith("CELERY_OUTBOX_")
        }
        found |= monitoring_settings()
        if found.get("monitoring_metrics_enabled"):
            found.setdefault("outbox_metrics", "datadog")
    except ImproperlyConfigured:
        return {}
    return found


def monitoring_settings() -> dict[str, Any]:
    """The settings of the metrics agent, which may serve other packages as well."""
    from django.conf import settings

    return {name.lower(): getattr(settings, name) for name in MONITORING if hasattr(settings, name)}


def add_monitoring_settings(conf: Any) -> None:
    """For the worker of an app that is not an `OutboxCelery`, which has them already."""
    for name, value in monitoring_settings().items():
        conf.setdefault(name, value)


class DjangoDefaults:
    """The same as one dictionary, which can be brought up to date where Celery holds it."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def load(self) -> dict[str, Any]:
        found = django_settings()
        self._values.clear()
        self._values.update(found)
        return self._values


def celery_app() -> Any:
    """The app of `CELERY_OUTBOX_APP`, for management commands, or Celery's current one."""
    from celery import current_app
    from django.conf import settings

    found = BY_NAME["app"].load(getattr(settings, "CELERY_OUTBOX_APP", None))
    if found is None:
        return current_app._get_current_object()
    return found
