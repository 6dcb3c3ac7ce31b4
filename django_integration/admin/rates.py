"""Release rates above the lists: how fast messages of a name may go, and how long others wait.

Nothing is read, and nothing is shown, in a project without rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from celery_outbox_steps.health import age
from django_integration.admin import configuration

if TYPE_CHECKING:
    from celery_outbox_steps.rates import Rate
    from django_integration.store import DjangoStore

UNITS = (("s", 1), ("min", 60), ("h", 3_600), ("d", 86_400))


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
    """In the first unit that makes it at least 1."""
    in_units = ((rate.per_second * seconds, unit) for unit, seconds in UNITS)
    found = next(((each, unit) for each, unit in in_units if each >= 1), None)
    number, unit = found or (rate.per_second * UNITS[-1][1], UNITS[-1][0])
    return f"{number:,.6g} per {unit}"


def _waits(seconds: float) -> str:
    return f"up to {age(seconds)}" if seconds >= 1 else "none waits"
