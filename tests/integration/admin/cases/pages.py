"""The admin's pages through Django's test client: what they show, to whom, at what cost."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from datetime import timezone as zones
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.utils import quote
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from celery_outbox_steps.fleet import STANDING_BY
from django_integration import schema
from django_integration.admin import actions, charts, paging, states
from django_integration.keys import stored_key
from django_integration.models import CeleryOutbox, CeleryOutboxDeadLetter, CeleryOutboxRelay
from tests.helpers import wait_for
from tests.integration.admin import project
from tests.integration.admin.cases.conftest import (
    DEAD,
    ERROR,
    OUTBOX,
    RELAYS,
    ago,
    ahead,
    backing_off,
    buried,
    client_of,
    gone,
    in_flight,
    outbox_store,
    person,
    published,
    reads,
    relay,
    scheduled,
    stored,
    waiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client

    Act = Callable[..., Any]

MOMENT = timedelta(seconds=30)

pytestmark = pytest.mark.django_db


def listed(client: Client, page: str, **query: str) -> list[int]:
    response = client.get(reverse(page), query)
    assert response.status_code == 200
    return [row.pk for row in response.context["cl"].result_list]


def tiles(client: Client) -> dict[str, str]:
    found = client.get(reverse(OUTBOX)).context["summary"].tiles
    return {tile.name: tile.value for tile in found}


def scheduled_panel(client: Client) -> Any:
    panel = client.get(reverse(OUTBOX)).context["summary"].panels[-1]
    assert panel.name == "Scheduled, by due time"
    return panel


def titles(chart: charts.Chart) -> list[str]:
    return [bar.title for bar in chart.bars]


# -- what is shown -------------------------------------------------------------------------------


def test_filter_by_state(boss: Client) -> None:
    rows = {
        "waiting": waiting(),
        "scheduled": scheduled(),
        "in_flight": in_flight(),
        "backing_off": backing_off(),
        "published": published(),
    }
    for state, row in rows.items():
        assert listed(boss, OUTBOX, state=state) == [row.pk]
    assert listed(boss, OUTBOX, state="failing") == [rows["backing_off"].pk]
    assert listed(boss, OUTBOX) == sorted((row.pk for row in rows.values()), reverse=True)


def test_state_of_a_row_is_the_state_it_is_found_by(boss: Client) -> None:
    lost_lease = waiting(claimed_by="gone", claimed_until=ago(minutes=1))
    for make in (waiting, scheduled, in_flight, backing_off, published):
        make()
    for name in schema.ROW_STATES:
        by_filter = set(listed(boss, OUTBOX, state=name))
        labelled = states.with_state(CeleryOutbox.objects.all()).filter(state=name)
        assert by_filter == set(labelled.values_list("pk", flat=True))
    assert lost_lease.pk in listed(boss, OUTBOX, state="waiting")


def test_filter_by_task_name_and_search_by_task_id(boss: Client) -> None:
    receipt, charge = waiting(task_name="shop.tasks.send_receipt"), waiting()
    assert listed(boss, OUTBOX, task_name="shop.tasks.send_receipt") == [receipt.pk]
    assert listed(boss, OUTBOX, task_name="tasks.send") == [receipt.pk]
    assert listed(boss, OUTBOX, task_name="no.such.task") == []
    assert listed(boss, OUTBOX, state="waiting", task_name=charge.task_name) == [charge.pk]
    assert listed(boss, OUTBOX, q=f" {receipt.task_id} ") == [receipt.pk]
    assert listed(boss, OUTBOX, q=receipt.task_id[:8]) == []
    dead = buried()
    assert listed(boss, DEAD, task_name=dead.task_name, q=dead.task_id) == [dead.pk]


def test_summary(boss: Client) -> None:
    waiting(due_at=ago(hours=2, minutes=3))
    scheduled()
    in_flight()
    in_flight(claimed_by="worker-2:18:cd34")
    backing_off()
    buried()
    response = boss.get(reverse(OUTBOX))
    found = response.context["summary"]
    numbers = {tile.name: tile.value for tile in found.tiles}
    assert numbers == {
        "In the outbox": "5", "Waiting": "1", "Scheduled": "1", "In flight": "2",
        "Backing off": "1", "Failing": "1", "Dead letters": "1", "Published/min": "0",
    }  # fmt: skip
    assert found.tiles[1].note == "for up to 2 h 3 min"
    relays = {each["relay"] for each in found.tables.holders}
    assert relays == {"worker-1:17:ab12", "worker-2:18:cd34"}
    assert found.tables.failing[0]["last_error"] == ERROR
    assert "state=failing" in found.tables.failing[0]["url"]
    published()
    assert tiles(boss)["Published"] == "1"


def test_charts(boss: Client) -> None:
    for minutes in (0, 0, 10, 130):
        waiting(created_at=ago(minutes=minutes + 0.2))
    published(created_at=ago(minutes=10.2))
    buried(dead_at=ago(minutes=200))
    buried(dead_at=ago(days=2))
    arrived, died = boss.get(reverse(OUTBOX)).context["summary"].panels
    hour, day = arrived.charts
    assert (hour.total, hour.peak, day.total, day.peak) == (4, 2, 5, 4)
    assert [bar.title for bar in hour.bars] == [
        "10 minutes ago: 2, 1 of them published", "this minute: 2",
    ]  # fmt: skip
    assert day.bars[0].title == "2 hours ago: 1"
    assert [chart.total for chart in died.charts] == [0, 1]
    assert died.charts[0].text == "Last hour: none"


def test_chart_shows_what_it_did_not_count(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "ROWS_READ", 2)
    for minutes in (50, 30, 10):
        waiting(created_at=ago(minutes=minutes + 0.2))
    panel = boss.get(reverse(OUTBOX)).context["summary"].panels[0]
    assert panel.partial
    assert panel.charts[0].total == 2
    assert panel.charts[0].unknown == pytest.approx(30 * charts.BAR)


def test_scheduled_messages_are_charted_by_when_they_are_due(boss: Client) -> None:
    for minutes in (0, 0, 3, 45, 130, 3 * 24 * 60, 9 * 24 * 60):
        scheduled(due_at=ahead(minutes=minutes + 0.5))
    hour, day, week = scheduled_panel(boss).charts
    assert titles(hour) == ["this minute: 2", "in 3 minutes: 1", "in 45 minutes: 1"]
    assert titles(day) == ["this hour: 4", "in 2 hours: 1"]
    assert titles(week) == ["this day: 5", "in 3 days: 1"]
    assert [chart.period for chart in (hour, day, week)] == [
        "Next hour", "Next 24 hours", "Next 7 days",
    ]  # fmt: skip
    assert week.text == "Next 7 days: 6 in total, at most 5 in one day"


def test_the_next_minute_is_at_the_left_end_of_its_chart(boss: Client) -> None:
    scheduled(due_at=ahead(seconds=30))
    scheduled(due_at=ahead(minutes=59.5))
    hour = scheduled_panel(boss).charts[0]
    assert [bar.x for bar in hour.bars] == [1, hour.width - charts.BAR + 1]


def test_what_is_not_scheduled_is_in_no_chart_of_what_is(boss: Client) -> None:
    scheduled(due_at=ahead(minutes=10))
    backing_off(due_at=ahead(minutes=10))
    in_flight(due_at=ahead(minutes=10))
    waiting()
    published()
    assert [chart.total for chart in scheduled_panel(boss).charts] == [1, 1, 1]


def test_without_scheduled_messages_there_is_no_chart_of_them(boss: Client) -> None:
    for make in (waiting, in_flight, backing_off, published):
        make()
    page = boss.get(reverse(OUTBOX))
    assert [panel.kind for panel in page.context["summary"].panels] == ["arrivals", "deaths"]
    assert "Scheduled, by due time" not in page.content.decode()


def test_the_chart_of_what_is_scheduled_shows_what_it_did_not_count(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "ROWS_READ", 3)
    backing_off(due_at=ahead(minutes=5.5))  # is read, though not counted
    for minutes in (10.5, 15.5, 20.5):
        scheduled(due_at=ahead(minutes=minutes))
    page = boss.get(reverse(OUTBOX))
    hour, day, week = page.context["summary"].panels[-1].charts
    assert titles(hour) == ["in 10 minutes: 1", "in 15 minutes: 1"]
    assert (hour.unknown, hour.unknown_x) == (45 * charts.BAR, 15 * charts.BAR)
    assert day.unknown_x == pytest.approx(charts.BAR / 4)
    assert week.unknown_x == pytest.approx(0.1)
    text = page.content.decode()
    assert f'class="outbox-unknown" x="{hour.unknown_x}"' in text
    assert "Only the next" in text


def test_arrivals_include_what_is_scheduled(boss: Client) -> None:
    scheduled()
    panel = boss.get(reverse(OUTBOX)).context["summary"].panels[0]
    assert panel.charts[0].total == 1
    assert "only those still in the table are counted" in panel.note


def test_a_scheduled_message_says_when_it_is_due(boss: Client) -> None:
    scheduled(due_at=ahead(hours=2, seconds=30))
    text = boss.get(reverse(OUTBOX)).content.decode()
    assert "Scheduled</span>" in text
    assert re.search("due <time [^>]*>in 2 h</time>", text)


@pytest.mark.parametrize(
    ("make", "model"), [(scheduled, "celeryoutbox"), (buried, "celeryoutboxdeadletter")]
)
def test_the_page_of_a_message_says_when_it_was_wanted(
    boss: Client, make: Callable[..., Any], model: str
) -> None:
    row = make(eta=datetime(2031, 5, 17, 12, 30, tzinfo=zones.utc))
    page = boss.get(reverse(f"admin:celery_outbox_{model}_change", args=[row.pk]))
    assert "Wanted at" in page.content.decode()
    assert "2031-05-17 14:30:00 CEST" in page.content.decode()


def test_the_page_of_a_message_shows_its_key(boss: Client) -> None:
    row = scheduled(outbox_key=stored_key("reindex:<7>"))
    page = boss.get(reverse("admin:celery_outbox_celeryoutbox_change", args=[row.pk]))
    assert "reindex:&lt;7&gt;<" in page.content.decode()


def test_empty_tables(boss: Client) -> None:
    text = boss.get(reverse(OUTBOX)).content.decode()
    assert "No task is failing." in text
    assert "No relay holds messages at this moment." in text
    assert "given up, until replayed" in boss.get(reverse(DEAD)).content.decode()


def test_the_summary_says_how_many_messages_all_relays_published_in_a_minute(boss: Client) -> None:
    relay("a", rate=12.5)
    relay("b", rate=30.25)
    gone("c", minutes=20)
    CeleryOutboxRelay.objects.filter(worker="celery@c").update(rate=1000.0)
    assert tiles(boss)["Published/min"] == "2,565"


def test_above_dead_letters_is_only_what_is_about_them(boss: Client) -> None:
    for make in (waiting, backing_off, buried):
        make()
    found = boss.get(reverse(DEAD)).context["summary"]
    assert [(tile.name, tile.value) for tile in found.tiles] == [
        ("In the outbox", "2"), ("Failing", "1"), ("Dead letters", "1"),
    ]  # fmt: skip
    assert [panel.kind for panel in found.panels] == ["deaths"]
    assert found.tables is None


@pytest.mark.parametrize(("page", "make"), [(OUTBOX, waiting), (DEAD, buried)])
def test_a_search_finds_a_part_of_a_name_in_any_case(
    boss: Client, page: str, make: Callable[..., Any]
) -> None:
    welcome, _ = make(task_name="accounts.tasks.Welcome"), make(task_name="shop.tasks.100%")
    for found in ({"q": "welcome"}, {"task_name": "WELCOME"}, {"q": "tasks", "task_name": "wel"}):
        assert listed(boss, page, **found) == [welcome.pk]
    assert listed(boss, page, q="%.%") == []
    assert listed(boss, page, q="0%") != []


def test_a_whole_name_finds_no_longer_ones(boss: Client) -> None:
    receipt = waiting(task_name="shop.tasks.receipt")
    waiting(task_name="shop.tasks.receipt_again")
    assert listed(boss, OUTBOX, task_name="shop.tasks.receipt") == [receipt.pk]
    assert len(listed(boss, OUTBOX, task_name="shop.tasks.rec")) == 2


def test_a_search_keeps_to_the_state_and_the_kind(boss: Client) -> None:
    failing, _ = backing_off(), waiting()
    assert listed(boss, OUTBOX, q="charge", state="failing") == [failing.pk]
    task, _ = buried(kind="task"), buried()
    assert listed(boss, DEAD, q="charge", kind="task") == [task.pk]


@pytest.mark.parametrize("query", [{"q": "welcome"}, {"task_name": "welcome"}])
@pytest.mark.parametrize("page", [OUTBOX, DEAD])
def test_a_search_that_finds_nothing_says_what_to_type(
    boss: Client, page: str, query: dict[str, str]
) -> None:
    for make in (waiting, buried):
        make()
    hint = "A search takes the whole id of a task, or a part of a task&#x27;s name"
    assert hint.replace("&#x27;", "'") in boss.get(reverse(page), query).content.decode()
    assert "A search takes" not in boss.get(reverse(page)).content.decode()


def test_a_search_asks_for_nothing_that_is_redacted(boss: Client) -> None:
    row = waiting()
    assert CeleryOutbox.objects.filter(args__contains="4111").exists()
    for query in ({"q": project.CARD}, {"q": "4111"}, {"task_name": "4111"}):
        assert listed(boss, OUTBOX, **query) == []
    assert listed(boss, OUTBOX, q=row.task_id) == [row.pk]


def test_times_in_a_list_have_seconds(boss: Client) -> None:
    at = datetime(2026, 3, 5, 14, 30, 7, tzinfo=zones.utc)
    scheduled(created_at=at, due_at=at.replace(year=2031))
    buried(dead_at=at)
    for page, year in ((OUTBOX, 2026), (OUTBOX, 2031), (DEAD, 2026)):
        text = boss.get(reverse(page)).content.decode()
        assert f">{year}-03-05 15:30:07</span>" in text
        assert f'title="{year}-03-05 15:30:07 CET"' in text


def test_the_verdict_is_above_every_list(boss: Client) -> None:
    relay("a")
    relay("b", STANDING_BY, standing_by=True)
    outbox_store().pause("deploy <b>", "ann")
    for page in (OUTBOX, DEAD, RELAYS):
        text = boss.get(reverse(page)).content.decode()
        assert "outbox-verdict-warning" in text
        assert "Paused for 0 s by ann: deploy &lt;b&gt;" in text
    outbox_store().resume()
    for page in (OUTBOX, DEAD, RELAYS):
        text = boss.get(reverse(page)).content.decode()
        assert "Healthy: 1 relay at work, 1 standing by" in text


def test_the_page_of_relays_says_what_each_does(boss: Client) -> None:
    relay("a", rate=12.5)
    relay("b", STANDING_BY, standing_by=True, last_error=f"{ERROR}\nTraceback")
    gone("c", minutes=20)
    outbox_store().check_out("b:17:ab12")
    page = boss.get(reverse(RELAYS))
    rows = {row.pk[0]: row for row in page.context["cl"].result_list}
    shown = page.context["cl"].model_admin
    assert [shown.state_now(rows[name]) for name in "abc"] == [
        "relaying", "stopped", "gone, was relaying",
    ]  # fmt: skip
    assert (rows["a"].slot, shown.speed(rows["a"])) == (0, "12.5")
    assert shown.last_seen(rows["c"]) == "20 min ago"
    text = page.content.decode()
    assert text.count("outbox-gone") == 2
    assert text.count("outbox-alive") == 1
    assert f">{ERROR.replace(chr(39), '&#x27;')}</span>" in text


# -- what is hidden ------------------------------------------------------------------------------


def test_redacted_values_are_nowhere(boss: Client, act: Act) -> None:
    link = project.send_receipt.s(8, card=project.CARD)
    project.charge_card.apply_async((7, project.CARD), {"card": project.CARD}, link=link)
    project.charge_card.apply_async((7, project.CARD), {"card": project.CARD}, compression="gzip")
    backing_off()
    buried()
    assert CeleryOutbox.objects.filter(options__contains=project.CARD).exists()
    pages = [reverse(page) for page in (OUTBOX, DEAD)]
    for model in (CeleryOutbox, CeleryOutboxDeadLetter):
        for pk in model.objects.values_list("pk", flat=True):
            name = f"admin:celery_outbox_{model._meta.model_name}"
            pages += [reverse(f"{name}_{view}", args=[pk]) for view in ("change", "history")]
    for url in pages:
        response = boss.get(url)
        assert response.status_code == 200, url
        assert project.CARD not in response.content.decode(), url
    detail = boss.get(pages[-2]).content.decode()
    assert "[hidden]" in detail
    asked = boss.post(pages[0], {
        "action": "discard", "_selected_action": CeleryOutbox.objects.first().pk, "index": 0,
    })  # fmt: skip
    assert "Discard messages" in asked.content.decode()
    assert project.CARD not in asked.content.decode()


def test_payload_is_measured_only(boss: Client) -> None:
    row = stored(payload=b"\x80secret" * 300)
    page = boss.get(reverse("admin:celery_outbox_celeryoutbox_change", args=[row.pk]))
    assert "2.1\xa0KB" in page.content.decode()
    assert "secret" not in page.content.decode()


def test_unreadable_options_and_a_broken_redactor(boss: Client, settings: Any) -> None:
    broken = stored(options="{")
    page = boss.get(reverse("admin:celery_outbox_celeryoutbox_change", args=[broken.pk]))
    assert "[not readable]" in page.content.decode()
    sent = project.charge_card.apply_async(link=project.send_receipt.s(8, card=project.CARD))
    settings.CELERY_OUTBOX_APP = "no.such.module.app"
    row = CeleryOutbox.objects.get(task_id=sent.id)
    page = boss.get(reverse("admin:celery_outbox_celeryoutbox_change", args=[row.pk]))
    assert project.CARD not in page.content.decode()


@pytest.mark.parametrize(
    "query", ["?kwargs__contains=4111", "?args__startswith=a", "?id=1", "?last_error__regex=x"]
)
def test_the_query_string_cannot_ask_for_columns(boss: Client, query: str) -> None:
    assert boss.get(reverse(OUTBOX) + query).status_code == 400


def test_the_query_string_cannot_sort(boss: Client) -> None:
    rows = [waiting(retries=number) for number in (3, 1, 2)]
    newest_first = [row.pk for row in reversed(rows)]
    for column in range(8):
        assert listed(boss, OUTBOX, o=str(column)) == newest_first


# -- permissions ---------------------------------------------------------------------------------


def test_nobody_adds_changes_or_deletes(boss: Client) -> None:
    row = waiting()
    name = "admin:celery_outbox_celeryoutbox"
    assert boss.get(reverse(f"{name}_add")).status_code == 403
    assert boss.get(reverse(f"{name}_delete", args=[row.pk])).status_code == 403
    url = reverse(f"{name}_change", args=[row.pk])
    assert boss.post(url, {"task_name": "other"}).status_code == 403
    row.refresh_from_db()
    assert row.task_name == "shop.tasks.charge_card"
    assert "delete_selected" not in boss.get(reverse(OUTBOX)).content.decode()


@pytest.mark.parametrize("page", [OUTBOX, DEAD])
def test_without_view_permission_nothing_is_seen(page: str) -> None:
    stranger = client_of(person())
    assert stranger.get(reverse(page)).status_code == 403
    assert "celery_outbox" not in stranger.get(reverse("admin:index")).content.decode()


def test_a_viewer_gets_no_actions(viewer: Client, act: Act) -> None:
    row, later, dead = backing_off(), scheduled(), buried()
    for page, action, target in (
        (OUTBOX, "retry_now", row), (OUTBOX, "discard", row),
        (OUTBOX, "send_now", later), (OUTBOX, "cancel", later),
        (DEAD, "replay", dead), (DEAD, "discard", dead),
    ):  # fmt: skip
        assert 'name="action"' not in viewer.get(reverse(page)).content.decode()
        act(viewer, page, action, target)
        answer = {"action": action, "_selected_action": target.pk, "ids": target.pk}
        viewer.post(reverse(page), {**answer, "confirmed": "yes"})
    for each in (row, later):
        assert CeleryOutbox.objects.get(pk=each.pk).due_at == each.due_at
    assert CeleryOutboxDeadLetter.objects.filter(pk=dead.pk).exists()
    assert not LogEntry.objects.exists()


def test_each_action_has_its_permission(act: Act) -> None:
    may_change = client_of(person("view_celeryoutbox", "change_celeryoutbox"))
    may_delete = client_of(person("view_celeryoutbox", "delete_celeryoutbox"))
    row, next_one, last_one = backing_off(), scheduled(), scheduled()
    for action, target in (("discard", row), ("cancel", last_one)):
        act(may_change, OUTBOX, action, target)
    for action, target in (("retry_now", row), ("send_now", next_one)):
        act(may_delete, OUTBOX, action, target)
    assert not LogEntry.objects.exists()
    for action, target in (("retry_now", row), ("send_now", next_one)):
        act(may_change, OUTBOX, action, target)
    for action, target in (("discard", row), ("cancel", last_one)):
        act(may_delete, OUTBOX, action, target)
    assert LogEntry.objects.count() == 4
    assert list(CeleryOutbox.objects.all()) == [next_one]


def test_the_page_of_relays_is_for_looking(viewer: Client) -> None:
    relay("a")
    assert viewer.get(reverse(RELAYS)).status_code == 403
    assert viewer.get(reverse(OUTBOX)).context["summary"].relays_url == ""
    looks = client_of(person("view_celeryoutboxrelay", "delete_celeryoutboxrelay"))
    assert "celery@a" in looks.get(reverse(RELAYS)).content.decode()
    name = "admin:celery_outbox_celeryoutboxrelay"
    pk = CeleryOutboxRelay.objects.get().pk
    assert looks.get(reverse(f"{name}_change", args=[quote(pk)])).status_code == 200
    assert looks.get(reverse(f"{name}_delete", args=[quote(pk)])).status_code == 403
    assert looks.get(reverse(f"{name}_add")).status_code == 403
    assert looks.get(reverse(RELAYS), {"worker__startswith": "c"}).status_code == 400


def test_summary_links_only_where_the_user_may_go() -> None:
    buried()
    found = client_of(person("view_celeryoutbox")).get(reverse(OUTBOX)).context["summary"]
    urls = {tile.name: tile.url for tile in found.tiles}
    assert urls["Dead letters"] == ""
    assert urls["Failing"].endswith("?state=failing")


# -- actions -------------------------------------------------------------------------------------


def test_nothing_happens_before_the_confirmation(boss: Client) -> None:
    row = backing_off()
    url = reverse(OUTBOX)
    asked = boss.post(url, {"action": "discard", "_selected_action": row.pk, "index": 0})
    assert "can&#x27;t be undone" in asked.content.decode()
    assert CeleryOutbox.objects.filter(pk=row.pk).exists()
    assert not LogEntry.objects.exists()


def test_retry_now(boss: Client, act: Act) -> None:
    row, held, due, later = backing_off(), in_flight(), waiting(), scheduled()
    response = act(boss, OUTBOX, "retry_now", row, held, due, later)
    text = response.content.decode()
    assert "Due now: 1." in text
    assert "Left alone: 3." in text
    changed = CeleryOutbox.objects.get(pk=row.pk)
    assert abs(changed.due_at - timezone.now()) < MOMENT
    assert (changed.retries, changed.last_error) == (2, ERROR)
    for other in (held, due, later):
        assert CeleryOutbox.objects.get(pk=other.pk).due_at == other.due_at
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.action_flag) == (str(row.pk), CHANGE)
    assert entry.object_repr == f"{row.task_name}[{row.task_id}]"
    assert entry.change_message == "Retry now."


def test_send_now_makes_scheduled_messages_due_and_changes_no_others(
    boss: Client, act: Act
) -> None:
    later = scheduled()
    others = [in_flight(), waiting(), backing_off(), published(), in_flight(due_at=ahead(hours=1))]
    text = act(boss, OUTBOX, "send_now", later, *others).content.decode()
    assert "Due now: 1." in text
    assert "Left alone: 5." in text
    assert abs(CeleryOutbox.objects.get(pk=later.pk).due_at - timezone.now()) < MOMENT
    assert listed(boss, OUTBOX, state="scheduled") == []
    for other in others:
        assert CeleryOutbox.objects.get(pk=other.pk).due_at == other.due_at
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.action_flag) == (str(later.pk), CHANGE)
    assert entry.change_message == "Send now."


def test_send_now_moves_the_time_that_was_wanted_if_there_is_one(boss: Client, act: Act) -> None:
    wanted, unnamed = scheduled(eta=ahead(hours=1)), scheduled()
    act(boss, OUTBOX, "send_now", wanted, unnamed)
    changed = CeleryOutbox.objects.get(pk=wanted.pk)
    assert changed.eta is not None
    assert abs(changed.eta - changed.due_at) < MOMENT
    assert CeleryOutbox.objects.get(pk=unnamed.pk).eta is None


def test_cancel_deletes_scheduled_messages_and_no_others(boss: Client, act: Act) -> None:
    later = scheduled()
    others = [in_flight(), waiting(), backing_off(), published(), in_flight(due_at=ahead(hours=1))]
    asked = boss.post(
        reverse(OUTBOX), {"action": "cancel", "_selected_action": later.pk, "index": 0}
    )
    assert "can&#x27;t be undone" in asked.content.decode()
    assert CeleryOutbox.objects.filter(pk=later.pk).exists()
    text = act(boss, OUTBOX, "cancel", later, *others).content.decode()
    assert "Cancelled: 1." in text
    assert "Left alone: 5." in text
    assert set(CeleryOutbox.objects.all()) == set(others)
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.action_flag) == (str(later.pk), DELETION)
    assert entry.change_message == "Cancel scheduled messages."


def test_a_message_that_fell_due_after_the_confirmation_is_not_cancelled(boss: Client) -> None:
    row = scheduled()
    choice = {"action": "cancel", "_selected_action": row.pk}
    assert boss.post(reverse(OUTBOX), {**choice, "index": 0}).context["ready"] == 1
    CeleryOutbox.objects.filter(pk=row.pk).update(due_at=ago(seconds=1))
    boss.post(reverse(OUTBOX), {**choice, "ids": row.pk, "confirmed": "yes"})
    assert CeleryOutbox.objects.filter(pk=row.pk).exists()
    assert not LogEntry.objects.exists()


def test_a_call_that_took_the_place_of_the_confirmed_one_is_left_alone(boss: Client) -> None:
    """A call with the same key replaces what a row holds, and not the row."""
    row, other = scheduled(), scheduled()
    choice = {"action": "cancel", "_selected_action": [row.pk, other.pk]}
    asked = boss.post(reverse(OUTBOX), {**choice, "index": 0})
    answer = {name: asked.context[name] for name in ("ids", "asked_at")}
    wait_for(
        lambda: timezone.now() > asked.context["named"][0][0].asked_at + timedelta(seconds=0.1)
    )
    CeleryOutbox.objects.filter(pk=row.pk).update(task_id="new", created_at=schema.DatabaseNow())
    boss.post(reverse(OUTBOX), {**choice, **answer, "confirmed": "yes"})
    assert [each.task_id for each in CeleryOutbox.objects.all()] == ["new"]


def test_discard_leaves_rows_in_flight_alone(boss: Client, act: Act) -> None:
    gone, held = waiting(), in_flight()
    response = act(boss, OUTBOX, "discard", gone, held)
    assert "Discarded: 1." in response.content.decode()
    assert list(CeleryOutbox.objects.all()) == [held]
    assert LogEntry.objects.get().action_flag == DELETION


def test_a_row_claimed_after_the_confirmation_is_left_alone(boss: Client) -> None:
    row = waiting()
    url = reverse(OUTBOX)
    asked = boss.post(url, {"action": "discard", "_selected_action": row.pk, "index": 0})
    assert asked.context["ready"] == 1
    CeleryOutbox.objects.filter(pk=row.pk).update(
        claimed_by="relay", claimed_until=timezone.now() + timedelta(minutes=5)
    )
    answer = {"action": "discard", "_selected_action": row.pk, "ids": row.pk, "confirmed": "yes"}
    boss.post(url, answer)
    assert CeleryOutbox.objects.filter(pk=row.pk).exists()
    assert not LogEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_row_that_a_relay_is_just_claiming_is_left_alone(boss: Client, act: Act) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite locks the whole database")
    row, free = waiting(), waiting()
    relay = connections.create_connection("default")
    try:
        relay.set_autocommit(False)
        with relay.cursor() as cursor:
            cursor.execute("SELECT id FROM celery_outbox WHERE id = %s FOR UPDATE", [row.pk])
        response = act(boss, OUTBOX, "discard", row, free)
    finally:
        relay.close()
    assert "Discarded: 1." in response.content.decode()
    assert list(CeleryOutbox.objects.all()) == [row]


@pytest.mark.django_db(databases=["default", "orders"])
def test_the_rows_are_those_of_the_database_that_is_written_to(
    boss: Client, act: Act, settings: Any
) -> None:
    waiting()
    settings.DATABASE_ROUTERS = ["tests.integration.admin.project.OutboxInOrders"]
    elsewhere = CeleryOutbox.objects.using("orders").create(
        task_id="1", task_name="shop.tasks.charge_card", args="[]", kwargs="{}", options="{}",
        due_at=timezone.now() + timedelta(hours=1), retries=1,
    )  # fmt: skip
    assert listed(boss, OUTBOX) == [elsewhere.pk]
    assert tiles(boss)["Failing"] == "1"
    act(boss, OUTBOX, "discard", elsewhere)
    assert not CeleryOutbox.objects.using("orders").exists()
    assert CeleryOutbox.objects.using("default").count() == 1
    assert LogEntry.objects.count() == 1


def test_replay(boss: Client, act: Act) -> None:
    dead = buried()
    response = act(boss, DEAD, "replay", dead)
    assert "Back in the outbox: 1." in response.content.decode()
    row = CeleryOutbox.objects.get()
    assert (row.task_id, row.retries, row.args) == (dead.task_id, 0, dead.args)
    assert listed(boss, OUTBOX, state="waiting") == [row.pk]
    assert not CeleryOutboxDeadLetter.objects.exists()
    assert LogEntry.objects.get().change_message == "Replay dead letters."


def test_the_kind_of_a_dead_letter(boss: Client, act: Act) -> None:
    old, message = buried(), buried(kind="message")
    task = buried(kind="task", traceback="Traceback\n  <b>here</b>", failure_reason="ValueError: 7")
    found = {
        kind: {row.pk for row in boss.get(reverse(DEAD), {"kind": kind}).context["cl"].result_list}
        for kind in ("message", "task", "nonsense")
    }
    both = {old.pk, message.pk}
    assert found == {"message": both, "task": {task.pk}, "nonsense": {*both, task.pk}}
    name = {"kind": "task", "task_name": "no.such.task"}
    assert list(boss.get(reverse(DEAD), name).context["cl"].result_list) == []
    page = boss.get(reverse(DEAD)).content.decode()
    assert "1 failed task" in page
    detail = boss.get(reverse("admin:celery_outbox_celeryoutboxdeadletter_change", args=[task.pk]))
    assert "&lt;b&gt;here&lt;/b&gt;" in detail.content.decode()
    act(boss, DEAD, "replay", task, query="?kind=task")
    assert CeleryOutbox.objects.get().task_id == task.task_id


def test_discard_dead_letters(boss: Client, act: Act) -> None:
    dead, other = buried(), buried()
    act(boss, DEAD, "discard", dead)
    assert list(CeleryOutboxDeadLetter.objects.all()) == [other]


def test_all_that_match_in_chunks_and_only_what_was_confirmed(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "CHUNK", 2)
    rows = [backing_off() for _ in range(5)]
    spared = waiting()
    url = reverse(OUTBOX) + "?state=failing"
    choice = {"action": "discard", "_selected_action": rows[0].pk, "select_across": 1, "index": 0}
    asked = boss.post(url, choice)
    assert asked.context["ready"] == 5
    late = backing_off()
    answer = {"action": "discard", "_selected_action": rows[0].pk, "confirmed": "yes"}
    boss.post(url, {**answer, "ids": asked.context["ids"]})
    assert set(CeleryOutbox.objects.all()) == {spared, late}
    assert LogEntry.objects.count() == 5


def test_forged_ids(boss: Client) -> None:
    row = waiting()
    answer = {"action": "discard", "_selected_action": row.pk, "confirmed": "yes", "ids": "1,x"}
    assert boss.post(reverse(OUTBOX), answer).status_code == 400


# -- cost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "?state=failing", "?task_name=shop.tasks.charge_card"])
def test_the_number_of_queries_does_not_depend_on_the_rows(
    boss: Client, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert boss.get(reverse(OUTBOX) + query).status_code == 200
        return len(reads(captured))

    backing_off()
    few = queries()
    for _ in range(60):
        backing_off()
    assert queries() == few
    assert few <= 17  # failing rows are looked for on both sides of now


def test_pages_end_at_the_reach(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "REACH", 60)
    for _ in range(61):
        waiting()
    response = boss.get(reverse(OUTBOX))
    assert response.context["cl"].result_count == 60
    assert "These are the first 60 of" in response.content.decode()
    assert len(listed(boss, OUTBOX, p="2")) == 10
    assert boss.get(reverse(OUTBOX), {"p": "3"}).status_code == 302


def test_conditions_without_an_index_stop_at_the_window(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [backing_off(due_at=ahead(hours=n)) for n in range(1, 6)]
    monkeypatch.setattr(paging, "WINDOW", 2)
    assert listed(boss, OUTBOX, state="backing_off") == [row.pk for row in rows[:2]]
    newest = [row.pk for row in reversed(rows[3:])]
    assert listed(boss, OUTBOX, task_name=rows[0].task_name) == newest


def test_neither_a_backlog_nor_what_is_scheduled_hides_failing_rows(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "WINDOW", 2)
    for number in range(1, 6):
        waiting(due_at=ago(hours=number))
        scheduled(due_at=ahead(hours=number))
    due_again = waiting(due_at=ago(minutes=1), retries=1, updated_at=ago(minutes=2))
    later = backing_off(due_at=ahead(minutes=1))
    assert listed(boss, OUTBOX, state="failing") == [later.pk, due_again.pk]
