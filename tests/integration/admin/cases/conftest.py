"""Rows in every state, and people with different permissions."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from celery_outbox_steps.fleet import RELAYING, Member
from celery_outbox_steps.rates import Rate
from django_integration.models import (
    CeleryOutbox,
    CeleryOutboxDeadLetter,
    CeleryOutboxDelivery,
    CeleryOutboxRelay,
)
from django_integration.schema import HELD_BACK_UNTIL
from django_integration.store import DjangoStore
from tests.integration.admin import project

if TYPE_CHECKING:
    from collections.abc import Callable

OUTBOX = "admin:celery_outbox_celeryoutbox_changelist"
DELIVERIES = "admin:celery_outbox_celeryoutboxdelivery_changelist"
DEAD = "admin:celery_outbox_celeryoutboxdeadletter_changelist"
RELAYS = "admin:celery_outbox_celeryoutboxrelay_changelist"
ERROR = "NotFound: no exchange 'orders'"
_numbers = itertools.count(1)


def ago(**units: float) -> Any:
    return timezone.now() - timedelta(**units)


def ahead(**units: float) -> Any:
    return timezone.now() + timedelta(**units)


def stored(**columns: Any) -> CeleryOutbox:
    """A row as the enqueue side writes it, with its columns changed."""
    with transaction.atomic():
        sent = project.charge_card.apply_async((7, project.CARD), {"card": project.CARD})
    row = CeleryOutbox.objects.get(task_id=sent.id)
    for name, value in columns.items():
        setattr(row, name, value)
    row.save()
    return row


def event(
    to: str = "events", name: str = "order.paid", data: Any = None, **options: Any
) -> CeleryOutboxDelivery:
    """An event as `publish()` writes it; options that are columns are changed afterwards."""
    columns = {each.name for each in CeleryOutboxDelivery._meta.fields}
    changed = {each: options.pop(each) for each in list(options) if each in columns}
    with transaction.atomic():
        event_id = project.app.outbox.publish(name, data or {"id": 7}, to=to, **options)
    rows = CeleryOutboxDelivery.objects.filter(task_id=event_id)
    rows.update(**changed)
    return rows.get()


def held_back(**options: Any) -> CeleryOutboxDelivery:
    """An event that waits for an earlier one with its key."""
    return event(**{"key": "order:7", "due_at": HELD_BACK_UNTIL, **options})


def failed(**options: Any) -> CeleryOutboxDelivery:
    """An event that backs off."""
    about = {"retries": 2, "last_error": ERROR, "updated_at": ago(minutes=1)}
    return event(**{"due_at": ahead(hours=1), **about, **options})


def dead_event(dead_at: Any = None, **options: Any) -> CeleryOutboxDeadLetter:
    """An event that was given up, with the place that it had."""
    row = event(**options)
    return buried(row, position=row.pk, dead_at=dead_at or ago(seconds=1))


def buried(row: Any = None, **columns: Any) -> CeleryOutboxDeadLetter:
    """A dead letter, made from a real row."""
    row = stored() if row is None else row
    shared = {field.name: getattr(row, field.name) for field in row._meta.fields}
    names = {field.name for field in CeleryOutboxDeadLetter._meta.fields} - {"id"}
    type(row).objects.filter(pk=row.pk).delete()
    return CeleryOutboxDeadLetter.objects.create(**{
        **{name: value for name, value in shared.items() if name in names},
        "failure_reason": ERROR, "retries": 5, **columns,
    })  # fmt: skip


def waiting(**columns: Any) -> CeleryOutbox:
    return stored(**{"due_at": ago(minutes=1), **columns})


def in_flight(**columns: Any) -> CeleryOutbox:
    lease = {"claimed_by": "worker-1:17:ab12", "claimed_until": ahead(minutes=5)}
    return stored(**{"due_at": ago(minutes=2), **lease, **columns})


def backing_off(**columns: Any) -> CeleryOutbox:
    failed = {"retries": 2, "last_error": ERROR, "updated_at": ago(minutes=1)}
    return stored(**{"due_at": ahead(hours=1), **failed, **columns})


def scheduled(**columns: Any) -> CeleryOutbox:
    return stored(**{"due_at": ahead(hours=1), **columns})


def published(**columns: Any) -> CeleryOutbox:
    return stored(**{"due_at": None, "published_at": ago(minutes=1), **columns})


def outbox_store() -> DjangoStore:
    return DjangoStore("default", connection=connection)


def paced(to: str, pattern: str, per_second: float) -> None:
    """The rows of a destination that are due wait for their turns now, but for the first."""
    store = DjangoStore("default", connection=connection, destinations=[to])
    assert store.deliveries is not None
    lane = store.deliveries.lane(to)
    rows = lane.claim(100, 60, "relay")
    lane.release(list(lane.pace(Rate(pattern, per_second), rows, "relay")), "relay")


def relay(worker: str, state: str = RELAYING, *, standing_by: bool = False, **about: Any) -> None:
    """A relay that has just checked in."""
    member = Member(f"{worker}:17:ab12", f"celery@{worker}", "1.0", state, **about)
    outbox_store().check_in(member, relays=2, wants_slot=not standing_by)


def gone(worker: str, **units: float) -> None:
    """A relay that was killed this long ago."""
    relay(worker)
    CeleryOutboxRelay.objects.filter(worker=f"celery@{worker}").update(
        seen_at=ago(**units), expires_at=ago(**units) + timedelta(seconds=15)
    )


def person(*permissions: str, superuser: bool = False) -> User:
    """A member of staff who may do exactly this."""
    name = f"{'admin' if superuser else 'person'}{next(_numbers)}"
    user = User.objects.create_user(name, password="pass", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def sets_the_planner(sql: str) -> bool:
    """Whether a statement reads no rows, but decides how those after it are planned."""
    return sql.startswith("SET LOCAL") or "set_config" in sql


def reads(captured: Any) -> list[str]:
    """The statements of a page that read rows."""
    selects = (each["sql"] for each in captured if each["sql"].startswith("SELECT"))
    return [sql for sql in selects if not sets_the_planner(sql)]


@pytest.fixture
def boss(db: None) -> Client:
    """May do everything."""
    return client_of(person(superuser=True))


@pytest.fixture
def viewer(db: None) -> Client:
    """May look, and nothing else."""
    return client_of(person("view_celeryoutbox", "view_celeryoutboxdeadletter"))


@pytest.fixture
def act(db: None) -> Callable[..., Any]:
    """Choose an action for some rows in a list, confirm it, and give the page that follows."""

    def act(client: Client, page: str, action: str, *rows: Any, query: str = "") -> Any:
        url = reverse(page) + query
        choice = {"action": action, "_selected_action": [row.pk for row in rows], "index": 0}
        asked = client.post(url, choice)
        if "ids" not in (asked.context or ()):
            return asked
        ids = asked.context["ids"]
        answer = {"action": action, "_selected_action": rows[0].pk, "ids": ids, "confirmed": "yes"}
        return client.post(url, answer, follow=True)

    return act
