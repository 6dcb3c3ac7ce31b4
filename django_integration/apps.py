"""The Django app behind `INSTALLED_APPS = [..., "django_integration"]`.

`ready()` registers the system checks and the signals. It opens no connection and loads no Celery
app, so that every management command can start. Next: `models.py`, `checks.py`, `signals.py`.
"""

from __future__ import annotations

from django.apps import AppConfig

from django_integration.schema import APP_LABEL


class OutboxConfig(AppConfig):
    """Registers the models under the label `celery_outbox`, the system checks and the signals."""

    name = "django_integration"
    label = APP_LABEL
    verbose_name = "Celery outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from celery_outbox_steps.observe.recorder import register
        from django_integration import checks  # noqa: F401  importing it registers the checks
        from django_integration.signals import signal_recorder

        register(signal_recorder)
