"""The Celery app of the admin's test project: a shop that must not show card numbers."""

from __future__ import annotations

from typing import Any

from django_integration.app import OutboxCelery

CARD = "4111-1111-1111-1111"

app = OutboxCelery("shop", broker="memory://", set_as_current=False)


def hide_cards(task_name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The redactor."""
    seen = ["[hidden]" if value == CARD else value for value in args]
    return seen, {name: "[hidden]" if name == "card" else value for name, value in kwargs.items()}


class OutboxInOrders:
    """A database router: the outbox is written to another database than it is read from."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "orders" if model._meta.app_label == "celery_outbox" else None

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "default"


def only_scripts_from_files(get_response: Any) -> Any:
    """A middleware: the Content-Security-Policy of a careful project."""

    def respond(request: Any) -> Any:
        response = get_response(request)
        response["Content-Security-Policy"] = "script-src 'self'"
        return response

    return respond


@app.task(name="shop.tasks.charge_card")
def charge_card(*args: Any, **kwargs: Any) -> None: ...


@app.task(name="shop.tasks.send_receipt")
def send_receipt(*args: Any, **kwargs: Any) -> None: ...
