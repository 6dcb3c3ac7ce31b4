"""What each failure means: a table of the exceptions that brokers and libraries raise."""

from __future__ import annotations

import errno
import socket
import ssl
import struct

import pytest
import redis.exceptions as redis_errors
from amqp import exceptions as amqp_errors
from kombu import exceptions as kombu_errors

from celery_outbox_steps.classify import (
    concerns_connection,
    is_permanent,
    refuses_everything,
)
from celery_outbox_steps.errors import (
    ConfirmTimeout,
    EnvelopeError,
    Interrupted,
    Nacked,
    Unroutable,
    describe,
)

PUBLISH, DECLARE = (60, 40), (50, 10)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


LOST = [
    ConnectionRefusedError(111, "Connection refused"),
    ConnectionResetError(),
    BrokenPipeError(),
    OSError("Server unexpectedly closed connection"),
    OSError(errno.ENOSPC, "No space left on device"),
    socket.gaierror("name or service not known"),
    TimeoutError(),
    ssl.SSLCertVerificationError("certificate verify failed"),
    ConfirmTimeout("late"),
    kombu_errors.OperationalError("no broker"),
    kombu_errors.ConnectionLimitExceeded(10),
    caused(kombu_errors.ChannelError("Cannot add file 'x'"), NotADirectoryError("x")),
    amqp_errors.RecoverableConnectionError("connection already closed"),
    redis_errors.ConnectionError("gone"),
    redis_errors.TimeoutError("slow"),
]
REFUSES_EVERYTHING = [
    redis_errors.BusyLoadingError("loading"),
    redis_errors.ReadOnlyError("replica"),
    redis_errors.AuthenticationError("password"),
    redis_errors.OutOfMemoryError("OOM"),
    redis_errors.ResponseError("MISCONF Redis is configured to save RDB snapshots"),
    redis_errors.ResponseError("NOREPLICAS Not enough good replicas to write."),
    redis_errors.ResponseError("Command # 1 (SADD x) of pipeline caused error: NOREPLICAS Not"),
    caused(Interrupted("uncertain"), redis_errors.ReadOnlyError("replica")),
]
PERMANENT = [
    EnvelopeError("not a message"),
    kombu_errors.EncodeError("object"),
    TypeError("Object of type object is not JSON serializable"),
    ValueError("out of range"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    OverflowError("int too large"),
    struct.error("ubyte format requires 0 <= number <= 255"),
    amqp_errors.FrameSyntaxError("Table type not handled by amqp"),
    amqp_errors.ContentTooLarge("headers"),
    amqp_errors.PreconditionFailed("PRECONDITION_FAILED - message size", PUBLISH),
    redis_errors.DataError("Invalid input of type"),
]
TRANSIENT = [
    amqp_errors.NotFound("NOT_FOUND - no exchange", PUBLISH),
    amqp_errors.PreconditionFailed("PRECONDITION_FAILED - inequivalent arg", DECLARE),
    amqp_errors.AccessRefused("ACCESS_REFUSED - write access to exchange", PUBLISH),
    amqp_errors.AccessRefused("ACCESS_REFUSED - configure access to queue", DECLARE),
    amqp_errors.ResourceLocked("RESOURCE_LOCKED - exclusive", DECLARE),
    Unroutable("no queue"),
    Nacked("full"),
    kombu_errors.InconsistencyError("Cannot route message"),
    OSError(errno.ENAMETOOLONG, "File name too long"),
    redis_errors.ResponseError("WRONGTYPE"),
    redis_errors.NoPermissionError("this user has no permissions to access one of the keys"),
    KeyError("exchange"),
    RuntimeError("whatever"),
]
# What a message provoked alone, while the broker lived: the relay blames it, and it spends a retry.
PROVOKED = [
    ConnectionResetError(),
    amqp_errors.InternalError("INTERNAL_ERROR", (0, 0)),
    amqp_errors.UnexpectedFrame("UNEXPECTED_FRAME", PUBLISH),
    ConfirmTimeout("late"),
]


def name(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__name__}-{str(error)[:30]}"


@pytest.mark.parametrize("error", [*LOST, *REFUSES_EVERYTHING[:-1]], ids=name)
def test_what_concerns_the_connection_is_no_message_s_error(error: Exception) -> None:
    assert concerns_connection(error)
    assert not is_permanent(error)


@pytest.mark.parametrize("error", REFUSES_EVERYTHING, ids=name)
def test_a_redis_that_takes_nothing_from_anybody(error: Exception) -> None:
    assert refuses_everything(error)


@pytest.mark.parametrize("error", [*LOST, *PERMANENT, *TRANSIENT], ids=name)
def test_other_errors_say_nothing_about_the_whole_server(error: Exception) -> None:
    assert not refuses_everything(error)


@pytest.mark.parametrize("error", PERMANENT, ids=name)
def test_permanent(error: Exception) -> None:
    assert is_permanent(error)
    assert not concerns_connection(error)


@pytest.mark.parametrize("error", TRANSIENT, ids=name)
def test_transient(error: Exception) -> None:
    assert not is_permanent(error)
    assert not concerns_connection(error)


@pytest.mark.parametrize("error", PROVOKED, ids=name)
def test_what_a_message_provokes_alone_costs_it_a_retry(error: Exception) -> None:
    assert not is_permanent(error)


def test_the_transport_may_name_more_connection_errors() -> None:
    class SqsIsAwayError(Exception):
        pass

    assert not concerns_connection(SqsIsAwayError())
    assert concerns_connection(SqsIsAwayError(), (SqsIsAwayError,))


def test_kombu_counts_a_key_error_as_a_connection_error_and_we_do_not() -> None:
    from kombu.transport.redis import Transport

    assert not concerns_connection(KeyError("x"), Transport.connection_errors)


def test_describe_names_class_message_and_cause() -> None:
    error = caused(kombu_errors.OperationalError("uncertain"), OSError("gone"))
    assert describe(error) == "OperationalError: uncertain (OSError: gone)"


@pytest.mark.parametrize("text", ["a\x00b", "\ud83d alone", "x" * 5000, "", "äöü🎈", "two\nlines"])
def test_describe_fits_a_text_column(text: str) -> None:
    described = describe(ValueError(text))
    assert described.startswith("ValueError: ")
    assert len(described) <= 1000
    assert described.isprintable()
    assert described.encode("utf-8")


def test_an_error_that_can_not_be_printed() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert describe(BrokenError()) == "BrokenError: (no message: RuntimeError)"
