"""What the Store promises, one test for each promise, on every store.

The promises themselves are in `celery_outbox_steps.testing.contract`, which any project can import.
"""

from __future__ import annotations

from celery_outbox_steps.testing.contract import DestinationContract, StoreContract


class TestStore(StoreContract):
    """On each backend of `conftest.py`."""


class TestDestination(DestinationContract):
    """The same for the rows of a destination."""
