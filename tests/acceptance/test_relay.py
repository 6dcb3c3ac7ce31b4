"""The promise itself: committed → runs, rolled back → never, and only where the flag says so."""

from __future__ import annotations

import pytest
from django.db import transaction

from tests import helpers
from tests.acceptance.stage import Stage


def test_committed_runs_and_rolled_back_never_does(stage: Stage) -> None:
    worker = stage.worker()
    alias = stage.aliases["default"]
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):
        ghost = stage.client.send_task("record", outbox_using=alias).id
        raise ZeroDivisionError
    ids = stage.enqueue(20)
    stage.wait_until_ran(ids)
    stage.wait_until_empty()
    assert ghost not in stage.ran()
    assert worker.complaints() == []
