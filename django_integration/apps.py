"""The Django app behind `INSTALLED_APPS = [..., "django_integration"]`."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """Registers the models under the label `celery_outbox`, the system checks and the signals."""

    name = "django_integration"
    label = "celery_outbox"
    verbose_name = "Celery outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from celery_outbox_steps.observe.recorder import register
        from django_integration import checks  # noqa: F401  registers them
        from django_integration.signals import signal_recorder

        register(signal_recorder)
