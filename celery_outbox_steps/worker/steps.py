"""The bootsteps: they wire the relay into the worker's life and contain nothing else.

`OutboxRelayStep` is a worker step; it builds the services and owns their threads. It adds
`BrokerConnectionStep` to the consumer, whose start and stop follow the broker connection. On a warm
shutdown the relay goes on while the pool drains, so that what the last tasks enqueue is published:
the only hook after the drain is the consumer step's `shutdown`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from celery import bootsteps
from celery.exceptions import ImproperlyConfigured

from celery_outbox_steps.errors import (
    ConfigurationError,
    OutboxError,
    StoreError,
    StoreNotReady,
)
from celery_outbox_steps.observe.metrics import meter_for
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.settings import BY_NAME, RelayConfig, read, validate
from celery_outbox_steps.store import load_stores
from celery_outbox_steps.worker import control  # noqa: F401  registers the remote control commands
from celery_outbox_steps.worker.service import RelayService

if TYPE_CHECKING:
    from celery_outbox_steps.store import Store

COLD_SHUTDOWN = 2.0
"""Seconds that a cold shutdown waits for the relay to give its rows back."""


class RelayCannotStart(ImproperlyConfigured, click.ClickException):  # type: ignore[misc]
    """Ends `celery worker` at start with one clear line instead of a traceback."""

    def __init__(self, message: str) -> None:
        click.ClickException.__init__(self, f"The outbox relay can't start. {message}")


class RelayGroup:
    """The services of one worker: one per Store."""

    def __init__(self, services: list[RelayService]) -> None:
        self.services = services

    def start(self) -> None:
        for service in self.services:
            service.start()

    def broker_up(self) -> None:
        for service in self.services:
            service.broker_up()

    def broker_down(self) -> None:
        for service in self.services:
            service.broker_down()

    def stop(self, timeout: float | None = None) -> None:
        for service in self.services:
            service.ask_to_stop(timeout)
        for service in self.services:
            service.join()

    def info(self) -> list[dict[str, Any]]:
        return [service.info() for service in self.services]


class OutboxRelayStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """`app.steps["worker"].add(OutboxRelayStep)`; active with `--outbox-relay`."""

    name = "OutboxRelay"
    # After the pool has forked its first children, before the consumer is built.
    requires = ("celery.worker.components:Pool",)
    conditional = True

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        worker.outbox_relays = None
        flags = {
            name.removeprefix("outbox_"): value
            for name, value in options.items()
            if name.startswith("outbox_") and value is not None
        }
        try:
            # Of this worker only: the next one of the same app and process may do without.
            relay = flags.pop("relay", None)
            self.enabled = read(worker.app.conf, "relay") if relay is None else relay
            _apply_flags(worker.app, flags)
        except ConfigurationError as exc:
            raise RelayCannotStart(str(exc)) from exc

    def create(self, worker: Any) -> RelayGroup:
        try:
            relays = worker.outbox_relays = RelayGroup(_services(worker))
        except OutboxError as exc:
            raise RelayCannotStart(str(exc)) from exc
        worker.app.steps["consumer"].add(BrokerConnectionStep)
        return relays

    def stop(self, worker: Any) -> None:
        """Not yet: the pool has still to drain. `BrokerConnectionStep.shutdown` stops the relay."""

    def terminate(self, worker: Any) -> None:
        worker.outbox_relays.stop(COLD_SHUTDOWN)

    def info(self, worker: Any) -> dict[str, Any]:
        return {"outbox": worker.outbox_relays.info()}


class BrokerConnectionStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets the relay work while the worker's own broker connection is up."""

    name = "OutboxBrokerConnection"
    requires = ("celery.worker.consumer.connection:Connection",)

    def include_if(self, consumer: Any) -> bool:
        # The app keeps this step, so it also meets workers that run no relay.
        return getattr(consumer.controller, "outbox_relays", None) is not None

    def create(self, consumer: Any) -> None:
        """Nothing of its own to create."""

    def start(self, consumer: Any) -> None:
        consumer.controller.outbox_relays.broker_up()

    def stop(self, consumer: Any) -> None:
        lost = consumer.blueprint.state == bootsteps.RUN  # otherwise the worker shuts down
        if lost:
            consumer.controller.outbox_relays.broker_down()

    def shutdown(self, consumer: Any) -> None:
        consumer.controller.outbox_relays.stop()


def _apply_flags(app: Any, flags: dict[str, Any]) -> None:
    """A flag beats a setting: from here on there is only the app's configuration."""
    for setting in (BY_NAME[name] for name in flags if name in BY_NAME):
        app.conf[setting.conf_name] = setting.parse(flags[setting.name], setting.flag_name)


def _services(worker: Any) -> list[RelayService]:
    app = worker.app
    validate(app.conf)
    config, stores = RelayConfig.from_app(app), load_stores(app)
    recorders = recorders_for(app, meter_for(app))
    for store in stores:
        _refuse_blocking_driver(worker, store)
        recorders.run_untraced(_check, store)
    several = len(stores) > 1
    return [
        RelayService(app, store, _own_liveness_file(config, store, several=several), recorders)
        for store in stores
    ]


def _check(store: Store) -> None:
    """Refuse what waiting can't mend. A database that is only away must not keep a worker down."""
    try:
        store.check()
    except StoreNotReady:
        raise
    except StoreError:
        pass  # the relay meets it again, says so, and goes on when the database is back
    finally:
        store.close()  # the thread opens its own connection


def _own_liveness_file(config: RelayConfig, store: Store, *, several: bool) -> RelayConfig:
    """RelayGroup that share a file would hide that one of them is stuck."""
    if config.liveness_file is None or not several:
        return config
    return replace(config, liveness_file=f"{config.liveness_file}.{store.name}")


def _refuse_blocking_driver(worker: Any, store: Store) -> None:
    pool = getattr(worker.pool_cls, "__module__", "")
    if getattr(store, "blocks_event_loop", False) and pool.endswith((".gevent", ".eventlet")):
        raise ConfigurationError(
            f"The driver of database {store.name!r} would block every greenlet of this worker. "
            "Use psycopg 3 or PyMySQL with this pool, or relay in a worker with another pool."
        )
