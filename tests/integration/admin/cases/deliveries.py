"""Messages for destinations in the admin: list, page of one, the table above, dead letters.

What the pages share with the outbox's is tried in `pages.py` and `message_page.py`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from celery_outbox_steps.fleet import COOLING_DOWN, RELAYING
from django_integration.admin import order, paging
from django_integration.models import (
    CeleryOutbox,
    CeleryOutboxDeadLetter,
    CeleryOutboxDelivery,
    CeleryOutboxPause,
    CeleryOutboxRelay,
)
from django_integration.schema import HELD_BACK_UNTIL
from django_integration.store import DjangoStore
from tests.integration.admin import project
from tests.integration.admin.cases.conftest import (
    DEAD,
    DELIVERIES,
    ERROR,
    OUTBOX,
    RELAYS,
    ago,
    ahead,
    buried,
    client_of,
    dead_event,
    event,
    failed,
    held_back,
    outbox_store,
    paced,
    person,
    reads,
    relay,
    waiting,
)
from tests.integration.admin.cases.message_page import fields, offered, page_of, url_of
from tests.integration.admin.cases.pages import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.test import Client

    Act = Callable[..., Any]

DESTINATIONS = {
    "events": {"url": "amqp://user:secret@mq.example/", "exchange": "domain"},
    "lake": {"url": "redis://lake.example/", "queue": "facts"},
}

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def destinations(settings: Any) -> Any:
    """The setting, to be changed by a test."""
    settings.CELERY_OUTBOX_DESTINATIONS = DESTINATIONS
    settings.CELERY_OUTBOX_EVENT_SOURCE = "/shop"
    return settings


@pytest.fixture
def freed(act: Act, django_capture_on_commit_callbacks: Any) -> Act:
    """As `act`, with what happens after its commit."""

    def freed(*args: Any, **kwargs: Any) -> Any:
        with django_capture_on_commit_callbacks(execute=True):
            return act(*args, **kwargs)

    return freed


def as_sent() -> Iterator[str]:
    """The events that a relay claims now, in this order."""
    store = DjangoStore("default", connection=connection, destinations=["events"])
    assert store.deliveries is not None
    return (row.task_id for row in store.deliveries.lane("events").claim(100, 60, "relay"))


def lines(client: Client) -> dict[str, Any]:
    summary = client.get(reverse(DELIVERIES)).context["outbox_summary"]()
    return {line.name: line for line in summary.lines}


def numbers(line: Any) -> dict[str, str]:
    return {number.name: number.text for number in line.numbers}


# -- the list -------------------------------------------------------------------------------------


def test_filter_by_destination_state_and_name(boss: Client) -> None:
    first, waits, lake = failed(key="order:7"), held_back(), event(to="lake", name="page.seen")
    assert listed(boss, DELIVERIES) == [lake.pk, waits.pk, first.pk]
    assert listed(boss, DELIVERIES, destination="events") == [first.pk, waits.pk]
    assert listed(boss, DELIVERIES, destination="gone") == []
    for query in ({}, {"destination": "events"}):
        assert listed(boss, DELIVERIES, state="held_back", **query) == [waits.pk]
        assert listed(boss, DELIVERIES, state="failing", **query) == [first.pk]
        assert listed(boss, DELIVERIES, state="backing_off", **query) == [first.pk]
    assert listed(boss, DELIVERIES, state="waiting") == [lake.pk]
    assert listed(boss, DELIVERIES, state="waiting", destination="events") == []
    assert listed(boss, DELIVERIES, task_name="page") == [lake.pk]
    assert listed(boss, DELIVERIES, task_name="page", destination="events") == []
    assert listed(boss, DELIVERIES, task_name="PAID", state="held_back") == [waits.pk]
    assert listed(boss, DELIVERIES, q=waits.task_id) == [waits.pk]
    assert listed(boss, DELIVERIES, q=waits.task_id, destination="lake") == []
    assert listed(boss, DELIVERIES, q="paid", state="failing", destination="events") == [first.pk]


def test_a_list_of_one_destination_is_in_the_order_in_which_they_are_due(boss: Client) -> None:
    rows = [event(due_at=ago(minutes=minutes)) for minutes in (1, 3, 2)]
    late, later, latest = rows[1], rows[2], rows[0]
    assert listed(boss, DELIVERIES, destination="events") == [late.pk, later.pk, latest.pk]
    assert listed(boss, DELIVERIES) == [row.pk for row in reversed(rows)]


def test_a_full_destination_hides_no_other(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "WINDOW", 4)
    for _ in range(5):
        failed()
    lake = failed(to="lake")
    assert lake.pk in listed(boss, DELIVERIES, state="failing")
    assert lake.pk in listed(boss, DELIVERIES, state="backing_off")


def test_a_held_back_message_links_to_what_it_waits_for(boss: Client) -> None:
    first, waits = failed(key="order:7"), held_back()
    dead, behind = dead_event(key="order:8"), held_back(key="order:8")
    free = held_back(key="order:9")
    page = boss.get(reverse(DELIVERIES)).content.decode()
    for earlier, noun in ((first, "message"), (dead, "dead letter")):
        assert f'waits for <a href="{url_of(earlier)}">{noun} {earlier.pk}</a>' in page
    assert "waits for a relay: its turn has come" in page
    assert f"{noun} {dead.pk}</a>: order.paid[{dead.task_id}]" in fields(boss, behind)["waits_for"]
    assert "until it is replayed or discarded" in fields(boss, behind)["waits_for"]
    assert ERROR.replace("'", "&#x27;") in fields(boss, waits)["waits_for"]
    assert "its turn has come" in fields(boss, free)["waits_for"]
    assert "due_exactly" not in fields(boss, free)
    assert "waits_for" not in fields(boss, first)


def test_a_dead_letter_is_linked_only_for_those_who_may_see_it() -> None:
    dead_event(key="order:8")
    waits = held_back(key="order:8")
    client = client_of(person("view_celeryoutboxdelivery"))
    assert "<a href" not in fields(client, waits)["waits_for"]


def test_keys_are_shown_as_people_write_them(boss: Client) -> None:
    row = failed(key="Straße:<b>7</b>")
    assert fields(boss, row)["shown_order_key"] == "Straße:&lt;b&gt;7&lt;/b&gt;"
    for page in (page_of(boss, row), boss.get(reverse(DELIVERIES)).content.decode()):
        assert "Straße:&lt;b&gt;7&lt;/b&gt;" in page
        assert "<b>7" not in page


# -- the page of one message ----------------------------------------------------------------------


def test_the_page_of_an_event_says_where_it_goes_and_what_it_is(boss: Client) -> None:
    row = failed(data={"id": 7, "note": "für später"}, key="order:7", headers={"tenant": "a<b"})
    found = fields(boss, row)
    assert found["exchange"] == "domain"
    assert found["routing_key"] == "order.paid"
    assert found["queue"] == "those that are bound to the exchange"
    assert "key order:7" in found["goes_to"]
    seen = re.sub(" +", " ", found["attributes"])
    for each in (
        "specversion 1.0", f"id {row.task_id}", "source /shop", "type order.paid",
        "partitionkey order:7", "datacontenttype application/json",
    ):  # fmt: skip
        assert each in seen
    assert "tenant  a&lt;b" in found["shown_headers"]
    assert "{&quot;id&quot;: 7, &quot;note&quot;: &quot;für später&quot;}" in found["shown_data"]
    assert "shown_args" not in found
    queued = fields(boss, event(to="lake"))
    assert (queued["queue"], queued["exchange"], queued["routing_key"]) == (
        "facts", "(default)", "facts",
    )  # fmt: skip


def test_no_page_shows_a_url(boss: Client) -> None:
    row = failed()
    for url in (url_of(row), reverse(DELIVERIES), reverse(DEAD), reverse(RELAYS)):
        text = boss.get(url).content.decode()
        assert "secret" not in text
        assert "mq.example" not in text


def test_a_destination_that_is_not_configured_any_more_is_said(
    boss: Client, destinations: Any
) -> None:
    row = failed(due_at=ago(hours=1))
    destinations.CELERY_OUTBOX_DESTINATIONS = {"lake": DESTINATIONS["lake"]}
    found = fields(boss, row)
    assert "not configured any more" in found["goes_to"]
    assert found["exchange"].startswith("not known")
    assert "not configured any more" in boss.get(reverse(DELIVERIES)).content.decode()
    assert lines(boss)["events"].verdict.level != "ok"
    assert listed(boss, DELIVERIES, state="waiting") == [row.pk]


def test_redacted_data_is_nowhere(boss: Client) -> None:
    row = failed(data=project.CARD, key="order:7")
    held_back(data=project.CARD)
    dead = dead_event(data=project.CARD, key="order:7")
    assert project.CARD in row.args
    for url in (url_of(row), url_of(dead), reverse(DELIVERIES), reverse(DEAD)):
        assert project.CARD not in boss.get(url).content.decode()
    for each in (row, dead):
        assert "&quot;[hidden]&quot;<" in fields(boss, each)["shown_data"]


def test_bytes_are_measured_only(boss: Client) -> None:
    row = event(data=b"\x80secret", content_type="application/x-protobuf")
    found = fields(boss, row)
    assert (
        found["shown_data"] == '<pre class="outbox-text">[7 bytes of application/x-protobuf]</pre>'
    )
    assert "datacontenttype  application/x-protobuf" in found["attributes"]
    assert found["payload_size"] == "7\xa0bytes"
    assert "secret" not in page_of(boss, row)


def test_the_page_of_a_task_for_another_installation(boss: Client) -> None:
    with transaction.atomic():
        sent = project.charge_card.apply_async(
            (7, project.CARD), outbox_destination="lake", queue="celery"
        )
    row = CeleryOutboxDelivery.objects.get(task_id=sent.id)
    found = fields(boss, row)
    assert (found["queue"], found["routing_key"]) == ("celery", "celery")
    assert "[7, &quot;[hidden]&quot;]" in found["shown_args"]
    assert "attributes" not in found


@pytest.mark.parametrize("options", ["{", "[]", "null", "7", '{"source": 1}', "[" * 100_000])
def test_what_cannot_be_read_is_said(boss: Client, options: str) -> None:
    assert "[not readable]" in fields(boss, failed(options=options))["attributes"]
    assert "[not readable]" in fields(boss, dead_event(options=options))["attributes"]


def test_hostile_text_is_harmless(boss: Client) -> None:
    nasty = "<script>alert(1)</script>\u202e\n"
    options = {"source": nasty, "time": nasty, "key": nasty, "headers": {nasty: nasty}}
    row = failed(options=json.dumps(options), args=nasty, destination=nasty, last_error=nasty)
    row.order_key = nasty
    row.save()
    waits = held_back(destination=nasty, order_key=nasty)
    dead = buried(failed(destination=nasty, order_key=nasty, options=json.dumps(options)))
    told = {nasty: {"state": nasty, "rate": nasty, "last_error": nasty}}
    relay("a", destinations=told)
    for paused in (nasty, "lake"):
        outbox_store().pause(nasty, nasty, paused)
    urls = [url_of(row), url_of(waits), url_of(dead)]
    for page in (DELIVERIES, DEAD, RELAYS):
        urls += [reverse(page), f"{reverse(page)}?destination=%3Cscript%3E%00"]
    for url in urls[:-1]:
        text = boss.get(url).content.decode()
        assert "<script>alert" not in text, url
        assert "\u202e" not in text, url


# -- operations -----------------------------------------------------------------------------------


def test_a_page_offers_what_can_be_done_with_its_message(boss: Client) -> None:
    later = event(due_at=ahead(hours=1), eta=ahead(hours=1))
    assert offered(boss, failed(key="order:7")) == ["retry_now", "discard"]
    assert offered(boss, held_back()) == ["discard"]
    assert offered(boss, event()) == ["discard"]
    assert offered(boss, later) == ["send_now", "cancel"]


def test_a_list_of_what_is_held_back_offers_no_cancel(boss: Client) -> None:
    held_back()
    page = boss.get(reverse(DELIVERIES), {"state": "held_back"})
    assert 'value="cancel"' not in page.content.decode()


def test_retry_now_does_not_overtake(boss: Client, act: Act) -> None:
    first, waits = failed(key="order:7"), held_back()
    second = failed(key="order:7", due_at=ahead(minutes=9))
    text = act(boss, DELIVERIES, "retry_now", second, waits).content.decode()
    assert "Due now: 1." in text
    assert "Left alone: 1." in text
    assert list(as_sent()) == []
    act(boss, DELIVERIES, "retry_now", first)
    assert next(as_sent()) == first.task_id
    waits.refresh_from_db()
    assert waits.due_at == HELD_BACK_UNTIL


def test_a_discarded_message_holds_back_no_other(boss: Client, freed: Act) -> None:
    first, *others = failed(key="order:7"), held_back(), held_back()
    elsewhere = held_back(key="order:8", to="lake")
    asked = boss.post(
        reverse(DELIVERIES), {"action": "discard", "_selected_action": first.pk, "index": 0}
    )
    assert "2 later messages with the same keys</strong> wait behind this one" in " ".join(
        asked.content.decode().split()
    )
    freed(boss, DELIVERIES, "discard", first)
    assert list(as_sent()) == [row.task_id for row in others]
    elsewhere.refresh_from_db()
    assert elsewhere.due_at == HELD_BACK_UNTIL
    assert LogEntry.objects.get().object_id == str(first.pk)


def test_a_discarded_message_from_the_middle_frees_no_other(boss: Client, freed: Act) -> None:
    first, middle, last = failed(key="order:7"), held_back(), held_back()
    freed(boss, DELIVERIES, "discard", middle)
    assert list(as_sent()) == []
    assert set(CeleryOutboxDelivery.objects.all()) == {first, last}


def test_cancel_frees_the_next_one_too(boss: Client, freed: Act) -> None:
    first = event(key="order:7", due_at=ahead(hours=1), eta=ahead(hours=1))
    waits = held_back()
    freed(boss, DELIVERIES, "cancel", first)
    assert list(as_sent()) == [waits.task_id]


def test_a_count_of_those_behind_stops(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "MOST_BEHIND", 2)
    first = failed(key="order:7")
    for _ in range(3):
        held_back()
    assert order.count_behind(CeleryOutboxDelivery, "default", [first.pk]) == 2
    assert order.count_behind(CeleryOutboxDelivery, "default", [failed().pk]) == 0
    assert order.count_behind(CeleryOutbox, "default", [waiting().pk]) == 0


def test_permissions_are_those_of_the_model(act: Act) -> None:
    row, other = failed(), failed()
    stranger = client_of(person("view_celeryoutbox", "delete_celeryoutbox"))
    assert stranger.get(reverse(DELIVERIES)).status_code == 403
    viewer = client_of(person("view_celeryoutboxdelivery"))
    assert offered(viewer, row) == []
    act(viewer, DELIVERIES, "discard", row)
    may_change = client_of(person("view_celeryoutboxdelivery", "change_celeryoutboxdelivery"))
    assert offered(may_change, row) == ["retry_now"]
    may_delete = client_of(person("view_celeryoutboxdelivery", "delete_celeryoutboxdelivery"))
    assert offered(may_delete, row) == ["discard"]
    assert not LogEntry.objects.exists()
    act(may_delete, DELIVERIES, "discard", row)
    assert list(CeleryOutboxDelivery.objects.all()) == [other]


# -- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_have_a_destination_and_a_filter_for_it(boss: Client) -> None:
    own, dead, lake = buried(), dead_event(key="order:7"), dead_event(to="lake")
    assert listed(boss, DEAD, destination="events") == [dead.pk]
    assert listed(boss, DEAD, destination="-") == [own.pk]
    assert listed(boss, DEAD, destination="lake", kind="message", task_name="paid") == [lake.pk]
    assert listed(boss, DEAD, destination="lake", task_name="charge") == []
    assert listed(boss, DEAD, q=dead.task_id, destination="lake") == []
    page = boss.get(reverse(DEAD)).content.decode()
    assert "key order:7" in page
    *_, tile = boss.get(reverse(DEAD)).context["summary"].tiles
    assert (tile.value, tile.note) == ("3", "2 for destinations")
    found = fields(boss, dead)
    assert (found["exchange"], found["shown_order_key"]) == ("domain", "order:7")
    assert "shown_args" in fields(boss, own)
    assert "goes_to" not in fields(boss, own)


def test_a_replayed_dead_letter_gets_its_place_back(boss: Client, freed: Act) -> None:
    dead, waits = dead_event(key="order:7"), held_back()
    text = freed(boss, DEAD, "replay", dead).content.decode()
    assert "Back in the outbox: 1." in text
    assert CeleryOutboxDelivery.objects.order_by("pk").first().pk == dead.position
    assert list(as_sent()) == [dead.task_id]
    waits.refresh_from_db()
    assert waits.due_at == HELD_BACK_UNTIL


def test_a_discarded_dead_letter_holds_back_no_other(boss: Client, freed: Act) -> None:
    dead, waits = dead_event(key="order:7"), held_back()
    asked = boss.post(url_of(dead), {"action": "discard"})
    assert "1 later message with the same key</strong> waits behind this one" in " ".join(
        asked.content.decode().split()
    )
    freed(boss, DEAD, "discard", dead)
    assert not CeleryOutboxDeadLetter.objects.exists()
    assert list(as_sent()) == [waits.task_id]


# -- above the list -------------------------------------------------------------------------------


def test_the_table_says_how_each_destination_does(boss: Client) -> None:
    event(due_at=ago(hours=2, minutes=3))
    failed(key="order:7")
    held_back()
    dead_event(to="lake")
    away = {"state": COOLING_DOWN, "rate": 0.0, "last_error": "OSError: no route <b>"}
    relay("a", destinations={"events": {"state": RELAYING, "rate": 12.5}, "lake": away})
    found = lines(boss)
    assert numbers(found["events"]) == {
        "Waiting": "1", "Held back": "1", "Backing off": "1", "Scheduled": "0", "Dead letters": "0",
    }  # fmt: skip
    assert found["events"].verdict.text.startswith("late: the oldest due message has waited 2 h")
    assert (found["events"].oldest_due, found["events"].per_minute) == ("2 h 3 min", "750")
    assert numbers(found["lake"])["Dead letters"] == "1"
    assert "its broker is away: OSError: no route <b>" in found["lake"].verdict.text
    assert found["lake"].last_error == ""  # the verdict has it
    page = boss.get(reverse(DELIVERIES)).content.decode()
    assert "?destination=events&amp;state=held_back" in page
    assert "<b>" not in page


def test_a_pause_of_a_destination_is_said_where_relays_and_destinations_are(boss: Client) -> None:
    relay("a", destinations={"events": {"state": "paused"}, "lake": {"state": RELAYING}})
    outbox_store().pause("moving <b>", "ann", "events")
    CeleryOutboxPause.objects.update(paused_at=ago(hours=2, seconds=5))
    assert lines(boss)["events"].verdict.text.startswith("paused for 2 h by ann: moving")
    assert lines(boss)["lake"].verdict.level == "ok"
    text = boss.get(reverse(RELAYS)).content.decode()
    assert "Destination events is paused for 2 h by ann: moving &lt;b&gt;" in text


def test_the_page_of_relays_says_what_each_does_for_destinations(boss: Client) -> None:
    away = {"state": COOLING_DOWN, "rate": 0.0, "last_error": "OSError: no route"}
    relay("a", destinations={"events": {"state": RELAYING, "rate": 12.5}, "lake": away})
    page = boss.get(reverse(RELAYS))
    told = re.sub("<[^>]*>", " ", page.content.decode())
    told = " ".join(told.split())
    assert "events relaying, 12.5/s lake cooling down after an outage OSError: no route" in told
    row = CeleryOutboxRelay.objects.get()
    assert "lake" in fields(boss, row)["does_for_destinations"]


def test_release_rates_say_how_long_messages_wait(boss: Client, destinations: Any) -> None:
    assert "Release rates" not in boss.get(reverse(DELIVERIES)).content.decode()
    destinations.CELERY_OUTBOX_RATES = {"order.*": "20/h", "<b>": "600/m"}
    for _ in range(3):
        event()
    paced("events", "order.*", 20 / 3600)
    for page in (DELIVERIES, OUTBOX):
        text = " ".join(re.sub("<[^>]*>", " ", boss.get(reverse(page)).content.decode()).split())
        assert re.search(r"order\.\* 20 per h up to [3-9] min", text)
        assert "&lt;b&gt; 10 per s none waits" in text


def test_without_destinations_there_is_no_new_noise(boss: Client, destinations: Any) -> None:
    destinations.CELERY_OUTBOX_DESTINATIONS = {}
    relay("a")
    waiting()
    buried()
    index = boss.get(reverse("admin:index")).content.decode()
    assert "Dead letters" in index
    assert "essages for destinations" not in index
    for page in (OUTBOX, DEAD, RELAYS, DELIVERIES):
        text = boss.get(reverse(page)).content.decode()
        for noise in ("Release rates", "For destinations", "outbox-destinations", ">Destinations<"):
            assert noise not in text
        assert "outbox-databases" not in text
    for page in (OUTBOX, DEAD, RELAYS):
        assert "estination" not in boss.get(reverse(page)).content.decode()


def test_with_destinations_the_pages_link_to_each_other(boss: Client) -> None:
    assert "Messages for destinations" in boss.get(reverse("admin:index")).content.decode()
    assert f'<a href="{reverse(DELIVERIES)}">' in boss.get(reverse(OUTBOX)).content.decode()


def test_a_wrong_setting_breaks_no_page(boss: Client, destinations: Any) -> None:
    row = failed()
    destinations.CELERY_OUTBOX_DESTINATIONS = {"events": {"url": 7}}
    destinations.CELERY_OUTBOX_RATES = 7
    for url in (url_of(row), reverse(DELIVERIES), reverse(OUTBOX), reverse(DEAD), reverse(RELAYS)):
        assert boss.get(url).status_code == 200


# -- cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query", ["", "?state=held_back", "?state=failing", "?destination=events", "?task_name=paid"]
)
def test_the_number_of_queries_does_not_depend_on_the_rows(boss: Client, query: str) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert boss.get(reverse(DELIVERIES) + query).status_code == 200
        return len(reads(captured))

    dead_event(key="order:8")
    for number in (7, 8):
        failed(key="order:7")
        held_back(key=f"order:{number}")
    event(to="lake")
    few = queries()
    for number in range(30):
        failed(key=f"order:{number}")
        held_back(key=f"order:{number % 10}")
    assert queries() == few
    assert few <= 28


def test_the_page_of_a_held_back_message_costs_few_queries(boss: Client) -> None:
    failed(key="order:7")
    row = held_back()
    with CaptureQueriesContext(connection) as captured:
        page_of(boss, row)
    assert len([sql for sql in reads(captured) if "celery_outbox" in sql]) <= 9
