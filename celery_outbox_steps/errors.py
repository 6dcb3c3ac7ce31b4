"""Every error that this package raises, under one base class.

Their messages name the fix. Exceptions of a broker or a database keep their class;
`celery_outbox_steps.classify` only decides what they are about.
"""

from __future__ import annotations


class OutboxError(Exception):
    """Base class of every exception that the outbox itself raises."""


class ConfigurationError(OutboxError, ValueError):
    """A setting or flag is unknown, or has a value that can't work."""


class StoreError(OutboxError):
    """The database can't be used right now. The relay backs off and tries again."""


class StoreNotReady(StoreError):
    """The database is not set up for an outbox. Waiting does not help; the text names the fix."""


class EnvelopeError(OutboxError, ValueError):
    """A row does not hold a message that this version understands. Permanent for that row."""


class Outage(OutboxError):
    """The broker can't be reached, or accepts no messages at all. No message is the cause."""


class Interrupted(Outage):
    """The connection broke, or the broker stopped answering, while messages were being sent.

    It is unknown whether they arrived, and one of them may be the cause.
    """


class Unroutable(OutboxError):
    """The broker returned the message: no queue is bound for its routing key."""


class Nacked(OutboxError):
    """The broker refused responsibility for the message (basic.nack)."""


class ConfirmTimeout(OutboxError, TimeoutError):
    """The message was sent, but the broker did not confirm it within `send_timeout`."""


def describe(error: BaseException, limit: int = 1000) -> str:
    """Class and message as one line that every database can store: no NUL, no lone surrogate."""
    text = _class_and_message(error)
    if error.__cause__ is not None:
        text += f" ({_class_and_message(error.__cause__)})"
    text = printable(text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """The text with control characters and lone surrogates escaped: it can't forge a log line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _class_and_message(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as exc:  # noqa: BLE001  __str__ is a library's; the row must be settled anyway
        return f"{type(error).__name__}: (no message: {type(exc).__name__})"
