"""The real relay in a test: claim, publish and settle, with a broker that only records.

Works on the test's own connection, in its transaction, and connects to no broker. The calls that
went out are added to `Outbox.relayed`.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from django.db import connections

from celery_outbox_steps.errors import Nacked
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.relay.tick import Relay
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.testing import RecordingPublisher
from django_integration.conf import celery_app
from django_integration.store import DjangoStore
from django_integration.testing.calls import Call, read_message

if TYPE_CHECKING:
    from celery_outbox_steps.messages import Outcome
    from django_integration.testing.outbox import Outbox


class FakeRelay:
    """`run()` relays what is due; `fail`, `dead_letter` and `go_down` make publishing fail."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._app = celery_app()
        self._publisher = RecordingPublisher()

    @property
    def published(self) -> list[Call]:
        """The calls that the broker has accepted, in order."""
        return [read_message(message) for message in self._publisher.published]

    def fail(self, task_name: str, error: Exception | None = None) -> None:
        """Make every message of this task fail; it is retried later."""
        self._publisher.fail_task(task_name, error or Nacked("fake_relay was told to fail"))

    def dead_letter(self, task_name: str, reason: str = "fake_relay was told so") -> None:
        """Make every message of this task fail permanently."""
        self._publisher.fail_task(task_name, ValueError(reason))

    def go_down(self) -> None:
        """Make the broker unavailable from now on."""
        self._publisher.down = ConnectionRefusedError("fake_relay's broker is down")

    def heal(self) -> None:
        """Make the broker accept everything again."""
        self._publisher.heal()

    def run(self) -> list[Outcome]:
        """Relay what is due, batch by batch, and return the outcome of each message."""
        relay, before = self._relay(), len(self._publisher.published)
        outcomes: list[Outcome] = []
        while (result := relay.run_once()).claimed:
            outcomes.extend(result.outcomes)
        self._outbox.relayed.extend(self.published[before:])
        return outcomes

    def _relay(self) -> Relay:
        alias = self._outbox.database
        store = DjangoStore(alias, connection=connections[alias])
        config = RelayConfig.from_app(self._app)
        return Relay(
            self._app,
            store,
            self._publisher,
            config,
            f"fake-{uuid.uuid4().hex}",
            recorders=recorders_for(self._app),
        )
