"""A state means the same everywhere: as a queryset, as SQL, in the admin and to a relay.

Both tables of waiting messages hold a row for every combination of due or not, unleased, leased or
expired, never attempted, deferred or failed, and published rows that are kept. Only a message for a
destination can be held back.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest
from django.conf import settings
from django.db.models import Q
from django.test import override_settings

from django_integration import schema
from django_integration.models import CeleryOutbox, CeleryOutboxDeadLetter, CeleryOutboxDelivery

LEASES = {"unleased": None, "leased": 3600, "expired": -3600}
DUE = {"due": 0, "ahead": 3600}
ATTEMPTS = {"never": 0, "deferred": 0, "failed": 2, "failed, then rescheduled": 2}
LISTED = {**schema.ROW_STATES, "failing": schema.FAILING}
METHODS = {
    "waiting": "due",
    "scheduled": "scheduled",
    "in_flight": "in_flight",
    "backing_off": "backing_off",
    "held_back": "held_back",
    "published": "published",
    "failing": "failing",
}


@pytest.fixture(scope="module")
def states():
    """The admin's states. Its package needs an app that the other tests do without."""
    installed = [*settings.INSTALLED_APPS, "django.contrib.admin.apps.SimpleAdminConfig"]
    with override_settings(INSTALLED_APPS=installed):
        from django_integration.admin import states
    return states


class Table(NamedTuple):
    """A table of waiting messages: ids by (due, lease, attempts), and those of kept rows."""

    model: type
    destination: str | None
    ids: dict

    def store(self, database):
        """Of its only lane."""
        if self.destination is None:
            return database.store()
        return database.store(destinations=[self.destination]).deliveries.lane(self.destination)


@pytest.fixture(params=[None, "events"], ids=["own broker", "destination"])
def table(request, database):
    to, ids = {"destination": request.param}, {}
    model = CeleryOutboxDelivery if request.param else CeleryOutbox
    for due, lease, attempts in product(DUE, LEASES, ATTEMPTS):
        rescheduled = "rescheduled" in attempts
        (ids[due, lease, attempts],) = database.add(
            1, due_in=DUE[due], held=rescheduled, **attempted(attempts), **to
        )
    # No relay holds one: it gives the row back when it finds that it has to wait.
    unleased = product(["unleased", "expired"], ATTEMPTS)
    for lease, attempts in unleased if request.param else ():
        (ids["held back", lease, attempts],) = database.add(
            1, due_at=schema.HELD_BACK_UNTIL, **attempted(attempts), **to
        )
    for attempts in ("deferred", "failed"):
        (ids["kept", "unleased", attempts],) = database.add(
            1, due_at=None, **attempted(attempts), **to
        )
    now, name = schema.NOW[database.vendor], model._meta.db_table
    for (_, lease, _), row_id in ids.items():
        if LEASES[lease] is not None:
            database.execute(
                f"UPDATE {name} SET claimed_by = %s, claimed_until = {now} WHERE id = %s",
                "other",
                row_id,
            )
            database._earlier(model, ("claimed_until",), -LEASES[lease], [row_id])
    return Table(model, request.param, ids)


def attempted(attempts):
    times = {} if attempts == "never" else {"updated_at": schema.DatabaseNow()}
    return {"retries": ATTEMPTS[attempts], **times}


def expected(table, state):
    """What the words of `schema.py` mean, in Python."""

    def holds(due, lease, attempts):
        leased = lease == "leased"
        return {
            "waiting": due == "due" and not leased,
            "in_flight": due != "kept" and leased,
            "scheduled": due == "ahead" and not leased and attempts not in ("deferred", "failed"),
            "backing_off": due == "ahead" and not leased and attempts in ("deferred", "failed"),
            "held_back": due == "held back" and not leased,
            "published": due == "kept",
            "failing": due != "kept" and attempts.startswith("failed"),
            "pending": due != "kept",
        }[state]

    return {row_id for key, row_id in table.ids.items() if holds(*key)}


def by_queryset(database, table, condition):
    rows = table.model.objects.using(database.alias)
    return set(rows.filter(condition).values_list("pk", flat=True))


def by_sql(database, table, state):
    name = table.model._meta.db_table
    found = database.execute(
        f"SELECT id FROM {name} WHERE {state.sql(database.vendor)} AND id > %s", 0
    )
    return {row[0] for row in found}


@pytest.mark.parametrize("name", [*LISTED, "pending"])
def test_queryset_sql_and_words_agree(database, table, name):
    state = {**LISTED, "pending": schema.PENDING}[name]
    rows = expected(table, name)
    assert rows or (name, table.destination) == ("held_back", None)
    assert by_queryset(database, table, state.q) == rows
    assert by_sql(database, table, state) == rows


@pytest.mark.parametrize("name", LISTED)
def test_the_admins_filter_shows_exactly_the_rows_in_a_state(database, table, states, name):
    listed = states.STATES[name]
    every = table.model.objects.using(database.alias).all()
    lanes = [Q(destination=to) for to in ("another", table.destination)]
    for of in (states.WHOLE_TABLE, *([lanes] if table.destination else [])):
        shown = listed.apply(every, lanes=of)
        assert set(shown.values_list("pk", flat=True)) == expected(table, name)
        assert set(listed.apply(every, "tests.task", of)) == set(shown)
    later = listed.later_range or Q(pk=None)
    assert by_queryset(database, table, listed.index_range | later) >= expected(table, name)


def test_the_admin_labels_every_row_with_the_one_state_that_it_is_in(database, table, states):
    labelled = states.with_state(table.model.objects.using(database.alias).all())
    found = dict(labelled.values_list("pk", "state"))
    assert found == {pk: name for name in schema.ROW_STATES for pk in expected(table, name)}
    assert set(found) == set(table.ids.values())


@pytest.mark.parametrize("name", METHODS)
def test_the_methods_of_the_manager_are_the_states(database, table, name):
    method = getattr(table.model.objects.using(database.alias), METHODS[name])
    assert set(method().values_list("pk", flat=True)) == expected(table, name)


def test_a_relay_claims_exactly_the_rows_that_are_due(database, table):
    claimed = table.store(database).claim(100, 60, "me")
    assert {message.id for message in claimed} == expected(table, "waiting")


def test_a_relay_that_adopts_claims_its_own_leased_rows_too(database, table):
    claimed = table.store(database).claim(100, 60, "other", adopt=True)
    held = {
        row_id for (due, lease, _), row_id in table.ids.items() if (due, lease) == ("due", "leased")
    }
    assert {message.id for message in claimed} == expected(table, "waiting") | held


def test_the_numbers_of_status_count_the_same_rows(database, table):
    stats = database.store().stats(destination=table.destination)
    counted = {
        "pending": stats.in_outbox,
        "waiting": stats.waiting,
        "scheduled": stats.scheduled,
        "in_flight": stats.in_flight,
        "backing_off": stats.backing_off,
        "held_back": stats.held_back,
        "failing": stats.failing,
        "published": stats.published,
    }
    rows = {name: expected(table, name) for name in counted}
    rows["failing"] -= rows["held_back"]  # that it failed is not why it waits
    assert counted == {name: len(found) for name, found in rows.items()}
    assert sum(relay["rows"] for relay in stats.holders) == stats.in_flight


def test_the_models_have_the_columns_that_the_statements_name(database):
    def columns(model):
        return {field.column for field in model._meta.concrete_fields}

    shared = columns(CeleryOutbox) & columns(CeleryOutboxDeadLetter)
    assert shared == {"id", *schema.MESSAGE_COLUMNS}
    assert set(schema.CLAIMED_COLUMNS) <= columns(CeleryOutbox)
