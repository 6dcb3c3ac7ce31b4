"""Records what Prometheus would scrape from a real relay while minutes pass in seconds.

A relay runs on a real database. Between two scrapes the rows are made older by the interval, as if
that time had passed, and the relay samples its table again. The series are written in the notation
of `promtool test rules`. No value is made up: each comes from `/metrics` at that moment.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from celery import Celery
from django.db import connection
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from celery_outbox_steps.observe.metrics import Meter, Metrics
from celery_outbox_steps.observe.recorder import Recorders
from celery_outbox_steps.observe.recorders.prometheus import PrometheusSink
from celery_outbox_steps.publishers.broker import Broker
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.testing import RecordingPublisher
from celery_outbox_steps.worker.destinations import DestinationGroup, DestinationRelay
from celery_outbox_steps.worker.endpoints import Endpoints
from celery_outbox_steps.worker.group import RelayGroup
from celery_outbox_steps.worker.service import RelayService
from django_integration.schema import DELIVERY, OUTBOX
from django_integration.store import DjangoStore
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_outbox_steps.destinations import Destination

INTERVAL = 30.0
"""Seconds between two scrapes."""
SAMPLE_INTERVAL = 0.02
MISSING = "_"


class Recorder:
    """A worker with one relay, and the Prometheus that scrapes it."""

    def __init__(
        self,
        instance: str = "worker",
        publisher: RecordingPublisher | None = None,
        destination: Destination | None = None,
        **config: Any,
    ) -> None:
        self.instance = instance
        self.publisher, self.partner = publisher or RecordingPublisher(), RecordingPublisher()
        self.store = DjangoStore("default", destinations=[destination.name] if destination else ())
        self.meter = Meter(PrometheusSink(CollectorRegistry()))
        app = Celery("recorded", set_as_current=False)
        settings = RelayConfig(**{"idle_time": 0.02, "sample_interval": SAMPLE_INTERVAL, **config})
        self.lane = None if destination is None else self._relay_for(destination, app, settings)
        self.service = RelayService(
            app,
            self.store,
            settings,
            Recorders([Metrics(self.meter)]),
            lambda *_: self.publisher,
            destinations=self.lane and DestinationGroup(self.store.deliveries, [self.lane]),
        )
        self.relays = RelayGroup([self.service])
        self.meter.watch(self.relays)
        self.endpoints = Endpoints(self.relays, self.meter)
        self.scrapes: list[dict[str, float]] = []

    def _relay_for(
        self, destination: Destination, app: Any, settings: RelayConfig
    ) -> DestinationRelay:
        assert self.store.deliveries is not None
        return DestinationRelay(
            app,
            destination,
            self.store.deliveries,
            settings,
            broker=Broker(destination),
            recorders=Recorders([Metrics(self.meter, destination.name)]),
            publisher_factory=lambda *_: self.partner,
        )

    def start(self) -> None:
        self.relays.start()
        self.relays.broker_up()
        self.settle()

    def stop(self) -> None:
        self.relays.stop(2)
        self.store.close()

    def settle(self) -> None:
        """Wait until the relay has looked at its table twice, and has published what is due."""
        for relay in filter(None, (self.service, self.lane)):
            for _ in range(2):
                before = relay.sample
                if relay.at_work:
                    wait_for(lambda r=relay, before=before: r.sample is not before, 10)

    def minutes(self, count: float, meanwhile: Callable[[], Any] = lambda: None) -> None:
        """Scrape for this long; `meanwhile` runs before each scrape."""
        for _ in range(int(count * 60 / INTERVAL)):
            pass_time(INTERVAL)
            meanwhile()
            self.settle()
            self.scrape()

    def minutes_without_target(self, count: float) -> None:
        """There is nothing to scrape: Prometheus marks every series as stale."""
        self.scrapes += [{}] * int(count * 60 / INTERVAL)

    def scrape(self) -> None:
        answer = self.endpoints.answer("/metrics")
        assert answer.status == 200
        self.scrapes.append(
            {
                self._series(sample.name, sample.labels): sample.value
                for family in text_string_to_metric_families(answer.body.decode())
                for sample in family.samples
            }
        )

    def _series(self, name: str, labels: dict[str, str]) -> str:
        found = {**labels, "instance": self.instance}
        shown = ",".join(f'{key}="{value}"' for key, value in found.items())
        return f"{name}{{{shown}}}"

    def input_series(self) -> list[dict[str, str]]:
        """The scrapes, one series per line, as promtool reads them."""
        values: dict[str, list[str]] = defaultdict(list)
        for number, scrape in enumerate(self.scrapes):
            for name in scrape:
                values[name] += [MISSING] * (number - len(values[name]))
            for name, known in values.items():
                known.append(_value(scrape.get(name), is_new=known[-1:] not in ([], [MISSING])))
        return [{"series": name, "values": " ".join(found)} for name, found in values.items()]


def pass_time(seconds: float) -> None:
    """Make every row older."""
    with connection.cursor() as cursor:
        for table in (OUTBOX, DELIVERY):
            cursor.execute(
                f"UPDATE {table} SET due_at = due_at - %s * interval '1 second',"
                " created_at = created_at - %s * interval '1 second'",
                [seconds, seconds],
            )


def _value(value: float | None, *, is_new: bool) -> str:
    if value is None:
        return "stale" if is_new else MISSING
    return repr(value)
