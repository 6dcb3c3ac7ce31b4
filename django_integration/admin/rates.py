"""Release rates above the lists: how fast messages of a name may go, and how long others wait.

Nothing is read, and nothing is shown, in a project without rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from celery_outbox_steps.health import age
from celery_outbox_steps.rates import in_units
from django_integration.admin import configuration

if TYPE_CHECKING:
    from celery_outbox_steps.rates import Rate
    from django_integration.store import DjangoStore

UNITS = {"m": "min"}
"""The units that a page writes in another way than the setting."""


class RateLine(NamedTuple):
    """One rate."""

    pattern: str
    rate: str
    waits: str
    """For how long messages have turns that are still to come."""


def rate_lines(store: DjangoStore) -> tuple[RateLine, ...]:
    """The rates that are configured, and what waits because of them."""
    rates = configuration.rates()
    if not rates:
        return ()
    turns = store.rates()
    return tuple(
        RateLine(pattern, _speed(rate), _waits(turns.get(pattern, 0.0)))
        for pattern, rate in rates.items()
    )


def _speed(rate: Rate) -> str:
    number, unit = in_units(rate.per_second)
    return f"{number:,.6g} per {UNITS.get(unit, unit)}"


def _waits(seconds: float) -> str:
    return f"up to {age(seconds)}" if seconds >= 1 else "none waits"
