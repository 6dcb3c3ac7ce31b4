"""Shipping with Celery: every event of the shop becomes a task. A Django project in one file.

    python with_celery.py migrate
    celery -A with_celery worker

The task has the event's id, and `@once` knows that again. A step of the worker reads the events,
from the broker of the app's own tasks. Where they come from another broker, do the same in a
process like `with_kombu.py`.
"""

import os
from pathlib import Path

import django
from celery import bootsteps
from django.conf import settings
from kombu import Consumer, Exchange, Queue
from kombu.exceptions import ContentDisallowed, DecodeError, OperationalError

HERE = Path(os.environ.get("SHOP_HOME", "."))

settings.configure(
    INSTALLED_APPS=["django_integration"],
    DATABASES={
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": HERE / "celery.sqlite3"}
    },
    USE_TZ=True,
    TIME_ZONE="UTC",
    CELERY_BROKER_URL=os.environ.get("EVENTS_URL", "amqp://guest:guest@localhost/%2F"),
    CELERY_BROKER_TRANSPORT_OPTIONS={"confirm_publish": True},
    CELERY_TASK_ACKS_LATE=True,
    CELERY_TASK_REJECT_ON_WORKER_LOST=True,
    CELERY_OUTBOX_EXCLUDE_TASKS=["shipping.pack"],  # from broker to broker, without a row
)
django.setup()

from django_integration import OutboxCelery, once  # noqa: E402  needs the settings

app = OutboxCelery("shipping")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.set_default()


@app.task(name="shipping.pack")
@once
def pack(order):
    print(f"order {order['number']} is packed", flush=True)  # and saved, in the same transaction


@app.task(name="shipping.print_label")
@once
def print_label(number):
    print(f"label for order {number}", flush=True)


class Events(bootsteps.ConsumerStep):
    """Runs in the worker's main process: it makes a task of each event, and no more."""

    def get_consumers(self, channel):
        domain = Exchange("domain", "topic", durable=True)
        queue = Queue("shipping.celery", domain, routing_key="order.*", durable=True)
        return [Consumer(channel, [queue], on_message=self.on_event, prefetch_count=10)]

    def on_event(self, message):
        try:
            order, event_id = message.decode(), message.headers["cloudEvents_id"]
        except (KeyError, ContentDisallowed, DecodeError) as error:
            print(f"rejected: {error!r}", flush=True)
            message.reject()
            return
        try:
            pack.apply_async([order], task_id=event_id)
        except OperationalError:
            message.requeue()
        else:
            message.ack()


app.steps["consumer"].add(Events)

if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    execute_from_command_line()
