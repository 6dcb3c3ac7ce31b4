"""Several databases with an outbox: each page is about the one that its query string names.

The second one is SQLite, as in a project that keeps the outbox beside different tables.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from celery_outbox_steps.fleet import RELAYING, Member
from django_integration.models import (
    CeleryOutbox,
    CeleryOutboxDeadLetter,
    CeleryOutboxDelivery,
    CeleryOutboxRelay,
)
from django_integration.store import DjangoStore
from tests.integration.admin.cases.conftest import (
    DEAD,
    DELIVERIES,
    OUTBOX,
    RELAYS,
    ahead,
    backing_off,
    buried,
    client_of,
    dead_event,
    failed,
    held_back,
    person,
    relay,
    waiting,
)
from tests.integration.admin.cases.message_page import url_of
from tests.integration.admin.cases.pages import listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client

    Act = Callable[..., Any]

ORDERS = "?database=orders"

pytestmark = pytest.mark.django_db(databases=["default", "orders"])


@pytest.fixture(autouse=True)
def both(settings: Any) -> Any:
    settings.CELERY_OUTBOX_DATABASES = ["default", "orders"]
    settings.CELERY_OUTBOX_DESTINATIONS = {"events": {"url": "memory://", "exchange": "domain"}}
    return settings


def moved(row: Any) -> Any:
    """The row, in the other database, with the same id."""
    kept = type(row).objects.get(pk=row.pk)
    type(row).objects.filter(pk=row.pk).delete()
    kept.save(using="orders", force_insert=True)
    return kept


def with_id(row: Any, row_id: int) -> Any:
    """The row, with the id of one in another database."""
    type(row).objects.filter(pk=row.pk).update(id=row_id)
    return type(row).objects.get(pk=row_id)


def numbers(client: Client, page: str, query: str = "") -> dict[str, str]:
    found = client.get(reverse(page) + query).context["summary"].tiles
    return {tile.name: tile.value for tile in found}


def switch(text: str) -> dict[str, str]:
    """The links above a page, by database; the chosen one has a star."""
    nav = re.search("<nav class=.outbox-databases.*?</nav>", text, re.DOTALL)
    found = re.findall('<a href="([^"]*)"( aria-current)?[^>]*>([^<]*)<', nav[0] if nav else "")
    return {
        f"{name}{'*' if chosen else ''}": url.replace("&amp;", "&") for url, chosen, name in found
    }


def test_a_list_shows_the_rows_of_the_chosen_database(boss: Client) -> None:
    for page, make in ((OUTBOX, waiting), (DELIVERIES, failed), (DEAD, buried)):
        here, there = make(), moved(make())
        assert listed(boss, page) == listed(boss, page, database="default") == [here.pk]
        assert listed(boss, page, database="orders") == [there.pk]
        name = there.task_name
        assert listed(boss, page, database="orders", task_name=name) == [there.pk]
        assert listed(boss, page, database="orders", q=there.task_id) == [there.pk]
        assert listed(boss, page, q=there.task_id) == []


def test_numbers_charts_destinations_and_relays_are_those_of_the_chosen_database(
    boss: Client,
) -> None:
    waiting()
    moved(backing_off())
    moved(buried())
    relay("here")
    elsewhere = DjangoStore("orders", connection=connections["orders"])
    about = {"destinations": {"events": {"state": RELAYING, "rate": 2.0}}}
    member = Member("there:1:ab", "celery@there", "1.0", RELAYING, **about)
    elsewhere.check_in(member, relays=1, wants_slot=True)
    elsewhere.pause("moving", "ann", "events")
    assert (numbers(boss, OUTBOX)["Waiting"], numbers(boss, OUTBOX)["Backing off"]) == ("1", "0")
    there = numbers(boss, OUTBOX, ORDERS)
    assert (there["Waiting"], there["Backing off"], there["Dead letters"]) == ("0", "1", "1")
    panels = boss.get(reverse(OUTBOX) + ORDERS).context["summary"].panels
    assert [panel.charts[1].total for panel in panels] == [1, 1]
    for query, seen, unseen in (("", "here", "there"), (ORDERS, "there", "here")):
        text = boss.get(reverse(RELAYS) + query).content.decode()
        assert f"celery@{seen}" in text
        assert f"celery@{unseen}" not in text
        assert ("Destination events is paused" in text) == (seen == "there")
    table = boss.get(reverse(DELIVERIES) + ORDERS).context["outbox_summary"]()
    assert table.lines[0].per_minute == "120"


@pytest.mark.parametrize("page", [OUTBOX, DELIVERIES, DEAD, RELAYS])
def test_the_switch_keeps_the_filters_and_says_which_is_chosen(boss: Client, page: str) -> None:
    waiting()
    found = switch(boss.get(reverse(page) + ORDERS).content.decode())
    assert list(found) == ["default", "orders*"]
    assert list(switch(boss.get(reverse(page)).content.decode())) == ["default*", "orders"]
    if page == OUTBOX:
        text = boss.get(reverse(page) + "?state=waiting&q=a%26b&p=1").content.decode()
        query = parse_qs(urlsplit(switch(text)["orders"]).query)
        assert query == {"state": ["waiting"], "q": ["a&b"], "database": ["orders"]}


def test_every_link_of_a_page_keeps_the_database(boss: Client) -> None:
    for number in range(60):
        row = moved(failed(key=f"order:{number}"))
    waits = moved(held_back(key="order:8"))
    moved(dead_event(key="order:9"))
    moved(held_back(key="order:9"))
    moved(backing_off())
    pages = [
        *(reverse(page) + ORDERS for page in (OUTBOX, DELIVERIES, DEAD, RELAYS)),
        f"{url_of(row)}{ORDERS}",
        f"{url_of(waits)}{ORDERS}",
    ]
    for url in pages:
        text = boss.get(url).content.decode()
        body = text[text.index('id="content"') :]
        links = re.findall('href="([^"#]*celery_outbox/[^"]*|[?][^"]*)"', body)
        assert links
        for link in links:
            kept = "database=orders" in link or "database%3Dorders" in link
            assert kept or link == switch(text)["default"].replace("&", "&amp;"), (url, link)


def test_the_page_of_a_row_is_that_of_the_chosen_database(boss: Client) -> None:
    there = moved(backing_off())
    here = with_id(waiting(), there.pk)
    assert there.task_id in boss.get(url_of(there) + ORDERS).content.decode()
    assert here.task_id in boss.get(url_of(here)).content.decode()
    opened = boss.get(f"{url_of(there)}?_changelist_filters=database%3Dorders%26state%3Dfailing")
    assert there.task_id in opened.content.decode()
    found = switch(opened.content.decode())
    assert found == {
        "default": f"{reverse(OUTBOX)}?database=default",
        "orders*": f"{reverse(OUTBOX)}?database=orders",
    }


def test_an_action_changes_the_chosen_database_and_says_so(boss: Client, act: Act) -> None:
    there = moved(backing_off())
    here = with_id(backing_off(), there.pk)
    asked = boss.post(
        reverse(OUTBOX) + ORDERS, {"action": "discard", "_selected_action": there.pk, "index": 0}
    )
    assert "in the database <strong>orders</strong>" in asked.content.decode()
    done = act(boss, OUTBOX, "discard", there, query=ORDERS)
    assert "Discarded: 1." in done.content.decode()
    assert done.redirect_chain[-1][0].endswith(ORDERS)
    assert not CeleryOutbox.objects.using("orders").exists()
    assert list(CeleryOutbox.objects.all()) == [here]
    assert LogEntry.objects.using("default").get().change_message == "Discard messages (orders)."


def test_an_action_on_the_page_of_a_row_stays_in_its_database(boss: Client) -> None:
    later = moved(waiting(due_at=ahead(hours=1)))
    url = url_of(later) + ORDERS
    for action, leads_to in (("send_now", url), ("discard", reverse(OUTBOX) + ORDERS)):
        asked = boss.post(url, {"action": action})
        answer = {"action": action, "ids": asked.context["ids"], "confirmed": "yes"}
        assert boss.post(url, answer).url == leads_to
    assert not CeleryOutbox.objects.using("orders").exists()


def test_replay_and_discard_of_events_stay_in_their_database(
    boss: Client, act: Act, django_capture_on_commit_callbacks: Any
) -> None:
    dead, waits = moved(dead_event(key="order:7")), moved(held_back())
    with django_capture_on_commit_callbacks(using="orders", execute=True):
        act(boss, DEAD, "discard", dead, query=ORDERS)
    assert not CeleryOutboxDeadLetter.objects.using("orders").exists()
    assert CeleryOutboxDelivery.objects.using("orders").due().get().pk == waits.pk
    dead = moved(dead_event())
    act(boss, DEAD, "replay", dead, query=ORDERS)
    assert CeleryOutboxDelivery.objects.using("orders").filter(pk=dead.position).exists()


def test_a_page_that_is_too_far_leads_to_the_list_of_the_same_database(boss: Client) -> None:
    there = moved(waiting())
    page = boss.get(reverse(OUTBOX) + f"{ORDERS}&p=77", follow=True)
    assert [row.pk for row in page.context["cl"].result_list] == [there.pk]


@pytest.mark.parametrize("name", ["nonsense", "", "<b>", "default'", "\0"])
def test_another_database_is_refused(boss: Client, act: Act, name: str) -> None:
    row = backing_off()
    for url in (reverse(OUTBOX), reverse(DELIVERIES), reverse(RELAYS), url_of(row)):
        assert boss.get(url, {"database": name}).status_code == 400
    choice = {"action": "discard", "_selected_action": row.pk, "ids": row.pk, "confirmed": "yes"}
    assert boss.post(f"{reverse(OUTBOX)}?database={name}", choice).status_code == 400
    assert CeleryOutbox.objects.filter(pk=row.pk).exists()


def test_a_database_without_an_outbox_is_refused(boss: Client, both: Any) -> None:
    both.CELERY_OUTBOX_DATABASES = ["default"]
    assert boss.get(reverse(OUTBOX) + ORDERS).status_code == 400
    text = boss.get(reverse(OUTBOX)).content.decode()
    assert switch(text) == {}
    assert "database=" not in text
    both.CELERY_OUTBOX_DATABASES = ["default", "unknown"]
    assert boss.get(reverse(OUTBOX) + "?database=unknown").status_code == 400


def test_the_first_database_is_the_one_that_is_written_to(boss: Client, both: Any) -> None:
    there = moved(waiting())
    both.DATABASE_ROUTERS = ["tests.integration.admin.project.OutboxInOrders"]
    assert listed(boss, OUTBOX) == [there.pk]
    both.DATABASE_ROUTERS = []
    both.CELERY_OUTBOX_DATABASES = ["orders"]
    assert listed(boss, OUTBOX) == [there.pk]


def test_permissions_are_the_same_in_every_database() -> None:
    there = moved(backing_off())
    stranger, viewer = client_of(person()), client_of(person("view_celeryoutbox"))
    assert stranger.get(reverse(OUTBOX) + ORDERS).status_code == 403
    assert stranger.get(reverse(OUTBOX) + "?database=nonsense").status_code == 403
    assert viewer.get(reverse(OUTBOX) + ORDERS).status_code == 200
    assert viewer.post(url_of(there) + ORDERS, {"action": "discard"}).status_code == 403


def test_nothing_of_the_other_database_is_read(boss: Client) -> None:
    moved(held_back())
    CeleryOutboxRelay.objects.all().delete()
    for page in (OUTBOX, DELIVERIES, DEAD, RELAYS):
        with CaptureQueriesContext(connections["default"]) as captured:
            assert boss.get(reverse(page) + ORDERS).status_code == 200
        assert [sql for each in captured if "celery_outbox" in (sql := each["sql"])] == []
