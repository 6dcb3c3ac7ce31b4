"""What a worker needs: the bootsteps, what happens before they start, the relay's thread.

`steps` wires, `startup` builds and refuses, `group` holds the relays of a worker, and `service` is
the thread around one. `options` and `control` are the worker's flags and remote control commands.
"""
