"""The Django + Celery project of the chaos run: settings, app and tasks in one module.

Every call, in the producer and in tasks, writes its id to the table `chaos_ledger` in the same
transaction. So that table says exactly which calls were committed, even where a connection died
during COMMIT and the caller can't know. The tasks have `@once`: each writes one row to the table
`chaos_effect`, however often it is delivered and retried.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from typing import Any

import redis
from kombu import Exchange, Queue

QUEUES = {
    # What goes to the exchange "run" is run by a worker, and the harness keeps a copy of it.
    "run": Queue("chaos.run", Exchange("chaos.run", "fanout"), "run"),
    # What goes to the exchange "parcel" only has to arrive.
    "parcel": Queue("chaos.audit", Exchange("chaos.parcel", "fanout"), "parcel"),
}

# -- settings, as Django reads them ---------------------------------------------------------------

SECRET_KEY = "chaos"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_integration"]
DATABASES = {"default": json.loads(os.environ.get("CHAOS_DATABASE", "{}"))}

CELERY_BROKER_READ_URL = os.environ.get("CHAOS_BROKER", "")
CELERY_BROKER_WRITE_URL = os.environ.get("CHAOS_BROKER_WRITE", CELERY_BROKER_READ_URL)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_TASK_QUEUES = (QUEUES["run"],)
CELERY_TASK_DEFAULT_QUEUE = "chaos.run"
CELERY_TASK_IGNORE_RESULT = True
# Celery's own promise: a task that died with its worker is delivered again.
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
# A short retry goes to the broker. Without confirms Celery loses it with the connection.
CELERY_BROKER_TRANSPORT_OPTIONS = {"confirm_publish": True}
globals().update(json.loads(os.environ.get("CHAOS_SETTINGS", "{}")))

# A worker that is asked with SIGUSR2 writes to its log what it is doing, and so do its children.
faulthandler.register(signal.SIGUSR2, all_threads=True)

# -- the app --------------------------------------------------------------------------------------

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.chaos.project")

from django.db import Error  # noqa: E402

from celery_outbox_steps import OutboxRelayStep  # noqa: E402
from django_integration import OutboxCelery, once  # noqa: E402

app = OutboxCelery("chaos")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.steps["worker"].add(OutboxRelayStep)


def note(cursor: Any, ids: list[str]) -> None:
    """Business data: written with the calls, or not at all."""
    cursor.execute("INSERT INTO chaos_ledger (task_id) SELECT unnest(%s::text[])", [ids])


@app.task(  # not shared: the harness imports this module into the process of all other tests
    name="run",
    bind=True,
    shared=False,
    autoretry_for=(Error,),
    max_retries=None,
    default_retry_delay=0,  # the clocks of some workers are wrong by an hour, and so is their eta
)
@once
def run(self: Any, children: int = 0, padding: str = "") -> None:
    """Do something, and call others through the outbox: that fails with the database away."""
    from django.db import connection

    with redis.Redis.from_url(os.environ["CHAOS_REDIS"]) as client:
        client.rpush("ran", self.request.id)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO chaos_effect (task_id) VALUES (%s)", [self.request.id])
        note(cursor, [app.send_task("parcel", queue=QUEUES["parcel"]).id for _ in range(children)])
