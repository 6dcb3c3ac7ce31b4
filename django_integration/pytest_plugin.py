"""Fixtures for projects that test code which calls tasks: no broker, no relay, no worker.

    outbox                   the calls that this test has stored, and its events
    assert_task_sent         assert one of the calls, or see what was sent instead
    assert_event_published   assert one of the events, or see what was published instead
    fake_relay               relay them with the real relay, to brokers that record, or fail
    drain_outbox             run the tasks in the test, with every task that they call

    outbox_require_transaction   calls and events outside the code's own transactions raise

pytest loads this module in every environment that has the package, so it imports neither Django nor
Celery: a fixture does, on first use. `django_integration.testing` does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_integration.testing import Drain, EventPublished, FakeRelay, Outbox, TaskSent


def pytest_configure(config: pytest.Config) -> None:
    """pytest-django prepares a database only for tests that ask for one before they start."""
    with_django = config.pluginmanager.hasplugin("django")
    chosen = _FromPytestDjango() if with_django else _FromTheProject()
    config.pluginmanager.register(chosen, "celery_outbox_database")


class _FromPytestDjango:
    @pytest.fixture
    def _outbox_database(self, db: None) -> None:
        """pytest-django opens the database, and rolls the test back."""


class _FromTheProject:
    @pytest.fixture
    def _outbox_database(self) -> None:
        """The project prepares its database itself."""


@pytest.fixture
def _celery_outbox(_outbox_database: None) -> Outbox:
    """What the other fixtures use: a project may have a fixture of its own named `outbox`."""
    from django_integration.testing import Outbox

    return Outbox()


@pytest.fixture
def outbox(_celery_outbox: Outbox) -> Outbox:
    """The calls that this test has stored and no relay has taken yet, in order."""
    return _celery_outbox


@pytest.fixture
def assert_task_sent(_celery_outbox: Outbox) -> TaskSent:
    """`assert_task_sent(name, args=…, kwargs=…)`; returns the call."""
    from django_integration.testing import TaskSent

    return TaskSent(_celery_outbox)


@pytest.fixture
def assert_event_published(_celery_outbox: Outbox) -> EventPublished:
    """`assert_event_published(name, data=…, to=…, key=…)`; returns the event."""
    from django_integration.testing import EventPublished

    return EventPublished(_celery_outbox)


@pytest.fixture
def fake_relay(_celery_outbox: Outbox) -> FakeRelay:
    """A relay whose brokers record (`published`, `published_events`) and fail on request."""
    from django_integration.testing import FakeRelay

    return FakeRelay(_celery_outbox)


@pytest.fixture
def drain_outbox(_celery_outbox: Outbox) -> Drain:
    """`drain_outbox()` runs the stored tasks in this process and returns their results."""
    from django_integration.testing import Drain

    return Drain(_celery_outbox)


@pytest.fixture
def outbox_require_transaction() -> Iterator[None]:
    """A call outside `transaction.atomic()` raises `TransactionRequired`; the transaction around a
    Django test does not count. For all tests: `usefixtures = outbox_require_transaction` in the
    configuration of pytest."""
    from django.test import override_settings

    with override_settings(CELERY_OUTBOX_REQUIRE_TRANSACTION=True):
        yield
