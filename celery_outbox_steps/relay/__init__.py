"""The relay: one tick claims a batch, publishes it and settles it. No logging in here.

`tick` is the whole of it: `prefetch` claims, `publish` publishes, `batch` is what they work on, and
`policy` holds the decisions about time. The thread around it is
`celery_outbox_steps.worker.service`.
"""
