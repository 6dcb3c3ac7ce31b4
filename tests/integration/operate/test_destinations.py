"""What an operator sees of destinations, and does with them; also in two databases."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.core.management import CommandError
from django.db import connections, transaction
from kombu import Connection

from celery_outbox_steps.fleet import COOLING_DOWN, PAUSED, RELAYING
from celery_outbox_steps.messages import Dead
from celery_outbox_steps.operate import NotDrained, drain
from django_integration import OutboxCelery
from django_integration.models import CeleryOutbox, CeleryOutboxDeadLetter, CeleryOutboxDelivery
from django_integration.schema import RATE
from django_integration.store import DjangoStore
from tests.integration.operate.test_commands import celery, manage, queued

if TYPE_CHECKING:
    from collections.abc import Callable

AWAY = "amqp://guest:guest@127.0.0.1:1//"
REFUSED = "OperationalError: [Errno 111] Connection refused"


@pytest.fixture
def app(app: Any) -> Any:
    """With two destinations that are there, `events` and `lake`, and one that is away."""
    unique = uuid4().hex[:8]
    here = {name: {"url": "memory://", "queue": f"{name}-{unique}"} for name in ("events", "lake")}
    app.conf.outbox_destinations = {**here, "partner": {"url": AWAY, "queue": "p"}}
    with connections["default"].cursor() as cursor:
        cursor.execute(f"DELETE FROM {RATE}")
    return app


def publish(app: Any, *to: str, count: int = 1, **options: Any) -> None:
    for number in range(count):
        app.outbox.publish("order.paid", {"number": number}, to=list(to), **options)


def received(app: Any, destination: str) -> list[int]:
    """The messages in the queue of a destination."""
    queue = app.conf.outbox_destinations[destination]["queue"]
    with Connection("memory://") as broker:
        channel = broker.default_channel
        channel.queue_declare(queue)
        found = iter(lambda: channel.basic_get(queue, no_ack=True), None)
        return [json.loads(message.body)["number"] for message in found]


def kill(destination: str, count: int = 9, alias: str = "default") -> None:
    """A relay makes dead letters of the messages that are due for a destination."""
    with closing(DjangoStore(alias, destinations=[destination]).deliveries) as deliveries:
        lane = deliveries.lane(destination)
        rows = lane.claim(count, 60, "undertaker")
        lane.settle([Dead(row, "NotFound: no exchange", 1) for row in rows], "undertaker")


def late(seconds: int, table: str = "celery_outbox_delivery") -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET due_at = due_at - %s * interval '1 second'", [seconds])


def told(**states: tuple[str, str | None]) -> dict[str, dict[str, Any]]:
    """What a relay tells about destinations at its check-in."""
    return {
        name: {"state": state, "rate": 0.0, "last_error": error}
        for name, (state, error) in states.items()
    }


HEALTHY = told(events=(RELAYING, None), lake=(RELAYING, None), partner=(RELAYING, None))
TROUBLE = told(events=(RELAYING, None), lake=(PAUSED, None), partner=(COOLING_DOWN, REFUSED))


def verdicts(app: Any, *arguments: str) -> dict[str, str]:
    """By destination, the text of the verdict line."""
    lines = celery(app, "status", *arguments).output.splitlines()
    found = [line.split(maxsplit=2)[1:] for line in lines if line.startswith("  destination ")]
    return {name.rstrip(":"): text for name, text in found if name.endswith(":")}


class TestStatus:
    def test_each_destination_has_a_verdict(self, app, join, store):
        join("a", destinations=TROUBLE)
        store.pause("they moved", "ann", "lake")
        publish(app, "partner", count=2)
        said = verdicts(app)
        assert said["events"] == "healthy: 1 relay at work"
        assert said["lake"].startswith("paused for 0 s by ann: they moved; ")
        assert "`celery -A proj outbox resume lake` ends the pause" in said["lake"]
        assert said["partner"] == (
            f"its broker is away: {REFUSED}. 2 messages wait in the table, and its relay goes on"
            " trying"
        )

    def test_one_that_is_not_configured_any_more_is_shown_as_long_as_messages_wait(self, app, join):
        join("a", destinations=HEALTHY)
        publish(app, "lake")
        publish(app, "events")
        del app.conf.outbox_destinations["lake"]
        app.conf.outbox_destinations = dict(app.conf.outbox_destinations)
        assert verdicts(app)["lake"].startswith("not configured any more, though 1 message waits")
        late(100)
        assert verdicts(app)["lake"].startswith(
            "late: the oldest due message has waited 1 min 40 s"
        )
        CeleryOutboxDelivery.objects.filter(destination="lake").delete()
        assert set(verdicts(app)) == {"events", "partner"}

    def test_workers_with_older_settings_are_found(self, app, join):
        join("a", destinations=told(events=(RELAYING, None)))
        assert "no relay at work knows it: restart the workers" in verdicts(app)["lake"]

    def test_its_numbers_are_in_a_row_of_a_table(self, app, join):
        join("a", destinations=TROUBLE)
        publish(app, "events", count=3)
        publish(app, "events", countdown=900)
        publish(app, "lake", key="order:7")
        kill("lake")
        said = celery(app, "status").output.splitlines()
        titles, *rows, error = [line.strip() for line in said[-5:]]
        assert titles == (
            "destination  waiting  scheduled  in flight  backing off  held back  dead letters"
            "  oldest due  msg/s"
        )
        assert [row.split() for row in rows] == [
            ["events", "3", "1", "0", "0", "0", "0", "0", "s", "0.0"],
            ["lake", "0", "0", "0", "0", "0", "1", "-", "0.0"],
            ["partner", "0", "0", "0", "0", "0", "0", "-", "0.0"],
        ]
        assert error == f"last error     partner: {REFUSED}"

    def test_messages_that_a_dead_letter_holds_back_are_named(self, app, join):
        join("a", destinations=HEALTHY)
        publish(app, "events", count=3, key="order:7")
        kill("events", 1)
        assert "0 published" in celery(app, "drain", "--destination", "events").output
        said = verdicts(app)["events"]
        assert said.startswith(
            "2 messages wait for an earlier one of the same key, perhaps for the dead letter;"
        )
        assert "replay or discard it: celery -A proj outbox dead --destination events" in said
        celery(app, "replay", "--destination", "events")
        assert "3 published" in celery(app, "drain", "--destination", "events").output
        assert received(app, "events") == [0, 1, 2]

    def test_a_late_destination_fails_the_probe(self, app, join):
        join("a", destinations=HEALTHY)
        app.send_task("operate.task")
        publish(app, "events")
        late(100)
        assert celery(app, "status", "--max-age", "2m").exit_code == 0
        found = celery(app, "status", "--max-age", "90", "--json")
        (database,) = json.loads(found.output)
        assert (found.exit_code, database["verdict"]["late"]) == (1, False)
        late_ones = [each["destination"] for each in database["destinations"] if _is_late(each)]
        assert late_ones == ["events"]

    def test_the_json_has_an_object_for_each_destination(self, app, join, store):
        join("a", destinations=TROUBLE)
        store.pause("they moved", "ann", "lake")
        publish(app, "partner")
        (database,) = json.loads(celery(app, "status", "--json").output)
        events, lake, partner = database["destinations"]
        assert [each["destination"] for each in (events, lake, partner)] == [
            "events",
            "lake",
            "partner",
        ]
        assert (lake["pause"]["reason"], events["pause"]) == ("they moved", None)
        assert (partner["verdict"]["condition"], partner["waiting"]) == ("broker away", 1)
        assert (partner["last_error"], events["last_error"]) == (REFUSED, None)
        (relay,) = partner["relays"]
        assert (relay["worker"], relay["state"]) == ("celery@a", COOLING_DOWN)

    def test_without_destinations_and_rates_nothing_is_said_about_them(self, app, join):
        join("a")
        app.conf.outbox_destinations = {}
        app.send_task("operate.task")
        said = celery(app, "status").output
        assert not any(word in said for word in ("destination", "rate", "held back"))
        (found,) = json.loads(celery(app, "status", "--json").output)
        assert (found["destinations"], found["rates"]) == ([], [])

    def test_release_rates_say_for_how_long_messages_have_turns(self, app):
        app.conf.outbox_rates = {"order.*": "60/m", "mail.*": "90/h"}
        publish(app, "events", count=10)
        drained = celery(app, "drain")
        assert "A release rate leaves messages for their turn" in drained.stderr
        said = celery(app, "status").output
        assert "release rate   order.*: 1/s, waiting messages have turns for " in said
        assert "release rate   mail.*: 1.5/m, no message waits for its turn" in said
        (found,) = json.loads(celery(app, "status", "--json").output)
        assert [each["seconds"] > 3 for each in found["rates"]] == [True, False]


def _is_late(destination: dict[str, Any]) -> bool:
    return bool(destination["verdict"]["late"])


class TestDrain:
    def test_messages_for_destinations_are_drained_too(self, app):
        app.conf.outbox_destinations.pop("partner")
        app.conf.outbox_destinations = dict(app.conf.outbox_destinations)
        app.send_task("operate.task")
        publish(app, "events", "lake", count=3, key="order:7")
        assert "7 published" in celery(app, "drain").output
        assert (received(app, "events"), received(app, "lake")) == ([0, 1, 2], [0, 1, 2])
        assert (queued(app), CeleryOutboxDelivery.objects.count()) == (1, 0)

    def test_what_is_behind_many_messages_that_have_to_wait_is_drained(self, app):
        events = {**app.conf.outbox_destinations["events"], "batch_size": 1}
        app.conf.outbox_destinations = {**app.conf.outbox_destinations, "events": events}
        publish(app, "events", key="order:7")
        kill("events")
        publish(app, "events", key="order:7", count=30)
        publish(app, "events")
        assert "1 published" in celery(app, "drain", "--destination", "events").output
        assert CeleryOutboxDelivery.objects.held_back().count() == 30

    def test_one_destination_alone(self, app):
        app.send_task("operate.task")
        publish(app, "events", "lake")
        assert "1 published" in celery(app, "drain", "--destination", "lake").output
        assert "1 published" in manage("celery_outbox_drain", "--destination", "events")
        assert CeleryOutbox.objects.count() == 1

    def test_if_one_is_away_the_others_are_drained_and_it_is_named(self, app):
        app.send_task("operate.task")
        publish(app, "partner", "events", "lake")
        done = celery(app, "drain")
        assert done.exit_code == 1
        assert "3 published" in done.stdout
        assert "Destination 'partner' is not available: ConnectionRefusedError" in done.stderr
        row = CeleryOutboxDelivery.objects.get()
        assert (row.destination, row.retries, row.claimed_by) == ("partner", 0, None)

    def test_if_the_apps_own_broker_is_away_destinations_are_drained(self, app):
        app.conf.broker_url = AWAY
        app.send_task("operate.task")
        publish(app, "events")
        with pytest.raises(NotDrained, match="The broker is not available") as failed:
            drain(app)
        assert (failed.value.result.published, received(app, "events")) == (1, [0])

    def test_if_one_can_not_be_used_the_others_are_drained_and_it_is_named(self, app):
        lake = {"url": "nosuch://user:hunter2@host", "queue": "lake"}
        app.conf.outbox_destinations = {**app.conf.outbox_destinations, "lake": lake}
        publish(app, "lake", "events")
        done = celery(app, "drain")
        assert (done.exit_code, "1 published" in done.stdout) == (1, True)
        assert "['lake'] can't be used" in done.stderr
        assert "hunter2" not in done.stderr

    def test_one_that_is_paused_is_left_unless_it_is_named(self, app, store):
        publish(app, "events", "lake")
        store.pause("they moved", "ann", "lake")
        done = celery(app, "drain")
        assert "1 published" in done.stdout
        assert "Paused, and left as it is: lake." in done.stderr
        assert "1 published" in celery(app, "drain", "--destination", "lake").output

    def test_without_its_url_nothing_can_be_drained(self, app):
        refused = celery(app, "drain", "--destination", "former")
        assert refused.exit_code == 1
        assert "CELERY_OUTBOX_DESTINATIONS has events, lake, partner" in refused.output


class TestSelections:
    """`--destination` of `dead`, `replay`, `purge` and `scheduled`."""

    def test_dead_letters_are_listed_replayed_and_purged_by_destination(self, app, bury):
        bury(1)
        publish(app, "events", "lake")
        kill("events")
        kill("lake")
        every = celery(app, "dead").output
        assert (every.count("  to events\n"), every.count("  to lake\n")) == (1, 1)
        (letter,) = json.loads(celery(app, "dead", "--destination", "lake", "--json").output)
        assert (letter["destination"], letter["task_name"]) == ("lake", "order.paid")
        assert "1 dead letter replayed" in celery(app, "replay", "--destination", "lake").output
        assert CeleryOutboxDelivery.objects.get().destination == "lake"
        purge = ("--dead-older-than", "0", "--destination", "events")
        assert "1 dead letter and" in celery(app, "purge", *purge, "--dry-run").output
        assert "1 dead letter and" in manage("celery_outbox_purge", *purge)
        assert CeleryOutboxDeadLetter.objects.get().destination is None

    def test_published_messages_for_destinations_are_purged_too(self, app):
        app.conf.outbox_retention = 50
        publish(app, "events", "lake")
        assert "2 published" in celery(app, "drain").output
        CeleryOutboxDelivery.objects.filter(destination="lake").update(
            published_at="2020-01-01T00:00Z"
        )
        assert "1 published row, 0 dead letters" in celery(app, "purge").output
        assert CeleryOutboxDelivery.objects.get().destination == "events"

    def test_what_is_scheduled_is_listed_by_destination(self, app):
        app.send_task("operate.task", countdown=60)
        publish(app, "events", "lake", countdown=90)
        assert celery(app, "scheduled").output.count("order.paid") == 2
        said = celery(app, "scheduled", "--destination", "lake").output
        assert said.count("\n") == 1
        assert said.endswith("  to lake\n")
        assert celery(app, "scheduled", "--destination", "partner").output == (
            "nothing is scheduled to partner\n"
        )

    @pytest.mark.parametrize(
        "command", [("dead",), ("replay",), ("purge",), ("scheduled",), ("drain",)]
    )
    def test_a_destination_that_does_not_exist_is_refused(self, app, command):
        refused = celery(app, *command, "--destination", "partnr")
        assert refused.exit_code == 1
        assert "There is no destination 'partnr'" in refused.output
        assert "events, lake, partner" in refused.output

    def test_one_that_was_removed_from_the_settings_still_has_its_dead_letters(self, app):
        publish(app, "lake")
        kill("lake")
        app.conf.outbox_destinations = {}
        assert "order.paid" in celery(app, "dead", "--destination", "lake").output


class TestPause:
    def test_a_destination_is_paused_and_resumed(self, app, store):
        said = celery(app, "pause", "lake", "--reason", "they moved").output
        assert "Destination lake is paused." in said
        assert "until: celery -A proj outbox resume lake\n" in said
        fleet = store.fleet()
        assert (fleet.pause, fleet.pauses["lake"].reason) == (None, "they moved")
        assert "@" in fleet.pauses["lake"].paused_by
        assert "Destination lake is resumed." in manage("celery_outbox_resume", "lake")
        assert store.fleet().pauses == {}
        assert "Destination lake was not paused." in celery(app, "resume", "lake").output

    def test_without_a_name_the_whole_outbox_is_paused_and_what_stays_paused_is_said(
        self, app, store
    ):
        celery(app, "pause", "lake", "--reason", "they moved")
        assert "The outbox is paused." in manage("celery_outbox_pause", "--reason=upgrade")
        assert store.fleet().pause.reason == "upgrade"
        assert "the whole outbox is paused for 0 s" in verdicts(app)["events"]
        said = celery(app, "resume").output
        assert "The outbox is resumed." in said
        assert "Destination lake is paused for 0 s" in said
        assert (store.fleet().pause, set(store.fleet().pauses)) == (None, {"lake"})

    @pytest.mark.parametrize("command", ["pause", "resume"])
    def test_a_destination_that_does_not_exist_is_refused(self, app, store, command):
        refused = celery(app, command, "lkae")
        assert refused.exit_code == 1
        assert "There is no destination 'lkae'. There are events, lake, partner." in refused.output
        assert store.fleet().pauses == {}

    @pytest.mark.parametrize("command", ["pause", "resume"])
    def test_an_empty_name_is_not_the_whole_outbox(self, app, store, command):
        refused = celery(app, command, "")
        assert (refused.exit_code, store.fleet().pause) == (2, None)
        assert "name a destination, or leave the argument out" in refused.output
        with pytest.raises(CommandError, match="name a destination"):
            manage(f"celery_outbox_{command}", "")

    def test_one_that_was_removed_from_the_settings_can_be_resumed(self, app, store):
        celery(app, "pause", "lake")
        app.conf.outbox_destinations = {}
        assert "Destination lake is resumed." in celery(app, "resume", "lake").output

    @pytest.mark.parametrize(
        ("command", "heard"),
        [
            (("pause", "lake"), "outbox_pause"),
            (("resume", "lake"), "outbox_pause"),
            (("pause",), "outbox_pause"),
            (("resume",), "outbox_resume"),
        ],
        ids=" ".join,
    )
    def test_workers_are_told_to_look_at_once(self, app, worker_that_listens, command, heard):
        assert "Relays at work have been told." in celery(app, *command).output
        assert worker_that_listens() == [(heard, {"whole": True})]

    def test_with_the_broker_away_it_holds_and_says_so(self, app, store):
        app.conf.broker_url = AWAY
        said = celery(app, "pause", "lake")
        assert (said.exit_code, "lake" in store.fleet().pauses) == (0, True)
        assert "The workers can't be told (OperationalError" in said.output
        assert "see it within 3 s" in said.output


@pytest.fixture
def worker_that_listens(app: Any) -> Any:
    """Remote control as a worker receives it. Call it for the commands that came, and arguments."""
    found: list[tuple[str, dict[str, Any]]] = []
    with app.connection_for_read() as connection:
        node = app.control.mailbox.Node("celery@listens", channel=connection.default_channel)
        consumer = node.listen(
            callback=lambda body, _: found.append((body["method"], body["arguments"]))
        )

        def drain_events() -> list[tuple[str, dict[str, Any]]]:
            connection.drain_events(timeout=2)
            return found

        yield drain_events
        consumer.cancel()


class TestTwoDatabases:
    """Each with an outbox, and rows for destinations in it."""

    @pytest.fixture(params=["postgresql", "sqlite"])
    def app(self, request: Any, use_database: Callable[..., None], settings: Any) -> Any:
        for alias in ("default", "orders"):
            use_database(request.param, alias=alias, name=f"two-{alias}")
        app = OutboxCelery("two", broker="memory://", set_as_current=False)
        unique = uuid4().hex[:8]
        app.conf.update(
            task_default_queue=f"two-{unique}",
            outbox_databases=["default", "orders"],
            outbox_destinations={
                name: {"url": "memory://", "queue": f"{name}-{unique}"} for name in ("events", "b")
            },
        )
        settings.CELERY_OUTBOX_APP = app
        for alias in ("default", "orders"):
            with transaction.atomic(using=alias):
                publish(app, "events", count=2, using=alias)
                app.send_task("operate.task", outbox_using=alias)
        return app

    def test_status_shows_the_destinations_of_each(self, app):
        said = celery(app, "status").output
        assert said.count("\n  destination events: ") == 2
        assert said.count("\n  events             2") == 2
        (orders,) = json.loads(celery(app, "status", "--database", "orders", "--json").output)
        assert (orders["database"], orders["waiting"]) == ("orders", 1)
        assert [each["waiting"] for each in orders["destinations"]] == [0, 2]

    def test_drain_publishes_those_of_both_or_of_one(self, app):
        assert "3 published" in celery(app, "drain", "--database", "orders").output
        assert CeleryOutboxDelivery.objects.using("orders").count() == 0
        assert CeleryOutboxDelivery.objects.using("default").count() == 2
        said = manage("celery_outbox_drain", "--database", "default", "--database", "orders")
        assert "3 published" in said
        assert received(app, "events") == [0, 1, 0, 1]

    def test_a_destination_is_paused_in_both_or_in_one(self, app):
        said = celery(app, "pause", "events", "--database", "orders").output
        assert "Destination events in orders is paused." in said
        assert "outbox resume events --database orders\n" in said
        assert pauses("default", "orders") == [set(), {"events"}]
        celery(app, "pause", "events")
        assert pauses("default", "orders") == [{"events"}, {"events"}]
        celery(app, "resume", "events")
        assert pauses("default", "orders") == [set(), set()]

    def test_dead_letters_of_one_database_are_listed_replayed_and_purged(self, app):
        for alias in ("default", "orders"):
            kill("events", alias=alias)
        listed = celery(app, "dead", "--destination", "events").output
        assert (listed.count("(default)"), listed.count("to events  (orders)")) == (2, 2)
        only = ("--destination", "events", "--database", "orders")
        assert len(json.loads(celery(app, "dead", *only, "--json").output)) == 2
        assert "1 dead letter replayed" in celery(app, "replay", *only, "--limit", "1").output
        purge = ("purge", "--dead-older-than", "0", *only)
        assert "1 dead letter and" in celery(app, *purge).output
        left = [
            CeleryOutboxDeadLetter.objects.using(alias).count() for alias in ("default", "orders")
        ]
        assert left == [2, 0]

    def test_ids_that_stand_for_dead_letters_of_both_are_not_discarded(self, app):
        for alias in ("default", "orders"):
            CeleryOutboxDeadLetter(pk=7, task_id="a", task_name="a").save(using=alias)
        refused = celery(app, "discard", "7")
        assert refused.exit_code == 1
        assert "in several databases: default, orders. Name one" in refused.output
        done = celery(app, "discard", "7", "--database", "orders").output
        assert "1 dead letter discarded" in done
        assert CeleryOutboxDeadLetter.objects.using("default").filter(pk=7).exists()
        assert not CeleryOutboxDeadLetter.objects.using("orders").filter(pk=7).exists()

    @pytest.mark.parametrize(
        "command",
        [("status",), ("drain",), ("dead",), ("scheduled",), ("purge",), ("replay", "--all"),
         ("discard", "1"), ("pause",), ("resume",)],
        ids=" ".join,
    )  # fmt: skip
    def test_a_database_without_an_outbox_is_refused(self, app, command):
        refused = celery(app, *command, "--database", "odrers")
        assert refused.exit_code == 1
        assert "no outbox in a database 'odrers', but in default, orders" in refused.output


def pauses(*aliases: str) -> list[set[str]]:
    found = []
    for alias in aliases:
        store = DjangoStore(alias)
        found.append(set(store.fleet().pauses))
        store.close()
    return found
