"""What the pytest fixtures are made of; see `django_integration.pytest_plugin`.

`calls.py` reads calls back from rows, `outbox.py` lists and asserts them, `relaying.py` relays them
to a broker that only records, `running.py` runs them. Everything happens on the test's own database
connection, in its transaction, and nothing connects to a broker.
"""

from __future__ import annotations

from django_integration.testing.calls import Call
from django_integration.testing.outbox import Outbox, TaskSent
from django_integration.testing.relaying import FakeRelay
from django_integration.testing.running import Drain

__all__ = ["Call", "Drain", "FakeRelay", "Outbox", "TaskSent"]
