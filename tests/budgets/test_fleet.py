"""Sixty-four workers with the flag cost the database what two of them do."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from celery_outbox_steps.fleet import TURN
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.testing import RecordingPublisher
from celery_outbox_steps.worker.service import RelayService
from django_integration.store import DjangoStore
from django_integration.store.session import Session
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALLS = 150
PER_SECOND = 50
RELAYS = RelayConfig().relays or 0
FEW, MANY = RELAYS, 64

pytestmark = pytest.mark.rabbitmq


class Arrivals(RecordingPublisher):
    """Notes when each message arrived, whichever relay sent it."""

    def __init__(self, at: dict[str, float]) -> None:
        super().__init__()
        self._at = at

    def publish(self, messages: Any, timeout: float) -> Iterator[Any]:
        for receipt in super().publish(messages, timeout):
            self._at[self.published[-1].headers["id"]] = monotonic()
            yield receipt


class Meter:
    """Counts what all stores of this process ask of the database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements = self.most_sessions = 0
        self._open: Counter[int] = Counter()
        self._lock = threading.Lock()
        for name in ("run", "rows", "try_run"):
            monkeypatch.setattr(Session, name, self._counting(getattr(Session, name)))
        open_, close = Session.open, Session.close
        monkeypatch.setattr(Session, "open", lambda each: self._opened(each, open_(each)))
        monkeypatch.setattr(Session, "close", lambda each: self._closed(each, close(each)))

    def restart(self) -> None:
        self.statements, self.most_sessions = 0, 0

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            with self._lock:
                self.statements += 1
            return function(*args)

        return counted

    def _opened(self, session: Session, wrapper: Any) -> Any:
        with self._lock:
            self._open[id(session)] = 1
            self.most_sessions = max(self.most_sessions, self._open.total())
        return wrapper

    def _closed(self, session: Session, _: None) -> None:
        with self._lock:
            self._open.pop(id(session), None)


@contextmanager
def fleet_of(size: int, app: Any, at: dict[str, float]) -> Iterator[list[RelayService]]:
    """Relays in threads, each with a store and a session of its own."""
    with ExitStack() as stack:
        services = [
            RelayService(
                app,
                DjangoStore("default"),
                RelayConfig(),
                publisher_factory=lambda *_: Arrivals(at),
                worker=f"celery@{number}",
            )
            for number in range(size)
        ]
        for service in services:
            stack.callback(service.join)
        for service in services:
            stack.callback(service.ask_to_stop, 5)
            service.start()
            service.broker_up()
        wait_for(lambda: all(service._membership.is_known for service in services), 30)
        # Those who started at the same moment come at the same moment once more, and spread then.
        begin = monotonic()
        wait_for(lambda: monotonic() - begin > 3 * TURN)
        yield services


def waits(app: Any, at: dict[str, float]) -> list[float]:
    """Commit calls at a steady rate; seconds from each commit to its arrival."""
    committed: dict[str, float] = {}
    begin = monotonic()
    for number in range(CALLS):
        wait_for(lambda due=number / PER_SECOND: monotonic() - begin >= due, 5, pause=0.001)
        with transaction.atomic():
            task_id = app.tasks["budgets.noop"].delay(number).id
        committed[task_id] = monotonic()
    wait_for(lambda: len(at) == CALLS, 20)
    return [at[task_id] - when for task_id, when in committed.items()]


@pytest.mark.parametrize("vendor", ["postgresql", "mysql"])
def test_a_large_fleet_costs_what_a_small_one_does(
    vendor: str,
    use_database: Any,
    app: Any,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    use_database(vendor)
    meter = Meter(monkeypatch)
    per_call, sessions, latency = {}, {}, {}
    for size in (FEW, MANY):
        at: dict[str, float] = {}
        with fleet_of(size, app, at) as services:
            meter.restart()
            latency[size] = median(waits(app, at)) * 1000
            per_call[size] = meter.statements / CALLS
            sessions[size] = meter.most_sessions
            assert sum(service.state == "relaying" for service in services) == RELAYS
    record_property("statements_per_call", per_call)
    record_property("sessions", sessions)
    record_property("milliseconds", latency)
    assert per_call[MANY] <= per_call[FEW] * 1.2
    assert sessions[MANY] <= MANY // 8  # a few of the others check in at the same moment
    assert latency[MANY] <= latency[FEW] * 1.5 + 5
