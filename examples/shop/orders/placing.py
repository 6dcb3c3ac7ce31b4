"""Placing an order: the order and the call of its task, in one transaction."""

import uuid

from django.db import transaction

from orders.models import Order
from orders.tasks import send_receipt


class PaymentDeclined(Exception):
    """The last step of the transaction failed."""


def new_number() -> str:
    return uuid.uuid4().hex[:8]


@transaction.atomic
def place_order(number: str | None = None, *, fails: bool = False) -> Order:
    order = Order.objects.create(number=number or new_number())
    send_receipt.delay(order.number)
    if fails:
        raise PaymentDeclined(order.number)
    return order
