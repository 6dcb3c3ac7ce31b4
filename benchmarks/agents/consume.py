"""Record when each message arrives, with py-amqp alone. A line on stdin asks for the arrivals.

python -m benchmarks.agents.consume <file>
"""

from __future__ import annotations

import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import amqp
from kombu.utils.url import parse_url

from benchmarks.project.settings import RABBITMQ_URL, TARGET


def take_all(connection: Any) -> None:
    """py-amqp buffers what it read: the socket alone does not say whether there is more."""
    with suppress(TimeoutError):
        while True:
            connection.drain_events(timeout=0)


def main() -> None:
    arrived: list[tuple[str, float]] = []

    def note(message: Any) -> None:
        arrived.append((message.properties["correlation_id"], time.monotonic()))

    where = parse_url(RABBITMQ_URL)
    host = f"{where['hostname']}:{where['port'] or 5672}"
    connection = amqp.Connection(
        host, where["userid"], where["password"], virtual_host=where["virtual_host"] or "/"
    )
    connection.connect()
    channel = connection.channel()
    channel.basic_consume(TARGET, no_ack=True, callback=note)
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([connection.sock, sys.stdin], [], [])
        if connection.sock in readable:
            take_all(connection)
        if sys.stdin in readable:
            if not sys.stdin.readline():
                return
            Path(sys.argv[1]).write_text("".join(f"{name} {at}\n" for name, at in arrived))
            print(len(arrived), flush=True)
            arrived.clear()


main()
