"""A request, the relay and the tasks of real processes, as a collector and the log see them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests import helpers
from tests.harness.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.acceptance.stage import Stage

pytestmark = [pytest.mark.postgresql, pytest.mark.rabbitmq, pytest.mark.redis]

APP = "tests.acceptance.project.traced"
PRODUCER = 4
"""The number of this kind of span in OTLP."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def lines_of(log: str) -> dict[str, dict[str, Any]]:
    """The log's JSON lines by what they say, without ids and times."""
    found = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return {line["event"].partition("[")[0]: line for line in found if "Task" in line["event"]} | {
        line["event"]: line for line in found
    }


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_one_trace_and_one_request_id_from_the_request_through_the_relay_to_the_last_task(
    pool: str, stage_with: Callable[..., Stage], collector: Collector
) -> None:
    stage = stage_with(
        CELERY_OUTBOX_STRUCTLOG_BIND_IN_TASKS=True,
        CELERY_OUTBOX_LINEAGE=True,
        CELERY_OUTBOX_IDLE_TIME=0.2,
    )
    stage.environment |= collector.environment
    worker = stage.worker(pool=pool, app=APP)
    ship = stage.python("-c", f"from {APP} import request; request()").split()[-1]
    helpers.wait_for(lambda: collector.named("run/bill"), 20, worker.logs)
    helpers.wait_for(lambda: len(batches(collector)) == 2, 20, lambda: str(collector.spans))

    (request,), (call,) = collector.named("request"), collector.named("apply_async/ship")
    (task,), (last_call,) = collector.named("run/ship"), collector.named("apply_async/bill")
    (last_task,) = collector.named("run/bill")
    assert call.parent == request.id
    assert (task.parent, last_call.parent, last_task.parent) == (call.id, task.id, last_call.id)
    assert {each.trace for each in (call, task, last_call, last_task)} == {request.trace}
    assert [batch.links for batch in batches(collector)] == [(call.id,), (last_call.id,)]
    for batch in batches(collector):
        assert (batch.kind, batch.parent) == (PRODUCER, "")
        assert batch.attributes["messaging.system"] == "rabbitmq"
    assert no_statements_of_the_relay(collector)

    lines = lines_of(worker.logs())
    for event in ("shipping", "billing", "Task ship", "Task bill"):
        assert lines[event]["request_id"] == "r-1", lines[event]
    assert lines["shipping"]["lineage"] == ""
    assert lines["billing"]["lineage"] == ship


def batches(collector: Collector) -> list[Any]:
    return [span for span in list(collector.spans) if span.name.startswith("send ")]


def no_statements_of_the_relay(collector: Collector) -> bool:
    """The only statements with spans are those of the two callers."""
    callers = {span.id for span in collector.spans if span.name in {"request", "run/ship"}}
    statements = [span for span in collector.spans if "db.system" in span.attributes]
    return bool(statements) and {span.parent for span in statements} <= callers
