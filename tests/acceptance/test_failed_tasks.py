"""A task that failed for good is a dead letter; a replay runs it again as if for the first time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, signature

from celery_outbox_steps.store import DeadLetters
from django_integration.store import DjangoStore
from tests import helpers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.stage import Stage

APP = "tests.acceptance.project.failing"
COLUMNS = "kind, task_name, retries, failure_reason, traceback, args, redacted_args, payload"
IS_TASK = "kind = 'task'"


class Failures:
    """A stage with one worker, whose failed tasks are kept."""

    def __init__(self, stage: Stage, pool: str = "prefork", **settings: Any) -> None:
        self.stage = stage
        kept = {"CELERY_OUTBOX_KEEP_FAILED_TASKS": ["*"], "CELERY_OUTBOX_IDLE_TIME": 0.1}
        relay = "DATABASES" not in settings
        settings = {**kept, **settings}
        self.worker = stage.worker(app=APP, relay=relay, pool=pool, settings=settings)

    def runs(self, task_id: str) -> list[dict[str, Any]]:
        """The requests of a task, run by run."""
        lines = self.stage.redis.lrange(f"{self.stage.prefix}:runs", 0, -1)
        return [run for line in lines if (run := json.loads(line))["id"] == task_id]

    def kept(self, task_id: str) -> list[dict[str, Any]]:
        where = f"{IS_TASK} AND task_id = '{task_id}'"
        sql = f"SELECT {COLUMNS} FROM celery_outbox_dead_letter WHERE {where}"
        return [dict(zip(COLUMNS.split(", "), row, strict=True)) for row in self.stage.sql(sql)]

    def wait_until_kept(self, task_id: str) -> dict[str, Any]:
        helpers.wait_for(lambda: self.kept(task_id), 30, self.stage.logs)
        (letter,) = self.kept(task_id)
        return letter

    def wait_for_runs(self, task_id: str, count: int) -> dict[str, Any]:
        """The request of the last run."""
        helpers.wait_for(lambda: len(self.runs(task_id)) >= count, 30, self.stage.logs)
        return self.runs(task_id)[-1]

    def mend(self) -> None:
        self.stage.redis.set(f"{self.stage.prefix}:mended", "1")

    def replay(self) -> int:
        store = DjangoStore(self.stage.aliases["default"])
        try:
            return store.replay(DeadLetters())
        finally:
            store.close()


@pytest.fixture
def failures(stage_with: Callable[..., Stage]) -> Callable[..., Failures]:
    def build(
        database: str = "postgres", broker: str = "rabbitmq", pool: str = "prefork", **settings: Any
    ) -> Failures:
        return Failures(stage_with(database, broker), pool, **settings)

    return build


def send_whole(stage: Stage) -> str:
    """A call with everything that a message can have."""
    (task_id,) = stage.enqueue(
        1,
        "fail",
        args=([1, 2],),
        kwargs={"who": "ann ☃"},
        headers={"tenant": "a"},
        priority=3,
        expires=3600,
        time_limit=50,
        link=[signature("record", ("linked",), immutable=True)],
        chain=[signature("record", ("continued",), immutable=True)],
    )
    return task_id


@pytest.mark.parametrize(
    ("database", "broker", "pool"),
    [
        ("postgres", "rabbitmq", "prefork"),
        ("mysql", "redis", "prefork"),
        ("sqlite", "redis", "threads"),
    ],
)
def test_a_failed_task_is_kept_and_runs_again(
    database: str, broker: str, pool: str, failures: Callable[..., Failures]
) -> None:
    stage = (found := failures(database, broker, pool)).stage
    task_id = send_whole(stage)
    letter = found.wait_until_kept(task_id)
    assert (letter["kind"], letter["task_name"], letter["retries"]) == ("task", "fail", 3)
    assert letter["failure_reason"] == "ValueError: not yet"
    assert 'raise ValueError("not yet")' in letter["traceback"]
    assert letter["args"] == "[[1, 2]]"
    assert len(found.runs(task_id)) == 3
    assert stage.ran_names() == []
    found.mend()
    replayed = stage.celery("outbox", "replay", "--kind", "task", "--all", app=APP)
    assert "1 dead letter replayed" in replayed
    again = found.wait_for_runs(task_id, 4)
    # The message is that of the last retry, in which Celery has made the task its own parent.
    assert again == {**found.runs(task_id)[2], "retries": 0, "expires": None}
    assert again == {**found.runs(task_id)[0], "parent_id": task_id, "expires": None}
    helpers.wait_for(lambda: sorted(stage.ran_names()) == ["continued", "linked"], 20, stage.logs)
    assert found.kept(task_id) == []
    assert stage.rows() == 0


def test_what_fails_in_other_ways(failures: Callable[..., Failures]) -> None:
    """One worker for all of them: what is kept, and with what."""
    stage = (found := failures()).stage
    (wrong,) = stage.enqueue(1, "no_arguments", args=(1,))
    assert found.wait_until_kept(wrong)["failure_reason"].startswith("TypeError: no_arguments()")
    (loud,) = stage.enqueue(1, "loud")
    letter = found.wait_until_kept(loud)
    assert letter["failure_reason"].startswith(r"ValueError: first line\n\x00\udfff ☃ 😀 xxx")
    assert len(letter["failure_reason"]) == 2_000
    assert 19_900 < len(letter["traceback"]) <= 20_000
    assert "Traceback (most recent call last)" in letter["traceback"]
    assert "characters left out" in letter["traceback"]
    (held,) = stage.enqueue(1, "fail_at_once", countdown=0.5)
    found.wait_until_kept(held)
    assert found.runs(held)[0]["outbox_eta"] is not None
    (slow,) = stage.enqueue(1, "slow")
    assert found.wait_until_kept(slow)["failure_reason"].startswith("TimeLimitExceeded: ")
    (killed,) = stage.enqueue(1, "killed", args=("SIGKILL",))
    assert "SIGKILL" in found.wait_until_kept(killed)["failure_reason"]
    found.mend()
    assert found.replay() == 5
    for task_id in (slow, killed, held):
        again = found.wait_for_runs(task_id, 2)
        assert again == {**found.runs(task_id)[0], "outbox_eta": None, "headers": None}
    found.wait_until_kept(wrong)  # it can't be mended here: two failures, two dead letters in time
    found.wait_until_kept(loud)
    assert found.kept(slow) == found.kept(killed) == []
    assert found.worker.lines("celery_outbox_failed_task_not_kept") == []


def test_what_is_not_kept(failures: Callable[..., Failures]) -> None:
    named = ["fail_*", "ignored", "rejected", "second_time", "endless", "eager"]
    found = failures(CELERY_OUTBOX_KEEP_FAILED_TASKS=named)
    stage = found.stage
    for task in ("ignored", "rejected", "second_time", "eager", "no_arguments"):
        stage.enqueue(1, task, **({"args": (1,)} if task == "no_arguments" else {}))
    (endless,) = stage.enqueue(1, "endless")
    found.wait_for_runs(endless, 1)
    (revoked,) = stage.enqueue(1, "fail_at_once", countdown=2)
    with Celery("plain", broker=stage.broker, set_as_current=False) as plain:
        plain.control.revoke(endless, terminate=True, signal="SIGKILL")
        plain.control.revoke(revoked)
    (expired,) = stage.enqueue(1, "fail_at_once", countdown=0.2, expires=0.1)
    found.worker.wait_for("Discarding revoked task")
    found.worker.wait_for("Terminating")
    (last,) = stage.enqueue(1, "fail_at_once")
    found.wait_until_kept(last)
    kept = stage.sql(f"SELECT task_id FROM celery_outbox_dead_letter WHERE {IS_TASK}")
    assert kept == [(last,)]
    assert found.runs(revoked) == found.runs(expired) == []
    assert found.worker.lines("celery_outbox_failed_task_not_kept") == []


def test_pickled_arguments_a_redactor_and_a_chord(failures: Callable[..., Failures]) -> None:
    """On MariaDB and Redis, whose requests do not say what serialised the arguments."""
    found = failures(
        *("mysql", "redis"),
        CELERY_ACCEPT_CONTENT=["json", "pickle"],
        CELERY_RESULT_BACKEND=f"redis://{helpers.require_service('redis').address}/12",
        CELERY_OUTBOX_REDACTOR=f"{APP}.redact",
    )
    stage = found.stage
    call = {"args": ({1: (2, 3)},), "serializer": "pickle", "compression": "zlib"}
    (pickled,) = stage.enqueue(1, "fail_at_once", kwargs={"secret": b"x"}, **call)
    letter = found.wait_until_kept(pickled)
    assert letter["redacted_args"] == '["hidden"]'
    assert letter["payload"] is not None
    stage.enqueue(1, "start_chord")
    helpers.wait_for(lambda: len(stage.dead_letters()) == 3, 20, stage.logs)
    found.mend()
    assert found.replay() == 3
    again = found.wait_for_runs(pickled, 2)
    assert again == found.runs(pickled)[0]
    assert (again["args"], again["kwargs"]) == ([{"1": [2, 3]}], {"secret": "b'x'"})
    headers = stage.redis.lrange(f"{stage.prefix}:chord", 0, -1)
    assert len(headers) == 2
    for task_id in headers:
        found.wait_for_runs(task_id, 2)
    stage.wait_until_ran(stage.enqueue(1))
    assert stage.ran_names() == [""]  # the body of the chord has failed with its header


def test_the_database_is_away(failures: Callable[..., Failures]) -> None:
    """The worker says so, and goes on."""
    away = {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": "1"}
    found = failures(pool="solo", DATABASES={"default": away})
    failed = found.stage.send_directly("fail_at_once")
    found.worker.wait_for("celery_outbox_failed_task_not_kept")
    (line,) = found.worker.lines("celery_outbox_failed_task_not_kept")
    assert f"ERROR/MainProcess] celery_outbox_failed_task_not_kept: fail_at_once[{failed}]" in line
    found.worker.wait_for("LookupError('at once')")
    found.stage.wait_until_ran([found.stage.send_directly()])
