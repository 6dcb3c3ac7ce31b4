"""A project whose processes, the worker's main process too, are instrumented: by TRACED_BY.

Spans go to a file, one line each: process, trace, parent and name. A statement of the worker's main
process that is not the relay's shows that they would be seen.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from celery.signals import worker_ready

from tests.acceptance.project.app import app, write

if tracer := os.environ.get("TRACED_BY"):
    importlib.import_module(f"tests.ecosystem.project.{tracer}")


@app.task(name="ship", bind=True)
def ship(self: Any) -> None:
    write(self.request.id, "ship")


@worker_ready.connect(weak=False)
def not_of_the_relay(**_: Any) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
    connection.close()
