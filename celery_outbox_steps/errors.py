"""Every error that this package raises, under one base class.

Messages name the fix. What a broker or a database raises stays what it is and is only classified
(see `celery_outbox_steps.classify`).
"""

from __future__ import annotations


class OutboxError(Exception):
    """Base class of everything that the outbox raises by itself."""


class ConfigurationError(OutboxError, ValueError):
    """A setting or flag has a value that can't work."""


class StoreError(OutboxError):
    """The database can't be used right now. The relay backs off and tries again."""


class StoreNotReady(StoreError):
    """The database is not set up for an outbox. Waiting does not help; the text says what does."""


class EnvelopeError(OutboxError, ValueError):
    """A row does not hold a message that this version understands. Permanent for that row."""


class Outage(OutboxError):
    """The broker can't be reached, or takes no messages from anybody. No message is to blame."""


class Interrupted(Outage):
    """The connection broke, or the broker fell silent, while messages were on their way.

    What became of them is unknown, and one of them may be the cause.
    """


class Unroutable(OutboxError):
    """The broker returned the message: no queue is bound for its routing key."""


class Nacked(OutboxError):
    """The broker refused to take responsibility for the message."""


class ConfirmTimeout(OutboxError, TimeoutError):
    """The broker took the message but did not confirm it within `send_timeout`."""


def describe(error: BaseException, limit: int = 1000) -> str:
    """Class and message as one line that every database can store: no NUL, no lone surrogate."""
    text = _named(error)
    if error.__cause__ is not None:
        text += f" ({_named(error.__cause__)})"
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """One line that can't forge another one: control characters and lone surrogates escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _named(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as exc:  # noqa: BLE001  a library's __str__; the row must be settled anyway
        return f"{type(error).__name__}: (no message: {type(exc).__name__})"
