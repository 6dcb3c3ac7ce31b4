"""Two apps that differ in nothing but their class, with everything random frozen.

Ids count up, time stands still and the reply address is fixed; what remains is what Celery makes
of a call, so two messages of the same call must be equal to the last byte.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from datetime import datetime, timezone
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from celery import Celery
from celery.events.event import Event
from kombu import pools

from django_integration import OutboxCelery

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
UUID_USERS = ("celery.app.base", "celery.app.task", "celery.canvas", "celery.utils")


class Frozen:
    """What an app makes up by itself, made predictable."""

    def now(self) -> datetime:
        return NOW.astimezone(self.timezone)  # type: ignore[attr-defined]

    @property
    def thread_oid(self) -> str:
        return "11111111-2222-3333-4444-555555555555"


class Direct(Frozen, Celery):  # type: ignore[misc]
    """Publishes at once."""


class Undelayed(Direct):
    """Publishes at once, what is wanted later as well."""

    def send_task(self, *args: Any, **kwargs: Any) -> Any:
        named = signature(Celery.send_task).bind(self, *args, **kwargs).arguments
        options = {**named, **named.get("options", {}), "countdown": None, "eta": None}
        return super().send_task(
            **{name: value for name, value in options.items() if name not in ("self", "options")}
        )


class Stored(Frozen, OutboxCelery):  # type: ignore[misc]
    """Stores a row."""


def twin(cls: type, prefix: str, broker: str, conf: dict[str, Any]) -> Any:
    """An app of that class with the tasks that the calls use."""
    app = cls("fidelity", broker=broker, backend="cache+memory://", set_as_current=False)
    app.conf.update(
        task_default_queue=f"{prefix}.default", event_exchange=f"{prefix}.ev", broker_pool_limit=2
    )
    app.conf.update(conf)
    return app


def context(app: Any, prefix: str) -> SimpleNamespace:
    """What a call sees: the app, its tasks, a prefix for names at the broker, and the time."""
    q = f"{prefix}."

    @app.task(shared=False, name="fidelity.add")
    def add(x: Any, y: Any = 0) -> Any:
        return x

    @app.task(shared=False, name="fidelity.echo", typing=False)
    def echo(*args: Any, **kwargs: Any) -> Any:
        return args

    @app.task(
        shared=False, name="fidelity.configured", queue=q + "task", priority=3, time_limit=30,
        soft_time_limit=20, expires=90, ignore_result=True, compression="gzip",
    )  # fmt: skip
    def configured(x: Any) -> Any:
        return x

    @app.task(shared=False, name="fidelity.yaml", serializer="yaml")
    def yaml(x: Any) -> Any:
        return x

    @app.task(shared=False, name="fidelity.bound", bind=True)
    def bound(self: Any, x: Any) -> Any:
        return x

    app.finalize()
    return SimpleNamespace(
        app=app, add=add, echo=echo, configured=configured, yaml=yaml, bound=bound, q=q, now=NOW
    )


@contextmanager
def frozen() -> Iterator[None]:
    """Ids count from one, and events are dated NOW. Broker connections start afresh."""
    numbers = itertools.count(1)

    def uuid() -> str:
        return f"00000000-0000-4000-8000-{next(numbers):012d}"

    patches = [patch(f"{module}.uuid", uuid) for module in UUID_USERS]
    dated = patch.object(Event, "__defaults__", (None, dict, NOW.timestamp))
    pools.reset()
    for one in (*patches, dated):
        one.start()
    try:
        yield
    finally:
        for one in (*patches, dated):
            one.stop()
        pools.reset()
