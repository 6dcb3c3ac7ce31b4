"""What an exception is about: one message, the connection, or the whole broker.

Publishers use `concerns_connection` and `refuses_everything` to tell a message's own error from an
`Outage`; the relay uses `is_permanent` to decide whether another attempt makes sense. Errors are
judged by class, and by text only where a library has no class for them. All functions are pure.
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
    """Whether this message can never be published as it is.

    Any other error can be fixed outside the message (a missing exchange, a lost permission) and
    costs the message a retry.
    """
    if isinstance(error, amqp_errors.AMQPError):
        return _is_permanent_amqp(error)
    if isinstance(error, OSError):
        return False  # ssl's certificate errors are also ValueErrors
    return isinstance(error, _UNSENDABLE) or "DataError" in _redis_names(error)


def concerns_connection(
    error: BaseException, connection_errors: Iterable[type[BaseException]] = ()
) -> bool:
    """Whether the connection seems to be lost; `connection_errors` are the transport's classes."""
    cause = error.__cause__ if isinstance(error, amqp_errors.AMQPError) else error
    if isinstance(error, kombu_errors.InconsistencyError) or is_permanent(error):
        return False  # InconsistencyError is "no queue is bound", though a ConnectionError by class
    if isinstance(cause, OSError):  # kombu's own transports wrap it in a ChannelError
        return cause.errno not in _ONE_FILE_ERRNOS
    if refuses_everything(error) or _redis_names(error) & {"ConnectionError", "TimeoutError"}:
        return True
    return isinstance(error, (*_CONNECTION_LOST, *_without_lookup_errors(connection_errors)))


def refuses_everything(error: BaseException) -> bool:
    """Whether the error, or one of its causes, says that Redis accepts no message at all."""
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
_CONNECTION_LOST = (
    amqp_errors.ConnectionError,
    kombu_errors.OperationalError,
    kombu_errors.LimitExceeded,
)
_ONE_FILE_ERRNOS = {errno.ENAMETOOLONG, errno.EFBIG, errno.EILSEQ}
"""The file system refuses this file, but would accept those of other messages and queues."""
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
"""Server-wide states that redis-py has no class for, on their own or in a pipeline's error text."""
_PUBLISH = (60, 40)


def _is_permanent_amqp(error: amqp_errors.AMQPError) -> bool:
    method = getattr(error, "method_sig", None) or (0, 0)
    if isinstance(error, amqp_errors.PreconditionFailed):
        return method == _PUBLISH  # a queue that can't be declared can be fixed
    if isinstance(error, amqp_errors.FrameSyntaxError):
        return method == (0, 0)  # raised by py-amqp itself: "table type not handled"
    return isinstance(error, amqp_errors.ContentTooLarge)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _redis_names(error: BaseException) -> set[str]:
    # By name: redis-py is optional.
    return {each.__name__ for each in type(error).__mro__ if each.__module__ == "redis.exceptions"}


def _without_lookup_errors(
    connection_errors: Iterable[type[BaseException]],
) -> tuple[type[BaseException], ...]:
    # kombu lists KeyError among Redis' connection errors, because its consumer needs that.
    return tuple(each for each in connection_errors if not issubclass(each, LookupError))
