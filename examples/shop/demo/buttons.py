"""The page of `make demo-web`: the shop, with buttons that make something to see in the admin."""

from collections.abc import Callable
from typing import NamedTuple

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST
from orders.placing import place_order
from orders.tasks import charge, send_receipt
from orders.views import recent_orders
from shop.celery import app

from demo.broker import FileBroker

UNFIT = "q" * 250
"""A queue with a name that is too long for a file, which is what this broker keeps messages in."""


class Button(NamedTuple):
    label: str
    press: Callable[[], str]
    """Returns what the page then says."""


def pause() -> str:
    app.control.broadcast("outbox_pause", arguments={"reason": "a button in the shop"})
    return "The outbox is paused. Place orders: they wait, and the admin says why."


def resume() -> str:
    app.control.broadcast("outbox_resume")
    return "The outbox is resumed, and what waited is published."


def break_broker() -> str:
    broker = FileBroker(settings.HOME)
    if broker.is_there:
        broker.take_away()
    return "The broker is away. Place orders: they wait, and no attempt is counted."


def mend_broker() -> str:
    broker = FileBroker(settings.HOME)
    if not broker.is_there:
        broker.bring_back()
    return "The broker is back, and what waited is published."


@transaction.atomic
def call_later() -> str:
    send_receipt.apply_async((place_order().number,), countdown=600)
    return "A second receipt is scheduled, in ten minutes. The admin can send or cancel it now."


@transaction.atomic
def send_bad_message() -> str:
    send_receipt.apply_async((place_order().number,), queue=UNFIT)
    return "No broker of files takes this message. It backs off, and is a dead letter in a minute."


@transaction.atomic
def run_failing_task() -> str:
    charge.delay(place_order().number)
    return "The task fails in the worker, and is kept among the dead letters, with its traceback."


BUTTONS = {
    "pause": Button("Pause the outbox", pause),
    "resume": Button("Resume it", resume),
    "later": Button("Call a task for later", call_later),
    "bad": Button("Send a bad message", send_bad_message),
    "fail": Button("Run a task that fails", run_failing_task),
}
if settings.CELERY_BROKER_URL.startswith("filebroker:"):  # a server of yours is left alone
    BUTTONS["break"] = Button("Break the broker", break_broker)
    BUTTONS["mend"] = Button("Mend it", mend_broker)


def index(request: HttpRequest) -> HttpResponse:
    context = {"rows": recent_orders(), "buttons": BUTTONS}
    return render(request, "demo/index.html", context)


@require_POST
def press(request: HttpRequest, name: str) -> HttpResponse:
    messages.info(request, BUTTONS[name].press())
    return redirect("index")
