"""What an exception says: about one message, about the connection, or about the whole broker.

Publishers ask `concerns_connection` and `refuses_everything` to tell a message's own error from an
`Outage`; the relay asks `is_permanent` whether another attempt makes sense. Judged by class and not
by text wherever a library has classes. Pure functions of the exception.
"""

from __future__ import annotations

import errno
import re
import struct
from typing import TYPE_CHECKING

from amqp import exceptions as amqp_errors
from kombu import exceptions as kombu_errors

from celery_outbox_steps.errors import EnvelopeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def is_permanent(error: BaseException) -> bool:
    """Whether this message can't be published as it is, now or ever.

    Everything else can be repaired outside the message (a missing exchange, a lost permission) and
    costs it a retry.
    """
    if isinstance(error, amqp_errors.AMQPError):
        return _is_permanent_amqp(error)
    if isinstance(error, OSError):
        return False  # a bad certificate is a ValueError by descent
    return isinstance(error, _UNSENDABLE) or "DataError" in _redis_names(error)


def concerns_connection(
    error: BaseException, connection_errors: Iterable[type[BaseException]] = ()
) -> bool:
    """Whether it looks like a lost connection; `connection_errors` are the transport's own."""
    cause = error.__cause__ if isinstance(error, amqp_errors.AMQPError) else error
    if isinstance(error, kombu_errors.InconsistencyError) or is_permanent(error):
        return False  # "no queue is bound" is a ConnectionError by descent only
    if isinstance(cause, OSError):  # kombu's own transports wrap it in a ChannelError
        return cause.errno not in _ABOUT_A_NAME
    if refuses_everything(error) or _redis_names(error) & {"ConnectionError", "TimeoutError"}:
        return True
    return isinstance(error, (*_LOST, *_trusted(connection_errors)))


def refuses_everything(error: BaseException) -> bool:
    """Whether it, or an exception that caused it, says that Redis takes no message at all."""
    return any(
        _redis_names(each) & _REDIS_REFUSALS
        or ("ResponseError" in _redis_names(each) and _REDIS_STATES.search(str(each)))
        for each in _chain(error)
    )


_UNSENDABLE = (
    EnvelopeError,
    kombu_errors.SerializationError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    struct.error,
)
_LOST = (amqp_errors.ConnectionError, kombu_errors.OperationalError, kombu_errors.LimitExceeded)
_ABOUT_A_NAME = {errno.ENAMETOOLONG, errno.EFBIG, errno.EILSEQ}
"""The file system refuses the file of this queue, but not of others."""
_REDIS_REFUSALS = {
    "AuthenticationError",
    "BusyLoadingError",
    "ReadOnlyError",
    "OutOfMemoryError",
    "ClusterDownError",
    "MasterDownError",
    "TryAgainError",
}
_REDIS_STATES = re.compile(r"(?:^|caused error: )(?:MISCONF|NOREPLICAS|NOAUTH)\b")
"""States of the whole server that redis-py has no class for, also as the answer to a pipeline."""
_PUBLISH = (60, 40)


def _is_permanent_amqp(error: amqp_errors.AMQPError) -> bool:
    method = getattr(error, "method_sig", None) or (0, 0)
    if isinstance(error, amqp_errors.PreconditionFailed):
        return method == _PUBLISH  # a queue that can't be declared may be put right
    if isinstance(error, amqp_errors.FrameSyntaxError):
        return method == (0, 0)  # py-amqp's own: "table type not handled"
    return isinstance(error, amqp_errors.ContentTooLarge)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _redis_names(error: BaseException) -> set[str]:
    # By name: redis-py is optional.
    return {each.__name__ for each in type(error).__mro__ if each.__module__ == "redis.exceptions"}


def _trusted(connection_errors: Iterable[type[BaseException]]) -> tuple[type[BaseException], ...]:
    # kombu lists KeyError among Redis' connection errors, for its consumer's sake.
    return tuple(each for each in connection_errors if not issubclass(each, LookupError))
