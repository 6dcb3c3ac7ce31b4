"""celery-batches: the calls of a transaction arrive as single messages and are run together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ecosystem.scene import Scene


@pytest.mark.postgresql
@pytest.mark.rabbitmq
@pytest.mark.redis
@pytest.mark.library("celery-batches")
def test_calls_of_a_transaction_are_run_together(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with("tests.ecosystem.project.batches")
    scene.worker()
    scene.script("""
from tests.ecosystem.project.batches import together
with transaction.atomic():
    for name in "abc":
        together.delay(name)
""")
    scene.wait_for_run("a+b+c")
