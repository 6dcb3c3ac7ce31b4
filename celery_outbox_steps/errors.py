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
