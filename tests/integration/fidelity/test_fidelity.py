"""What the relay publishes is what Celery would have published: to the byte, for every call.

Each call is made twice, by twins that differ in their class only. The rows in between are real, in
PostgreSQL; so are the brokers, and the publisher. There is no list of tolerated differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery.result import ResultBase
from django.db import transaction
from kombu import Queue
from kombu.entity import Exchange

from celery_outbox_steps.envelope import open_envelope
from django_integration.models import CeleryOutbox
from tests.harness.databases import rabbitmq_url, redis_url
from tests.integration.fidelity.calls import CALLS, DELAYS, REJECTED, Call, native_delay
from tests.integration.fidelity.twins import (
    NOW,
    Direct,
    Stored,
    Undelayed,
    context,
    frozen,
    twin,
)
from tests.integration.fidelity.wire import RabbitTap, RedisTap, Topic
from tests.proj.relaying import claimed, publish_all, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.postgresql, pytest.mark.redis, pytest.mark.usefixtures("postgresql")]

TAPS = {"rabbitmq": RabbitTap, "redis": RedisTap}
URLS = {"rabbitmq": rabbitmq_url, "redis": redis_url}


def cases(calls: dict[str, Call]) -> Any:
    marks = {"rabbitmq": pytest.mark.rabbitmq, "redis": pytest.mark.redis}
    return pytest.mark.parametrize(
        ("call", "broker"),
        [
            pytest.param(call, broker, id=f"{broker}-{name}", marks=marks[broker])
            for name, call in calls.items()
            for broker in call.brokers
        ],
    )


@pytest.fixture(scope="module")
def prefix() -> str:
    return f"fidelity-{uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def tap_of(prefix: str) -> Iterator[Callable[[str], Any]]:
    opened: dict[str, Any] = {}

    def get(broker: str) -> Any:
        if broker not in opened:
            opened[broker] = TAPS[broker](URLS[broker](), prefix)
        return opened[broker]

    yield get
    for tap in opened.values():
        tap.close()


def filled(value: Any, prefix: str) -> Any:
    """A call's configuration with the run's own names in it."""
    if isinstance(value, str):
        return value.replace("{prefix}", prefix).replace("{redis}", redis_url())
    if isinstance(value, dict):
        return {key: filled(item, prefix) for key, item in value.items()}
    if isinstance(value, Queue):
        named = Exchange(filled(value.exchange.name, prefix))
        return Queue(
            filled(value.name, prefix), named, value.routing_key, max_priority=value.max_priority
        )
    return [filled(item, prefix) for item in value] if isinstance(value, list) else value


def conf_of(call: Call, prefix: str) -> dict[str, Any]:
    return native_delay(prefix) if call.native else dict(filled(call.conf, prefix))


def taps_of(call: Call, prefix: str) -> tuple[Topic, ...]:
    return tuple(Topic(*(filled(part, prefix) for part in tap)) for tap in call.taps)


@cases(CALLS)
def test_the_relayed_message_equals_the_direct_one(
    call: Call, broker: str, prefix: str, tap_of: Callable[[str], Any]
) -> None:
    tap, taps, url = tap_of(broker), taps_of(call, prefix), URLS[broker]()
    expect = 1 if call.expect is None else call.expect
    with frozen(), tap.watch(taps, expect) as direct:
        app = twin(Direct, prefix, url, conf_of(call, prefix))
        result = call.run(context(app, prefix))
    with frozen(), tap.watch(taps, expect) as relayed:
        app = twin(Stored, prefix, url, {**conf_of(call, prefix), "outbox_hold": None})
        with transaction.atomic():
            stored_result = call.run(context(app, prefix))
        count = publish_all(app, NOW)
    assert relayed == direct
    assert seen(stored_result) == seen(result)
    assert count_of(direct) == (count_of(direct) or 1 if call.expect is None else call.expect)
    assert bool(count) == bool(count_of(direct))


@cases(DELAYS)
def test_a_held_message_equals_the_direct_one_of_a_call_without_delay_but_for_one_header(
    call: Call, broker: str, prefix: str, tap_of: Callable[[str], Any]
) -> None:
    tap, url = tap_of(broker), URLS[broker]()
    taps = () if call.native else taps_of(call, prefix)
    expect = 1 if call.expect is None else call.expect
    with frozen(), tap.watch(taps, expect) as direct:
        app = twin(Undelayed, prefix, url, conf_of(call, prefix))
        result = call.run(context(app, prefix))
    with frozen(), tap.watch(taps, expect) as relayed:
        app = twin(Stored, prefix, url, conf_of(call, prefix))
        with transaction.atomic():
            stored_result = call.run(context(app, prefix))
        held = CeleryOutbox.objects.filter(eta__isnull=False)
        headers = [open_envelope(claimed(row), NOW).headers for row in held]
        etas = [row.eta.isoformat() for row in held]
        held.update(eta=None)
        publish_all(app, NOW)
    assert relayed == direct
    assert seen(stored_result) == seen(result)
    assert etas
    assert [each.get("outbox_eta") for each in headers] == etas


@pytest.mark.parametrize("broker", ["rabbitmq", "redis"])
def test_the_time_of_a_held_call_arrives_in_a_header(
    broker: str, prefix: str, tap_of: Callable[[str], Any]
) -> None:
    with frozen(), tap_of(broker).watch((), 1) as relayed:
        app = twin(Stored, prefix, URLS[broker](), {})
        context(app, prefix).add.apply_async((1,), eta="2031-05-06T09:08:09.5+02:00")
        publish_all(app, NOW)
    assert "2031-05-06T07:08:09.500000+00:00" in str(relayed["messages"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"countdown": "soon"}, TypeError),
        ({"countdown": float("nan")}, ValueError),
        ({"countdown": 1e15}, OverflowError),
        ({"eta": "tomorrow"}, ValueError),
        ({"eta": object()}, TypeError),
        ({"eta": 17}, TypeError),
    ],
    ids=str,
)
def test_what_is_no_time_is_refused_and_leaves_no_row(
    options: dict[str, Any], error: type[Exception], prefix: str
) -> None:
    app = twin(Stored, prefix, URLS["rabbitmq"](), {})
    with transaction.atomic(), pytest.raises(error):
        context(app, prefix).add.apply_async((1,), **options)
    assert rows() == []


@cases(REJECTED)
def test_what_celery_rejects_is_rejected_and_leaves_no_row(
    call: Call, broker: str, prefix: str, tap_of: Callable[[str], Any]
) -> None:
    tap, url = tap_of(broker), URLS[broker]()
    with frozen(), tap.watch(), pytest.raises(Exception) as direct:
        call.run(context(twin(Direct, prefix, url, conf_of(call, prefix)), prefix))
    conf = {**conf_of(call, prefix), "outbox_hold": None}
    with frozen(), transaction.atomic(), pytest.raises(Exception) as stored:
        call.run(context(twin(Stored, prefix, url, conf), prefix))
    assert type(stored.value) is type(direct.value)
    assert str(stored.value) == str(direct.value)
    assert rows() == []


def test_the_suite_is_as_large_as_it_says() -> None:
    assert len(CALLS) >= 80


def seen(result: Any) -> Any:
    """What the caller got back."""
    return result.as_tuple() if isinstance(result, ResultBase) else result


def count_of(observed: dict[str, Any]) -> int:
    messages = observed["messages"]
    if isinstance(messages, list):
        return len(messages)
    return sum(map(len, messages.values())) + len(observed["sent to channels"])
