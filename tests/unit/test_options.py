"""The worker's flags and steps on an app, without any network."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest
from celery import Celery, bootsteps
from celery.contrib.testing.worker import start_worker

from celery_outbox_steps import OutboxRelayStep, install
from celery_outbox_steps.settings import SETTINGS
from celery_outbox_steps.testing import MemoryStore
from celery_outbox_steps.worker.options import GROUP
from celery_outbox_steps.worker.startup import RelayCannotStart
from celery_outbox_steps.worker.steps import BrokerConnectionStep
from django_integration import OutboxCelery
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


def stores(app: Any) -> list[MemoryStore]:
    return [MemoryStore()]


@pytest.fixture
def app() -> Celery:
    app = Celery("unit", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.outbox_store = f"{__name__}:stores"
    app.conf.worker_hijack_root_logger = False
    install(app)
    app.steps["worker"].add(OutboxRelayStep)
    return app


def test_every_flag_of_the_table_once_even_if_installed_twice(app: Celery) -> None:
    install(app)
    options = [each for each in app.user_options["worker"] if each.help_group == GROUP]
    flags = {option.opts[0] for option in options}
    assert flags == {setting.flag_name for setting in SETTINGS if setting.flag}
    assert len(options) == len(flags)
    assert all(option.default is None for option in options)


def test_the_flag_without_the_step_names_the_fix() -> None:
    app = Celery("unit", broker="memory://", set_as_current=False)
    install(app)
    (relay,) = (each for each in app.user_options["worker"] if each.name == "outbox_relay")
    context = click.Context(click.Command("worker"), obj=type("Obj", (), {"app": app}))
    with pytest.raises(click.UsageError, match=r"app.steps\['worker'\].add\(OutboxRelayStep\)"):
        relay.callback(context, relay, True)
    assert relay.callback(context, relay, None) is None


def test_the_setting_without_the_step_names_the_fix() -> None:
    app = Celery("unit", broker="memory://", set_as_current=False)
    app.conf.outbox_relay = True
    install(app)
    (relay,) = (each for each in app.user_options["worker"] if each.name == "outbox_relay")
    context = click.Context(click.Command("worker"), obj=type("Obj", (), {"app": app}))
    with pytest.raises(click.UsageError, match="CELERY_OUTBOX_RELAY needs the relay's bootstep"):
        relay.callback(context, relay, None)
    assert relay.callback(context, relay, False) is False
    app.steps["worker"].add(OutboxRelayStep)
    assert relay.callback(context, relay, None) is None


def test_the_help_of_a_flag_shows_its_default(app: Celery) -> None:
    with click.Context(click.Command("worker"), auto_envvar_prefix="X") as context:
        shown = {
            option.name: " ".join(option.get_help_record(context)[1].split())
            for option in app.user_options["worker"]
        }
    assert "default: (500)" in shown["outbox_batch_size"]
    assert "default: (1)" in shown["outbox_idle_time"]
    assert "default: (on)" in shown["outbox_notify"]
    assert "default: (off)" in shown["outbox_relay"]
    assert "default: (" not in shown["outbox_stale_timeout"], "its text says it"
    for setting in SETTINGS:
        if setting.flag and setting.default is not None and "Default:" not in setting.help:
            assert "default: (" in shown[setting.conf_name]


@pytest.fixture
def outbox_app() -> OutboxCelery:
    app = OutboxCelery("unit", broker="memory://", set_as_current=False)
    app.conf.update(outbox_store=f"{__name__}:stores", worker_hijack_root_logger=False)
    return app


def steps_of(worker: Any) -> list[Any]:
    return [step for step in worker.steps if isinstance(step, OutboxRelayStep)]


def test_an_outbox_celery_has_the_step_which_is_inert_without_the_flag(
    outbox_app: OutboxCelery,
) -> None:
    assert worker_of(outbox_app).outbox_relays is None
    worker = worker_of(outbox_app, outbox_relay=True)
    assert len(worker.outbox_relays.services) == 1
    assert len(steps_of(worker)) == 1


def test_the_step_may_be_added_once_more(outbox_app: OutboxCelery) -> None:
    outbox_app.steps["worker"].add(OutboxRelayStep)
    worker = worker_of(outbox_app, outbox_relay=True)
    assert len(steps_of(worker)) == 1
    assert len(worker.outbox_relays.services) == 1


def test_the_flag_is_fine_on_an_outbox_celery(outbox_app: OutboxCelery) -> None:
    (relay,) = (each for each in outbox_app.user_options["worker"] if each.name == "outbox_relay")
    context = click.Context(click.Command("worker"), obj=type("Obj", (), {"app": outbox_app}))
    assert relay.callback(context, relay, True) is True


def test_a_process_that_only_calls_tasks_does_not_import_the_relay() -> None:
    script = (
        "import sys; from django_integration import OutboxCelery; OutboxCelery('x');"
        "print([each for each in sys.modules if each.startswith(('celery_outbox_steps.relay',"
        " 'celery_outbox_steps.publishers', 'celery_outbox_steps.worker.st'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def worker_of(app: Celery, **flags: Any) -> Any:
    return app.WorkController(pool_cls="solo", **flags)


def test_a_relay_only_where_the_flag_or_the_setting_says_so(app: Celery) -> None:
    assert worker_of(app).outbox_relays is None
    assert len(worker_of(app, outbox_relay=True).outbox_relays.services) == 1
    assert worker_of(app).outbox_relays is None, "a flag is for one worker"
    app.conf.outbox_relay = True
    assert len(worker_of(app).outbox_relays.services) == 1
    assert worker_of(app, outbox_relay=False).outbox_relays is None


def test_a_flag_beats_a_setting(app: Celery) -> None:
    app.conf.outbox_batch_size = 7
    worker = worker_of(app, outbox_relay=True, outbox_batch_size=9)
    (service,) = worker.outbox_relays.services
    assert service._config.batch_size == 9


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"outbox_batch_size": 0}, "--outbox-batch-size must be"),
        ({"outbox_stale_timeout": 5.0}, "STALE_TIMEOUT"),
        ({"outbox_store": "nowhere:stores"}, "CELERY_OUTBOX_STORE = 'nowhere:stores'"),
        ({"outbox_store": "os:nothing"}, "CELERY_OUTBOX_STORE = 'os:nothing'"),
    ],
)
def test_what_can_not_work_does_not_start(app: Celery, flags: Any, words: str) -> None:
    with pytest.raises(RelayCannotStart, match=words):
        worker_of(app, outbox_relay=True, **flags)


def test_the_connection_step_is_harmless_in_a_later_worker_without_a_relay(app: Celery) -> None:
    worker_of(app, outbox_relay=True)
    assert BrokerConnectionStep in app.steps["consumer"]
    worker = worker_of(app)
    assert not any(isinstance(step, BrokerConnectionStep) for step in worker.consumer.steps)


def test_the_connection_step_tells_a_lost_connection_from_a_shutdown(app: Celery) -> None:
    worker = worker_of(app, outbox_relay=True)
    consumer = worker.consumer
    (step,) = (each for each in consumer.steps if isinstance(each, BrokerConnectionStep))
    (service,) = worker.outbox_relays.services
    service.start()
    step.start(consumer)
    wait_for(lambda: service.state == "relaying")
    consumer.blueprint.state = bootsteps.RUN
    step.stop(consumer)
    assert service.state == "waiting for the broker"
    step.start(consumer)
    consumer.blueprint.state = bootsteps.CLOSE
    step.stop(consumer)
    assert service.state == "relaying", "the pool has still to drain"
    step.shutdown(consumer)
    assert service.state == "stopped"


@pytest.fixture
def _log_level() -> Iterator[None]:
    """A worker changes the level of the root logger, which other tests read."""
    before = logging.root.level
    yield
    logging.root.setLevel(before)


@pytest.mark.usefixtures("_log_level")
def test_a_worker_inside_this_process(app: Celery) -> None:
    with start_worker(
        app, outbox_relay=True, perform_ping_check=False, pool="solo", shutdown_timeout=20
    ) as worker:
        (service,) = worker.outbox_relays.services
        wait_for(lambda: service.state == "relaying")
        assert worker.stats()["outbox"][0]["database"] == "memory"
    wait_for(lambda: service.state == "stopped")
