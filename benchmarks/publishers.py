"""How fast the publishers are, next to the loops that one would write by hand.

Interleaved: every round runs each contender once, so that a noisy moment hits all of them; the
medians are compared. Messages have the twenty headers of Celery's protocol 2.

    python -m benchmarks.publishers [--messages 5000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import uuid
from typing import TYPE_CHECKING, Any

import amqp
from celery import Celery
from kombu import Connection, Queue

from celery_outbox_steps.messages import Message
from celery_outbox_steps.publishers import publisher_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RABBITMQ_URL = os.environ.get("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379").rstrip("/")
QUEUE = f"outbox-benchmark-{uuid.uuid4().hex[:8]}"
BATCH = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    messages = [task_message() for _ in range(options.messages)]
    report("RabbitMQ", compare(rabbitmq_contenders(), messages, options.rounds, purge_rabbitmq))
    report("Redis", compare(redis_contenders(), messages, options.rounds, purge_redis))


def task_message() -> Message:
    task_id = str(uuid.uuid4())
    return Message(
        body=b'[[1, "two"], {"three": 3}, '
        b'{"callbacks": null, "errbacks": null, "chain": null, "chord": null}]',
        content_type="application/json",
        content_encoding="utf-8",
        headers={
            "lang": "py",
            "task": "proj.tasks.add",
            "id": task_id,
            "shadow": None,
            "eta": None,
            "expires": None,
            "group": None,
            "group_index": None,
            "retries": 0,
            "timelimit": [None, None],
            "root_id": task_id,
            "parent_id": None,
            "argsrepr": "(1, 'two')",
            "kwargsrepr": "{'three': 3}",
            "origin": "gen4711@web-1",
            "ignore_result": False,
            "replaced_task_nesting": 0,
            "stamped_headers": None,
            "stamps": {},
        },
        properties={
            "delivery_mode": 2,
            "correlation_id": task_id,
            "reply_to": "f5a0dd4c-5c79-3c4c-9c7e-7f6c0b1de2a1",
        },
        priority=0,
        exchange="",
        routing_key=QUEUE,
        declare=(Queue(QUEUE),),
    )


def batches(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    for start in range(0, len(messages), BATCH):
        yield messages[start : start + BATCH]


def rabbitmq_contenders() -> dict[str, Any]:
    return {
        "py-amqp, confirms per 500": pipelined_pyamqp(),
        "py-amqp, confirm each": confirm_each_pyamqp(),
        "this publisher": ours(RABBITMQ_URL),
    }


def redis_contenders() -> dict[str, Any]:
    return {"kombu Producer.batch()": kombu_batch(), "this publisher": ours(f"{REDIS_URL}/9")}


def ours(url: str) -> Any:
    publisher = publisher_for(Celery("benchmark", broker=url, set_as_current=False))

    def run(messages: Sequence[Message]) -> None:
        for batch in batches(messages):
            errors = [error for _, error in publisher.publish(batch, 30) if error]
            assert not errors, errors[0]

    return run


def pipelined_pyamqp() -> Any:
    connection = Connection(RABBITMQ_URL)
    channel = connection.channel()
    channel.confirm_select()
    acks: list[tuple[int, bool]] = []
    channel.events["basic_ack"].add(lambda tag, multiple: acks.append((tag, multiple)))
    sent = 0

    def run(messages: Sequence[Message]) -> None:
        nonlocal sent
        for batch in batches(messages):
            for message in batch:
                channel.basic_publish(as_amqp(message), "", QUEUE, mandatory=True)
            sent += len(batch)
            await_acks(connection, acks, set(range(sent - len(batch) + 1, sent + 1)))

    return run


def await_acks(connection: Any, acks: list[tuple[int, bool]], pending: set[int]) -> None:
    while pending:
        while not acks:
            connection.drain_events(timeout=30)
        for tag, multiple in acks:
            pending -= {each for each in pending if each <= tag} if multiple else {tag}
        acks.clear()


def confirm_each_pyamqp() -> Any:
    connection = Connection(RABBITMQ_URL, transport_options={"confirm_publish": True})
    channel = connection.channel()

    def run(messages: Sequence[Message]) -> None:
        for message in messages[: len(messages) // 10]:  # ten times slower: a tenth is enough
            channel.basic_publish(as_amqp(message), "", QUEUE, mandatory=True)

    run.share = 0.1  # type: ignore[attr-defined]
    return run


def as_amqp(message: Message) -> amqp.Message:
    return amqp.Message(
        message.body,
        priority=message.priority,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        application_headers=message.headers,
        **message.properties,
    )


def kombu_batch() -> Any:
    connection = Connection(f"{REDIS_URL}/9")
    producer = connection.Producer()

    def run(messages: Sequence[Message]) -> None:
        for batch in batches(messages):
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


def purge_rabbitmq() -> None:
    with Connection(RABBITMQ_URL) as connection:
        queue = Queue(QUEUE)(connection.default_channel)
        queue.declare()
        queue.purge()


def purge_redis() -> None:
    with Connection(f"{REDIS_URL}/9") as connection:
        connection.default_channel.client.flushdb()


def compare(
    contenders: dict[str, Any], messages: Sequence[Message], rounds: int, purge: Any
) -> dict[str, float]:
    """Messages per second, median over the rounds; the first round warms up and is dropped."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            purge()
            start = time.perf_counter()
            run(messages)
            seconds = time.perf_counter() - start
            rates[name].append(len(messages) * getattr(run, "share", 1) / seconds)
    purge()
    return {name: statistics.median(values[1:]) for name, values in rates.items()}


def report(title: str, rates: dict[str, float]) -> None:
    print(title)
    reference = next(iter(rates.values()))
    for name, rate in rates.items():
        print(f"  {name:28} {rate:9,.0f} msg/s   {rate / reference:5.2f} x")


def delete_queue() -> None:
    with Connection(RABBITMQ_URL) as connection:
        connection.default_channel.queue_delete(QUEUE)


if __name__ == "__main__":
    try:
        main()
    finally:
        delete_queue()
