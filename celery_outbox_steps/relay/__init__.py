"""The relay: one tick claims a batch, publishes it and settles it. Nothing here logs.

`tick` is the entry point: `prefetch` claims, `publish` publishes, `batch` holds the rows and their
outcomes, and `policy` decides about time. `celery_outbox_steps.worker.service` is the thread around
it.
"""
