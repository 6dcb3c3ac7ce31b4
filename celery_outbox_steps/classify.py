"""What a failure means for its message: nothing, try again, or never.

`outage`: the broker is away, the message is not to blame. `permanent`: it can't be published, now
or ever. `transient`: everything else; it costs a retry. Pure functions of the exception.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import TYPE_CHECKING

from amqp import exceptions as amqp_errors
from kombu import exceptions as kombu_errors

from celery_outbox_steps.errors import EnvelopeError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Verdict(str, Enum):
    """Three kinds of failure; compares equal to its name."""

    OUTAGE = "outage"
    PERMANENT = "permanent"
    TRANSIENT = "transient"


def classify(
    error: BaseException, connection_errors: Iterable[type[BaseException]] = ()
) -> Verdict:
    """Judge by class, not by text. `connection_errors`: what the app's transport calls so."""
    if isinstance(error, (EnvelopeError, *_UNSENDABLE_AMQP)):
        return Verdict.PERMANENT
    if isinstance(error, amqp_errors.AMQPError):
        return _amqp_verdict(error)
    if isinstance(error, BATCH_ERRORS):
        return _batch_verdict(error)
    if isinstance(error, _OUTAGES) or _redis_names(error) & _REDIS_OUTAGES:
        return Verdict.OUTAGE
    if isinstance(error, _UNSENDABLE) or _redis_names(error) & {"DataError"}:
        return Verdict.PERMANENT
    return Verdict.OUTAGE if isinstance(error, _trusted(connection_errors)) else Verdict.TRANSIENT


def describe(error: BaseException, limit: int = 1000) -> str:
    """Class and message as one line that every database can store: no NUL, no lone surrogate."""
    text = _named(error)
    if error.__cause__ is not None:
        text += f" ({_named(error.__cause__)})"
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _named(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as exc:  # noqa: BLE001  somebody's __str__; the row must be settled all the same
        return f"{type(error).__name__}: (no message: {type(exc).__name__})"


BATCH_ERRORS: tuple[type[Exception], ...] = tuple(
    filter(None, [getattr(kombu_errors, "BatchPublishError", None)])  # kombu 5.7
)
_UNSENDABLE_AMQP = (amqp_errors.ContentTooLarge,)
_UNSENDABLE = (
    kombu_errors.SerializationError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    struct.error,
)
_OUTAGES = (OSError, kombu_errors.OperationalError, kombu_errors.LimitExceeded)
_REDIS_OUTAGES = {
    "ConnectionError",
    "TimeoutError",
    "ReadOnlyError",
    "OutOfMemoryError",
    "ClusterDownError",
    "MasterDownError",
    "TryAgainError",
}
_PUBLISH = (60, 40)


def _amqp_verdict(error: Exception) -> Verdict:
    if isinstance(error, kombu_errors.InconsistencyError):
        return Verdict.TRANSIENT  # "no queue is bound": a ConnectionError by descent only
    if isinstance(error.__cause__, OSError):
        return Verdict.OUTAGE  # kombu's own transports wrap it: a directory or socket is gone
    method = getattr(error, "method_sig", None) or (0, 0)
    if isinstance(error, amqp_errors.AccessRefused) and method == (0, 0):
        return Verdict.OUTAGE  # at login; a refusal of an exchange names the method
    if isinstance(error, (amqp_errors.PreconditionFailed, amqp_errors.AccessRefused)):
        # Refused as it is. A queue that can't be declared may be put right by somebody.
        return Verdict.PERMANENT if method == _PUBLISH else Verdict.TRANSIENT
    if isinstance(error, amqp_errors.FrameSyntaxError) and method == (0, 0):
        return Verdict.PERMANENT  # py-amqp's own: "table type not handled"
    # A message that breaks the connection is named as the reason, and must not stop the relay.
    is_outage = isinstance(error, amqp_errors.ConnectionError) and method != _PUBLISH
    return Verdict.OUTAGE if is_outage else Verdict.TRANSIENT


def _batch_verdict(error: BaseException) -> Verdict:
    """A pipeline that Redis answered with an error is no outage: it would fail for ever."""
    names = _redis_names(error.__cause__)
    answered = "ResponseError" in names and not names & _REDIS_OUTAGES
    return Verdict.TRANSIENT if answered else Verdict.OUTAGE


def _redis_names(error: BaseException | None) -> set[str]:
    # By name: redis-py is optional.
    return {each.__name__ for each in type(error).__mro__ if each.__module__ == "redis.exceptions"}


def _trusted(connection_errors: Iterable[type[BaseException]]) -> tuple[type[BaseException], ...]:
    # kombu lists KeyError among Redis' connection errors, for its consumer's sake.
    return tuple(each for each in connection_errors if not issubclass(each, LookupError))
