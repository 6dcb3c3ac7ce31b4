"""The relay inside a worker: the bootsteps, the checks before they start, the relay's thread.

`steps` wires, `startup` validates and builds, `group` holds the relays of a worker, and `service`
is the thread of one relay. `options` and `control` are the worker's flags and remote control
commands. The path of a message continues in `celery_outbox_steps.relay`.
"""
