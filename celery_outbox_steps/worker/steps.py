"""The bootsteps: they wire the relay into the worker's life cycle and contain nothing else.

`OutboxRelayStep` is a worker step and owns the relays. It adds `BrokerConnectionStep` to the
consumer; that step starts and stops with the broker connection. In a warm shutdown the relay works
while the pool drains, so that what the last tasks enqueue is published: the only hook after the
drain is the consumer step's `shutdown`. The next step of the path is `worker.startup`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import bootsteps

from celery_outbox_steps.worker import control  # noqa: F401  registers the remote control commands
from celery_outbox_steps.worker.options import STEP_NAME
from celery_outbox_steps.worker.startup import announce, apply_flags, build_relays

if TYPE_CHECKING:
    from celery_outbox_steps.worker.group import RelayGroup

COLD_SHUTDOWN = 2.0
"""Seconds that a cold shutdown waits for the relay to release its rows."""


class OutboxRelayStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """`app.steps["worker"].add(OutboxRelayStep)`; active with `--outbox-relay`.

    An `OutboxCelery` has it already; to add it again changes nothing.
    """

    name = STEP_NAME
    # After the pool has forked its first children, before the consumer is built.
    requires = ("celery.worker.components:Pool",)
    conditional = True

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        worker.outbox_relays = None
        self.enabled = apply_flags(worker.app, options)
        if not self.enabled:
            announce(worker, "no relay in this worker")

    def create(self, worker: Any) -> RelayGroup:
        relays = worker.outbox_relays = build_relays(worker)
        worker.app.steps["consumer"].add(BrokerConnectionStep)
        return relays

    def stop(self, worker: Any) -> None:
        """The pool has yet to drain: `BrokerConnectionStep.shutdown` stops the relay after that."""
        worker.outbox_relays.drain()

    def terminate(self, worker: Any) -> None:
        worker.outbox_relays.stop(COLD_SHUTDOWN)

    def info(self, worker: Any) -> dict[str, Any]:
        return {"outbox": worker.outbox_relays.info()}


class BrokerConnectionStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets the relay work while the worker's own broker connection is up."""

    name = "OutboxBrokerConnection"
    requires = ("celery.worker.consumer.connection:Connection",)

    def include_if(self, consumer: Any) -> bool:
        # The app keeps this step, so workers that run no relay get it as well.
        return getattr(consumer.controller, "outbox_relays", None) is not None

    def create(self, consumer: Any) -> None:
        """The step has no object of its own."""

    def start(self, consumer: Any) -> None:
        consumer.controller.outbox_relays.broker_up()

    def stop(self, consumer: Any) -> None:
        lost = consumer.blueprint.state == bootsteps.RUN  # otherwise the worker shuts down
        if lost:
            consumer.controller.outbox_relays.broker_down()

    def shutdown(self, consumer: Any) -> None:
        consumer.controller.outbox_relays.stop()
