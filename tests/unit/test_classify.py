"""What each failure means: a table of the exceptions that brokers and libraries raise."""

from __future__ import annotations

import socket
import ssl
import struct

import pytest
import redis.exceptions as redis_errors
from amqp import exceptions as amqp_errors
from kombu import exceptions as kombu_errors

from celery_outbox_steps.classify import Verdict, classify, describe
from celery_outbox_steps.errors import ConfirmTimeout, EnvelopeError, Nacked, Unroutable

PUBLISH, DECLARE = (60, 40), (50, 10)
HAS_BATCHES = hasattr(kombu_errors, "BatchPublishError")  # new in kombu 5.7


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


OUTAGES = [
    ConnectionRefusedError(111, "Connection refused"),
    ConnectionResetError(),
    BrokenPipeError(),
    OSError("Server unexpectedly closed connection"),
    socket.gaierror("name or service not known"),
    TimeoutError(),
    ssl.SSLCertVerificationError("certificate verify failed"),
    ConfirmTimeout("late"),
    kombu_errors.OperationalError("no broker"),
    kombu_errors.ConnectionLimitExceeded(10),
    caused(kombu_errors.ChannelError("Cannot add file 'x'"), NotADirectoryError("x")),
    amqp_errors.ConnectionForced("CONNECTION_FORCED - shutdown"),
    amqp_errors.RecoverableConnectionError("connection already closed"),
    amqp_errors.AccessRefused("ACCESS_REFUSED - login refused", (0, 0)),
    amqp_errors.NotAllowed("NOT_ALLOWED - vhost not found", (10, 40)),
    amqp_errors.ResourceError("RESOURCE_ERROR"),
    amqp_errors.Blocked("alarm"),
    redis_errors.ConnectionError("gone"),
    redis_errors.TimeoutError("slow"),
    redis_errors.BusyLoadingError("loading"),
    redis_errors.ReadOnlyError("replica"),
    redis_errors.AuthenticationError("password"),
    redis_errors.OutOfMemoryError("OOM"),
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
    amqp_errors.AccessRefused("ACCESS_REFUSED - write access to exchange", PUBLISH),
    redis_errors.DataError("Invalid input of type"),
]
TRANSIENT = [
    amqp_errors.NotFound("NOT_FOUND - no exchange", PUBLISH),
    amqp_errors.PreconditionFailed("PRECONDITION_FAILED - inequivalent arg", DECLARE),
    amqp_errors.AccessRefused("ACCESS_REFUSED - configure access to queue", DECLARE),
    amqp_errors.ResourceLocked("RESOURCE_LOCKED - exclusive", DECLARE),
    amqp_errors.UnexpectedFrame("UNEXPECTED_FRAME", PUBLISH),
    amqp_errors.InternalError("INTERNAL_ERROR", PUBLISH),
    Unroutable("no queue"),
    Nacked("full"),
    kombu_errors.InconsistencyError("Cannot route message"),
    redis_errors.ResponseError("WRONGTYPE"),
    KeyError("exchange"),
    RuntimeError("whatever"),
]
if HAS_BATCHES:
    uncertain = kombu_errors.BatchPublishError
    OUTAGES += [
        uncertain("uncertain"),
        caused(uncertain("uncertain"), redis_errors.ConnectionError("gone")),
        caused(uncertain("uncertain"), redis_errors.ReadOnlyError("replica")),
    ]
    TRANSIENT += [caused(uncertain("uncertain"), redis_errors.ResponseError("WRONGTYPE"))]


def name(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__name__}-{str(error)[:30]}"


@pytest.mark.parametrize("error", OUTAGES, ids=name)
def test_outages(error: Exception) -> None:
    assert classify(error) is Verdict.OUTAGE
    assert classify(error) == "outage"


@pytest.mark.parametrize("error", PERMANENT, ids=name)
def test_permanent(error: Exception) -> None:
    assert classify(error) is Verdict.PERMANENT


@pytest.mark.parametrize("error", TRANSIENT, ids=name)
def test_transient(error: Exception) -> None:
    assert classify(error) is Verdict.TRANSIENT


def test_the_transport_may_name_more_connection_errors() -> None:
    class SqsIsAwayError(Exception):
        pass

    assert classify(SqsIsAwayError()) is Verdict.TRANSIENT
    assert classify(SqsIsAwayError(), (SqsIsAwayError,)) is Verdict.OUTAGE


def test_kombu_counts_a_key_error_as_a_connection_error_and_we_do_not() -> None:
    from kombu.transport.redis import Transport

    assert classify(KeyError("x"), Transport.connection_errors) is Verdict.TRANSIENT


def test_describe_names_class_message_and_cause() -> None:
    error = caused(kombu_errors.OperationalError("uncertain"), OSError("gone"))
    assert describe(error) == "OperationalError: uncertain (OSError: gone)"


@pytest.mark.parametrize("text", ["a\x00b", "\ud83d alone", "x" * 5000, "", "äöü🎈"])
def test_describe_fits_a_text_column(text: str) -> None:
    described = describe(ValueError(text))
    assert described.startswith("ValueError: ")
    assert len(described) <= 1000
    assert "\x00" not in described
    assert described.encode("utf-8")


def test_an_error_that_can_not_be_printed() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert describe(BrokenError()) == "BrokenError: (no message: RuntimeError)"
