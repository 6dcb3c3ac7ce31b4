"""Django's `CELERY_OUTBOX_*` and `MONITORING_*` settings as defaults of the app's configuration.

With `namespace="CELERY"` Celery itself reads the former into `app.conf`; for all other projects
this module does. The enqueue side and the relay read `app.conf` only. What the settings mean is in
`celery_outbox_steps.settings`.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps

from celery_outbox_steps.settings import BY_NAME
from django_integration.schema import APP_LABEL
from django_integration.upstream.celery import app_of_shared_tasks

NOT_INSTALLED = 'INSTALLED_APPS has no "django_integration"'
MONITORING = (
    "MONITORING_METRICS_ENABLED",
    "MONITORING_STATSD_HOST",
    "MONITORING_STATSD_PORT",
    "MONITORING_STATSD_PREFIX",
    "MONITORING_STATSD_TAGS",
)


def is_installed() -> bool:
    """Whether the project's INSTALLED_APPS has this package, once Django is set up."""
    return APP_LABEL in apps.app_configs


def django_settings() -> dict[str, Any]:
    """The settings found in Django's; empty if Django is not configured."""
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    try:
        # Unknown names are included, so that a worker can refuse a misspelled one.
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
    """The settings of the metrics agent, which other packages may share."""
    from django.conf import settings

    return {name.lower(): getattr(settings, name) for name in MONITORING if hasattr(settings, name)}


def add_monitoring_settings(conf: Any) -> None:
    """Add them as defaults in the worker of a plain `Celery` app; an `OutboxCelery` has them."""
    for name, value in monitoring_settings().items():
        conf.setdefault(name, value)


class DjangoDefaults:
    """`django_settings()` as one dictionary that is updated in place, because Celery keeps it."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def load(self) -> dict[str, Any]:
        found = django_settings()
        self._values.clear()
        self._values.update(found)
        return self._values


def celery_app() -> Any:
    """The app that `CELERY_OUTBOX_APP` names; Celery's current app if that is not set."""
    from celery import current_app
    from django.conf import settings

    before = app_of_shared_tasks()
    found = BY_NAME["app"].load(getattr(settings, "CELERY_OUTBOX_APP", None))
    if found is None:
        return current_app._get_current_object()
    if app_of_shared_tasks() is not before:
        _imported_here.append(found)
    return found


_imported_here: list[Any] = []


def is_imported_by_project(app: Any) -> bool:
    """Whether the project has imported its app before `celery_app()` did."""
    return all(app is not each for each in _imported_here)
