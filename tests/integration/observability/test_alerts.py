"""The alert rules of the docs, tried on what Prometheus would have scraped from real relays."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from django.db import connection, transaction

from celery_outbox_steps.destinations import destinations
from celery_outbox_steps.errors import Nacked, StoreError
from celery_outbox_steps.observe.metrics import METRICS
from celery_outbox_steps.store import TASK
from celery_outbox_steps.testing import RecordingPublisher
from django_integration.models import CeleryOutboxDeadLetter
from tests.helpers import require_program, wait_for
from tests.integration.observability.recorder import INTERVAL, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]

RULES = Path(__file__).parents[3] / "docs/files/alerts.yml"
ALERTS = {
    rule["alert"]: rule["labels"]["severity"]
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}
FIRED = 'group by (alertname, severity) (last_over_time(ALERTS{alertstate="firing"}[1d]))'
DASHBOARD = RULES.parent / "grafana-dashboard.json"
PARTNER = {"url": "amqp://guest@127.0.0.1:1//", "exchange": "domain"}
VARIABLES = {"$database": ".*", "$__rate_interval": "5m"}
BACKLOG = """
    INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, schema_version,
                               retries, created_at, due_at)
    SELECT gen_random_uuid(), task_name, args, kwargs, options, schema_version,
           retries, clock_timestamp(), clock_timestamp()
    FROM (SELECT * FROM celery_outbox ORDER BY id DESC LIMIT 1) AS last, generate_series(1, %s)
"""


@pytest.fixture
def promtool() -> str:
    return require_program("promtool")


@pytest.fixture
def record() -> Iterator[Callable[..., Recorder]]:
    made: list[Recorder] = []

    def new(*args: Any, **config: Any) -> Recorder:
        made.append(Recorder(*args, **config))
        return made[-1]

    yield new
    for each in made:
        each.stop()


@pytest.fixture
def relay(record: Callable[..., Recorder]) -> Recorder:
    """A relay at work."""
    found = record()
    found.start()
    return found


@pytest.fixture
def call(make_app: Callable[..., Any]) -> Callable[..., None]:
    app = make_app()

    def send(name: str = "shop.ship_order") -> None:
        with transaction.atomic():
            app.send_task(name)

    return send


@pytest.fixture
def answers(promtool: str, tmp_path: Path) -> Callable[..., None]:
    """`answers(series, {query: samples}, minutes)`: check what Prometheus answers in the end."""

    def check(series: list[dict[str, str]], wanted: dict[str, Any], minutes: float) -> None:
        questions = [
            {"expr": query, "eval_time": f"{minutes * 60:.0f}s", "exp_samples": samples}
            for query, samples in wanted.items()
        ]
        test = {"interval": f"{INTERVAL:.0f}s", "input_series": series}
        file = tmp_path / "test.yml"
        content = {"rule_files": [str(RULES)], "tests": [{**test, "promql_expr_test": questions}]}
        file.write_text(yaml.safe_dump(content))
        done = subprocess.run(
            [promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return check


@pytest.fixture
def fired(answers: Callable[..., None]) -> Callable[..., None]:
    """`fired(series, "An", "Alert")`: check that these alerts have fired, and no other."""

    def check(series: list[dict[str, str]], *names: str, minutes: float | None = None) -> None:
        scrapes = max((len(each["values"].split()) for each in series), default=0)
        wanted = [
            {"labels": f'{{alertname="{name}", severity="{ALERTS[name]}"}}', "value": 1}
            for name in names
        ]
        answers(series, {FIRED: wanted}, minutes or (scrapes - 1) * INTERVAL / 60)

    return check


def test_the_rules_are_valid(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_healthy_relay_fires_nothing(relay: Recorder, call: Any, fired: Any) -> None:
    relay.minutes(10, meanwhile=call)
    assert len(relay.publisher.published) == 20
    fired(relay.input_series())


def test_no_relay_at_all_pages(fired: Any) -> None:
    fired([], "OutboxHasNoRelay", minutes=5)


def test_a_relay_that_is_killed_pages(relay: Recorder, call: Any, fired: Any) -> None:
    relay.minutes(3, meanwhile=call)
    relay.minutes_without_target(5)
    fired(relay.input_series(), "OutboxHasNoRelay")


def test_a_relay_that_another_one_replaces_does_not_page(
    record: Callable[..., Recorder], call: Any, fired: Any
) -> None:
    first, second = record("first", relays=1), record("second", relays=1)
    first.start()
    second.start()
    assert second.service.state == "standing by"
    for _ in range(6):
        first.minutes(0.5, meanwhile=call)
        second.minutes(0.5)
    first.relays.stop(2)  # its slot is free at once; that of a dead relay is after 15 s
    wait_for(lambda: second.service.at_work, 20)
    first.minutes_without_target(5)
    second.minutes(5, meanwhile=call)
    fired(first.input_series() + second.input_series())


def test_a_broker_that_goes_away_with_no_batch_in_flight_pages(
    relay: Recorder, call: Any, fired: Any
) -> None:
    relay.minutes(2, meanwhile=call)
    relay.relays.broker_down()
    relay.minutes(6, meanwhile=call)
    assert relay.service.journal.counters["deferred"] == 0
    fired(relay.input_series(), "OutboxBrokerIsAway", "OutboxIsLate", "OutboxRelaysCannotWork")


def test_a_broker_that_accepts_nothing_pages(relay: Recorder, call: Any, fired: Any) -> None:
    relay.publisher.down = ConnectionRefusedError("no broker")
    relay.minutes(8, meanwhile=call)
    fired(relay.input_series(), "OutboxBrokerIsAway", "OutboxIsLate", "OutboxRelaysCannotWork")


def test_one_bad_message_does_not_page(relay: Recorder, call: Any, fired: Any) -> None:
    relay.publisher.fail_task("shop.bad", Nacked("no such exchange"))
    call("shop.bad")
    relay.minutes(20, meanwhile=call)
    assert relay.service.journal.counters["failed"] >= 3
    fired(relay.input_series())


def test_dead_letters_open_a_ticket(relay: Recorder, call: Any, fired: Any) -> None:
    relay.minutes(5, meanwhile=call)
    relay.publisher.fail_task("shop.bad", ValueError("too large"))
    call("shop.bad")
    relay.minutes(5, meanwhile=call)
    assert relay.service.journal.counters["dead"] == 1
    fired(relay.input_series(), "OutboxDeadLetters")


def test_failed_tasks_open_a_ticket(relay: Recorder, call: Any, fired: Any) -> None:
    relay.minutes(5, meanwhile=call)
    keep_failed_task()
    relay.minutes(5, meanwhile=call)
    fired(relay.input_series(), "OutboxFailedTasks")


def test_dead_letters_that_were_there_before_open_none(
    relay: Recorder, call: Any, fired: Any
) -> None:
    relay.publisher.fail_task("shop.bad", ValueError("too large"))
    call("shop.bad")
    wait_for(lambda: relay.service.journal.counters["dead"])
    relay.settle()
    relay.minutes(10, meanwhile=call)
    fired(relay.input_series())


def test_a_backlog_that_grows_opens_a_ticket_and_pages_when_it_is_late(
    record: Callable[..., Recorder], call: Any, fired: Any
) -> None:
    relay = record(batch_size=1)
    relay.start()
    relay.relays.broker_down()
    call()
    relay.relays.broker_up()
    relay.minutes(12, meanwhile=lambda: grow(call))
    assert relay.service.journal.counters["published"]
    fired(relay.input_series(), "OutboxBacklogGrows", "OutboxIsLate")


def test_a_pause_opens_a_ticket_and_pages_only_when_messages_are_late(
    relay: Recorder, call: Any, fired: Any
) -> None:
    relay.relays.pause("maintenance")
    relay.minutes(20)
    fired(relay.input_series(), "OutboxIsPaused")
    relay.minutes(5, meanwhile=call)
    fired(relay.input_series(), "OutboxIsLate", "OutboxIsPaused")


def test_a_database_that_goes_away_pages(relay: Recorder, call: Any, fired: Any) -> None:
    relay.minutes(3, meanwhile=call)

    def away(*_: Any, **__: Any) -> Any:
        raise StoreError("the database is away")

    relay.store.claim = relay.store.check_in = away
    wait_for(lambda: relay.service.state == "backing off after an error", 20)
    for _ in range(10):
        relay.scrape()
    fired(relay.input_series(), "OutboxRelaysCannotWork")


def test_a_relay_that_stood_still_for_longer_than_its_lease_opens_a_ticket(
    record: Callable[..., Recorder], call: Any, fired: Any
) -> None:
    relay = record(publisher=Overtaken())
    relay.start()
    relay.minutes(3)
    call()
    wait_for(lambda: relay.service.journal.counters["fenced"], 10)
    relay.minutes(3)
    fired(relay.input_series(), "OutboxLeaseTooShort")


@pytest.fixture
def publish(make_app: Callable[..., Any]) -> Callable[..., None]:
    app = make_app(outbox_destinations={"partner": PARTNER})

    def send(name: str = "order.paid", key: str | None = None) -> None:
        with transaction.atomic():
            app.outbox.publish(name, to="partner", key=key)

    return send


@pytest.fixture
def partner(record: Callable[..., Recorder]) -> Recorder:
    """A relay at work, with one for a destination."""
    found = record(destination=destinations({"partner": PARTNER})["partner"])
    found.start()
    return found


def test_a_healthy_destination_fires_nothing(
    partner: Recorder, call: Any, publish: Any, fired: Any
) -> None:
    partner.minutes(10, meanwhile=lambda: (call(), publish()))
    assert len(partner.partner.published) == len(partner.publisher.published) == 20
    fired(partner.input_series())


def test_a_destination_that_accepts_nothing_pages_however_well_the_others_do(
    partner: Recorder, call: Any, publish: Any, fired: Any, answers: Any
) -> None:
    partner.partner.down = ConnectionRefusedError("no partner")
    partner.minutes(8, meanwhile=lambda: (call(), publish()))
    assert len(partner.publisher.published) == 16
    alerts = ("OutboxBrokerIsAway", "OutboxIsLate", "OutboxRelaysCannotWork")
    fired(partner.input_series(), *alerts)
    named = [{"labels": '{destination="partner"}', "value": 3}]
    which = 'count by (destination) (ALERTS{alertstate="firing"})'
    answers(partner.input_series(), {which: named}, 7.5)


def test_a_dead_event_opens_a_ticket_and_those_behind_it_do_not_page(
    partner: Recorder, publish: Any, fired: Any
) -> None:
    partner.minutes(5, meanwhile=publish)
    partner.partner.fail_task("order.bad", ValueError("too large"))
    publish("order.bad", key="order:7")
    wait_for(lambda: partner.lane and partner.lane.journal.counters["dead"])
    partner.minutes(6, meanwhile=lambda: publish(key="order:7"))
    fired(partner.input_series(), "OutboxDeadLetters")


def test_every_query_of_the_dashboard_has_an_answer(
    relay: Recorder, call: Any, answers: Any
) -> None:
    def everything_happens() -> None:
        call()
        for name, metric in METRICS.items():
            if metric.kind == "counter":
                relay.meter.count(name, 1, {"database": "default", "task_name": "shop.ship_order"})

    relay.minutes(5, meanwhile=everything_happens)
    text = DASHBOARD.read_text()
    for variable, value in VARIABLES.items():
        text = text.replace(variable, value)
    queries = [
        target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]
    ]
    some = [{"labels": "{}", "value": 1}]
    answers(relay.input_series(), {f"count({query}) > bool 0": some for query in queries}, 4.5)


class Overtaken(RecordingPublisher):
    """While it publishes, another relay takes the rows over."""

    def publish(self, messages: Any, timeout: float) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE celery_outbox SET claimed_by = 'another'")
        connection.close()
        yield from super().publish(messages, timeout)


def keep_failed_task() -> None:
    """As `keep_failed_tasks` does."""
    CeleryOutboxDeadLetter.objects.create(
        kind=TASK, task_id="1", task_name="shop.ship_order", failure_reason="ValueError"
    )


def grow(call: Callable[..., None], rows: int = 1000) -> None:
    call()
    with connection.cursor() as cursor:
        cursor.execute(BACKLOG, [rows])
