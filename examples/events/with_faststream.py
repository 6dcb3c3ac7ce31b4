"""Shipping with FastStream: packs the orders of the shop's events.

pip install "faststream[rabbit]"
python with_faststream.py
"""

import asyncio
import os

from faststream import AckPolicy, FastStream
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitMessage, RabbitQueue
from inbox import Inbox
from pydantic import BaseModel

DOMAIN = RabbitExchange("domain", type=ExchangeType.TOPIC, durable=True)
QUEUE = RabbitQueue("shipping.faststream", durable=True, routing_key="order.*")

broker = RabbitBroker(os.environ.get("EVENTS_URL", "amqp://guest:guest@localhost/%2F"))
app = FastStream(broker)
inbox = Inbox("faststream.sqlite3")


class Order(BaseModel):
    number: int
    items: list[str]


@broker.subscriber(QUEUE, DOMAIN, ack_policy=AckPolicy.REJECT_ON_ERROR)
async def on_event(order: Order, event: RabbitMessage) -> None:
    headers = event.headers
    inbox.pack(headers["cloudEvents_source"], headers["cloudEvents_id"], order.number)


if __name__ == "__main__":
    asyncio.run(app.run())
