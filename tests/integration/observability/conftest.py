"""A relay on a real database that can be watched: metrics, traces, signals, logs, liveness."""

from __future__ import annotations

import logging
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

from celery_outbox_steps.observe.metrics import meter_for
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.publishers.broker import Broker
from celery_outbox_steps.settings import RelayConfig, read
from celery_outbox_steps.testing import RecordingPublisher
from celery_outbox_steps.worker.destinations import DestinationGroup, DestinationRelay
from celery_outbox_steps.worker.service import RelayService
from django_integration import OutboxCelery
from django_integration.store import DjangoStore
from tests.harness.relays import RunningRelay
from tests.helpers import wait_for
from tests.proj.fixtures import databases, postgresql, use_database  # noqa: F401  fixtures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def make_app() -> Iterator[Callable[..., OutboxCelery]]:
    """Apps with one task, closed after the test."""
    apps = []

    def make(broker: str = "memory://", **conf: Any) -> OutboxCelery:
        app = OutboxCelery("observed", broker=broker, set_as_current=False)
        app.conf.update(conf)
        app.task(_nothing, name="shop.ship_order")
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def app(make_app: Callable[..., OutboxCelery]) -> OutboxCelery:
    return make_app()


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Never run here."""


class Watched(RunningRelay):
    """A running relay with a publisher that records, unless another one is given."""

    def __init__(self, app: Any, store: Any = None, **options: Any) -> None:
        self.publisher = RecordingPublisher()
        options.setdefault("publisher_factory", lambda *_: self.publisher)
        config = {"idle_time": 0.05, "backoff_time": 60.0} | options.pop("config", {})
        self.store = store or DjangoStore("default")
        recorders = recorders_for(app, meter_for(app))
        self.service = RelayService(app, self.store, RelayConfig(**config), recorders, **options)

    def counted(self, name: str, count: int) -> None:
        """Wait until the relay's counter has reached `count`."""
        counters = self.service.journal.counters
        wait_for(lambda: counters[name] >= count, message=lambda: f"{name}: {dict(counters)}")


class WatchedDestination(RunningRelay):
    """The relay of the first destination beside that of the app's own broker; both record."""

    def __init__(self, app: Any, **config: Any) -> None:
        self.publisher, self.partner = RecordingPublisher(), RecordingPublisher()
        destination = next(iter(read(app.conf, "destinations").values()))
        self.store = DjangoStore("default", destinations=[destination.name])
        self.meter = meter_for(app)
        broker = Broker(destination)
        settings = RelayConfig(**{"idle_time": 0.05, "backoff_time": 60.0, **config})
        self.relay = DestinationRelay(
            app,
            destination,
            self.store.deliveries,
            settings,
            broker=broker,
            recorders=recorders_for(app, self.meter, destination.name, broker),
            publisher_factory=lambda *_: self.partner,
        )
        self.service = RelayService(
            app,
            self.store,
            settings,
            recorders_for(app, self.meter),
            publisher_factory=lambda *_: self.publisher,
            destinations=DestinationGroup(self.store.deliveries, [self.relay]),
        )

    def counted(self, name: str, count: int) -> None:
        """Wait until the counter of the destination's relay has reached `count`."""
        counters = self.relay.journal.counters
        wait_for(lambda: counters[name] >= count, message=lambda: f"{name}: {dict(counters)}")


@pytest.fixture
def watch_destination() -> Iterator[Callable[..., WatchedDestination]]:
    """`watch_destination(app)` starts both relays; they end with the test."""
    started: list[WatchedDestination] = []

    def start(app: Any, **config: Any) -> WatchedDestination:
        started.append(WatchedDestination(app, **config))
        started[-1].start()
        return started[-1]

    yield start
    for relay in started:
        relay.stop()


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    """`watch(app)` starts a relay; it ends with the test."""
    started: list[Watched] = []

    def start(app: Any, **options: Any) -> Watched:
        started.append(Watched(app, **options))
        return started[-1].start()

    yield start
    for relay in started:
        relay.stop()


class UdpListener:
    """What a DogStatsD agent would receive, line by line."""

    def __init__(self) -> None:
        self.packets: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def lines(self) -> list[str]:
        return [line for packet in list(self.packets) for line in packet.splitlines()]

    def named(self, name: str) -> list[str]:
        return [line for line in self.lines if line.partition(":")[0] == name]

    def wait_for(self, name: str) -> str:
        return wait_for(lambda: self.named(name), message=lambda: f"no {name} in {self.lines}")[0]

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ending:
            ending.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(5)
        self._socket.close()

    def _listen(self) -> None:
        while packet := self._socket.recv(65536):
            self.packets.append(packet.decode())


@pytest.fixture
def udp() -> Iterator[UdpListener]:
    listener = UdpListener()
    yield listener
    listener.close()


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """Everything that was logged during the test, at any level, by any logger."""
    found: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    handler, root = Keep(logging.NOTSET), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield found
    root.setLevel(before)
    root.removeHandler(handler)


class Envelopes(Transport):
    """Keeps what would be sent."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.envelopes: list[Any] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.envelopes.append(envelope)

    @property
    def transactions(self) -> list[dict[str, Any]]:
        found = [envelope.get_transaction_event() for envelope in self.envelopes]
        return [event for event in found if event is not None]

    @property
    def events(self) -> list[dict[str, Any]]:
        found = [envelope.get_event() for envelope in self.envelopes]
        return [event for event in found if event is not None]

    def spans(self) -> dict[str, str]:
        """Streamed spans: their trace ids by name."""
        items = [item for envelope in self.envelopes for item in envelope.items]
        found = [item.payload.json["items"] for item in items if item.type == "span"]
        return {span["name"]: span["trace_id"] for group in found for span in group}

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.transactions if event["transaction"] == name]


@pytest.fixture
def make_sentry() -> Iterator[Callable[..., Envelopes]]:
    def make(**options: Any) -> Envelopes:
        transport = Envelopes()
        sentry_sdk.init(
            "https://key@sentry.invalid/1",
            transport=transport,
            **{"traces_sample_rate": 1.0, **options},
        )
        return transport

    yield make
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)
