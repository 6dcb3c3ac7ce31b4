"""The return value of a task as bytes, and back: what a duplicate returns.

Serialised as the app serialises results, or else arguments: whatever Celery could store or pass on
can be stored here. It is read with the serializers that the app uses or accepts, and no other: a
row can't make a worker unpickle. `once.py` calls it inside the task's transaction.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from celery.result import ResultBase
from kombu.exceptions import KombuError
from kombu.serialization import dumps, loads, prepare_accept_content

from celery_outbox_steps.errors import OutboxError
from django_integration.inbox.entries import NO_RESULT, StoredResult

if TYPE_CHECKING:
    from collections.abc import Iterator

PICKLE = "application/x-python-serialize"


def dump_result(task: Any, function: Any, value: Any) -> StoredResult:
    """The value that the task's function returned.

    Raises `OutboxError` if the value is needed and can't be stored.
    """
    if value is None:
        return NO_RESULT
    errors: list[Exception] = []
    for serializer in _serializers(task):
        with _collected(errors):
            return _dumped(_plain(value, function, serializer), serializer)
    if not _is_needed(task):
        return NO_RESULT
    raise OutboxError(
        f"{task.name} returned {type(value).__name__}, which can't be serialised: {errors[0]}."
        " @once stores the result for deliveries that are repeated: return something else, or set"
        " ignore_result=True."
    ) from errors[0]


def load_result(task: Any, function: Any, stored: StoredResult) -> Any:
    """The value that the function returned in the first run."""
    if stored.content_type is None or stored.result is None:
        return None
    accepted = prepare_accept_content([*_accepted(task.app.conf), *_serializers(task)])
    encoding, data = stored.content_encoding, bytes(stored.result)
    payload = data if encoding == "binary" else data.decode()
    value = loads(payload, stored.content_type, encoding, accepted)
    return value if stored.content_type == PICKLE else _as_model(value, function)


@contextmanager
def _collected(errors: list[Exception]) -> Iterator[None]:
    try:
        yield
    except (KombuError, TypeError, ValueError) as error:
        errors.append(error)


def _dumped(value: Any, serializer: str) -> StoredResult:
    content_type, encoding, payload = dumps(value, serializer)
    return StoredResult(
        content_type, encoding, payload.encode() if isinstance(payload, str) else payload
    )


def _serializers(task: Any) -> list[str]:
    """pickle first: the next task must get a tuple as a tuple, as it did from the first run."""
    used = dict.fromkeys([task.app.conf.result_serializer, task.serializer])
    return sorted(used, key=lambda name: name != "pickle")


def _accepted(conf: Any) -> list[str]:
    return [*conf.accept_content, *(conf.result_accept_content or ())]


def _plain(value: Any, function: Any, serializer: str) -> Any:
    """As Celery does: only pickle can hold the result of another task, or a model."""
    if serializer == "pickle":
        return value
    if isinstance(value, ResultBase):
        return value.as_tuple()
    model = _returned_model(function) if hasattr(value, "model_dump") else None
    return value.model_dump(mode="json") if model and isinstance(value, model) else value


def _as_model(value: Any, function: Any) -> Any:
    """For Celery's option `pydantic`, whose wrapper is around `@once` and dumps the model."""
    model = None if value is None else _returned_model(function)
    if model is None:
        return value
    try:
        return model.model_validate(value)
    except ValueError:  # a model that does not read what it writes
        return value


def _returned_model(function: Any) -> Any:
    """The model that the function says it returns; Celery dumps no other."""
    try:
        returned = get_type_hints(function).get("return")
    except (AttributeError, NameError, TypeError):  # names that are imported for type checkers only
        return None
    candidates = (returned, *get_args(returned))
    return next((each for each in candidates if hasattr(each, "model_validate")), None)


def _is_needed(task: Any) -> bool:
    request = task.request
    ignored = task.ignore_result or request.ignore_result
    return not ignored or bool(request.callbacks or request.chain or request.chord)
