"""The two paths of a message, traced on PostgreSQL and RabbitMQ: which of our functions run.

    python -m tests.docs.paths            # distinct functions, files and lines of each path
    python -m tests.docs.paths --verbose  # and every function, in the order of its first call

Each path is run three times with one plain JSON task and traced the third time, when everything is
imported, connected and cached. `tests/docs/test_architecture.py` compares the architecture page
with the trace. Run it in a process of its own: what else is loaded (Sentry, structlog) has hooks.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("celery_outbox_steps", "django_integration")
ENQUEUE, RELAY = "enqueue", "relay"
RUNS = 3

Trace = list[tuple[str, str]]
"""File and qualified name of each function, in the order of the first calls."""


class Tracer:
    """Remembers which functions of ours this thread calls; with `within` only below that one."""

    def __init__(self, within: str | None = None) -> None:
        self._within = within
        self._active = within is None
        self._called: dict[tuple[str, int], None] = {}

    def __enter__(self) -> Self:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def path(self) -> Trace:
        return [(file, functions_of(file)[line]) for file, line in self._called]

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call":
            self._active = self._active or code.co_name == self._within
            file = code.co_filename.removeprefix(f"{ROOT}/")
            # Comprehensions and lambdas (`<listcomp>`) are part of the function around them.
            if self._active and file.startswith(PACKAGES) and code.co_name[0] != "<":
                self._called.setdefault((file, code.co_firstlineno))
        elif event == "return" and code.co_name == self._within:
            self._active = False


@cache
def functions_of(file: str) -> dict[int, str]:
    """The qualified names of a file's functions, by line: Python 3.10 has no `co_qualname`."""
    found: dict[int, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for each in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{prefix}{each.name}."
                if not isinstance(each, ast.ClassDef):
                    found[min(n.lineno for n in (each, *each.decorator_list))] = inner[:-1]
            visit(each, inner)

    visit(ast.parse((ROOT / file).read_text()), "")
    return found


def trace_paths() -> dict[str, Trace]:
    """Both paths, warm. Needs Django, a default database that is PostgreSQL, and RabbitMQ."""
    from django.db import transaction

    from django_integration.enqueue.writer import NOTIFY_INTERVAL
    from tests.helpers import wait_for

    with an_app() as app, a_relay(app) as relay:
        task, committed = app.tasks["paths.add"], 0.0
        for _ in range(RUNS):
            # Calls in quick succession share a NOTIFY; here each has its own.
            wait_for(lambda since=committed: monotonic() - since > NOTIFY_INTERVAL)
            with Tracer() as enqueue, transaction.atomic():
                task.delay(1, 2)
            committed = monotonic()
            with Tracer(within="run_once") as claim_to_settle:
                result = relay.run_once()
            assert result.published == 1, result
    return {ENQUEUE: enqueue.path(), RELAY: claim_to_settle.path()}


@contextmanager
def an_app() -> Iterator[Any]:
    from django_integration import OutboxCelery
    from tests.harness.databases import rabbitmq_url

    app = OutboxCelery("paths", broker=rabbitmq_url(), set_as_current=False)
    app.conf.task_default_queue = queue = f"paths-{uuid4().hex[:8]}"

    @app.task(name="paths.add", shared=False)
    def add(x: int, y: int) -> int:
        return x + y

    try:
        yield app
    finally:
        with app.connection_for_write() as connection:
            connection.default_channel.queue_delete(queue)
        app.close()


@contextmanager
def a_relay(app: Any) -> Iterator[Any]:
    from celery_outbox_steps.observe.recorders import recorders_for
    from celery_outbox_steps.publishers import publisher_for
    from celery_outbox_steps.relay.tick import Relay
    from celery_outbox_steps.settings import RelayConfig
    from celery_outbox_steps.store import load_stores

    (store,) = load_stores(app)
    relay = Relay(
        app, store, publisher_for(app), RelayConfig(), "paths", recorders=recorders_for(app)
    )
    try:
        yield relay
    finally:
        relay.close()


@contextmanager
def a_database() -> Iterator[None]:
    """A fresh PostgreSQL database behind the alias `default`."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.proj.settings")
    import django

    django.setup()
    from tests.harness.databases import Databases, installed

    with tempfile.TemporaryDirectory() as directory:
        databases = Databases(Path(directory))
        try:
            with installed("default", databases.get("postgresql")):
                yield
        finally:
            databases.drop_all()


def summary(name: str, path: Trace) -> str:
    files = {file for file, _ in path}
    lines = sum(len((ROOT / file).read_text().splitlines()) for file in files)
    return f"{name}: {len(path)} functions in {len(files)} files of {lines} lines"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--verbose", action="store_true", help="list the functions")
    parser.add_argument("--json", action="store_true", help="print the paths as JSON")
    options = parser.parse_args()
    with a_database():
        paths = trace_paths()
    if options.json:
        print(json.dumps(paths))
        return
    for name, path in paths.items():
        print(summary(name, path))
        for file, function in path if options.verbose else ():
            print(f"    {file}  {function}")


if __name__ == "__main__":
    main()
