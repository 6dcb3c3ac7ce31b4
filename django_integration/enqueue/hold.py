"""Hold: a call with an eta or a countdown waits in the table, and not in a worker's memory.

Reads the two options as Celery does, and takes them out of the call before Celery builds the
message: that must not be routed to an exchange for native delays, and not carry an `eta` header,
for which a worker would use its timer. A countdown counts by the database's clock. The next step of
the path is `enqueuer.py`.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from dateutil.parser import isoparse

from django_integration.schema import When

# Every database stores these, and every time zone has them.
EARLIEST = datetime(1970, 1, 1, tzinfo=timezone.utc)
LATEST = datetime(9998, 12, 31, tzinfo=timezone.utc)


def when_of(options: dict[str, Any], threshold: float | None) -> When | None:
    """The time of a call that is to be held.

    None if the call is wanted within `threshold` seconds, or if that is None. This host's clock
    matters only for an eta, and only if the threshold is above 0.
    """
    countdown, eta = options.get("countdown"), options.get("eta")
    if threshold is None or not (countdown or eta):
        return None
    moment = _moment(None if countdown else eta, countdown)
    if threshold and (moment - datetime.now(timezone.utc)).total_seconds() <= threshold:
        return None
    return When(None, float(countdown)) if countdown else When(_text(moment), None)


def without_time(options: dict[str, Any]) -> dict[str, Any]:
    """The options that Celery builds a held message from."""
    return {name: each for name, each in options.items() if name not in ("countdown", "eta")}


def when_for(*, eta: Any = None, countdown: float | timedelta | None = None) -> When:
    """The time that a caller wants instead of an earlier one."""
    if (eta is None) == (countdown is None):
        raise TypeError("Give either eta or countdown.")
    if isinstance(countdown, timedelta):
        countdown = countdown.total_seconds()
    moment = _moment(eta, countdown)
    return When(_text(moment), None) if countdown is None else When(None, float(countdown))


def seconds_ahead(when: When | None) -> float:
    """How long until a call is due, by this host's clock if it has an eta."""
    if when is None:
        return 0.0
    if when.countdown is not None:
        return when.countdown
    moment = datetime.fromisoformat(str(when.eta)).replace(tzinfo=timezone.utc)
    return (moment - datetime.now(timezone.utc)).total_seconds()


def _moment(eta: Any, countdown: Any) -> datetime:
    """The time in UTC; for a countdown by this host's clock. Raises for what is no time."""
    if eta is None:
        return _after(countdown)
    if not isinstance(eta, (str, datetime)):
        if not hasattr(eta, "isoformat"):  # Celery takes whatever has it
            raise TypeError(f"eta must be a datetime or a text in ISO 8601, not {eta!r}.")
        eta = eta.isoformat()
    moment = _parsed(eta) if isinstance(eta, str) else eta
    if moment.utcoffset() is None:
        moment = moment.replace(tzinfo=timezone.utc)  # as workers read it
    return min(max(moment.astimezone(timezone.utc), EARLIEST), LATEST)


def _after(countdown: Any) -> datetime:
    try:
        return datetime.now(timezone.utc) + timedelta(seconds=countdown)
    except (TypeError, ValueError, OverflowError) as error:
        raise type(error)(f"countdown must be seconds, not {countdown!r}: {error}") from None


def _parsed(text: str) -> datetime:
    try:
        return isoparse(text)
    except ValueError:
        raise ValueError(f"eta must be a datetime or a text in ISO 8601, not {text!r}.") from None


def _text(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds")
