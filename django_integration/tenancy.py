"""django-tenants: the outbox belongs to the public schema, which all tenants share.

A relay reads one schema. With the app in TENANT_APPS each tenant has outbox tables of its own, and
rows written there would never be published, while every tool reports an empty outbox. So this is
refused by a system check, by the worker and by the commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.conf import settings

from celery_outbox_steps.errors import ConfigurationError
from django_integration.apps import OutboxConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = {OutboxConfig.name, f"{OutboxConfig.__module__}.{OutboxConfig.__name__}"}
HINT = "Put django_integration into SHARED_APPS only; the rows of all tenants are then in one table"


def wrong_settings() -> Iterator[str]:
    """The settings of django-tenants that create an outbox in the tenants' schemas."""
    if NAMES.intersection(getattr(settings, "TENANT_APPS", ())):
        yield "TENANT_APPS"
    public = getattr(settings, "PUBLIC_SCHEMA_NAME", "public")
    for name, kind in getattr(settings, "TENANT_TYPES", {}).items():
        if name != public and NAMES.intersection(kind.get("APPS", ())):
            yield f"TENANT_TYPES[{name!r}]['APPS']"


def refuse_tenant_schemas() -> None:
    """Raise a `ConfigurationError` where rows may be in schemas that are not read."""
    for name in wrong_settings():
        raise ConfigurationError(
            f"{name} names django_integration: each tenant has an outbox of its own, which no "
            f"relay reads. {HINT}."
        )
