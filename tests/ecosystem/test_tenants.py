"""django-tenants: the rows of all tenants wait in the public schema, and tasks run in theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ecosystem.scene import Scene

pytestmark = [
    pytest.mark.postgresql, pytest.mark.rabbitmq, pytest.mark.redis,
    pytest.mark.library("django-tenants"),
]  # fmt: skip

PROJECT = "tests.ecosystem.project.tenants"
SHARED = ["django_tenants", "tests.integration.tenants.customers", "django_integration"]
OF_TENANTS = ["django.contrib.contenttypes"]
TENANTS = ["acme", "globex"]
CALL_IN_EACH = f"""
from django_tenants.utils import schema_context
from {PROJECT} import {{task}}
for tenant in {TENANTS}:
    with schema_context(tenant), transaction.atomic():
        {{task}}.delay()
"""


@pytest.fixture
def scene(scene_with: Callable[..., Scene], databases: Any) -> Scene:
    alias = databases.make("postgres", suffix="_tenants")
    engine = "django_tenants.postgresql_backend"
    known = {key: connections.settings[alias][key] for key in ("NAME", "USER", "HOST", "PORT")}
    scene = scene_with(
        PROJECT,
        aliases={"default": alias},
        DATABASES={"default": {**known, "ENGINE": engine}},
        DATABASE_ROUTERS=["django_tenants.routers.TenantSyncRouter"],
        SHARED_APPS=SHARED,
        TENANT_APPS=OF_TENANTS,
        INSTALLED_APPS=[*SHARED, *OF_TENANTS],
        TENANT_MODEL="customers.Client",
        TENANT_DOMAIN_MODEL="customers.Domain",
    )
    scene.django("migrate_schemas", "--shared", "--verbosity", "0")
    scene.script(f"""
from tests.integration.tenants.customers.models import Client
for name in {TENANTS}:
    Client.objects.get_or_create(schema_name=name, name=name)
""")
    return scene


def test_rows_of_all_tenants_are_in_the_public_schema_and_run_in_their_own(scene: Scene) -> None:
    scene.script(CALL_IN_EACH.format(task="which_tenant"))
    assert scene.stage.rows() == len(TENANTS)
    scene.worker()
    for tenant in TENANTS:
        scene.wait_for_run(tenant)


@pytest.mark.parametrize(
    "tenant_first",
    [
        pytest.param("", id="OutboxCelery, TenantCelery"),
        pytest.param("1", id="TenantCelery, OutboxCelery"),
    ],
)
def test_a_retry_in_a_transaction_comes_again_in_the_same_tenant(
    scene: Scene, tenant_first: str
) -> None:
    scene.stage.environment["TENANT_FIRST"] = tenant_first
    scene.worker()
    scene.script(CALL_IN_EACH.format(task="again_in_tenant"))
    for tenant in TENANTS:
        scene.wait_for_run(f"again in {tenant}")
