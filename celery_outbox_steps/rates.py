"""Release rates: how many messages of some names may be sent per second, by all relays together.

Pure: time is an argument. A `Budget` is what the relays share, one row per rate in the database of
the outbox: until when what may be sent has been used up, and until when waiting rows are planned.
Messages for which nothing is left wait in the table, each for its turn. `Store.pace` keeps the
budget; `celery_outbox_steps.relay.prefetch` asks it before a batch is sent.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.kinds import Kind

SETTING = "CELERY_OUTBOX_RATES"
LONGEST_PATTERN = 255
BURST = 1.0
"""Seconds of unused rate that can be made up for. A single message always can."""
GRID = 0.1
"""Seconds. Turns are at multiples of this, so that a relay wakes up for several rows at once."""
PLANNED = 0.98
"""The part of a rate that is planned. The rest is for those that miss their turn."""
MISSED = 0.3
"""Seconds between two messages that missed theirs: nearly all turns are taken."""
FORGOTTEN = 60.0
"""Seconds without a message that end a plan: those that had turns must be gone."""
PER = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
"""The units of a rate, in seconds."""
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*([smhd])")


class Rate(NamedTuple):
    """At most `per_second` messages whose name fits the pattern."""

    pattern: str
    per_second: float

    @property
    def interval(self) -> float:
        return 1.0 / self.per_second

    def fits(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.pattern)


class Budget(NamedTuple):
    """What the relays share about one rate. In seconds from now, by the Store's clock."""

    used_until: float = 0.0
    """The messages that were sent so far take the rate until then."""
    planned_until: float = -BURST
    """The turns of the rows that wait take it until then. Well in the past if none waits: for a
    relay that had to wait for the budget, now is a moment ago."""


class Turns(NamedTuple):
    """What becomes of messages that are ready to be sent."""

    granted: int
    """This many may be sent now."""
    delays: list[float]
    """Seconds until the turn of each of the others."""
    budget: Budget


def rate_of(rates: Iterable[Rate], name: str) -> Rate | None:
    """The first rate whose pattern fits."""
    return next((rate for rate in rates if rate.fits(name)), None)


def in_units(per_second: float) -> tuple[float, str]:
    """A rate for people: in the first unit in which it is at least 1, else per day."""
    in_each = [(per_second * seconds, unit) for unit, seconds in PER.items()]
    return next((each for each in in_each if each[0] >= 0.999), in_each[-1])


def differ(known: Mapping[str, float], rates: Iterable[Rate]) -> bool:
    """Whether turns were given by other rates than these: patterns with their rates per second."""
    wanted = {rate.pattern: rate.per_second for rate in rates}
    return any(
        name not in wanted or not math.isclose(per_second, wanted[name])
        for name, per_second in known.items()
    )


def take_turns(rate: Rate, budget: Budget, fresh: int, waited: int) -> Turns:
    """Turns for `waited` messages that had one before and then for `fresh` ones.

    Fresh ones get their turns behind all others. One whose turn came when nothing was left, because
    a relay was late, gets the next that is possible: its own has passed.
    """
    interval = rate.interval
    burst, made_up_for = max(BURST, interval), min(BURST, interval) / 2
    used = max(budget.used_until, -made_up_for)
    is_forgotten = budget.used_until < -max(FORGOTTEN, 2 * interval)
    planned = Budget().planned_until if is_forgotten else budget.planned_until
    possible = max(0, int((burst - used) / interval + 1e-9))
    granted = min(waited, possible)
    if planned <= 0:
        granted = min(waited + fresh, possible)
    elif not waited and budget.used_until < -BURST / 2:
        # Messages that have turns are due after very many that have none yet. Those go meanwhile.
        used = -BURST / 2
        granted = min(fresh, int(-used / interval))
    used += granted * interval
    again = max(0, waited - granted)
    later = waited + fresh - granted - again
    free = used - burst  # when the next one may be sent, minus an interval
    start = max(planned, free + again * interval)
    apart = max(MISSED, interval)
    delays = [free + interval + number * apart for number in range(again)]
    delays += [start + (number + 1) * interval / PLANNED for number in range(later)]
    planned = start + later * interval / PLANNED if later else planned
    after = Budget(used if granted else budget.used_until, planned)
    return Turns(granted, [_on_grid(each) for each in delays], after)


def parse_rates(value: Any) -> dict[str, Rate]:
    """The parser of the setting `rates`: by pattern, in the order in which they are tried."""
    if not isinstance(value, Mapping):
        raise ValueError
    return {_pattern(name): Rate(name, _per_second(name, rate)) for name, rate in value.items()}


RATES = Kind('a dictionary such as {"mail.*": "600/m"}, with a rate per s, m, h or d', parse_rates)


def _pattern(name: Any) -> str:
    if not isinstance(name, str) or not name or len(name) > LONGEST_PATTERN:
        raise ConfigurationError(
            f"{SETTING} has the pattern {name!r}. It must be a task's or event's name, or an"
            f" fnmatch pattern of at most {LONGEST_PATTERN} characters."
        )
    return name


def _per_second(name: str, rate: Any) -> float:
    found = _TEXT.fullmatch(rate.strip()) if isinstance(rate, str) else None
    if found is None or float(found[1]) <= 0:
        raise ConfigurationError(
            f'{SETTING}[{name!r}] must be a text such as "600/m", with a number above 0 per s, m, h'
            f" or d, and not {rate!r}."
        )
    return float(found[1]) / PER[found[2]]


def _on_grid(seconds: float) -> float:
    return round(seconds / GRID + 0.5) * GRID
