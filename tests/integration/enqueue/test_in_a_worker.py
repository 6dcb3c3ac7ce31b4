"""Calls from a running task: their parent and root ids are those of plain Celery."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery, chain, chord, group, signals

from django_integration import OutboxCelery
from tests.harness.databases import redis_url
from tests.helpers import wait_for
from tests.proj.relaying import publish_all, rows
from tests.proj.workers import relay_until, relaying, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


@pytest.fixture
def published() -> Iterator[list[dict[str, Any]]]:
    """What Celery says about every message of a child."""
    seen: list[dict[str, Any]] = []

    def receive(sender: str, headers: Any, properties: Any, **_: Any) -> None:
        if sender == "family.child":
            seen.append({**headers, **properties})

    signals.before_task_publish.connect(receive)
    yield seen
    signals.before_task_publish.disconnect(receive)


def family(cls: type) -> Any:
    """An app with a parent that calls children into a queue without a consumer."""
    queue = f"family-{uuid4().hex[:8]}"
    app = cls("family", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(
        task_default_queue=queue, task_inherit_parent_priority=True,
        task_routes={"family.child": {"queue": queue + "-unread"}}, result_extended=True,
    )  # fmt: skip

    @app.task(name="family.child", shared=False)
    def child(number: int) -> None:
        pass

    @app.task(name="family.parent", shared=False)
    def parent() -> str:
        child.delay(1)
        group(child.s(2), child.s(3)).apply_async()
        chain(child.s(4), child.si(5))()
        return "done"

    return app


def run_parent(app: Any) -> Any:
    with running(app):
        result = app.tasks["family.parent"].apply_async(priority=7, task_id=str(uuid4()))
        relay_until(app, result.ready) if isinstance(app, OutboxCelery) else result.get(timeout=15)
    return result


def ties(seen: list[dict[str, Any]], parent_id: str) -> list[tuple[Any, ...]]:
    return [
        (each["root_id"] == parent_id, each["parent_id"] == parent_id, each.get("priority"))
        for each in seen
    ]


def test_root_parent_and_priority_are_inherited_as_with_celery(
    published: list[dict[str, Any]],
) -> None:
    result = run_parent(family(Celery))
    direct = ties(published, result.id)
    published.clear()
    result = run_parent(family(OutboxCelery))
    assert ties(published, result.id) == direct == [(True, True, 7)] * 4


def test_the_inherited_ids_and_priority_are_in_the_row() -> None:
    app = family(OutboxCelery)
    with running(app):
        parent = app.tasks["family.parent"].apply_async(priority=7)
        publish_all(app, datetime.now(timezone.utc))
        wait_for(parent.ready)
    assert len(rows()) == 4
    for row in rows():
        options = json.loads(row.options)
        assert options["headers"]["root_id"] == options["headers"]["parent_id"] == parent.id
        assert options["priority"] == 7


def shape(result: Any) -> Any:
    """Children by kind, since their ids are random."""
    return [type(each).__name__ for each in result.children]


def test_children_are_recorded_as_with_celery() -> None:
    direct = run_parent(family(Celery))
    stored = run_parent(family(OutboxCelery))
    assert shape(stored) == shape(direct)
    assert len(stored.children) == 3


# -- results -------------------------------------------------------------------------------------


def worker_app(backend: str, broker: str = "memory://") -> Any:
    app = OutboxCelery("results", broker=broker, backend=backend, set_as_current=False)
    prefix = f"results-{uuid4().hex[:8]}"
    app.conf.update(
        task_default_queue=prefix, result_expires=60,
        result_backend_transport_options={"global_keyprefix": prefix},
    )  # fmt: skip

    @app.task(name="results.add", shared=False)
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="results.total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return app


CALLS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "task": (lambda add, total: add.delay(1, 2), 3),
    "chain": (lambda add, total: chain(add.s(1, 2), add.s(10))(), 13),
    "group": (lambda add, total: group(add.s(i, i) for i in range(4)).apply_async(), [0, 2, 4, 6]),
    "chord": (lambda add, total: chord([add.s(i, i) for i in range(4)], total.s())(), 12),
    "chain to group": (
        lambda add, total: chain(add.s(1, 1), group(add.s(1), add.s(2)))(), [3, 4],
    ),
}  # fmt: skip


@pytest.mark.redis
@pytest.mark.parametrize("call", CALLS)
def test_results_arrive_through_redis(call: str) -> None:
    app = worker_app(redis_url())
    make, expected = CALLS[call]
    with running(app):
        result = make(app.tasks["results.add"], app.tasks["results.total"])
        with relaying(app):
            assert result.get(timeout=15) == expected


@pytest.mark.rabbitmq
@pytest.mark.parametrize("call", ["task", "group"])
def test_results_arrive_through_rpc(call: str) -> None:
    from tests.harness.databases import rabbitmq_url

    app = worker_app("rpc://", rabbitmq_url())
    make, expected = CALLS[call]
    with running(app):
        result = make(app.tasks["results.add"], app.tasks["results.total"])
        with relaying(app):
            assert result.get(timeout=15) == expected
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete(app.conf.task_default_queue)


@pytest.mark.redis
def test_a_result_that_is_older_than_the_subscription_is_found() -> None:
    app = worker_app(redis_url())
    with running(app):
        first, second = (app.tasks["results.add"].delay(n, n) for n in (1, 2))
        relay_until(app, lambda: app.AsyncResult(second.id).ready())
        assert (first.get(timeout=5), second.get(timeout=5)) == (2, 4)
