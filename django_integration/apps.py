"""The Django app behind `INSTALLED_APPS = [..., "django_integration"]`."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """Registers the models under the label `celery_outbox`, and the system checks."""

    name = "django_integration"
    label = "celery_outbox"
    verbose_name = "Celery outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_integration import checks  # noqa: F401  registers them
