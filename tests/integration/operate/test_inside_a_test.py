"""The commands inside a project's `TestCase`: they see what its open transaction has written."""

from __future__ import annotations

import json
import unittest
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test import TestCase
from django.utils import timezone

from celery_outbox_steps.messages import Dead, Published
from django_integration import OutboxCelery
from django_integration.models import CeleryOutbox, CeleryOutboxDeadLetter
from django_integration.store import DjangoStore
from tests.integration.operate.test_commands import celery, manage, queued

if TYPE_CHECKING:
    from collections.abc import Callable


class Case(TestCase):
    """A user's test. Each is run by one of ours, on each database."""

    app: Any

    def setUp(self) -> None:
        with transaction.atomic():
            self.app.send_task("case.task")

    def stats(self) -> None:
        (found,) = json.loads(manage("celery_outbox_stats", "--format", "json"))
        assert found["in_outbox"] == 1
        assert "waiting        1\n" in celery(self.app, "status").output

    def drain(self) -> None:
        self.app.conf.outbox_batch_size = 2  # full batches: the relay would claim ahead
        for _ in range(4):
            self.app.send_task("case.task")
        assert "5 published" in manage("celery_outbox_drain")
        assert (queued(self.app), CeleryOutbox.objects.count()) == (5, 0)

    def replay(self) -> None:
        self.settle(Dead, "no", 1)
        assert "1 dead" in manage("celery_outbox_replay_dead_letter", "--all")
        assert CeleryOutbox.objects.due().count() == 1
        assert CeleryOutboxDeadLetter.objects.count() == 0

    def purge(self) -> None:
        self.settle(Published)
        self.app.send_task("case.task")
        self.settle(Dead, "no", 1)
        hour_ago = timezone.now() - timedelta(hours=1)
        CeleryOutbox.objects.update(published_at=hour_ago)
        CeleryOutboxDeadLetter.objects.update(dead_at=hour_ago)
        said = manage("celery_outbox_purge", "--published-older-than=1m", "--dead-older-than=1m")
        assert "1 published row, 1 dead letter and 0 inbox entries deleted" in said
        assert CeleryOutboxDeadLetter.objects.count() == 0

    def settle(self, outcome: Any, *details: Any) -> None:
        """What a relay does with the rows that wait."""
        store = DjangoStore("default", connection=connection, retention=60)
        rows = store.claim(10, 60, "relay")
        store.settle([outcome(row, *details) for row in rows], "relay")


@pytest.fixture(params=["postgresql", "mysql", "sqlite"])
def project(request: Any, use_database: Callable[..., None], settings: Any) -> Any:
    use_database(request.param)
    app = OutboxCelery("case", broker="memory://", set_as_current=False)
    app.conf.task_default_queue = f"case-{uuid4().hex[:8]}"
    settings.CELERY_OUTBOX_APP = Case.app = app
    return app


@pytest.mark.parametrize("name", ["stats", "drain", "replay", "purge"])
def test_the_commands_work_inside_of_a_tests_transaction(project: Any, name: str) -> None:
    result = unittest.TestResult()
    unittest.TestSuite([Case(name)]).run(result)
    assert [text for _, text in [*result.failures, *result.errors]] == []
    assert result.testsRun == 1
    assert CeleryOutbox.objects.count() == 0, "rolled back with the test"
    assert CeleryOutboxDeadLetter.objects.count() == 0
