"""A worker that is stopped in the middle of a batch gives back at once what it has not sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import helpers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.acceptance.stage import Stage

ROWS = 3_000
"""At five milliseconds each they keep a relay busy for longer than any stop takes."""


@pytest.mark.postgresql
@pytest.mark.redis
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGQUIT"])
def test_unsent_rows_are_free_at_once(
    signal: str, stage_with: Callable[..., Stage], tmp_path: Path
) -> None:
    # This transport has no batches: its messages go out one by one, and a stop comes in between.
    folder = tmp_path / "broker"
    folder.mkdir()
    names = ("data_folder_in", "data_folder_out", "control_folder")
    options = {"polling_interval": 0.05, **dict.fromkeys(names, str(folder))}
    stage = stage_with(broker="filesystem://", CELERY_BROKER_TRANSPORT_OPTIONS=options)
    stage.environment["ACCEPTANCE_SLOW_FILES"] = "1"
    batch = (f"--outbox-batch-size={ROWS}", "--outbox-send-timeout=60")
    flags = (*batch, "--outbox-shutdown-timeout=1")
    worker = stage.worker(*flags, pool="solo")
    stage.send_parcels(ROWS)
    helpers.wait_for(lambda: _sent(folder) > 50, 30, stage.logs)
    worker.stop(signal)
    left = stage.rows()
    assert left > 0, "it was over before the signal came"
    assert stage.rows("claimed_by IS NULL AND retries = 0") == left
    assert _sent(folder) + left == ROWS


def _sent(folder: Path) -> int:
    return len(list(folder.glob("*parcels*.msg")))
