"""What a worker needs: the bootsteps, what happens before they start, the relay's thread.

`steps` wires, `startup` builds and refuses, `service` is the thread around the relay. `options` and
`control` are the worker's flags and its remote control commands.
"""
