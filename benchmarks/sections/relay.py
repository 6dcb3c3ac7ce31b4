"""Relay: how fast rows become messages, next to the peer and to the bare limit.

Measured at the broker (`brokers.py`), so that all contenders are counted alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.results import Section
from benchmarks.sections import Contender, our_workers, rounds, the_limit, the_peer

if TYPE_CHECKING:
    from benchmarks.sections import Bench

OURS = "this package, 1 worker"
PEER = "django-celery-outbox"
PEER_CONFIRMED = f"{PEER}, confirm_publish"
PEER_UNCONFIRMED = f"{PEER}, not confirmed"
AMQP = "py-amqp loop, confirms per 500"
KOMBU = "kombu Producer.batch() loop"
PUBLISHER = "this package, its publisher alone"

TEXT = """\
Messages of 100 bytes of argument from PostgreSQL to {}, seen from the broker's side: from the
first message in the queue to the last. Ours is a real `celery worker --outbox-relay` that consumes
another, empty queue; django-celery-outbox is its relay command with default settings. The loop
publishes the same messages from memory, without a database and without failures to handle. So does
"its publisher alone", with the relay's code. CPU (seconds per 10,000 messages) and memory are those
of the relaying processes; for this package, of the whole worker."""

UNITS = {"rate": "messages/s", "cpu": "s", "memory": "MB"}


def run(bench: Bench) -> None:
    ours, peer = bench.table(), bench.peer_table()
    rabbitmq, redis = bench.brokers["rabbitmq"], bench.brokers["redis"]
    count, workers = bench.plan.messages, bench.plan.workers
    ours.have_templates(100)  # which the loops read
    _compare(bench, "relay_rabbitmq", "RabbitMQ, confirmed", AMQP, [
        *(our_workers(rabbitmq, ours, number) for number in workers),
        the_limit("amqp", AMQP, rabbitmq, ours, count),
        the_limit("ours", PUBLISHER, rabbitmq, ours, count),
        the_peer(rabbitmq, peer, "confirmed", name=PEER_CONFIRMED),
        the_peer(rabbitmq, peer, name=PEER_UNCONFIRMED),
    ])  # fmt: skip
    _compare(bench, "relay_redis", "Redis", KOMBU, [
        *(our_workers(redis, ours, number) for number in workers),
        the_limit("kombu", KOMBU, redis, ours, count),
        the_limit("ours", PUBLISHER, redis, ours, count),
        the_peer(redis, peer),
    ])  # fmt: skip


def _compare(
    bench: Bench, name: str, broker: str, reference: str, contenders: list[Contender]
) -> None:
    section = Section(
        name, f"Relay to {broker}", TEXT.format(broker), UNITS, chart="rate", reference=reference
    )
    bench.results.sections[name] = section
    count = bench.plan.messages
    for contender in rounds(bench.plan.rounds, contenders):
        measured = contender.run(count)
        section.add(contender.name, rate=measured.rate, cpu=measured.cpu, memory=measured.memory)
