"""Enqueue: what a task call costs its caller.

Each contender is an agent of its own (`agents/enqueue.py`), ready before the first round. No relay
runs meanwhile.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.processes import Agent
from benchmarks.results import Section

if TYPE_CHECKING:
    from benchmarks.sections import Bench

DIRECT = "apply_async to RabbitMQ"
SINGLE = "this package, one call"
BULK = "this package, outbox_bulk()"
PEER = "django-celery-outbox"

TEXT = """\
One task call with an argument of 100 bytes, inside a transaction that is open already, on
PostgreSQL. "Committed" adds the COMMIT and, for `delay_on_commit`, the publish after it. Calls that
go directly to a broker are not confirmed unless the row says so: they do not wait for an answer,
while a stored call waits for PostgreSQL's. The last two rows show the driver alone: for a trivial
statement, and for this INSERT."""


def run(bench: Bench) -> None:
    plan = bench.plan
    section = Section(
        "enqueue", "Enqueue", TEXT,
        {"call": "µs", "committed": "µs", "cpu": "µs"}, chart="call", reference=DIRECT,
    )  # fmt: skip
    bench.results.sections["enqueue"] = section
    ours, peer = bench.table(), bench.peer_table()
    with ExitStack() as stack:
        agents = {
            name: stack.enter_context(agent)
            for name, agent in contenders(ours.where, peer.where).items()
        }
        for agent in agents.values():
            agent.wait_until_ready()
        for number in range(plan.rounds):
            names = list(agents) if number % 2 == 0 else list(reversed(agents))
            for name in names:
                answer = agents[name].ask(f"{plan.calls} {plan.transactions}")
                section.add(name, **json.loads(answer))
            for table in (ours, peer):
                table.reset()
            for broker in bench.brokers.values():
                broker.purge()


def contenders(ours: str, peer: str) -> dict[str, Agent]:
    return {
        DIRECT: Agent("enqueue", "direct", ours, "single"),
        "apply_async to RabbitMQ, confirmed": Agent(
            "enqueue", "direct", ours, "single", broker="confirmed"
        ),
        "apply_async to Redis": Agent("enqueue", "direct", ours, "single", broker="redis"),
        "delay_on_commit to RabbitMQ": Agent("enqueue", "direct", ours, "on_commit"),
        SINGLE: Agent("enqueue", "ours", ours, "single"),
        BULK: Agent("enqueue", "ours", ours, "bulk"),
        "this package, group": Agent("enqueue", "ours", ours, "group"),
        PEER: Agent("enqueue", "peer", peer, "single"),
        "psycopg alone, SELECT 1": Agent("enqueue", "ours", ours, "round_trip"),
        "psycopg alone, the same INSERT": Agent("enqueue", "ours", ours, "insert"),
    }
