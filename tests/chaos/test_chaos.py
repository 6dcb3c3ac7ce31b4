"""A short chaos run with a fixed seed: every kind of fault, every promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos import report
from tests.chaos.run import Run
from tests.chaos.world import World
from tests.helpers import require_program
from tests.services import private

if TYPE_CHECKING:
    from pathlib import Path

SEED = 20


@pytest.fixture
def world_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the servers, which run as users of their own, can enter."""
    for name in ("postgres", "rabbitmq", "redis"):
        if not private.possible(name):
            require_program(private.recipes.PROGRAMS[name][0][0])
    return tmp_path_factory.mktemp("chaos")


@pytest.mark.timeout(300)
def test_nothing_is_lost_whatever_happens(world_path: Path) -> None:
    with World(world_path, SEED) as world:
        run = Run(world, SEED, print, pause=1.0)
        run.round(run.plan.short_round())
        outcome = run.finish()
    print(report.summary(outcome))
    assert outcome.broken == []
    assert outcome.verdict.committed > 300
    assert outcome.verdict.rolled_back > 0
    assert set(outcome.faults) == set(report.KINDS)
