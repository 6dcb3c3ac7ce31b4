"""A project with tenants; TENANT_FIRST says in which order the two classes are combined."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.acceptance.project.settings")

from django.db import connection, transaction
from tenant_schemas_celery.app import CeleryApp as TenantCelery

from celery_outbox_steps import OutboxRelayStep
from django_integration import OutboxCelery
from tests.acceptance.project.app import write

if os.environ.get("TENANT_FIRST"):

    class App(TenantCelery, OutboxCelery):  # type: ignore[misc]
        pass

else:

    class App(OutboxCelery, TenantCelery):  # type: ignore[misc,no-redef]
        pass


app = App("tenants")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.steps["worker"].add(OutboxRelayStep)


@app.task(name="which_tenant", bind=True)
def which_tenant(self: Any) -> None:
    write(self.request.id, connection.schema_name)


@app.task(name="again_in_tenant", bind=True, default_retry_delay=0)
def again_in_tenant(self: Any) -> None:
    """Fails once inside a transaction, which is rolled back."""
    with transaction.atomic():
        if not self.request.retries:
            raise self.retry()
    write(self.request.id, f"again in {connection.schema_name}")
