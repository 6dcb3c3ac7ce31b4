"""RabbitMQ through py-amqp: a batch is written in few large writes, and every message is confirmed.

`publisher` is the entry point, `pipeline` sends one batch, `channel` tracks the confirms, and
`frames` encodes a message. What is private in py-amqp is in `celery_outbox_steps.upstream.amqp`.
"""
