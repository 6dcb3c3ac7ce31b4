"""Shipping with kombu: packs the orders of the shop's events.

    python with_kombu.py

An event is acknowledged when its work is committed. One that can't be read is rejected: give the
queue a dead letter exchange to keep it.
"""

import os

from inbox import Inbox
from kombu import Connection, Exchange, Queue
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.mixins import ConsumerMixin

DOMAIN = Exchange("domain", "topic", durable=True)
QUEUE = Queue("shipping.kombu", DOMAIN, routing_key="order.*", durable=True)


class Shipping(ConsumerMixin):
    def __init__(self, connection):
        self.connection = connection  # ConsumerMixin connects again when it is lost
        self.inbox = Inbox("kombu.sqlite3")

    def get_consumers(self, consumer, channel):  # noqa: ARG002  as ConsumerMixin calls it
        return [consumer([QUEUE], on_message=self.on_event, prefetch_count=10)]

    def on_event(self, message):
        try:
            number = message.decode()["number"]
            source = message.headers["cloudEvents_source"]
            event_id = message.headers["cloudEvents_id"]
        except (KeyError, TypeError, ContentDisallowed, DecodeError) as error:
            print(f"rejected: {error!r}", flush=True)
            message.reject()
            return
        self.inbox.pack(source, event_id, number)
        message.ack()


if __name__ == "__main__":
    with Connection(os.environ.get("EVENTS_URL", "amqp://guest:guest@localhost/%2F")) as connection:
        Shipping(connection).run()
