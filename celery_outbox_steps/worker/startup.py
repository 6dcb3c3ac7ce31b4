"""What happens before a relay starts: apply the flags, validate, check the databases, build.

`build_relays` refuses a configuration that can't work, and `RelayCannotStart` ends the worker with
one line that says why. A database or broker that is only unavailable is no reason to refuse: the
relay waits for it. The next step of the path is `celery_outbox_steps.worker.service`.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from celery.exceptions import ImproperlyConfigured

from celery_outbox_steps.errors import ConfigurationError, OutboxError, StoreError, StoreNotReady
from celery_outbox_steps.observe.metrics import meter_for
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.publishers.broker import Broker
from celery_outbox_steps.settings import BY_NAME, SETTINGS, RelayConfig, read, validate
from celery_outbox_steps.store import LaneStore, RelayStore, load_stores
from celery_outbox_steps.worker.destinations import DestinationGroup, DestinationRelay
from celery_outbox_steps.worker.endpoints import Endpoints
from celery_outbox_steps.worker.group import RelayGroup
from celery_outbox_steps.worker.http_server import HttpServer
from celery_outbox_steps.worker.service import RelayService

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_outbox_steps.observe.metrics import Meter

GREEN_POOLS = (".gevent", ".eventlet")


class RelayCannotStart(ImproperlyConfigured, click.ClickException):  # type: ignore[misc]
    """Ends `celery worker` at start with one clear line instead of a traceback."""

    def __init__(self, message: str) -> None:
        click.ClickException.__init__(self, f"The outbox relay can't start. {message}")


def apply_flags(app: Any, options: Mapping[str, Any]) -> bool:
    """Write the `--outbox-*` flags into the app's configuration. Returns whether to relay.

    A flag overrides its setting. `--outbox-relay` is not written: it applies to this worker only,
    and another worker of the same app and process may run without a relay. `--outbox-http` without
    a relay is refused, because a probe would fail without a reason; the setting alone is ignored.
    """
    relay = options.get(BY_NAME["relay"].conf_name)
    with _refusing():
        for setting in SETTINGS:
            value = options.get(setting.conf_name)
            if value is not None and setting.name != "relay":
                app.conf[setting.conf_name] = setting.parse(value, setting.flag_name)
        relays = bool(read(app.conf, "relay") if relay is None else relay)
        if not relays and options.get(BY_NAME["http"].conf_name) is not None:
            raise ConfigurationError(
                "--outbox-http needs --outbox-relay: it answers for the relay of this worker."
            )
        return relays


def build_relays(worker: Any) -> RelayGroup:
    """One service per Store, not started yet. Raises `RelayCannotStart`."""
    app = worker.app
    with _refusing():
        validate(app.conf)
        config, stores = RelayConfig.from_app(app), load_stores(app)
        meter = meter_for(app)
        recorders = recorders_for(app, meter)
        for store in stores:
            _refuse_incomplete(store)
            _refuse_blocking_driver(worker, store)
            recorders.run_untraced(_check, store)
        several = len(stores) > 1
        relays = RelayGroup(
            [
                RelayService(
                    app,
                    store,
                    _own_liveness_file(config, store, several=several),
                    recorders,
                    worker=str(worker.hostname),
                    announce=partial(announce, worker),
                    destinations=_destinations(app, store, config, meter),
                )
                for store in stores
            ]
        )
        if destinations := read(app.conf, "destinations"):
            announce(worker, f"with the destinations {', '.join(sorted(destinations))}")
        _let_see(worker, relays, meter)
        return relays


def _destinations(
    app: Any, store: RelayStore, config: RelayConfig, meter: Meter | None
) -> DestinationGroup | None:
    """A relay for each destination; None if there are no destinations."""
    deliveries, found = store.deliveries, read(app.conf, "destinations")
    if deliveries is None or not found:
        return None
    relays = []
    for destination in found.values():
        broker = Broker(destination)
        recorders = recorders_for(app, meter, destination.name, broker)
        relays.append(
            DestinationRelay(
                app, destination, deliveries, config, broker=broker, recorders=recorders
            )
        )
    return DestinationGroup(deliveries, relays)


def _let_see(worker: Any, relays: RelayGroup, meter: Meter | None) -> None:
    """Metrics and HTTP endpoints ask the relays, if they are switched on."""
    if meter is not None:
        meter.watch(relays)
    address = read(worker.app.conf, "http")
    if address is not None:
        relays.server = HttpServer(address, Endpoints(relays, meter).answer)
        announce(worker, f"http://{address} has /livez, /readyz and /metrics")


def announce(worker: Any, text: str) -> None:
    """Say in one line what this worker does for the outbox, whatever its log level.

    Printed as Celery prints its banner, and silenced by the same flag. A worker that no `celery
    worker` runs, as in a test, has no such flag and prints nothing.
    """
    if not getattr(worker, "quiet", True):
        with suppress(OSError, ValueError, AttributeError):  # a closed or missing stdout
            print(f"outbox: {text}", file=sys.__stdout__, flush=True)


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except OutboxError as exc:
        raise RelayCannotStart(str(exc)) from exc


def _refuse_incomplete(store: RelayStore) -> None:
    """A Store of another package may have been written for an earlier version."""
    parts = (LaneStore, RelayStore)
    named = {name for part in parts for name in (*vars(part), *part.__annotations__)}
    missing = sorted(
        name for name in named if not name.startswith("_") and not hasattr(store, name)
    )
    if missing:
        raise ConfigurationError(
            f"The Store {type(store).__name__} lacks {', '.join(missing)}: it was written for "
            "another version of this package."
        )


def _refuse_blocking_driver(worker: Any, store: RelayStore) -> None:
    pool = getattr(worker.pool_cls, "__module__", "")
    if store.blocks_event_loop and pool.endswith(GREEN_POOLS):
        raise ConfigurationError(
            f"The driver of database {store.name!r} would block every greenlet of this worker. "
            "Use psycopg 3 or PyMySQL with this pool, or relay in a worker with another pool."
        )


def _check(store: RelayStore) -> None:
    """Refuse what waiting can't fix. A worker must start even if its database is unavailable."""
    try:
        store.check()
    except StoreNotReady:
        raise
    except StoreError:
        pass  # the relay gets the error again, reports it, and works once the database is back
    finally:
        store.close()  # the relay's thread opens its own connection


def _own_liveness_file(config: RelayConfig, store: RelayStore, *, several: bool) -> RelayConfig:
    """One file per relay: a shared file would hide that one of the relays is stuck."""
    if config.liveness_file is None or not several:
        return config
    return replace(config, liveness_file=f"{config.liveness_file}.{store.name}")
