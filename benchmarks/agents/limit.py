"""The limit: the same messages published from memory, by the loop one would write by hand.

    python -m benchmarks.agents.limit amqp | kombu | ours <messages> <payload>

`amqp` writes 500 messages through py-amqp and waits for their confirms; `kombu` puts 500 messages
into one `Producer.batch()`. Neither uses a database, handles failures or retries. `ours` is the
publisher of this package without the relay around it. The first line on stdin starts it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from benchmarks import agents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_outbox_steps.messages import Message

BATCH = 500


def templates(app: Any, payload: int) -> list[Message]:
    """The messages that the relay builds from the rows of the tables."""
    from django.db import connection

    from celery_outbox_steps.envelope import open_envelope
    from celery_outbox_steps.messages import ClaimedMessage

    names = ", ".join(ClaimedMessage._fields[: ClaimedMessage._fields.index("waited")])
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM bench_template_{payload}")
        rows = [ClaimedMessage(*row, 0.0) for row in cursor.fetchall()]
    return [open_envelope(row, app.now()) for row in rows]


def batches(messages: list[Message], count: int) -> Iterator[list[Message]]:
    for start in range(0, count, BATCH):
        yield [messages[n % len(messages)] for n in range(start, min(start + BATCH, count))]


def amqp(app: Any, messages: list[Message], count: int) -> Any:
    from amqp import Message as AmqpMessage

    connection = app.connection_for_write()
    channel = connection.channel()
    channel.confirm_select()
    acks: list[tuple[int, bool]] = []
    channel.events["basic_ack"].add(lambda tag, multiple: acks.append((tag, multiple)))
    sent = 0

    def run() -> None:
        nonlocal sent
        for batch in batches(messages, count):
            for message in batch:
                wire = AmqpMessage(
                    message.body,
                    priority=message.priority,
                    content_type=message.content_type,
                    content_encoding=message.content_encoding,
                    application_headers=message.headers,
                    **message.properties,
                )
                channel.basic_publish(wire, message.exchange, message.routing_key, mandatory=True)
            pending = set(range(sent + 1, sent + len(batch) + 1))
            sent += len(batch)
            while _unconfirmed(pending, acks):
                connection.drain_events(timeout=30)

    return run


def _unconfirmed(pending: set[int], acks: list[tuple[int, bool]]) -> set[int]:
    for tag, multiple in acks:
        if multiple:
            pending.difference_update([each for each in pending if each <= tag])
        else:
            pending.discard(tag)
    acks.clear()
    return pending


def kombu(app: Any, messages: list[Message], count: int) -> Any:
    producer = app.connection_for_write().Producer()

    def run() -> None:
        for batch in batches(messages, count):
            with producer.batch(max_size=BATCH):
                for message in batch:
                    producer.publish(
                        message.body,
                        routing_key=message.routing_key,
                        exchange=message.exchange,
                        priority=message.priority,
                        content_type=message.content_type,
                        content_encoding=message.content_encoding,
                        headers=message.headers,
                        **message.properties,
                    )

    return run


def ours(app: Any, messages: list[Message], count: int) -> Any:
    from celery_outbox_steps.publishers import publisher_for

    publisher = publisher_for(app)

    def run() -> None:
        for batch in batches(messages, count):
            errors = [error for _, error in publisher.publish(batch, 30) if error]
            if errors:
                raise errors[0]

    return run


def main() -> None:
    loop, count, payload = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    app = agents.start()
    run = {"amqp": amqp, "kombu": kombu, "ours": ours}[loop](app, templates(app, payload), count)
    print("ready", flush=True)
    sys.stdin.readline()
    run()
    sys.stdin.readline()


main()
