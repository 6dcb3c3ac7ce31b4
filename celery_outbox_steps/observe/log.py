"""Every log event of both packages in one table, and the one function that logs them.

An event's name is the beginning of its message template, because tools group lines by template, and
the record's attribute `event`; its fields are attributes too. Text from outside can't forge a
second line. Task arguments are never logged. The reference page is generated from `EVENTS`.
"""

from __future__ import annotations

import logging
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any, NamedTuple

from celery_outbox_steps.errors import printable

LOGGER = "celery_outbox"
ERROR_LOGGER = "celery_outbox.relay"
"""A separate logger, because Sentry gets these errors as exceptions and not as log lines."""


class Event(NamedTuple):
    """One row of the table."""

    level: int
    text: str
    """A template for the arguments of `log()`; the event's name is put in front of it."""
    meaning: str
    """What happened and what happens next, for the reference."""
    fields: tuple[str, ...] = ()
    also: int | None = None
    """A second level that it may be logged at."""
    logger: str = LOGGER


RELAY = ("database", "relay")
"""The fields that tell relays apart. Lines of a relay for a destination have `destination` too."""
MESSAGE = (*RELAY, "task_id", "task_name", "retries", "error")

RELAY_EVENTS = {
    "celery_outbox_relay_started": Event(
        INFO,
        "the thread of the relay runs",
        "The relay's thread runs. The next line says whether it works or stands by.",
        (*RELAY, "batch_size"),
    ),
    "celery_outbox_relay_at_work": Event(
        INFO,
        "relaying",
        "The relay has a slot, and claims rows while the worker's broker connection is up.",
        RELAY,
    ),
    "celery_outbox_relay_standing_by": Event(
        INFO,
        "%s; no database session is held",
        "The relay has no slot: all are taken, or it gave its own up because it could not work "
        "(`state` says why). It checks in from time to time and takes a slot when one is free.",
        (*RELAY, "state"),
    ),
    "celery_outbox_relay_stopped": Event(
        INFO,
        "no more rows are claimed",
        "The worker is stopping. Rows that were claimed and not sent were released.",
        (*RELAY, "counters"),
    ),
    "celery_outbox_relay_paused": Event(
        WARNING,
        "this worker's relay, by remote control, until outbox_resume: %s",
        "`celery control outbox_pause` for this worker. Another worker's relay takes over.",
        (*RELAY, "reason"),
    ),
    "celery_outbox_paused": Event(
        WARNING,
        "by %s; rows wait until outbox_resume: %s",
        "`celery control outbox_pause` for the whole outbox. Rows wait until `outbox_resume`, also "
        "when workers are restarted.",
        (*RELAY, "paused_by", "reason"),
    ),
    "celery_outbox_relay_resumed": Event(
        WARNING,
        "this worker's relay, by remote control",
        "`celery control outbox_resume` for a relay that was paused alone. It works again when it "
        "has a slot.",
        RELAY,
    ),
    "celery_outbox_resumed": Event(
        WARNING,
        "rows are published again",
        "`celery control outbox_resume` for the whole outbox.",
        RELAY,
    ),
    "celery_outbox_destination_paused": Event(
        WARNING,
        "%s: by %s; its rows wait until it is resumed: %s",
        "`celery outbox pause` with the name of a destination. Its rows wait until `celery outbox "
        "resume` with its name, also when workers are restarted; nothing else is affected.",
        (*RELAY, "destination", "paused_by", "reason"),
    ),
    "celery_outbox_destination_resumed": Event(
        WARNING,
        "%s: its rows are published again",
        "`celery outbox resume` with the name of a destination.",
        (*RELAY, "destination"),
    ),
    "celery_outbox_rates_changed": Event(
        INFO,
        "%s messages waited for turns by other rates, and get new ones",
        "`CELERY_OUTBOX_RATES` is not what messages that wait got their turns by. They are due, "
        "and get new turns if they still need any.",
        (*RELAY, "rows"),
    ),
    "celery_outbox_relay_error": Event(
        ERROR,
        "%s; trying again in %g s",
        "The loop failed: the database is down, or there is a bug. The relay tries again after "
        "`pause` seconds (0.5 to 5), and nothing is lost. ERROR once for each kind of error, "
        "then WARNING until it has passed; a database that is back at the second attempt is only "
        "a WARNING.",
        (*RELAY, "failures", "pause"),
        also=WARNING,
        logger=ERROR_LOGGER,
    ),
    "celery_outbox_relay_recovered": Event(
        WARNING,
        "relaying again",
        "The relay works again after an error. `failures` is the number of failures in a row.",
        (*RELAY, "failures"),
    ),
    "celery_outbox_broker_unavailable": Event(
        WARNING,
        "%s; rows wait until it is back, no retry is spent",
        "The broker is down or does not confirm. `rows` rows wait, and no retry is spent. Logged "
        "once per outage.",
        (*RELAY, "rows"),
    ),
    "celery_outbox_broker_recovered": Event(
        WARNING,
        "publishing again",
        "The first message after an outage was published.",
        RELAY,
    ),
    "celery_outbox_destination_unavailable": Event(
        WARNING,
        "%s: %s; its rows wait until it is back, no retry is spent",
        "The broker of a destination is down or does not confirm. Its `rows` rows wait, and no "
        "retry is spent; nothing else is affected. Logged once per outage.",
        (*RELAY, "destination", "rows"),
    ),
    "celery_outbox_destination_recovered": Event(
        WARNING,
        "%s: publishing again",
        "The first message to a destination after an outage was published.",
        (*RELAY, "destination"),
    ),
    "celery_outbox_publish_failed": Event(
        WARNING,
        "%s[%s]: %s; trying again in %.0f s",
        "The broker refused this message. It is tried again in `delay` seconds.",
        (*MESSAGE, "delay"),
    ),
    "celery_outbox_dead_letter": Event(
        ERROR,
        "%s[%s] is a dead letter now%s: %s",
        "This message can never be published, or has failed `max_retries` times. It stays in the "
        "dead letters until it is replayed or discarded. If it has a key, the line says that later "
        "messages of its key wait for that.",
        MESSAGE,
    ),
    "celery_outbox_expired": Event(
        WARNING,
        "%s[%s] expired while it was held; it is not published",
        "A held call's `expires` passed before it could be published. The row is deleted; no "
        "worker runs the task.",
        (*RELAY, "task_id", "task_name"),
    ),
    "celery_outbox_fenced": Event(
        WARNING,
        "rows were taken over before this relay could settle them, so they may be published "
        "twice; it stood still for longer than its lease",
        "This relay stood still for longer than its lease (`stale_timeout`), and another relay has "
        "taken over `rows` of its rows. Those that were sent already may be published twice. Give "
        "the worker more CPU or memory, or use a longer `stale_timeout` if the database is slow.",
        (*RELAY, "rows"),
    ),
    "celery_outbox_liveness_failed": Event(
        ERROR,
        "%s; the relay continues, but the liveness probe will fail",
        "The liveness file can't be written. Logged once. The relay continues, but the liveness "
        "probe will fail.",
        RELAY,
    ),
    "celery_outbox_listen_unavailable": Event(
        WARNING,
        "polling %s instead: %s",
        "PostgreSQL's LISTEN does not work on this connection, for example behind a pooler. The "
        "relay polls instead, which adds up to `idle_time` of latency. Logged once.",
        ("database", "reason"),
    ),
    "celery_outbox_event_lost": Event(
        DEBUG,
        "a task-sent event was not sent; its message was",
        "A `task-sent` event could not be sent. Its message was published.",
    ),
    "celery_outbox_other_channel_closed": Event(
        DEBUG,
        "it was not one of the relay's; publishing continues",
        "The broker closed a channel of the same connection that is not the relay's. Publishing "
        "continues.",
    ),
}

CALLER_EVENTS = {
    "celery_outbox_not_in_transaction": Event(
        WARNING,
        "%s is stored outside a transaction on database %r: durably, but not together with your "
        "data. Logged once per name.",
        "A task was called, or an event was published, outside a transaction. It is stored "
        "durably, but not together with your data: wrap it in `transaction.atomic()`. Logged once "
        "per name.",
        ("task_name", "database"),
    ),
    "celery_outbox_unserved_database": Event(
        WARNING,
        "%s is stored in database %r, which CELERY_OUTBOX_DATABASES does not name: no relay with "
        "these settings publishes it. Logged once per database.",
        "A call or an event names a database that the relays do not look at. Its rows wait there "
        "until `CELERY_OUTBOX_DATABASES` names it.",
        ("task_name", "database"),
    ),
    "celery_outbox_after_commit": Event(
        WARNING,
        "%s is stored in an on_commit hook %s. If the process dies between the commit and the "
        "hook, it is lost: call or publish inside the transaction. Logged once per place.",
        "A task is called, or an event is published, in an `on_commit` hook. It is stored, but "
        "after the commit of your data: if the process dies in between, it is lost. Do it inside "
        "the transaction. "
        "Logged once per `place`: file and line of the call, or of the transaction if the hook is "
        "the call itself.",
        ("task_name", "place"),
    ),
    "celery_outbox_not_stored": Event(
        WARNING,
        "%s goes to the broker, because it can't be stored: %s",
        "A worker calls a task outside a transaction, for example the next one of a chain, and the "
        "database is away. The call goes to the broker, so that the chain does not end.",
        ("task_name",),
    ),
    "celery_outbox_key_ignored": Event(
        WARNING,
        "%s is stored without a key: %s",
        "A task of this name is called in a worker, and can't have its key. It is stored without "
        "one, because an error could end a chain.",
        ("task_name",),
    ),
    "celery_outbox_bypassed": Event(
        WARNING,
        "calls of @shared_task go to the app %r, which is no OutboxCelery. Logged once.",
        "Another app than the `OutboxCelery` is Celery's current app, or its default app, which "
        "threads use that have not created one. Calls of `@shared_task` use that app, and go "
        "to the broker directly: create the `OutboxCelery` last, and call `app.set_default()`; or "
        "create the other app with `set_as_current=False`. Logged once per process.",
        ("app_name",),
    ),
    "celery_outbox_retry_not_held": Event(
        WARNING,
        "a retry of %s goes to the broker with its eta: %s",
        "A retry should wait in the table (`hold_retries`), but the database could not store it. "
        "It is sent to the broker, and a worker holds it in memory.",
        ("task_name",),
    ),
    "celery_outbox_revoke_untold": Event(
        WARNING,
        "%s: deleted from the outbox, but the workers can't be told: %s. If a message had left "
        "before, the task may run.",
        "A call was revoked that a relay had attempted before. Its row is deleted, but the workers "
        "could not be told to drop the message, if it had left. Revoke it again when the broker is "
        "back.",
        ("task_ids",),
    ),
    "celery_outbox_context_failed": Event(
        WARNING,
        "%s; the call is stored without its context",
        "The context of Sentry or structlog could not be read. The call is stored without it.",
    ),
    "celery_outbox_redactor_failed": Event(
        WARNING,
        "%s for task %s; its arguments are hidden",
        "Your redactor raised an exception. The call is stored; a placeholder is shown instead "
        "of its arguments.",
        ("task_name",),
    ),
}

TASK_EVENTS = {
    "celery_outbox_duplicate": Event(
        INFO,
        "%s[%s] was done before; its stored result is returned",
        "A task with `@once` was delivered again, or called again with the same key. Its work is "
        "not repeated; the stored result goes to the result backend and the continuation.",
        ("task_id", "task_name"),
    ),
    "celery_outbox_failed_task_kept": Event(
        INFO,
        "%s[%s] is a dead letter now; replay it when its cause is fixed",
        "A task failed for good, and `keep_failed_tasks` names it. Its message, exception and "
        "traceback stay in the dead letters until it is replayed or purged.",
        ("database", "task_id", "task_name"),
    ),
    "celery_outbox_failed_task_not_kept": Event(
        ERROR,
        "%s[%s] failed and is no dead letter: %s",
        "A task that `keep_failed_tasks` names failed for good, but could not be stored: the "
        "database is away, or the message can't be stored. Its result says FAILURE as usual; it "
        "can't be replayed.",
        ("task_id", "task_name", "error"),
    ),
}

COMMON_EVENTS = {
    "celery_outbox_metrics_failed": Event(
        ERROR,
        "the sink raised %s; its further errors are not logged",
        "Your metrics sink raised an exception. Logged once; the sink is called again for the "
        "next batch.",
    ),
    "celery_outbox_signal_error": Event(
        ERROR,
        "a receiver raised %s; the message is not affected",
        "A signal receiver raised an exception. The message is not affected.",
        ("receiver",),
    ),
}

SECTIONS = {
    "The relay": RELAY_EVENTS,
    "The caller": CALLER_EVENTS,
    "Tasks in a worker": TASK_EVENTS,
    "Both": COMMON_EVENTS,
}
EVENTS = {name: event for section in SECTIONS.values() for name, event in section.items()}


def log(
    name: str,
    /,
    *args: Any,
    level: int | None = None,
    exc_info: BaseException | bool | None = None,
    **fields: Any,
) -> None:
    """Log one event; `args` fill its template. Raises KeyError if the table has no such name."""
    event = EVENTS[name]
    logging.getLogger(event.logger).log(
        event.level if level is None else level,
        f"{name}: {event.text}",
        *(printable(each) if isinstance(each, str) else each for each in args),
        exc_info=exc_info,
        extra={"event": name, **fields},
        stacklevel=2,
    )
