"""The gauges of one relay and of those for destinations, read when a sink asks for them.

The gauges of the table exist only while this relay is at work and has a sample that is not out of
date; those of the relay itself exist from its start to its end, also without broker and database.
The next step of the path is the sink that asks: `celery_outbox_steps.observe.recorders.prometheus`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_outbox_steps import fleet
from celery_outbox_steps.observe.metrics import Gauge, row_states
from celery_outbox_steps.store import MESSAGE, TASK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_outbox_steps.store import Sample
    from celery_outbox_steps.worker.service import RelayService
    from celery_outbox_steps.worker.thread import RelayThread

STATES = (
    fleet.RELAYING,
    fleet.STANDING_BY,
    fleet.PAUSED,
    fleet.WAITING_FOR_BROKER,
    fleet.COOLING_DOWN,
    fleet.BACKING_OFF,
)
"""The states that a series exists for, whatever the relay does."""


def gauges_of(service: RelayService) -> Iterator[Gauge]:
    """All that are known now; none once the relay has stopped."""
    state, tags = service.state, {"database": service.store.name}
    if state == fleet.STOPPED:
        return
    yield Gauge("relay.broker_up", float(service.is_connected), tags)
    yield from _of_relay(service, state, service.pause_reason is not None, tags)
    for relay in service.destinations.relays if service.destinations else ():
        lane = {**tags, "destination": relay.destination}
        yield from _of_relay(relay, relay.state, relay.pause is not None, lane)


def _of_relay(
    relay: RelayThread,
    state: str,
    is_paused: bool,  # noqa: FBT001  the value of a gauge
    tags: Mapping[str, str],
) -> Iterator[Gauge]:
    for each in dict.fromkeys((*STATES, state)):
        yield Gauge("relay.state", float(each == state), {**tags, "state": each})
    yield Gauge("relay.breaker_open", float(relay.breaker_is_open), tags)
    yield Gauge("relay.paused", float(is_paused), tags)
    sample = relay.sample
    if sample is not None:
        yield from _of_table(sample, tags)


def _of_table(sample: Sample, tags: Mapping[str, str]) -> Iterator[Gauge]:
    yield Gauge("oldest_due_age_seconds", sample.oldest_due_seconds, tags)
    for state in row_states(tags):
        yield Gauge("rows", getattr(sample, state), {**tags, "state": state})
    messages = sample.dead_letters - sample.failed_tasks
    for kind, count in ((MESSAGE, messages), (TASK, sample.failed_tasks)):
        yield Gauge("dead_letters", count, {**tags, "kind": kind})
