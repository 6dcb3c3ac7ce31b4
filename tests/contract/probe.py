"""A process of its own that uses a store: `python -m tests.contract.probe`, orders on stdin.

`claim` takes rows until none is left and prints their ids. `fork` forks while the store's session
is open, lets the child forget and collect everything, and prints whether the session survived.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from typing import Any

from tests.contract import drivers

LEASE = 300.0
stores: list[Any] = []
"""The only reference to the store, so that a child can let go of it."""


def main() -> None:
    order = json.load(sys.stdin)
    drivers.choose(order["driver"])
    _configure(order["settings"])
    print(json.dumps({"claim": claim, "fork": fork}[order["do"]](order)))


def claim(order: dict[str, Any]) -> list[int]:
    from django_integration.models import CeleryOutbox
    from django_integration.store import DjangoStore

    store, claimed = DjangoStore("default"), []
    while CeleryOutbox.objects.filter(claimed_by=None).exists():
        claimed += [message.id for message in store.claim(23, LEASE, order["relay"])]
    return claimed


def fork(order: dict[str, Any]) -> dict[str, Any]:
    """As in a worker: the store lives in a thread, the main thread forks."""
    answers: dict[str, Any] = {}
    opened, forked = threading.Event(), threading.Event()
    thread = threading.Thread(target=_relay, args=(order["session"], answers, opened, forked))
    thread.start()
    opened.wait(20)
    answers["children"] = [_child() for _ in range(3)]
    forked.set()
    thread.join(20)
    return answers


def _relay(
    session: str, answers: dict[str, Any], opened: threading.Event, forked: threading.Event
) -> None:
    from django_integration.store import DjangoStore

    stores.append(DjangoStore("default"))
    answers["before"] = _session(session)
    opened.set()
    forked.wait(20)
    answers["after"] = _session(session)
    answers["claimed"] = len(stores[0].claim(10, LEASE, "me"))


def _session(sql: str) -> Any:
    """Which session of the server the store talks on, in the server's words."""
    return stores[0]._session.rows(sql)[0][0]


def _child() -> int:
    pid = os.fork()
    if pid == 0:
        stores.clear()
        gc.collect()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def _configure(database: dict[str, Any]) -> None:
    import django
    from django.conf import settings

    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=["django_integration"],
        USE_TZ=True,
    )
    django.setup()


if __name__ == "__main__":
    main()
