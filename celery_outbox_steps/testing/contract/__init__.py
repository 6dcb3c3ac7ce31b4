"""The Store contract as a test suite, for our stores and for one that you write.

Subclass `StoreContract` in a test module and provide a fixture `backend` (see `Backend`): every
promise of `celery_outbox_steps.store` is then one test. `DestinationContract` has those that hold
once more for the rows of a destination. The suite uses no Django and no database;
`MemoryBackend` runs it on `MemoryStore` and its subclasses. No other module of
`celery_outbox_steps` imports pytest.
"""

from __future__ import annotations

import pytest

for _noun in (
    "attempts",
    "claiming",
    "dead_letters",
    "destinations",
    "fleet",
    "leases",
    "maintenance",
    "ordering",
    "pacing",
    "scheduling",
    "settling",
):
    pytest.register_assert_rewrite(f"{__name__}.{_noun}")

from celery_outbox_steps.testing.contract.attempts import AttemptsContract  # noqa: E402
from celery_outbox_steps.testing.contract.backend import Backend, MemoryBackend  # noqa: E402
from celery_outbox_steps.testing.contract.claiming import ClaimingContract  # noqa: E402
from celery_outbox_steps.testing.contract.dead_letters import DeadLettersContract  # noqa: E402
from celery_outbox_steps.testing.contract.destinations import (  # noqa: E402
    DestinationContract,
    LanesContract,
)
from celery_outbox_steps.testing.contract.fleet import FleetContract  # noqa: E402
from celery_outbox_steps.testing.contract.leases import LeasesContract  # noqa: E402
from celery_outbox_steps.testing.contract.maintenance import MaintenanceContract  # noqa: E402
from celery_outbox_steps.testing.contract.ordering import OrderingContract  # noqa: E402
from celery_outbox_steps.testing.contract.pacing import PacingContract  # noqa: E402
from celery_outbox_steps.testing.contract.scheduling import SchedulingContract  # noqa: E402
from celery_outbox_steps.testing.contract.settling import SettlingContract  # noqa: E402

__all__ = [
    "Backend",
    "DestinationContract",
    "MemoryBackend",
    "OwnBrokerContract",
    "StoreContract",
]


class OwnBrokerContract(
    ClaimingContract,
    LeasesContract,
    AttemptsContract,
    SettlingContract,
    SchedulingContract,
    DeadLettersContract,
    MaintenanceContract,
    FleetContract,
):
    """The promises of a Store that has no messages for destinations, and no release rates."""


class StoreContract(OwnBrokerContract, LanesContract, OrderingContract, PacingContract):
    """Every promise of a Store, one test for each."""
