"""A relay that is configured wrong does not start, and its worker says in one line why."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from celery_outbox_steps.settings import BY_NAME, SETTINGS
from celery_outbox_steps.testing import MemoryStore
from celery_outbox_steps.worker.startup import RelayCannotStart, apply_flags
from celery_outbox_steps.worker.steps import OutboxRelayStep
from django_integration import OutboxCelery

WRONG: dict[str, list[Any]] = {
    "relay": ["yes"], "relays": [0], "app": [5, "json", "no.such.app"],
    "store": [None, "json", "no.such:stores"],
    "destinations": [["events"], {"a b": {"url": "amqp://h//"}}, {"e": {}}, {"e": {"url": "x"}}],
    "event_source": [None, 7], "rates": [["mail"], 5],
    "databases": ["default"], "batch_size": [0], "idle_time": [0], "backoff_time": [-1],
    "max_backoff": ["1h"], "max_retries": [-1], "stale_timeout": [float("inf")],
    "send_timeout": [True], "shutdown_timeout": [None], "broker_outage_cooldown": [float("nan")],
    "liveness_file": [3], "exclude_tasks": ["a.b"], "keep_failed_tasks": ["a.b"],
    "inbox_retention": [0], "require_transaction": ["yes"],
    "hold": [-1, "1h", True], "hold_retries": [-1, float("inf")],
    "notify": ["no"], "declare": ["no"], "retention": ["1 day"], "dlq_retention": ["forever"],
    "redactor": [3, "json", "json.nothing"],
    "structlog_context_keys": ["request_id"], "structlog_bind_in_tasks": ["yes"],
    "lineage": [1], "metrics": [1, "json", "no.such.sink"],
    "metrics_task_names": ["a.b"], "http": ["9100:", 0], "sample_interval": [0],
}  # fmt: skip


def start(**conf: Any) -> None:
    app = OutboxCelery("startup", broker="memory://", set_as_current=False)
    app.conf.update({f"outbox_{name}": value for name, value in conf.items()})
    worker = SimpleNamespace(app=app, pool_cls=None, hostname="celery@startup")
    OutboxRelayStep(worker).create(worker)


def flags(**options: Any) -> bool:
    app = OutboxCelery("startup", broker="memory://", set_as_current=False)
    return apply_flags(app, {f"outbox_{name}": value for name, value in options.items()})


def test_the_flag_for_the_endpoints_without_a_relay_stops_the_worker_at_its_start() -> None:
    assert flags(http="9100", relay=True)
    with pytest.raises(RelayCannotStart, match="--outbox-http needs --outbox-relay"):
        flags(http="9100")


def test_a_port_that_is_taken_stops_the_worker_at_its_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RelayCannotStart, match=f"port {port} of 127.0.0.1 is taken"):
            start(http=port, store=lambda app: [MemoryStore()])


def test_every_setting_has_a_wrong_value_here() -> None:
    assert set(WRONG) == set(BY_NAME)


@pytest.mark.parametrize(
    ("name", "value"), [(each.name, value) for each in SETTINGS for value in WRONG[each.name]]
)
def test_a_wrong_value_stops_the_worker_at_its_start(name: str, value: Any) -> None:
    with pytest.raises(RelayCannotStart) as refused:
        start(**{name: value})
    assert BY_NAME[name].django_name in str(refused.value)
    assert (repr(value) in str(refused.value)) is not BY_NAME[name].kind.is_secret
    assert "\n" not in str(refused.value)


def test_a_misspelled_setting_stops_the_worker_at_its_start() -> None:
    with pytest.raises(RelayCannotStart, match="Did you mean CELERY_OUTBOX_BATCH_SIZE"):
        start(batchsize=10)


@pytest.mark.parametrize("name", ["app", "store", "redactor", "metrics"])
def test_every_dotted_path_gets_the_same_words(name: str) -> None:
    with pytest.raises(RelayCannotStart, match=f"{name.upper()} = 'no.such' can't be imported: "):
        start(**{name: "no.such"})
    with pytest.raises(RelayCannotStart, match=f"{name.upper()} = 'json' names <module 'json'"):
        start(**{name: "json"})


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nosuch://user:hunter2@host", "No such transport: nosuch"),
        ("amqp://user:hunter2/#@host//", "percent-encoded"),
    ],
)
def test_a_destination_that_can_not_be_used_stops_the_worker_at_its_start(
    url: str, why: str
) -> None:
    with pytest.raises(RelayCannotStart, match=r"DESTINATIONS\['lake'\] can't be used") as refused:
        start(store=lambda app: [MemoryStore()], destinations={"lake": {"url": url}})
    said = str(refused.value)
    assert (why in said, "hunter2" in said, "\n" in said) == (True, False, False)


def test_a_store_for_an_earlier_version_stops_the_worker_at_its_start() -> None:
    class OldStore:
        name = "old"

        def claim(self) -> None:
            """All that it can do."""

    with pytest.raises(RelayCannotStart, match=r"OldStore lacks .*check_in.*renew"):
        start(store=lambda app: [OldStore()])
