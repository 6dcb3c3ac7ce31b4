"""Faults on purpose: real workers, servers and signals, and two ledgers to compare afterwards.

A producer commits and rolls back task calls all the time (`producer.py`); workers with a relay in
them publish and run them (`project.py`, `workers.py`) while a plan made from a seed (`plan.py`)
kills, freezes, cuts and restarts everything (`faults.py`). After every round `verdict.py` compares
what was committed with what reached the broker. `make chaos MINUTES=20` runs it (`run.py`).
"""
