"""Drives the real `Relay` through every order of events within budgets, and counts what it costs.

`search.py` enumerates choices, `actors.py` runs relays and their helper threads one step at a time,
`world.py` is the database, the broker and the faults, `bounds.py` says what each fault may cost.
The budgets of `make test` are small; `python -m tests.explorer` takes larger ones.
"""
