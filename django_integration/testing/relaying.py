"""The real relay in a test: claim, publish and settle, with brokers that only record.

Works on the test's own connection, in its transaction, and connects to no broker. The calls and
events that went out are added to those of the `Outbox` that were relayed.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from django.db import connections

from celery_outbox_steps.envelope import EVENT_VERSION
from celery_outbox_steps.errors import Nacked
from celery_outbox_steps.events import EventOpener
from celery_outbox_steps.messages import Published
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.publishers.broker import Broker
from celery_outbox_steps.relay.tick import Relay
from celery_outbox_steps.settings import RelayConfig, read
from celery_outbox_steps.testing import RecordingPublisher
from django_integration.conf import celery_app
from django_integration.store import DjangoStore
from django_integration.testing.calls import Call, read_message
from django_integration.testing.events import Event, read_event

if TYPE_CHECKING:
    from celery_outbox_steps.destinations import Destination
    from celery_outbox_steps.messages import Outcome
    from celery_outbox_steps.observe.recorder import Recorders
    from celery_outbox_steps.store import DeliveryStore
    from django_integration.testing.outbox import Outbox


class FakeRelay:
    """`run()` relays what is due; `fail`, `dead_letter` and `go_down` make publishing fail."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._app = celery_app()
        self._publishers: dict[str | None, RecordingPublisher] = {}
        self.published: list[Call] = []
        """The calls that the brokers have accepted, in order."""
        self.published_events: list[Event] = []
        """The events that they have accepted, one for each destination."""

    def fail(self, name: str, error: Exception | None = None) -> None:
        """Make every message of this task or event fail; it is retried later."""
        for each in self._all_publishers():
            each.fail_task(name, error or Nacked("fake_relay was told to fail"))

    def dead_letter(self, name: str, reason: str = "fake_relay was told so") -> None:
        """Make every message of this task or event fail permanently."""
        for each in self._all_publishers():
            each.fail_task(name, ValueError(reason))

    def go_down(self, destination: str | None = None) -> None:
        """Make the app's own broker, or that of a destination, unavailable from now on."""
        error = ConnectionRefusedError("fake_relay's broker is down")
        self._publisher(destination).down = error

    def heal(self) -> None:
        """Make all brokers accept everything again."""
        for each in self._all_publishers():
            each.heal()

    def run(self) -> list[Outcome]:
        """Relay what is due, batch by batch, and return the outcome of each message: first those
        of calls for the app's own broker, then those of each destination."""
        alias, found = self._outbox.database, self._destinations()
        store = DjangoStore(alias, connection=connections[alias], destinations=list(found))
        outcomes = self._run(self._own_relay(store), None)
        for name, destination in found.items():
            outcomes += self._run(self._relay_for(destination, store.deliveries), name)
        return outcomes

    def _destinations(self) -> dict[str, Destination]:
        """Those of the settings, which a test may have overridden."""
        found: dict[str, Destination] = read(self._app.conf, "destinations")
        return found

    def _all_publishers(self) -> list[RecordingPublisher]:
        return [self._publisher(name) for name in (None, *self._destinations())]

    def _publisher(self, destination: str | None) -> RecordingPublisher:
        if destination is not None and destination not in self._destinations():
            raise LookupError(f"{destination!r} is not in CELERY_OUTBOX_DESTINATIONS.")
        return self._publishers.setdefault(destination, RecordingPublisher())

    def _run(self, relay: Relay, destination: str | None) -> list[Outcome]:
        publisher = self._publisher(destination)
        outcomes: list[Outcome] = []
        before = len(publisher.published)
        while (result := relay.run_once()).claimed:
            outcomes.extend(result.outcomes)
        tasks = [message for message in publisher.published[before:] if message.is_task]
        self._accept([read_message(each, destination) for each in tasks])
        if destination is not None:
            rows = [each.message for each in outcomes if isinstance(each, Published)]
            events = [each for each in rows if each.schema_version == EVENT_VERSION]
            self._accept_events([read_event(each, destination) for each in events])
        return outcomes

    def _accept(self, calls: list[Call]) -> None:
        self.published += calls
        self._outbox.relayed += calls

    def _accept_events(self, events: list[Event]) -> None:
        self.published_events += events
        self._outbox.relayed_events += events

    def _own_relay(self, store: DjangoStore) -> Relay:
        config = RelayConfig.from_app(self._app)
        return self._relay(store, config, None, recorders_for(self._app))

    def _relay_for(self, destination: Destination, deliveries: DeliveryStore | None) -> Relay:
        assert deliveries is not None  # there are destinations  # noqa: S101
        broker = Broker(destination)
        opener = EventOpener(destination, broker.header_prefix, declare=False)
        return self._relay(
            deliveries.lane(destination.name),
            RelayConfig.from_app(self._app).of(destination),
            destination.name,
            recorders_for(self._app, None, destination.name, broker),
            open_row=opener.open,
        )

    def _relay(
        self,
        store: Any,
        config: RelayConfig,
        destination: str | None,
        recorders: Recorders,
        **options: Any,
    ) -> Relay:
        relay_id = f"fake-{uuid.uuid4().hex}"
        publisher = self._publisher(destination)
        return Relay(self._app, store, publisher, config, relay_id, recorders=recorders, **options)
