"""Queues and exchanges as text, and back: the entities to declare before a message is published.

A text holds each attribute that differs from kombu's default. Equal texts give the same object, so
that an entity is declared once per connection. Nothing is declared here: `envelope` uses the texts,
and the publishers declare the entities.
"""

from __future__ import annotations

import weakref
from functools import lru_cache
from typing import Any

from kombu import Exchange, Queue
from kombu.entity import binding

from celery_outbox_steps import typed_json

_texts: dict[int, tuple[weakref.ref[Any], str]] = {}
"""Texts by the id of their entity. Entities live as long as their app, and making a text takes
longer than making the rest of the envelope."""


def text_of_entity(entity: Any) -> str:
    """The text of a queue or exchange, made once per object."""
    cached, text = _texts.get(id(entity), (None, ""))
    if cached is not None and cached() is entity:
        return text
    text, key = _describe(entity), id(entity)
    _texts[key] = weakref.ref(entity, lambda _: _texts.pop(key, None)), text
    return text


@lru_cache(maxsize=1024)
def entity_from_text(text: str) -> Any:
    """The queue or exchange that a text describes."""
    fields = typed_json.loads(text)
    return _KINDS[fields.pop("kind")](fields)


def _describe(entity: Any) -> str:
    kind, cls = ("exchange", Exchange) if isinstance(entity, Exchange) else ("queue", Queue)
    return typed_json.dumps({"kind": kind, **_attributes(entity, cls)})


def _attributes(entity: Any, cls: type) -> dict[str, Any]:
    # Not `!=`: kombu's Exchange gives a wrong result when it is compared with another type.
    pairs = ((name, getattr(entity, name, None)) for name, _ in cls.attrs)  # type: ignore[attr-defined]
    return {
        name: _plain(value)
        for name, value in pairs
        if value not in (None, set()) and not value == getattr(cls, name, None)  # noqa: SIM201
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Exchange):
        return _attributes(value, Exchange)
    if isinstance(value, binding):
        return _attributes(value, binding)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value


def _exchange(fields: dict[str, Any]) -> Any:
    return Exchange(**fields)


def _queue(fields: dict[str, Any]) -> Any:
    if "exchange" in fields:
        fields["exchange"] = Exchange(**fields["exchange"])
    fields["bindings"] = [
        binding(**{**bound, "exchange": Exchange(**bound.get("exchange", {}))})
        for bound in fields.get("bindings", ())
    ]
    return Queue(**fields)


_KINDS = {"exchange": _exchange, "queue": _queue}
