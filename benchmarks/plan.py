"""How much is measured: the full plan for numbers, the quick plan to check that everything works.

Sizes only; what is measured is in `sections/`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Sizes of a run. Times in seconds."""

    name: str
    rounds: int
    """Repetitions of each comparison; every round runs all of its contenders once."""
    calls: int
    """Enqueue: calls per transaction."""
    transactions: int
    """Enqueue: transactions per contender and round."""
    messages: int
    """Relay: messages per run."""
    workers: tuple[int, ...]
    latency_rates: tuple[int, ...]
    latency_seconds: float
    latency_rounds: int
    latency_elsewhere: bool
    """Latency, and lateness of held calls, on MariaDB and SQLite as well."""
    backlogs: tuple[int, ...]
    parked: tuple[int, int]
    """Rows that back off, and rows that are due."""
    growth_messages: int
    growth_rounds: int
    snapshot_messages: int
    payloads: tuple[tuple[int, int], ...]
    """(bytes, messages)"""
    idle_seconds: float
    tasks: int
    """Cost: tasks that a worker consumes with and without a relay."""
    task_rounds: int
    held_calls: int
    held_seconds: float
    """Held: from the first due time to the last."""
    held_workers: tuple[int, ...]
    held_rounds: int
    held: tuple[int, int]
    """Rows that are held, and rows that are due."""
    held_messages: int
    held_rate_rounds: int
    """More than of others: the budget is near 1."""


FULL = Plan(
    name="full",
    rounds=5,
    calls=200,
    transactions=5,
    messages=15_000,
    workers=(1, 2, 4),
    latency_rates=(10, 100, 200, 1000),
    latency_seconds=6,
    latency_rounds=3,
    latency_elsewhere=True,
    backlogs=(10_000, 100_000, 1_000_000),
    parked=(900_000, 100_000),
    growth_messages=10_000,
    growth_rounds=3,
    snapshot_messages=60_000,
    payloads=((100, 10_000), (1_000, 10_000), (10_000, 5_000), (100_000, 500)),
    idle_seconds=10,
    tasks=4_000,
    task_rounds=9,
    held_calls=1_000,
    held_seconds=60,
    held_workers=(1, 2),
    held_rounds=3,
    held=(1_000_000, 100_000),
    held_messages=30_000,
    held_rate_rounds=9,
)

QUICK = Plan(
    name="quick",
    rounds=1,
    calls=100,
    transactions=2,
    messages=2_000,
    workers=(1,),
    latency_rates=(200,),
    latency_seconds=2,
    latency_rounds=1,
    latency_elsewhere=False,
    backlogs=(10_000,),
    parked=(27_000, 3_000),
    growth_messages=2_000,
    growth_rounds=1,
    snapshot_messages=4_000,
    payloads=((100, 2_000), (100_000, 100)),
    idle_seconds=2,
    tasks=1_000,
    task_rounds=1,
    held_calls=100,
    held_seconds=6,
    held_workers=(1,),
    held_rounds=1,
    held=(30_000, 3_000),
    held_messages=2_000,
    held_rate_rounds=1,
)
