"""The page of one message: what it shows of it, and what can be done there."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from kombu import Exchange, Queue

from django_integration.admin import formatting
from django_integration.admin.fields import WHERE_IT_GOES
from django_integration.admin.formatting import readable, visible
from django_integration.models import CeleryOutbox, CeleryOutboxDeadLetter
from tests.integration.admin import project
from tests.integration.admin.cases.conftest import (
    DEAD,
    OUTBOX,
    backing_off,
    buried,
    client_of,
    in_flight,
    person,
    published,
    reads,
    scheduled,
    stored,
    waiting,
)

pytestmark = pytest.mark.django_db

if TYPE_CHECKING:
    from collections.abc import Callable


def url_of(row: Any) -> str:
    return reverse(f"admin:celery_outbox_{row._meta.model_name}_change", args=[row.pk])


def page_of(client: Client, row: Any) -> str:
    return client.get(url_of(row)).content.decode()


def sent(**options: Any) -> CeleryOutbox:
    """A row of a call with these options."""
    with transaction.atomic():
        result = project.charge_card.apply_async(**options)
    return CeleryOutbox.objects.get(task_id=result.id)


def as_dead_letter(row: CeleryOutbox) -> CeleryOutboxDeadLetter:
    names = ("task_id", "task_name", "args", "kwargs", "options", "redacted_args")
    return buried(**{name: getattr(row, name) for name in names})


def fields(client: Client, row: Any) -> dict[str, str]:
    """The fields of a page, by their names in the admin, as text."""
    form = client.get(url_of(row)).context["adminform"]
    lines = (line for fieldset in form for line in fieldset)
    return {field.field["name"]: str(field.contents()) for line in lines for field in line}


def offered(client: Client, row: Any) -> list[str]:
    return re.findall(r'name="action" value="(\w+)"', page_of(client, row))


def act(client: Client, row: Any, action: str) -> Any:
    """Press a button on the page, confirm, and follow to where it leads."""
    asked = client.post(url_of(row), {"action": action})
    assert asked.status_code == 200
    answer = {"action": action, "ids": asked.context["ids"], "confirmed": "yes"}
    return client.post(url_of(row), answer, follow=True)


# -- text ----------------------------------------------------------------------------------------


def test_arguments_are_shown_as_people_write_them(boss: Client) -> None:
    row = sent(args=["Zoë", "…", "日本", "😀"], kwargs={"Straße": "é"})
    for each in (row, as_dead_letter(row)):
        assert "[&quot;Zoë&quot;, &quot;…&quot;, &quot;日本&quot;, &quot;😀&quot;]" in page_of(
            boss, each
        )
    assert "{&quot;Straße&quot;: &quot;é&quot;}" in page_of(boss, row)
    row.refresh_from_db()
    assert row.args.isascii()


def test_text_that_is_not_json_is_readable_too(boss: Client) -> None:
    row = stored(args=r"('Zo\xeb \u2026 \U0001f600',)", redacted_args=None, payload=b"x")
    assert "(&#x27;Zoë … 😀&#x27;,)" in page_of(boss, row)


@pytest.mark.parametrize(
    "text",
    ["\\u00eb", "C:\\users", "a\\\\u00eb", '"', "<", "\n", "\x00", "\u202e", "\ud800", "\x7f"],
)
def test_only_what_can_be_seen_is_unescaped(text: str) -> None:
    stored_text = json.dumps([text])
    assert readable(stored_text) == stored_text


@pytest.mark.parametrize("text", ["Zoë", "\u200c", "e\u0301", "😀\ud800", "\\ë", "שלום"])
def test_readable_text_still_says_the_same(text: str) -> None:
    shown = readable(json.dumps([text]))
    assert json.loads(shown) == [text]
    assert not shown.isascii()


def test_what_could_reorder_or_hide_a_line_is_shown_by_its_number() -> None:
    assert visible("a\u202eb\u2066c\x00\x1b[31m\r\u2028") == r"a\u202eb\u2066c\x00\x1b[31m\r\u2028"
    assert visible("line\n\tnext … Zoë") == "line\n\tnext … Zoë"


def test_hostile_text_is_harmless_on_the_page(boss: Client) -> None:
    row = sent(args=["<script>alert(1)</script>", "\u202e", "\x00", "\ud800"])
    row.last_error = "OSError: \u202e<b>"
    row.save()
    text = page_of(boss, row)
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert r"\u202e&quot;, &quot;\u0000&quot;, &quot;\ud800&quot;" in text
    assert r"OSError: \u202e&lt;b&gt;" in text


def test_a_long_text_is_cut(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formatting, "LONGEST_TEXT", 10)
    assert "[&quot;xxxxxxxx\n… 43 more characters" in page_of(boss, sent(args=["x" * 49]))


# -- fields --------------------------------------------------------------------------------------


def test_a_page_says_where_the_message_goes_and_when_it_expires(boss: Client) -> None:
    expires = datetime(2031, 5, 17, 12, 30, 9, tzinfo=timezone.utc)
    row = sent(queue="mail", priority=7, expires=expires)
    for each in (row, as_dead_letter(row)):
        found = fields(boss, each)
        assert [found[name] for name in ("queue", "exchange", "routing_key", "priority")] == [
            "mail", "(default)", "mail", "7",
        ]  # fmt: skip
        assert "2031-05-17 14:30:09 CEST" in found["expires"]


def test_the_queue_of_a_named_exchange_is_the_one_that_is_declared(boss: Client) -> None:
    orders = Queue("invoices", Exchange("orders", "topic"), routing_key="order.#")
    row = sent(queue=orders, exchange="orders", routing_key="order.paid")
    assert [fields(boss, row)[name] for name in WHERE_IT_GOES] == [
        "invoices", "orders", "order.paid", "-", "-",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        "{", "[]", "null", '"text"', '{"headers": 7}', '{"exchange": "x", "declare": ["{"]}',
        '{"exchange": "x", "declare": [7]}', '{"exchange": "x", "declare": ["[]"]}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_routing_that_cannot_be_read_is_said(boss: Client, options: str) -> None:
    assert fields(boss, stored(options=options))["queue"] == "[not readable]"


def test_hostile_routing_is_harmless(boss: Client) -> None:
    nasty = "<b>\u202e\n" + "x" * 1000
    options = {"exchange": nasty, "routing_key": [nasty], "priority": nasty}
    row = stored(options=json.dumps({**options, "headers": {"expires": nasty, "eta": [1]}}))
    found = fields(boss, row)
    for name in ("exchange", "routing_key", "priority", "expires"):
        assert found[name].startswith(("&lt;b&gt;", "[&#x27;&lt;b&gt;"))
        assert "\u202e" not in found[name]
        assert len(found[name]) < 400


def test_times_are_exact(boss: Client) -> None:
    at = datetime(2026, 12, 17, 12, 30, 9, tzinfo=timezone.utc)
    times = dict.fromkeys(["created_at", "due_at", "updated_at", "published_at", "eta"], at)
    found = fields(boss, stored(**times, claimed_until=at))
    for name in (
        "created_exactly", "due_exactly", "updated_exactly", "published_exactly", "wanted_at",
        "lease_ends",
    ):  # fmt: skip
        assert ">2026-12-17 13:30:09 CET<" in found[name]
    assert ">2026-12-17 13:30:09 CET<" in fields(boss, buried(dead_at=at))["died_exactly"]


def test_the_time_of_a_message_that_is_not_held_is_the_one_in_its_header(boss: Client) -> None:
    row = stored(options=json.dumps({"headers": {"eta": "2026-12-17T12:30:09+00:00"}}))
    assert "2026-12-17 13:30:09 CET" in fields(boss, row)["wanted_at"]
    assert fields(boss, row)["priority"] == fields(boss, row)["key"] == "-"


def test_one_failed_attempt_is_one(boss: Client) -> None:
    dead = buried(retries=1)
    assert fields(boss, dead)["attempts"] == "1"
    assert "1 failed attempt</span>" in boss.get(reverse(DEAD)).content.decode()


def test_no_field_shows_what_the_redactor_hid(boss: Client) -> None:
    hidden = {"args": ("Zoë", project.CARD), "kwargs": {"card": project.CARD}}
    row = sent(**hidden, link=project.send_receipt.s(card=project.CARD), queue="mail")
    for each in (row, as_dead_letter(row)):
        assert all(project.CARD not in text for text in fields(boss, each).values())
        assert "[&quot;Zoë&quot;, &quot;[hidden]&quot;]" in page_of(boss, each)


# -- actions -------------------------------------------------------------------------------------


def test_a_page_offers_what_can_be_done_with_its_row(boss: Client) -> None:
    assert offered(boss, waiting()) == ["discard"]
    assert offered(boss, backing_off()) == ["retry_now", "discard"]
    assert offered(boss, scheduled()) == ["send_now", "cancel"]
    assert offered(boss, in_flight()) == []
    assert offered(boss, published()) == ["discard"]
    assert offered(boss, buried()) == ["replay", "discard"]


def test_retry_now_and_send_now_on_the_page(boss: Client) -> None:
    failing, later = backing_off(), scheduled()
    for row, action in ((failing, "retry_now"), (later, "send_now")):
        response = act(boss, row, action)
        assert response.redirect_chain[-1][0] == url_of(row)
        assert "Due now: 1." in response.content.decode()
        assert CeleryOutbox.objects.get(pk=row.pk).due_at < row.due_at
    entries = LogEntry.objects.order_by("pk").values_list("object_id", "action_flag")
    assert list(entries) == [(str(failing.pk), CHANGE), (str(later.pk), CHANGE)]


def test_cancel_discard_and_replay_on_the_page_lead_to_the_list(boss: Client) -> None:
    for row, action, page in (
        (scheduled(), "cancel", OUTBOX), (waiting(), "discard", OUTBOX),
        (buried(), "discard", DEAD), (buried(), "replay", DEAD),
    ):  # fmt: skip
        response = act(boss, row, action)
        assert response.redirect_chain[-1][0] == reverse(page)
        assert not type(row).objects.filter(pk=row.pk).exists()
    assert CeleryOutbox.objects.count() == 1
    flags = LogEntry.objects.order_by("pk").values_list("action_flag", flat=True)
    assert list(flags) == [DELETION, DELETION, DELETION, CHANGE]


def test_nothing_happens_on_the_page_before_the_confirmation(boss: Client) -> None:
    row = waiting()
    asked = boss.post(url_of(row), {"action": "discard"})
    assert "can&#x27;t be undone" in asked.content.decode()
    assert row.task_id in asked.content.decode()
    assert CeleryOutbox.objects.filter(pk=row.pk).exists()


def test_a_row_that_was_published_meanwhile_is_left_alone(boss: Client) -> None:
    row = backing_off()
    asked = boss.post(url_of(row), {"action": "retry_now"})
    answer = {"action": "retry_now", "ids": asked.context["ids"], "confirmed": "yes"}
    CeleryOutbox.objects.all().delete()
    response = boss.post(url_of(row), answer, follow=True)
    assert response.redirect_chain[-1][0] == reverse(OUTBOX)
    assert "Left alone: 1." in response.content.decode()
    assert boss.post(url_of(row), {"action": "retry_now"}).context["ready"] == 0


@pytest.mark.parametrize("others", ["{other}", "{row},{other}", "x", "0{row}"])
def test_a_page_changes_no_other_row(boss: Client, others: str) -> None:
    row, other = waiting(), waiting()
    forged = {"action": "discard", "confirmed": "yes"}
    ids = others.format(row=row.pk, other=other.pk)
    assert boss.post(url_of(row), {**forged, "ids": ids}).status_code == 400
    assert CeleryOutbox.objects.count() == 2


def test_each_button_has_its_permission() -> None:
    may_change = client_of(person("view_celeryoutbox", "change_celeryoutbox"))
    may_delete = client_of(person("view_celeryoutbox", "delete_celeryoutbox"))
    failing, later = backing_off(), scheduled()
    assert (offered(may_change, failing), offered(may_change, later)) == (
        ["retry_now"],
        ["send_now"],
    )
    assert offered(may_delete, failing) == ["discard"]
    assert offered(may_delete, later) == ["cancel"]
    for client, row, action in (
        (may_change, failing, "discard"), (may_change, later, "cancel"),
        (may_delete, failing, "retry_now"), (may_delete, later, "send_now"),
    ):  # fmt: skip
        assert _refused(client, row, action)


def test_a_viewer_has_no_buttons_and_a_stranger_no_page(viewer: Client) -> None:
    for row, action in ((backing_off(), "retry_now"), (waiting(), "discard"), (buried(), "replay")):
        assert offered(viewer, row) == []
        assert _refused(viewer, row, action)
        assert _refused(client_of(person()), row, action)
    assert _refused(client_of(person("delete_celeryoutbox")), waiting(), "discard")


def _refused(client: Client, row: Any, action: str) -> bool:
    """Whether neither the question nor the confirmed answer does anything."""
    answer = {"action": action, "ids": row.pk, "confirmed": "yes"}
    statuses = {client.post(url_of(row), each).status_code for each in ({"action": action}, answer)}
    kept = type(row).objects.get(pk=row.pk)
    return statuses == {403} and getattr(kept, "due_at", 0) == getattr(row, "due_at", 0)


@pytest.mark.parametrize("action", ["", "delete_selected", "no_such_action", "__init__"])
def test_other_actions_are_refused(boss: Client, action: str) -> None:
    assert _refused(boss, waiting(), action)


def test_a_button_needs_the_token_of_its_page(boss: Client) -> None:
    row = waiting()
    careful = Client(enforce_csrf_checks=True)
    careful.cookies = boss.cookies
    assert _refused(careful, row, "discard")
    token = careful.get(url_of(row)).context["csrf_token"]
    asked = careful.post(url_of(row), {"action": "discard", "csrfmiddlewaretoken": str(token)})
    assert "Discard messages" in asked.content.decode()


@pytest.mark.parametrize("make", [backing_off, scheduled, buried])
def test_a_page_costs_few_queries(boss: Client, make: Callable[..., Any]) -> None:
    row = make()
    with CaptureQueriesContext(connection) as captured:
        page_of(boss, row)
    about_rows = [
        sql for sql in reads(captured) if '"celery_outbox' in sql or "`celery_outbox" in sql
    ]
    assert len(about_rows) <= 6  # the row, its payload's size, and one for each operation
