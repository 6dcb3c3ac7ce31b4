"""Django's `CELERY_OUTBOX_*` settings as defaults of the Celery app's configuration.

A project that loads its settings with `namespace="CELERY"` has them there already; for all others
this is how they arrive. Everything in the package reads `app.conf.outbox_*` and nothing else.
"""

from __future__ import annotations

from typing import Any

from celery_outbox_steps.config import SETTINGS


def django_settings() -> dict[str, Any]:
    """What Django's settings say; nothing where Django is not configured."""
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    try:
        return {
            setting.conf_name: getattr(settings, setting.django_name)
            for setting in SETTINGS
            if hasattr(settings, setting.django_name)
        }
    except ImproperlyConfigured:
        return {}
