"""Tasks that take a lock when they are called."""

from __future__ import annotations

import os
from typing import Any

from celery_once import QueueOnce
from celery_singleton import Singleton

from tests.acceptance.project.app import app, write

url, prefix = os.environ["ACCEPTANCE_LEDGER"].split(" ")
app.conf.singleton_backend_url = url
app.conf.singleton_key_prefix = f"{prefix}:singleton:"
app.conf.ONCE = {
    "backend": "celery_once.backends.Redis",
    "settings": {"url": url, "default_timeout": 600},
}


@app.task(name=f"{prefix}.singleton", bind=True, base=Singleton, lock_expiry=600)
def singleton(self: Any, name: str) -> None:
    write(self.request.id, name)


@app.task(name=f"{prefix}.once", bind=True, base=QueueOnce, once={"graceful": True})
def once(self: Any, name: str) -> None:
    write(self.request.id, name)
