"""The return value of a task as bytes, and back: what a duplicate returns.

Serialised as the app serialises results, or else arguments: whatever Celery could store or pass on
can be stored here. It is read with the serializers that the app uses or accepts, and no other: a
row can't make a worker unpickle. `once.py` calls it inside the task's transaction.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery.result import ResultBase
from kombu.exceptions import KombuError
from kombu.serialization import dumps, loads, prepare_accept_content

from celery_outbox_steps.errors import OutboxError
from django_integration.inbox.entries import NO_RESULT, StoredResult

if TYPE_CHECKING:
    from collections.abc import Iterator


def dump_result(task: Any, value: Any) -> StoredResult:
    """Raises `OutboxError` if somebody needs the value and it can't be stored."""
    if value is None:
        return NO_RESULT
    errors: list[Exception] = []
    for serializer in _serializers(task):
        with _collected(errors):
            return _dumped(value, serializer)
    if not _is_needed(task):
        return NO_RESULT
    raise OutboxError(
        f"{task.name} returned {type(value).__name__}, which can't be serialised: {errors[0]}."
        " @once stores the result for deliveries that are repeated: return something else, or set"
        " ignore_result=True."
    ) from errors[0]


def load_result(task: Any, stored: StoredResult) -> Any:
    """The value that the first run returned."""
    if stored.content_type is None or stored.result is None:
        return None
    accepted = prepare_accept_content([*_accepted(task.app.conf), *_serializers(task)])
    encoding, data = stored.content_encoding, bytes(stored.result)
    payload = data if encoding == "binary" else data.decode()
    return loads(payload, stored.content_type, encoding, accepted)


@contextmanager
def _collected(errors: list[Exception]) -> Iterator[None]:
    try:
        yield
    except (KombuError, TypeError, ValueError) as error:
        errors.append(error)


def _dumped(value: Any, serializer: str) -> StoredResult:
    content_type, encoding, payload = dumps(_plain(value, serializer), serializer)
    return StoredResult(
        content_type, encoding, payload.encode() if isinstance(payload, str) else payload
    )


def _serializers(task: Any) -> list[str]:
    return list(dict.fromkeys([task.app.conf.result_serializer, task.serializer]))


def _accepted(conf: Any) -> list[str]:
    return [*conf.accept_content, *(conf.result_accept_content or ())]


def _plain(value: Any, serializer: str) -> Any:
    """As Celery's result backends do: only pickle can hold the result of another task. And as its
    option `pydantic` does, whose wrapper is around `@once`."""
    if isinstance(value, ResultBase) and serializer != "pickle":
        return value.as_tuple()
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _is_needed(task: Any) -> bool:
    request = task.request
    ignored = task.ignore_result or request.ignore_result
    return not ignored or bool(request.callbacks or request.chain or request.chord)
