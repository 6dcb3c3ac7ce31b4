"""RabbitMQ through py-amqp: `publisher`, its `pipeline` of one batch, the `channel` that knows the
confirms, and the `frames` as bytes.
"""
