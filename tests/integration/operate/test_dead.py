"""`celery outbox dead`, and the kinds of dead letters in the other commands."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import connection

from celery_outbox_steps import arguments
from celery_outbox_steps.status_text import dead_text
from celery_outbox_steps.store import KINDS
from django_integration.models import CeleryOutbox, CeleryOutboxDeadLetter
from tests.integration.operate.test_commands import celery, manage


def when(text: str) -> str:
    """The text without the times and the ids of tasks."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]{8}Z  \d+ s ago", "<when>", text)
    return re.sub(r"\[[0-9a-f-]{36}\]", "[<id>]", text)


def test_both_kinds_are_listed_the_newest_first(app: Any, bury: Any, keep_failed: Any) -> None:
    (message,) = bury(1, "operate.message")
    task = keep_failed("operate.failed", "ValueError: first\nsecond")
    said = celery(app, "dead")
    assert (said.exit_code, when(said.output)) == (
        0,
        f"{task}  task  <when>  operate.failed[<id>]\n    ValueError: first\n"
        f"{message}  message  <when>  operate.message[<id>]\n    NotFound: no exchange\n",
    )
    assert when(manage("celery_outbox_dead")) == when(said.output)


def test_the_list_is_json_for_a_machine(app: Any, keep_failed: Any) -> None:
    task = keep_failed("operate.failed", "ValueError: first\nsecond")
    (found,) = json.loads(celery(app, "dead", "--json").output)
    letter = CeleryOutboxDeadLetter.objects.get()
    assert 0 <= found.pop("seconds") < 60
    assert found.pop("dead_at").startswith(f"{letter.dead_at:%Y-%m-%dT%H:%M:}")
    assert found == {
        "database": "default",
        "id": task,
        "kind": "task",
        "task_id": letter.task_id,
        "task_name": "operate.failed",
        "retries": 3,
        "failure_reason": "ValueError: first\nsecond",
        "destination": None,
    }


def test_the_list_ends_at_its_limit_and_says_so(app: Any, bury: Any) -> None:
    *_, newest = bury(3)
    said = celery(app, "dead", "--limit", "1")
    assert said.stdout.startswith(f"{newest}  message  ")
    assert "There are more than these 1: use a larger --limit." in said.stderr
    assert "There are more" not in celery(app, "dead", "--limit", "3").stderr


def test_names_and_kinds_are_selected(app: Any, bury: Any, keep_failed: Any) -> None:
    bury(1, "operate.a")
    keep_failed("operate.a")
    keep_failed("operate.b")
    assert celery(app, "dead", "--task-name", "*.a").output.count("operate.a[") == 2
    said = celery(app, "dead", "--task-name", "*.a", "--kind", "task").output
    assert (said.count("operate.a["), said.count("  task  ")) == (1, 1)
    nothing = celery(app, "dead", "--task-name", "no.*")
    assert (nothing.exit_code, nothing.output) == (
        0,
        "no dead letters of no.*; * and ? are wildcards\n",
    )
    assert json.loads(celery(app, "dead", "--task-name", "no.*", "--json").output) == []


def test_replay_and_purge_take_a_kind(app: Any, bury: Any, keep_failed: Any) -> None:
    bury(2)
    keep_failed("operate.failed")
    assert "1 dead letter replayed" in celery(app, "replay", "--kind", "task").output
    assert CeleryOutbox.objects.get().task_name == "operate.failed"
    keep_failed()
    purge = ("purge", "--dead-older-than", "0", "--kind", "message", "--dry-run")
    assert "2 dead letters" in celery(app, *purge).output
    assert "2 dead letters" in celery(app, *purge[:-1]).output
    assert CeleryOutboxDeadLetter.objects.get().kind == "task"


def test_discard_deletes_those_that_are_named_and_no_others(app: Any, bury: Any) -> None:
    bury(3)
    first, second, third = (each.pk for each in CeleryOutboxDeadLetter.objects.order_by("pk"))
    done = celery(app, "discard", str(first), str(third), "999999")
    assert done.stdout == "2 dead letters discarded\n"
    assert "999999" in done.stderr
    assert [each.pk for each in CeleryOutboxDeadLetter.objects.all()] == [second]
    assert json.loads(manage("celery_outbox_discard", str(second), "--json")) == {"discarded": 1}


def test_status_counts_failed_tasks(app: Any, bury: Any, keep_failed: Any) -> None:
    bury(1)
    keep_failed()
    said = celery(app, "status").output
    assert "dead letters   2\n" in said
    assert "failed tasks   1\n" in said
    assert json.loads(celery(app, "status", "--json").output)[0]["failed_tasks"] == 1


@pytest.mark.parametrize("kind", [None, "message"])
def test_what_a_relay_of_another_release_wrote_is_a_message(
    app: Any, bury: Any, kind: str | None
) -> None:
    """One that does not know the kind, and perhaps one that writes it."""
    bury(1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE celery_outbox_dead_letter SET kind = %s", [kind])
    assert json.loads(celery(app, "dead", "--json").output)[0]["kind"] == "message"
    assert "0 dead letters" in celery(app, "replay", "--kind", "task").output
    assert "1 dead letter replayed" in celery(app, "replay", "--kind", "message").output


def test_several_databases_are_named() -> None:
    letter = {
        "id": 7,
        "kind": "task",
        "task_id": "abc",
        "task_name": "shop.pay",
        "dead_at": "2026-11-18T09:14:03.000000+00:00",
        "seconds": 60.0,
        "failure_reason": "ValueError: no",
    }
    found = [{**letter, "database": name} for name in ("default", "orders")]
    first, _, second, _ = dead_text(found, None).splitlines()
    assert first == "7  task  2026-11-18T09:14:03Z  1 min ago  shop.pay[abc]  (default)"
    assert second.endswith("(orders)")


def test_the_commands_know_every_kind() -> None:
    assert arguments.KINDS == KINDS
