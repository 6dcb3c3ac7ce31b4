"""A shop that publishes events: a Django project and its Celery app in one file.

    python shop.py migrate
    celery -A shop worker --outbox-relay
    python shop.py order 7

`EVENTS_URL` is the RabbitMQ that others read. The shop's own tasks have a broker of their own, here
a folder.
"""

import os
import sys
from pathlib import Path

import django
from django.conf import settings
from django.db import transaction

HERE = Path(os.environ.get("SHOP_HOME", "."))
EVENTS_URL = os.environ.get("EVENTS_URL", "amqp://guest:guest@localhost/%2F")
FOLDERS = {"data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control"}

settings.configure(
    INSTALLED_APPS=["django_integration"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": HERE / "shop.sqlite3"}},
    USE_TZ=True,
    TIME_ZONE="UTC",
    CELERY_BROKER_URL="filesystem://",
    CELERY_BROKER_TRANSPORT_OPTIONS={key: str(HERE / name) for key, name in FOLDERS.items()},
    CELERY_OUTBOX_DESTINATIONS={
        "events": {"url": EVENTS_URL, "exchange": "domain"},
        "shipping": {"url": EVENTS_URL, "queue": "celery"},
    },
    CELERY_OUTBOX_EVENT_SOURCE="/shop",
)
django.setup()
(HERE / "queue").mkdir(exist_ok=True)

from django_integration import OutboxCelery  # noqa: E402  needs the settings

app = OutboxCelery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.set_default()


def place(number: int) -> str:
    """Place an order. Its event and the task are committed with it, or not at all."""
    with transaction.atomic():
        # here the order is saved
        order = {"number": number, "items": ["lamp"]}
        app.send_task("shipping.print_label", [number], outbox_destination="shipping")
        return app.outbox.publish("order.placed", order, to="events", key=f"order:{number}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["order"]:
        for number in sys.argv[2:]:
            print(place(int(number)))
    else:
        from django.core.management import execute_from_command_line

        execute_from_command_line()
