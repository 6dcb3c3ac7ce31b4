"""A task that is run for several calls at once."""

from __future__ import annotations

from typing import Any

from celery_batches import Batches

from tests.acceptance.project.app import app, write


@app.task(name="together", base=Batches, flush_every=3, flush_interval=60)
def together(requests: list[Any]) -> None:
    write(requests[0].id, "+".join(sorted(request.args[0] for request in requests)))
