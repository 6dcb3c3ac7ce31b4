"""Apps whose broker is a closed port: whatever works here works without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_integration import OutboxCelery
from tests.proj.fixtures import databases, postgresql, use_database

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["databases", "postgresql", "use_database"]

NO_BROKER = "amqp://guest:guest@127.0.0.1:1//"


@pytest.fixture
def make_app() -> Callable[..., Any]:
    """`make_app(outbox_redactor=..., broker=...)`: a fresh app with a task `add`."""

    def make(cls: type = OutboxCelery, **conf: Any) -> Any:
        arguments = {name: conf.pop(name) for name in ("broker", "backend") if name in conf}
        app = cls("enqueue", set_as_current=False, **{"broker": NO_BROKER, **arguments})
        app.conf.update(conf)

        @app.task(name="enqueue.add", shared=False)
        def add(x: Any, y: Any = 0) -> Any:
            return x + y

        return app

    return make


@pytest.fixture
def app(make_app: Callable[..., Any]) -> Any:
    return make_app()


@pytest.fixture
def add(app: Any) -> Any:
    return app.tasks["enqueue.add"]
