"""What can be done with chosen rows, from *retry now* to *discard*: its texts, and what it changes.

Each operation says which rows it may change now, by the database's clock, and changes them through
`DjangoStore` or by deleting them. If a message with a key is deleted, the next one of its key is
made due. Who may do it, and how it is confirmed and logged, is in `actions.py`, which also locks
the rows first.
"""

# ruff: noqa: ARG001  an operation's `apply` has one signature
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from django.contrib.admin.models import CHANGE, DELETION
from django.db import connections, transaction

from celery_outbox_steps.store import DeadLetters
from django_integration import schema
from django_integration.store import DjangoStore

if TYPE_CHECKING:
    from collections.abc import Callable


TABLES = {each.name: each for each in (schema.TASKS, schema.DELIVERIES)}


@dataclass(frozen=True)
class Operation:
    """One action and its texts."""

    action: str
    """Its name in a form."""
    label: str
    title: str
    explanation: str
    done: str
    left_alone: str
    flag: int
    allowed: Callable[[Any], Any]
    """Narrows the chosen rows to those that may be changed now."""
    apply: Callable[[str, type[Any], list[int]], None]
    """Changes locked rows: database alias, model, ids."""

    @property
    def destroys(self) -> bool:
        return self.flag == DELETION


def _make_due(alias: str, model: type[Any], ids: list[int]) -> None:
    _store(alias).make_due(ids, TABLES[model._meta.db_table])


def _replay(alias: str, model: type[Any], ids: list[int]) -> None:
    _store(alias).replay(DeadLetters(ids), len(ids))


def _delete(alias: str, model: type[Any], ids: list[int]) -> None:
    rows = model._default_manager.using(alias).filter(pk__in=ids)
    if hasattr(model, "order_key"):
        keyed = rows.filter(destination__isnull=False, order_key__isnull=False)
        keys = set(keyed.values_list("destination", "order_key"))
        if keys:
            # Once the rows are gone for the relays too. If it fails, a relay does it later.
            transaction.on_commit(partial(_release, alias, keys), using=alias, robust=True)
    rows.delete()


def _release(alias: str, keys: set[tuple[str, str]]) -> None:
    store = _store(alias)
    for destination in {each for each, _ in keys}:
        store.release_keys(destination, {key for each, key in keys if each == destination})


def _store(alias: str) -> DjangoStore:
    """On the connection of the request, whose transaction holds the locks."""
    return DjangoStore(alias, connection=connections[alias])


# Failed attempts stay counted: a message that fails again uses up one more, and one that has none
# left becomes a dead letter, which can be replayed.
RETRY = Operation(
    action="retry_now",
    label="Retry now",
    title="Retry now",
    explanation="These messages become due now, so the relay tries them at once. Failed attempts"
    " stay counted: a message with one attempt left becomes a dead letter if it fails again.",
    done="Due now",
    left_alone="They are in flight, already due, scheduled for later, or no longer in the outbox.",
    flag=CHANGE,
    allowed=lambda rows: rows.filter(schema.BACKING_OFF.q),
    apply=_make_due,
)
SEND_NOW = Operation(
    action="send_now",
    label="Send now",
    title="Send now",
    explanation="These scheduled messages become due now, so the relay publishes them at once"
    " instead of at their time.",
    done="Due now",
    left_alone="They are not scheduled, or no longer in the outbox.",
    flag=CHANGE,
    allowed=lambda rows: rows.filter(schema.SCHEDULED.q),
    apply=_make_due,
)
CANCEL = Operation(
    action="cancel",
    label="Cancel",
    title="Cancel scheduled messages",
    explanation="These scheduled messages are deleted and will never be published. This can't be"
    " undone.",
    done="Cancelled",
    left_alone=SEND_NOW.left_alone,
    flag=DELETION,
    allowed=SEND_NOW.allowed,
    apply=_delete,
)
DISCARD = Operation(
    action="discard",
    label="Discard",
    title="Discard messages",
    explanation="These messages are deleted and will never be published. This can't be undone.",
    done="Discarded",
    left_alone="They are in flight, or no longer in the outbox.",
    flag=DELETION,
    allowed=lambda rows: rows.filter(schema.UNLEASED.q),
    apply=_delete,
)
IN_ORDER = (
    " A message with a key still waits for the earlier ones of its key: it does not overtake them."
)
NEXT_OF_KEY = (
    " If one has a key, the next message of its key no longer waits for it and is sent without it."
)
LEFT_HELD_BACK = "They are in flight, already due, held back, scheduled, or no longer waiting."
RETRY_DELIVERY = replace(
    RETRY, explanation=f"{RETRY.explanation}{IN_ORDER}", left_alone=LEFT_HELD_BACK
)
SEND_NOW_DELIVERY = replace(SEND_NOW, explanation=f"{SEND_NOW.explanation}{IN_ORDER}")
CANCEL_DELIVERY = replace(CANCEL, explanation=f"{CANCEL.explanation}{NEXT_OF_KEY}")
DISCARD_DELIVERY = replace(DISCARD, explanation=f"{DISCARD.explanation}{NEXT_OF_KEY}")
"""The same of messages for destinations."""
REPLAY = Operation(
    action="replay",
    label="Replay",
    title="Replay dead letters",
    explanation="These messages go back into the outbox and are due now. Their failed attempts are"
    " reset to 0. A task that failed runs again, with the same id.",
    done="Back in the outbox",
    left_alone="They are no longer dead letters, or another user is replaying them.",
    flag=CHANGE,
    allowed=lambda rows: rows,
    apply=_replay,
)
DISCARD_DEAD = Operation(
    action="discard",
    label="Discard",
    title="Discard dead letters",
    explanation="These messages are deleted and can't be replayed any more. This can't be undone.",
    done="Discarded",
    left_alone="They are no longer dead letters, or another user is replaying them.",
    flag=DELETION,
    allowed=lambda rows: rows,
    apply=_delete,
)
