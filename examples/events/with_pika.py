"""Shipping with pika: packs the orders of the shop's events.

pip install pika
python with_pika.py
"""

import json
import os

import pika
from inbox import Inbox

QUEUE = "shipping.pika"
inbox = Inbox("pika.sqlite3")


def on_event(channel, method, properties, body):
    headers = properties.headers or {}
    try:
        number = json.loads(body)["number"]
        source, event_id = headers["cloudEvents_source"], headers["cloudEvents_id"]
    except (KeyError, TypeError, ValueError) as error:
        print(f"rejected: {error!r}", flush=True)
        channel.basic_reject(method.delivery_tag, requeue=False)
        return
    inbox.pack(source, event_id, number)
    channel.basic_ack(method.delivery_tag)


if __name__ == "__main__":
    url = os.environ.get("EVENTS_URL", "amqp://guest:guest@localhost/%2F")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.exchange_declare("domain", "topic", durable=True)
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, "domain", "order.*")
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume(QUEUE, on_event)
    channel.start_consuming()
