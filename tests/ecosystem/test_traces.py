"""Tracing in every process: one trace from the request to the task, and none of the idle relay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.ecosystem.agent import Agent
from tests.helpers import wait_for
from tests.services import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.ecosystem.scene import Scene

pytestmark = [pytest.mark.postgresql, pytest.mark.rabbitmq, pytest.mark.redis]

PROJECT = "tests.ecosystem.project.traced"
TICKS = 10
OWN = ["SELECT", "SHOW"]
"""What the project itself does in the worker's main process: open a session, and one statement."""
OPENTELEMETRY = pytest.mark.library("opentelemetry-instrumentation-celery")
SENTRY = pytest.mark.library("sentry-sdk")
DATADOG = pytest.mark.library("ddtrace")
CALL = f"""
from {PROJECT} import ship
with {{request}}:
    with transaction.atomic():
        ship.delay()
{{afterwards}}
"""


@pytest.fixture
def spans(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    file = tmp_path / "spans"
    file.touch()
    return lambda: [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def traced_scene(scene_with: Callable[..., Scene], tmp_path: Path) -> Callable[[str], Scene]:
    def build(tracer: str) -> Scene:
        environment = {"TRACED_BY": tracer, "SPANS": str(tmp_path / "spans")}
        return scene_with(PROJECT, environment=environment, CELERY_OUTBOX_IDLE_TIME=0.1)

    return build


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.close()


@pytest.fixture
def datadog_scene(scene_with: Callable[..., Scene], agent: Agent) -> Scene:
    """As `ddtrace-run` starts it."""
    import ddtrace

    bootstrap = Path(ddtrace.__file__).parent / "bootstrap"
    environment = {
        "PYTHONPATH": f"{bootstrap}:{ROOT}",
        "DD_TRACE_AGENT_URL": agent.url,
        "DD_TRACE_API_VERSION": "v0.4",
        "DD_TRACE_WRITER_INTERVAL_SECONDS": "0.1",
        "DD_CELERY_DISTRIBUTED_TRACING": "true",
        "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
        "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    }
    return scene_with(PROJECT, environment=environment, CELERY_OUTBOX_IDLE_TIME=0.1)


def wait_for_ticks(scene: Scene) -> None:
    """Until the relay has asked the database for rows several times."""
    seen: set[Any] = set()

    def looked() -> bool:
        sql = "SELECT query_start FROM pg_stat_activity WHERE datname = current_database()"
        seen.update(scene.stage.sql(f"{sql} AND query LIKE '%celery_outbox%SKIP LOCKED%'"))
        return len(seen) > TICKS

    wait_for(looked, 30, scene.logs)


@OPENTELEMETRY
def test_an_idle_relay_makes_no_spans_where_the_main_process_is_instrumented(
    traced_scene: Callable[[str], Scene], spans: Callable[[], list[dict[str, Any]]]
) -> None:
    scene = traced_scene("otel")
    scene.worker()
    wait_for_ticks(scene)
    assert [span["name"] for span in spans()] == OWN


@OPENTELEMETRY
def test_opentelemetry_has_one_trace_from_the_request_to_the_task(
    traced_scene: Callable[[str], Scene], spans: Callable[[], list[dict[str, Any]]]
) -> None:
    scene = traced_scene("otel")
    scene.worker()
    request = "trace.get_tracer('project').start_as_current_span('request')"
    scene.script("from opentelemetry import trace\n" + CALL.format(request=request, afterwards=""))
    wait_for(
        lambda: {"run/ship", "send"} <= {span["name"].partition(" ")[0] for span in spans()},
        30,
        scene.logs,
    )
    roots = [span["name"] for span in spans() if span["parent"] is None]
    assert sorted(each.partition(" ")[0] for each in roots) == sorted([*OWN, "request", "send"])
    (trace,) = {span["trace"] for span in spans() if span["name"] == "request"}
    assert {span["name"] for span in spans() if span["trace"] == trace} >= {
        "request", "apply_async/ship", "run/ship",
    }  # fmt: skip
    (batch,) = [span for span in spans() if span["name"].startswith("send ")]
    assert batch["links"] == [trace]


@SENTRY
def test_sentry_has_one_trace_from_the_request_to_the_task_and_nothing_of_the_idle_relay(
    traced_scene: Callable[[str], Scene], spans: Callable[[], list[dict[str, Any]]]
) -> None:
    scene = traced_scene("sentry")
    scene.worker()
    wait_for_ticks(scene)
    assert spans() == []
    request = "sentry_sdk.start_transaction(name='request')"
    scene.script("import sentry_sdk\n" + CALL.format(request=request, afterwards=""))
    wait_for(lambda: "ship" in [span["name"] for span in spans()], 30, scene.logs)
    assert sorted(span["name"] for span in spans()) == ["celery_outbox.relay", "request", "ship"]
    assert len({span["trace"] for span in spans()}) == 1


@DATADOG
def test_of_an_idle_relay_the_agent_keeps_nothing(datadog_scene: Scene, agent: Agent) -> None:
    datadog_scene.worker()
    wait_for_ticks(datadog_scene)
    wait_for(lambda: len(agent.kept) >= len(OWN) and len(agent.dropped) > TICKS, 30)
    assert sorted(span["resource"].partition(" ")[0] for span in agent.kept) == OWN


@DATADOG
def test_with_the_documented_filter_the_agent_receives_nothing_of_an_idle_relay(
    datadog_scene: Scene, agent: Agent
) -> None:
    datadog_scene.stage.environment["TRACED_BY"] = "filtered"
    datadog_scene.worker()
    wait_for(lambda: len(agent.kept) == len(OWN), 30, datadog_scene.logs)
    wait_for_ticks(datadog_scene)
    assert agent.dropped == []
    assert sorted(span["resource"].partition(" ")[0] for span in agent.kept) == OWN


@DATADOG
def test_datadog_has_one_trace_from_the_request_to_the_task(
    datadog_scene: Scene, agent: Agent
) -> None:
    datadog_scene.worker()
    datadog_scene.script(
        "from ddtrace.trace import tracer\n"
        + CALL.format(request="tracer.trace('request')", afterwards="tracer.flush()")
    )
    datadog_scene.wait_for_run("ship")
    wait_for(lambda: "celery.run" in [span["name"] for span in agent.kept], 30, datadog_scene.logs)
    (request,) = [span["trace_id"] for span in agent.kept if span["name"] == "request"]
    assert {span["name"] for span in agent.kept if span["trace_id"] == request} >= {
        "request", "celery.apply", "celery.run",
    }  # fmt: skip
