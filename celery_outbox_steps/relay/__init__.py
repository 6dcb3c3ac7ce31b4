"""The relay: one tick claims a batch, publishes it and settles it. No thread, no logging in here.

`tick` is the whole of it, `publish` its middle part; `policy` holds the decisions about time. The
thread around it is `celery_outbox_steps.worker.service`.
"""
