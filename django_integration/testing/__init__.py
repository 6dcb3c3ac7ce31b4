"""What the pytest fixtures are made of; see `django_integration.pytest_plugin`.

`calls.py` and `events.py` read calls and events back from rows, `outbox.py` lists them,
`relaying.py` relays them to brokers that only record, `running.py` runs tasks. Everything happens
on the test's own database connection, in its transaction, and nothing connects to a broker.
"""

from __future__ import annotations

from django_integration.testing.calls import Call
from django_integration.testing.events import Event, EventPublished
from django_integration.testing.outbox import Outbox, TaskSent
from django_integration.testing.relaying import FakeRelay
from django_integration.testing.running import Drain

__all__ = ["Call", "Drain", "Event", "EventPublished", "FakeRelay", "Outbox", "TaskSent"]
