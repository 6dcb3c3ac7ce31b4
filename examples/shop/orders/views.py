"""One page: two buttons, and the orders with their receipts."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from orders.models import Order, Receipt
from orders.placing import PaymentDeclined, place_order


def index(request: HttpRequest) -> HttpResponse:
    return render(request, "orders/index.html", {"rows": recent_orders()})


def recent_orders() -> list[tuple[Order, Receipt | None]]:
    receipts = {r.order_number: r for r in Receipt.objects.order_by("-id")[:200]}
    return [(each, receipts.get(each.number)) for each in Order.objects.order_by("-id")[:20]]


@require_POST
def order(request: HttpRequest) -> HttpResponse:
    placed = place_order()
    messages.info(request, f"Order {placed.number} and its task were committed together.")
    return redirect("index")


@require_POST
def order_that_fails(request: HttpRequest) -> HttpResponse:
    try:
        place_order(fails=True)
    except PaymentDeclined as declined:
        messages.warning(request, f"Order {declined} was rolled back, and its task with it.")
    return redirect("index")
