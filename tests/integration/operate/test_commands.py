"""What an operator types: `celery outbox …` and the management commands."""

from __future__ import annotations

import json
import re
from datetime import timedelta, timezone
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from django.core.management import CommandError, call_command
from django.db import connection

from celery_outbox_steps.cli import outbox
from celery_outbox_steps.errors import OutboxError
from celery_outbox_steps.fleet import STANDING_BY, WAITING_FOR_BROKER
from celery_outbox_steps.messages import Dead
from celery_outbox_steps.operate import drain, replay
from celery_outbox_steps.store import DeadLetters
from django_integration.models import (
    CeleryOutbox,
    CeleryOutboxDeadLetter,
    CeleryOutboxInbox,
    CeleryOutboxRelay,
)
from django_integration.store import DjangoStore
from django_integration.tasks import purge


def celery(app: Any, *arguments: str) -> Any:
    """`celery outbox <arguments>`, in this process."""
    return CliRunner().invoke(outbox, arguments, obj=SimpleNamespace(app=app))


def without_seconds(text: str) -> str:
    return re.sub(r"seen \d+ s", "seen - s", text)


def manage(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def age(table: str, column: str, seconds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {table} SET {column} = {column} - %s * interval '1 second'", [seconds]
        )


def queued(app: Any) -> int:
    with app.connection_for_write() as broker:
        queue = app.amqp.queues[app.conf.task_default_queue](broker.default_channel)
        return queue.queue_declare(passive=True).message_count


class TestStatus:
    def test_status_tells_a_person_what_waits_and_what_died(self, app, bury):
        bury(2)
        app.send_task("operate.task")
        said = celery(app, "status").output
        assert "database default" in said
        assert "waiting        1\n" in said
        assert "dead letters   2\n" in said

    def test_status_is_json_for_a_machine(self, app):
        app.send_task("operate.task")
        (found,) = json.loads(celery(app, "status", "--json").output)
        assert (found["database"], found["in_outbox"]) == ("default", 1)
        assert (found["waiting"], found["scheduled"]) == (1, 0)
        assert (found["in_flight"], found["backing_off"]) == (0, 0)
        assert (found["verdict"]["condition"], found["verdict"]["late"]) == ("no relay", False)
        assert (found["relays"], found["pause"]) == ([], None)

    def test_status_names_who_holds_rows_and_which_tasks_fail(self, app, store):
        app.send_task("operate.failing")
        app.send_task("operate.held")
        CeleryOutbox.objects.filter(task_name="operate.failing").update(
            retries=2, last_error="Unroutable: no queue"
        )
        store.claim(5, 60, "relay-1")
        said = celery(app, "status").output
        assert "held by        relay-1: 2 rows" in said
        assert "failing task   operate.failing: 1 row, Unroutable: no queue" in said

    def test_stats_says_the_same(self, app):
        app.send_task("operate.task")
        assert "waiting        1\n" in manage("celery_outbox_stats")
        assert json.loads(manage("celery_outbox_stats", "--format", "json"))[0]["waiting"] == 1

    def test_the_verdict_comes_first(self, app, join, store):
        assert celery(app, "status").output.startswith(
            "database default\n  no relay is running: start a worker with --outbox-relay\n"
        )
        join("a")
        assert "\n  healthy: 1 relay at work\n" in celery(app, "status").output
        store.pause("moving house", "ann")
        assert "by ann: moving house\n" in celery(app, "status").output.splitlines(keepends=True)[1]

    def test_status_lists_the_relays(self, app, join, store):
        join("a", rate=2.5)
        join("b", WAITING_FOR_BROKER, last_error="OperationalError: refused\nTraceback")
        join("c", STANDING_BY)
        join("d")
        store.check_out("d")
        join("e", STANDING_BY)
        CeleryOutboxRelay.objects.filter(relay_id="e").update(expires_at="2020-01-01T00:00Z")
        said = without_seconds(celery(app, "status").output)
        rate = "2.5 messages/s in the last minute"
        assert f"  relay          celery@a: relaying, slot 0, {rate}, seen - s ago\n" in said
        assert (
            "  relay          celery@b: waiting for the broker, slot 1, seen - s ago, "
            "last error: OperationalError: refused\n"
        ) in said
        assert "  standing by    celery@c: seen - s ago\n" in said
        assert "  stopped        1 relay, the last one seen - s ago\n" in said
        assert "  gone           celery@e: was standing by, seen - s ago\n" in said

    def test_many_standbys_are_one_line(self, app, join):
        for number in range(6):
            join(f"w{number}")
        said = without_seconds(celery(app, "status").output)
        assert "  standing by    4 relays, the last one seen - s ago\n" in said
        (found,) = json.loads(celery(app, "status", "--json").output)
        assert [each["slot"] for each in found["relays"]] == [0, 1, None, None, None, None]
        assert {each["worker"] for each in found["relays"]} == {f"celery@w{n}" for n in range(6)}


class TestProbe:
    """`status --max-age`: exit status 1 if a message is late, whatever the reason."""

    def test_without_an_age_the_status_is_0(self, app):
        app.send_task("operate.task")
        age("celery_outbox", "due_at", 7200)
        done = celery(app, "status")
        assert done.exit_code == 0
        assert "late: the oldest due message has waited 2 h; no relay is running" in done.output

    def test_a_message_that_is_due_for_longer_is_late(self, app):
        app.send_task("operate.task")
        age("celery_outbox", "due_at", 100)
        assert celery(app, "status", "--max-age", "90").exit_code == 1
        assert celery(app, "status", "--max-age", "2m").exit_code == 0
        with pytest.raises(SystemExit, match="1"):
            manage("celery_outbox_stats", "--max-age", "90")
        assert manage("celery_outbox_stats", "--max-age", "2m")

    def test_a_pause_is_no_excuse(self, app, join, store):
        join("a")
        store.pause("moving house", "ann")
        assert celery(app, "status", "--max-age", "60").exit_code == 0
        app.send_task("operate.task")
        age("celery_outbox", "due_at", 100)
        late = celery(app, "status", "--max-age", "60")
        assert (late.exit_code, "by ann: moving house" in late.output) == (1, True)

    def test_an_empty_outbox_is_not_late_even_without_a_relay(self, app):
        assert celery(app, "status", "--max-age", "60", "--json").exit_code == 0

    def test_a_scheduled_message_is_not_late(self, app):
        app.send_task("operate.task")
        age("celery_outbox", "created_at", 7200)
        age("celery_outbox", "due_at", -7200)
        done = celery(app, "status", "--max-age", "60")
        assert (done.exit_code, "scheduled      1\n" in done.output) == (0, True)


class TestDrain:
    def test_drain_publishes_everything_that_is_due(self, app):
        with app.outbox_bulk():
            for number in range(700):
                app.send_task("operate.task", (number,))
        assert "700 published" in celery(app, "drain").output
        assert (queued(app), CeleryOutbox.objects.count()) == (700, 0)

    def test_the_management_command_does_the_same(self, app):
        app.send_task("operate.task")
        assert "1 published, 0 to be tried again, 0 dead letters" in manage("celery_outbox_drain")
        assert queued(app) == 1

    def test_drain_is_json_for_a_machine(self, app):
        app.send_task("operate.task")
        said = json.loads(celery(app, "drain", "--json").output)
        assert said == {"published": 1, "failed": 0, "dead": 0, "expired": 0}

    def test_with_the_broker_away_it_fails_and_keeps_the_rows(self, app):
        app.conf.broker_url = "amqp://guest:guest@127.0.0.1:1//"
        app.send_task("operate.task")
        with pytest.raises(OutboxError, match="broker is not available"):
            drain(app)
        row = CeleryOutbox.objects.get()
        assert (row.retries, row.claimed_by) == (0, None)

    def test_with_the_broker_away_it_exits_with_a_reason(self, app):
        app.conf.broker_url = "amqp://guest:guest@127.0.0.1:1//"
        app.send_task("operate.task")
        refused = celery(app, "drain")
        assert refused.exit_code == 1
        assert "The broker is not available" in refused.output


class TestReplay:
    def test_replay_moves_the_named_dead_letters_back(self, app, bury):
        first, *_ = bury(3)
        assert "1 dead letter replayed" in celery(app, "replay", str(first)).output
        assert (CeleryOutbox.objects.due().count(), CeleryOutboxDeadLetter.objects.count()) == (
            1,
            2,
        )

    def test_replay_names_the_ids_that_no_dead_letter_has(self, app, bury):
        first, second, _ = bury(3)
        said = celery(app, "replay", str(first), str(second), "9998", "9999")
        assert "2 dead letters replayed" in said.output
        assert "No dead letter that matches has the id 9998, 9999." in said.output
        again = celery(app, "replay", str(first), "--dry-run")
        assert f"has the id {first}." in again.output

    def test_replay_takes_a_task_name(self, app, bury):
        bury(2, "operate.a")
        bury(1, "operate.b")
        celery(app, "replay", "--task-name", "operate.a")
        assert CeleryOutboxDeadLetter.objects.get().task_name == "operate.b"

    @pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
    def test_a_time_means_the_same_in_both_commands_whatever_the_projects_zone(
        self, app, bury, settings, zone
    ):
        bury(1)
        settings.TIME_ZONE = zone
        died = CeleryOutboxDeadLetter.objects.get().dead_at
        for hours, matching in ((-1, 1), (1, 0)):
            at = died + timedelta(hours=hours)
            tokyo = at.astimezone(timezone(timedelta(hours=9)))
            for text in (f"{at:%Y-%m-%dT%H:%M:%S}", at.isoformat(), tokyo.isoformat()):
                said = f"{matching} dead letter{'' if matching == 1 else 's'} would be replayed"
                assert said in celery(app, "replay", "--since", text, "--dry-run").output
                assert said in manage(
                    "celery_outbox_replay_dead_letter", "--since", text, "--dry-run"
                )

    def test_what_is_no_time_is_refused_with_what_would_be(self, app):
        refused = celery(app, "replay", "--since", "yesterday")
        assert (refused.exit_code, "'--since'" in refused.output) == (2, True)
        assert "write 2026-11-01" in refused.output
        with pytest.raises(CommandError, match="--since: 'yesterday' is not a time: write 2026"):
            manage("celery_outbox_replay_dead_letter", "--since", "yesterday")

    def test_replay_takes_a_pattern(self, app, bury):
        bury(1, "operate.mail_a")
        bury(1, "operate.mail_b")
        bury(1, "operate.other")
        assert (
            "2 dead letters replayed"
            in celery(app, "replay", "--task-name", "operate.mail_*").output
        )
        said = manage("celery_outbox_replay_dead_letter", "--task-name", "*.othe?")
        assert "1 dead letter replayed" in said

    def test_replay_takes_no_more_than_its_limit_the_oldest_first(self, app, bury):
        *_, newest = bury(3)
        said = celery(app, "replay", "--all", "--limit", "2", "--dry-run").output
        assert "2 dead letters would be replayed" in said
        assert "1 dead letter replayed" in celery(app, "replay", "--all", "--limit", "1").output
        said = manage("celery_outbox_replay_dead_letter", "--all", "--limit", "1")
        assert "1 dead letter replayed" in said
        assert CeleryOutboxDeadLetter.objects.get().pk == newest
        assert celery(app, "replay", "--all", "--limit", "0").exit_code == 2
        with pytest.raises(CommandError, match="--limit: '0' is not a whole number"):
            manage("celery_outbox_replay_dead_letter", "--all", "--limit", "0")

    def test_replay_takes_a_range_of_time(self, app, bury):
        bury(1, "operate.old")
        age("celery_outbox_dead_letter", "dead_at", 86400 * 30)
        bury(1, "operate.new")
        hour_ago = CeleryOutboxDeadLetter.objects.latest("dead_at").dead_at - timedelta(hours=1)
        manage("celery_outbox_replay_dead_letter", "--until", hour_ago.isoformat())
        assert CeleryOutbox.objects.get().task_name == "operate.old"
        assert (
            "1 dead letter replayed"
            in celery(app, "replay", "--since", f"{hour_ago:%Y-%m-%dT%H:%M}").output
        )

    def test_what_dies_again_meanwhile_is_left_alone(self, app, bury, store):
        bury(3)
        rounds = []

        def die_again(replayed):
            rounds.append(replayed)
            assert len(rounds) == 1, "it would go on for ever"
            dead = store.claim(replayed, 60, "relay")
            store.settle([Dead(row, "NotFound: still no exchange", 1) for row in dead], "relay")

        assert replay(app, DeadLetters(), die_again) == 3
        assert CeleryOutboxDeadLetter.objects.count() == 3

    def test_a_dry_run_changes_nothing(self, app, bury):
        bury(2)
        assert (
            "2 dead letters would be replayed" in celery(app, "replay", "--all", "--dry-run").output
        )
        assert "2 dead letters would be replayed" in manage(
            "celery_outbox_replay_dead_letter", "--all", "--dry-run"
        )
        assert CeleryOutboxDeadLetter.objects.count() == 2

    def test_without_saying_which_nothing_is_replayed(self, app, bury):
        bury(1)
        refused = celery(app, "replay")
        assert refused.exit_code == 2
        assert "--task-name" in refused.output
        with pytest.raises(CommandError, match="--task-name"):
            manage("celery_outbox_replay_dead_letter")
        assert CeleryOutboxDeadLetter.objects.count() == 1


class TestPurge:
    def test_purge_deletes_what_is_older_than_its_retention(self, app, publish, bury):
        publish(3)
        bury(2)
        age("celery_outbox", "published_at", 100)
        age("celery_outbox_dead_letter", "dead_at", 100)
        publish(1)
        app.conf.outbox_retention = app.conf.outbox_dlq_retention = 50
        said = celery(app, "purge").output
        assert "3 published rows, 2 dead letters and 0 inbox entries deleted" in said
        assert CeleryOutbox.objects.published().count() == 1

    def test_purge_takes_ages_and_a_task_name(self, app, bury):
        bury(1, "operate.a")
        bury(1, "operate.b")
        age("celery_outbox_dead_letter", "dead_at", 100)
        said = manage("celery_outbox_purge", "--dead-older-than", "50", "--task-name", "operate.a")
        assert "0 published rows, 1 dead letter and 0 inbox entries deleted" in said
        assert CeleryOutboxDeadLetter.objects.get().task_name == "operate.b"

    def test_ages_have_units_and_names_are_patterns(self, app, bury):
        bury(1, "operate.a")
        bury(1, "operate.b")
        bury(1, "other.c")
        age("celery_outbox_dead_letter", "dead_at", 86400 * 15)
        said = celery(app, "purge", "--dead-older-than", "30d").output
        assert "0 dead letters and 0 inbox" in said
        said = celery(app, "purge", "--dead-older-than", "2w", "--task-name", "operate.*").output
        assert "2 dead letters and 0 inbox entries deleted" in said
        assert "1 dead letter and" in manage("celery_outbox_purge", "--dead-older-than", "2w")
        assert celery(app, "purge", "--dead-older-than", "soon").exit_code == 2
        with pytest.raises(CommandError, match="'soon' is not an age: write seconds, or 90s"):
            manage("celery_outbox_purge", "--dead-older-than", "soon")

    def test_a_dry_run_changes_nothing(self, app, bury):
        bury(2)
        age("celery_outbox_dead_letter", "dead_at", 100)
        said = celery(app, "purge", "--dead-older-than", "50", "--dry-run", "--json").output
        assert json.loads(said) == {"published": 0, "dead_letters": 2, "inbox": 0}
        assert CeleryOutboxDeadLetter.objects.count() == 2

    def test_the_task_for_beat_purges_by_the_settings(self, app, bury):
        bury(2)
        age("celery_outbox_dead_letter", "dead_at", 100)
        app.conf.outbox_dlq_retention = 50
        app.finalize()
        assert app.tasks[purge.name].run() == {"published": 0, "dead_letters": 2, "inbox": 0}

    def test_expired_entries_of_the_inbox_are_purged_in_chunks(self, app):
        app.conf.outbox_inbox_retention = 60
        for number in range(5):
            with app.outbox.once(f"expired {number}", keep=0.001):
                pass
        with app.outbox.once("kept"):
            pass
        assert "5 inbox entries would be deleted" in celery(app, "purge", "--dry-run").output
        store = DjangoStore("default")
        assert [store.purge_expired_entries(2) for _ in range(2)] == [2, 2]
        store.close()
        assert "1 inbox entry deleted" in manage("celery_outbox_purge")
        assert [each.inbox_key[:4] for each in CeleryOutboxInbox.objects.all()] == ["kept"]

    def test_waiting_rows_are_never_purged(self, app):
        app.send_task("operate.task")
        age("celery_outbox", "created_at", 10_000)
        celery(app, "purge", "--published-older-than", "1")
        assert CeleryOutbox.objects.count() == 1
