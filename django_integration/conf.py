"""Django's `CELERY_OUTBOX_*` settings as defaults of the Celery app's configuration.

A project that loads its settings with `namespace="CELERY"` has them there already; for all others
this is how they arrive. Everything in the package reads `app.conf.outbox_*` and nothing else.
"""

from __future__ import annotations

from typing import Any

from celery_outbox_steps.errors import ConfigurationError


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
        if getattr(settings, "MONITORING_METRICS_ENABLED", False):
            found.setdefault("outbox_metrics", "datadog")
    except ImproperlyConfigured:
        return {}
    return found


def celery_app() -> Any:
    """The app of `CELERY_OUTBOX_APP`, for management commands, or Celery's current one."""
    from celery import current_app
    from celery.utils.imports import symbol_by_name
    from django.conf import settings

    path = getattr(settings, "CELERY_OUTBOX_APP", None)
    if path is None:
        return current_app._get_current_object()  # noqa: SLF001  Celery's documented way
    try:
        return symbol_by_name(path) if isinstance(path, str) else path
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigurationError(
            f"CELERY_OUTBOX_APP = {path!r} can't be imported: {exc}. "
            'It is the dotted path of the Celery app, like "proj.celery.app".'
        ) from exc
