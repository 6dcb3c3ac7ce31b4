"""The tasks. Delivery is at least once, so running twice must do no more than running once."""

from celery import shared_task
from django.db import transaction
from django.db.models import F

from orders.models import Order, Receipt


@shared_task
def send_receipt(number: str) -> None:
    write_receipt(number)


@shared_task
def send_receipt_directly(number: str) -> None:
    """The same, but excluded from the outbox (see CELERY_OUTBOX_EXCLUDE_TASKS)."""
    write_receipt(number)


class CardDeclined(Exception):
    """The bank says no."""


@shared_task
def charge(number: str) -> None:
    """Always fails, for the demo. The failed task is kept as a dead letter."""
    raise CardDeclined(f"order {number}: insufficient funds")


@transaction.atomic
def write_receipt(number: str) -> None:
    """Writes before it reads: SQLite can't always turn a read lock into a write lock."""
    has_one = Receipt.objects.filter(order_number=number).update(runs=F("runs") + 1)
    if not has_one:
        exists = Order.objects.filter(number=number).exists()
        Receipt.objects.create(order_number=number, order_exists=exists)
