"""Writes rows of all kinds in the caller's transaction, and wakes their relays after the commit.

Rows of one kind share one INSERT: calls, calls with a key, and messages for destinations, whose
order keys are locked first. On PostgreSQL the INSERT sends the NOTIFY, but not each of them: one in
`NOTIFY_INTERVAL` is enough for a process, and a transaction that stayed open for longer makes up
for it after its commit. `enqueuer.py` decides what is written and where. Next: `rows.py`.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error
from django.db.transaction import atomic

from celery_outbox_steps import wakeups
from django_integration import signals
from django_integration.enqueue.after_commit import AfterCommit, after_commit
from django_integration.enqueue.hold import seconds_ahead
from django_integration.enqueue.keyed import store_keyed
from django_integration.enqueue.order import lock_keys
from django_integration.enqueue.rows import insert, notify_relay
from django_integration.store.setup import refuse_without_tables

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.enqueue.settings import EnqueueSettings
    from django_integration.schema import Row

NOTIFY_INTERVAL = 0.05
"""Seconds between two NOTIFYs of a process: each takes a global lock in PostgreSQL at commit."""

IN_ASYNC_CODE = (
    "A task can't be stored from inside a running event loop, because Django's database access "
    "would block it. Use `await task.adelay(...)` or `await task.aapply_async(...)`. To store it "
    "together with your data, put both into a function with `transaction.atomic()` and call that "
    "with `await sync_to_async(function)(...)`."
)


class Writer:
    """Writes the rows of one app. `sender`: the class that its signals name."""

    settings: EnqueueSettings
    """Set before the first row is written, and again when settings change."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._notified: dict[Any, float] = {}
        """When the relays of a database, or of one of its destinations, were sent a NOTIFY."""

    def write_all(self, connection: BaseDatabaseWrapper, rows: list[Row]) -> None:
        """Write rows of all kinds, those of one kind together."""
        plain = [row for row in rows if row.key is None and row.destination is None]
        keyed = [row for row in rows if row.key is not None]
        deliveries = [row for row in rows if row.destination is not None]
        if plain:
            self.write(connection, plain)
        if keyed:
            self._write_keyed(connection, keyed)
        if deliveries:
            self._write_deliveries(connection, deliveries)

    def write(self, connection: BaseDatabaseWrapper, rows: list[Row]) -> None:
        hook = after_commit(connection, self._committed)
        held = sum(row.when is not None for row in rows)
        # That of a held row is sent only if it is due soon, and says more than others do.
        notify = self._notifies(connection) if held else self._may_notify(connection, hook)
        try:
            with self.settings.recorders.storing(rows):
                insert(connection, rows, notify=notify, soon=self.settings.soon)
        except SynchronousOnlyOperation as exc:
            raise SynchronousOnlyOperation(IN_ASYNC_CODE) from exc
        except Error as error:
            refuse_without_tables(connection, error)
            raise
        if signals.outbox_message_created.has_listeners(self._sender):
            signals.emit_created(rows, self._sender)
        due_in = 0.0 if held < len(rows) else min(seconds_ahead(row.when) for row in rows)
        hook.add(rows, notified=notify and held < len(rows), due_in=due_in)

    def _write_keyed(self, connection: BaseDatabaseWrapper, rows: list[Row]) -> None:
        """Write rows with keys. Those that are dropped for a row that waits are not reported.

        A row that waits wakes the relay too: a claim may have skipped it, because it is locked.
        """
        try:
            with self.settings.recorders.storing(rows):
                stored, kept = store_keyed(connection, rows, partial(insert, connection))
        except Error as error:
            refuse_without_tables(connection, error)
            raise
        new = list(stored.values())
        hook = after_commit(connection, self._committed)
        hook.task_ids.extend(each.task_id for each in kept.values())  # published after the commit
        ahead = [seconds_ahead(row.when) for row in new]
        due_in = min([*ahead, *(each.due_in for each in kept.values())])
        notify = due_in <= self.settings.soon and self._may_notify(connection, hook)
        if notify:
            notify_relay(connection)
        if new:
            signals.emit_created(new, self._sender)
        hook.add(new, notified=notify, due_in=due_in)

    def _write_deliveries(self, connection: BaseDatabaseWrapper, rows: list[Row]) -> None:
        """Write rows for destinations. Their order keys are locked first."""
        hook = after_commit(connection, self._committed)
        notify = self._may_notify_destinations(connection, hook, rows)
        keys = [row.order_key for row in rows if row.order_key is not None]
        locked = atomic(connection.alias, savepoint=False) if keys else contextlib.nullcontext()
        try:
            with self.settings.recorders.storing(rows), locked:
                if keys:
                    lock_keys(connection, keys)
                insert(connection, rows, notify=notify, soon=self.settings.soon)
        except SynchronousOnlyOperation as exc:
            raise SynchronousOnlyOperation(IN_ASYNC_CODE) from exc
        except Error as error:
            refuse_without_tables(connection, error)
            raise
        signals.emit_created(rows, self._sender)
        if notify:  # those of held rows only if they are due soon
            at_once = (row.destination for row in rows if row.when is None)
            hook.notified_destinations.update(filter(None, at_once))
        hook.add(rows, notified=False, due_in=min(seconds_ahead(row.when) for row in rows))

    def _notifies(self, connection: BaseDatabaseWrapper) -> bool:
        return connection.vendor == "postgresql" and self.settings.notify

    def _may_notify(self, connection: BaseDatabaseWrapper, hook: AfterCommit) -> bool:
        if hook.notified or not self._notifies(connection):
            return False
        return time.monotonic() - self._notified.get(connection.alias, 0.0) >= NOTIFY_INTERVAL

    def _may_notify_destinations(
        self, connection: BaseDatabaseWrapper, hook: AfterCommit, rows: list[Row]
    ) -> bool:
        if not self._notifies(connection):
            return False
        return any(
            row.when is not None
            or (
                row.destination not in hook.notified_destinations
                and self._is_silent(connection, str(row.destination))
            )
            for row in rows
        )

    def _is_silent(self, connection: BaseDatabaseWrapper, destination: str) -> bool:
        """Whether the relays of a destination were sent no NOTIFY lately."""
        last = self._notified.get((connection.alias, destination), 0.0)
        return time.monotonic() - last >= NOTIFY_INTERVAL

    def _committed(self, hook: AfterCommit) -> None:
        if hook.events:
            self._committed_deliveries(hook)
            if hook.first_due == float("inf"):
                return
        alias = hook.connection.alias
        if hook.first_due - time.monotonic() <= self.settings.soon:
            if not hook.notified:
                self._notify_late(hook)
            if hook.notified:  # recorded only now: PostgreSQL sends a NOTIFY at commit
                self._notified[alias] = time.monotonic()
            wakeups.wake(alias)
        self.settings.recorders.report_enqueued(alias, hook.names)

    def _committed_deliveries(self, hook: AfterCommit) -> None:
        """The same for the messages for destinations."""
        alias, now = hook.connection.alias, time.monotonic()
        if hook.first_due_of_events - now <= self.settings.soon:
            late = [
                each
                for each in hook.events
                if each not in hook.notified_destinations
                and now - hook.began >= NOTIFY_INTERVAL
                and self._is_silent(hook.connection, each)
            ]
            if late and self._notifies(hook.connection):
                with contextlib.suppress(Error):  # the rows are committed; polling finds them
                    notify_relay(hook.connection, late)
                    hook.notified_destinations.update(late)
            self._notified |= dict.fromkeys(
                ((alias, each) for each in hook.notified_destinations), now
            )
            for destination in hook.events:
                wakeups.wake(wakeups.for_destination(alias, destination))
        for destination, counts in hook.events.items():
            self.settings.recorders.report_enqueued(alias, counts, destination)

    def _notify_late(self, hook: AfterCommit) -> None:
        """Send the NOTIFY that was left out because another transaction had just sent one.

        If this transaction stayed open for long, the relay woke up before its rows were visible.
        """
        stayed_open = time.monotonic() - hook.began >= NOTIFY_INTERVAL
        if stayed_open and self._may_notify(hook.connection, hook):
            with contextlib.suppress(Error):  # the rows are committed; polling finds them
                notify_relay(hook.connection)
                hook.notified = True
