"""Fixtures for projects that test code which calls tasks: no broker, no relay, no worker.

    outbox             the calls that this test has stored
    assert_task_sent   assert one of them, or see what was sent instead
    fake_relay         relay them for real, to a broker that only remembers, or fails as told
    drain_outbox       run them here and now, with everything that they call

Loaded by every pytest run of an environment that has this package, so it imports nothing: Django
and Celery come with the first use of a fixture. The work is done in `django_integration.testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_integration.testing import Drain, FakeRelay, Outbox, TaskSent


def pytest_configure(config: pytest.Config) -> None:
    """pytest-django prepares a database only for tests that ask for one before they start."""
    with_django = config.pluginmanager.hasplugin("django")
    chosen = _FromPytestDjango() if with_django else _FromTheProject()
    config.pluginmanager.register(chosen, "celery_outbox_database")


class _FromPytestDjango:
    @pytest.fixture
    def _outbox_database(self, db: None) -> None:
        """pytest-django opens and rolls back."""


class _FromTheProject:
    @pytest.fixture
    def _outbox_database(self) -> None:
        """The project sees to its database itself."""


@pytest.fixture
def _celery_outbox(_outbox_database: None) -> Outbox:
    """What the others are made of: a project may have another fixture that it calls `outbox`."""
    from django_integration.testing import Outbox

    return Outbox()


@pytest.fixture
def outbox(_celery_outbox: Outbox) -> Outbox:
    """The calls that this test has stored and no relay has taken yet, in order."""
    return _celery_outbox


@pytest.fixture
def assert_task_sent(_celery_outbox: Outbox) -> TaskSent:
    """`assert_task_sent(name, args=…, kwargs=…)`; gives the call."""
    from django_integration.testing import TaskSent

    return TaskSent(_celery_outbox)


@pytest.fixture
def fake_relay(_celery_outbox: Outbox) -> FakeRelay:
    """A relay whose broker remembers (`published`) and fails when told to."""
    from django_integration.testing import FakeRelay

    return FakeRelay(_celery_outbox)


@pytest.fixture
def drain_outbox(_celery_outbox: Outbox) -> Drain:
    """`drain_outbox()` runs the stored tasks in this process and gives their results."""
    from django_integration.testing import Drain

    return Drain(_celery_outbox)
