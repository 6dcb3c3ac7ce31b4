"""Calls of all tenants are in one outbox, and each task runs in the schema of its caller."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery.contrib.testing.app import setup_default_app
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging
from django.db import ProgrammingError, connection, transaction
from django_tenants.utils import schema_context
from tenant_schemas_celery.app import CeleryApp as TenantCelery

from celery_outbox_steps import OutboxRelayStep
from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.status import status
from celery_outbox_steps.worker.startup import RelayCannotStart
from django_integration import OutboxCelery
from django_integration.checks import check_settings
from django_integration.models import CeleryOutbox
from tests.docs.pages import DOCS, blocks
from tests.helpers import wait_for
from tests.integration.tenants.customers.models import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_blocks_of_the_page_run() -> None:
    """Here and not with the other pages: tenant-schemas-celery connects to signals of Celery."""
    page = DOCS / "how-to" / "multi-tenancy.md"
    for block in blocks(page):
        if block.language == "python":
            exec(compile(block.text, str(page), "exec"), {"__name__": "page"})


class OutboxFirst(OutboxCelery, TenantCelery):
    pass


class TenantFirst(TenantCelery, OutboxCelery):
    pass


@pytest.fixture(params=[OutboxFirst, TenantFirst], ids=lambda cls: cls.__name__)
def app(request: pytest.FixtureRequest) -> Any:
    app = request.param("tenants", broker="memory://", set_as_current=False)
    app.conf.task_default_queue = f"tenants-{uuid4().hex[:8]}"
    app.conf.broker_transport_options = {"polling_interval": 0.02}
    app.steps["worker"].add(OutboxRelayStep)
    return app


@pytest.fixture
def tenants(transactional_db: None) -> Iterator[list[str]]:
    """Two tenants with schemas; TRUNCATE leaves those behind, so they are dropped."""
    made = []
    for name in ("acme", "globex"):
        client = Client(schema_name=name, name=name)
        client.auto_drop_schema = True
        client.save(verbosity=0)
        made.append(client)
    yield [client.schema_name for client in made]
    connection.set_schema_to_public()
    for client in made:
        client.delete()


@contextmanager
def relaying_worker(app: Any) -> Iterator[None]:
    def leave_it(**_: Any) -> None:
        """A worker takes over the root logger unless there is a receiver."""

    setup_logging.connect(leave_it)
    try:
        with (
            setup_default_app(app),
            start_worker(
                app,
                pool="solo",
                perform_ping_check=False,
                shutdown_timeout=30,
                outbox_relay=True,
                outbox_idle_time=0.1,
            ),
        ):
            yield
    finally:
        setup_logging.disconnect(leave_it)


def test_a_task_runs_in_the_schema_of_its_caller_also_after_a_retry_inside_atomic(
    app: Any, tenants: list[str]
) -> None:
    ran: list[tuple[str, int]] = []

    @app.task(name="tenants.it", bind=True, shared=False)
    def it(self: Any) -> None:
        with transaction.atomic():
            ran.append((connection.schema_name, self.request.retries))
            if self.request.retries == 0:
                raise self.retry(countdown=0)

    for name in tenants:
        with schema_context(name), transaction.atomic():
            it.delay()
    with relaying_worker(app):
        wait_for(lambda: len(ran) >= 4, timeout=30, message=lambda: f"ran: {ran}")
    assert sorted(ran) == [(name, retries) for name in tenants for retries in (0, 1)]


def test_the_rows_of_all_tenants_are_in_the_public_schema(app: Any, tenants: list[str]) -> None:
    for name in tenants:
        with schema_context(name), transaction.atomic():
            app.send_task("tenants.it")
    assert status(app)[0]["in_outbox"] == 2
    with schema_context("public"):
        assert CeleryOutbox.objects.pending().count() == 2


def test_a_rollback_in_a_tenants_schema_takes_the_call_with_it(
    app: Any, tenants: list[str]
) -> None:
    with schema_context(tenants[0]), transaction.atomic():
        app.send_task("tenants.it")
        transaction.set_rollback(True)
    assert status(app)[0]["in_outbox"] == 0


def test_without_the_public_schema_in_sight_a_call_raises(app: Any, tenants: list[str]) -> None:
    connection.set_schema(tenants[0], include_public=False)
    with pytest.raises(ProgrammingError, match="celery_outbox"), transaction.atomic():
        app.send_task("tenants.it")


def in_tenant_apps(settings: Any) -> None:
    settings.TENANT_APPS = [*settings.TENANT_APPS, "django_integration"]


def test_the_outbox_in_tenant_apps_is_an_error_of_the_system_checks(settings: Any) -> None:
    in_tenant_apps(settings)
    (found,) = check_settings()
    assert found.id == "celery_outbox.E006"
    assert "SHARED_APPS" in found.hint


def test_the_outbox_in_tenant_apps_keeps_a_relay_from_starting(app: Any, settings: Any) -> None:
    in_tenant_apps(settings)
    worker = app.Worker(pool="solo", outbox_relay=False)
    step = OutboxRelayStep(worker, outbox_relay=True)
    with pytest.raises(RelayCannotStart, match=r"TENANT_APPS.*SHARED_APPS"):
        step.create(worker)


def test_the_outbox_in_tenant_apps_is_never_shown_as_empty(app: Any, settings: Any) -> None:
    in_tenant_apps(settings)
    with pytest.raises(ConfigurationError, match="TENANT_APPS"):
        status(app)
