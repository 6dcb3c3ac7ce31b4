"""Whatever Celery can serialise comes back from any database to the byte; hostile calls included.

Hypothesis makes up the payloads. Each batch is stored for real, in one transaction, read back, and
the body compared with the one that a direct call would have sent.
"""

from __future__ import annotations

import gc
from datetime import date, datetime, time, timezone
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu import Exchange, Queue
from kombu.serialization import dumps

from celery_outbox_steps import entities
from tests.proj.relaying import messages, rows

if TYPE_CHECKING:
    from collections.abc import Callable

VENDORS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=pytest.mark.mysql),
    "sqlite",
]
EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

text = st.text(st.characters(), max_size=20) | st.text(
    st.characters(min_codepoint=0, max_codepoint=0x10FFFF, categories=["Cs", "Cc", "Cn"]),
    max_size=5,
)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | text | st.binary(max_size=20)
    | st.decimals() | st.uuids() | st.datetimes() | st.dates() | st.times()
    | st.datetimes(timezones=st.just(timezone.utc))
)  # fmt: skip
keys = text | st.integers() | st.floats() | st.booleans() | st.none()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
    | st.tuples(inner, inner),
    max_leaves=8,
)  # fmt: skip
calls = st.tuples(st.lists(values, max_size=3), st.dictionaries(text, values, max_size=3))


def direct_body(args: Any, kwargs: Any) -> bytes:
    body = dumps((args, kwargs, EMBED), serializer="json")[2]
    return body.encode() if isinstance(body, str) else body


def stored_bodies() -> list[bytes]:
    found = [message.body for message in messages(datetime.now(timezone.utc))]
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM celery_outbox")
    return found


@pytest.mark.parametrize("vendor", VENDORS)
def test_any_payload_comes_back_to_the_byte(
    vendor: str, app: Any, use_database: Callable[..., None]
) -> None:
    use_database(vendor)

    @settings(
        max_examples=40, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(st.lists(calls, min_size=1, max_size=6))
    def check(batch: list[tuple[Any, Any]]) -> None:
        with transaction.atomic(), app.outbox_bulk():
            for args, kwargs in batch:
                app.send_task("any.task", args, kwargs)
        assert stored_bodies() == [direct_body(args or (), kwargs) for args, kwargs in batch]

    check()


@pytest.mark.parametrize("vendor", VENDORS)
def test_any_header_comes_back(
    vendor: str, make_app: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database(vendor)
    app = make_app(broker="redis://127.0.0.1:1/0")
    plain = st.none() | st.booleans() | st.integers() | text | st.binary(max_size=9) | st.decimals(
        allow_nan=False
    ) | st.datetimes()  # fmt: skip
    nested = st.recursive(
        plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
    )

    @settings(max_examples=25, deadline=None, database=None)
    @given(st.dictionaries(text.map(lambda name: "x" + name), nested, max_size=4))
    def check(headers: dict[str, Any]) -> None:
        app.send_task("any.task", headers=headers)
        (message,) = messages(datetime.now(timezone.utc))
        assert {name: message.headers[name] for name in headers} == headers
        stored_bodies()

    check()


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_ten_megabytes(
    vendor: str, serializer: str, app: Any, use_database: Callable[..., None]
) -> None:
    use_database(vendor)
    app.send_task("large.task", ("x" * 10_000_000,), serializer=serializer)
    (body,) = stored_bodies()
    assert body == dumps((("x" * 10_000_000,), {}, EMBED), serializer=serializer)[2] or (
        body == direct_body(("x" * 10_000_000,), {})
    )


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize(
    "name",
    ["x" * 1000, "nul\x00nul", "\ud800", "🐇" * 300, "ünï", "'; DROP TABLE x; --", "%s %(a)s"],
)
def test_weird_task_names_and_ids(
    vendor: str, name: str, make_app: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database(vendor)
    make_app(broker="redis://127.0.0.1:1/0").send_task(name, task_id=name)
    (message,), (row,) = messages(datetime.now(timezone.utc)), rows()
    assert (message.headers["task"], message.headers["id"]) == (name, name)
    assert len(row.task_name) <= 255
    assert row.task_name.isascii()


@pytest.mark.mysql
def test_a_latin1_table_is_no_obstacle(app: Any, use_database: Callable[..., None]) -> None:
    use_database("mysql", name="latin")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE celery_outbox CONVERT TO CHARACTER SET latin1")
    app.send_task("🐇", ("🐇",), {"🐇": "世界"})
    app.send_task("🐇", ("🐇", {1}), serializer="pickle")
    bodies = stored_bodies()
    assert bodies[0] == direct_body(("🐇",), {"🐇": "世界"})


@pytest.mark.parametrize("depth", [50, 900])
def test_deep_nesting(depth: int, app: Any, use_database: Callable[..., None]) -> None:
    use_database("sqlite")
    value: Any = "deep"
    for _ in range(depth):
        value = {"a": [value]}
    try:
        body = direct_body((value,), {})
    except Exception as exc:
        with pytest.raises(type(exc)):
            app.send_task("deep", (value,))
        assert rows() == []
    else:
        app.send_task("deep", (value,))
        assert stored_bodies() == [body]


def test_date_times_of_every_kind(app: Any, use_database: Callable[..., None]) -> None:
    use_database("sqlite")
    args = (date.min, date.max, datetime.min, datetime.max, time.min, time.max)
    app.send_task("times", args)
    assert stored_bodies() == [direct_body(args, {})]


def test_queues_built_per_call_leave_nothing_behind(
    app: Any, use_database: Callable[..., None]
) -> None:
    use_database("sqlite")

    def call(number: int) -> None:
        exchange = Exchange(f"exchange-{number}", type="topic")
        queue = Queue(f"queue-{number}", exchange, routing_key="#", queue_arguments={"x": number})
        app.send_task("a.task", queue=queue)

    with transaction.atomic():
        call(0)
        gc.collect()
        before = len(entities._texts)
        for number in range(1, 300):
            call(number)
        gc.collect()
        assert len(entities._texts) == before
        transaction.set_rollback(True)


def test_a_queue_that_reuses_the_memory_of_another_is_described_anew() -> None:
    seen = set()
    for number in range(2000):
        seen.add(entities.text_of_entity(Queue(f"queue-{number}")))
    assert len(seen) == 2000
