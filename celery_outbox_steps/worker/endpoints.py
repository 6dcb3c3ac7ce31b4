"""What `/livez`, `/readyz` and `/metrics` answer: verdicts on the relays of this worker.

Nothing here uses the database or the broker, so that an answer takes milliseconds whatever is down.
The texts are for people, and have no secrets: no URL and no error of a library. The next step of
the path is `worker.http_server`, which serves the answers.
"""

from __future__ import annotations

from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from celery_outbox_steps import fleet
from celery_outbox_steps.errors import printable
from celery_outbox_steps.worker import forks

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_outbox_steps.observe.metrics import Meter
    from celery_outbox_steps.worker.group import RelayGroup
    from celery_outbox_steps.worker.service import RelayService
    from celery_outbox_steps.worker.thread import LoopThread

TEXT = "text/plain; charset=utf-8"
NO_METRICS = (
    'There are no metrics to scrape: set CELERY_OUTBOX_METRICS to "prometheus", and run '
    'pip install "celery-outbox-steps[prometheus]".'
)
SCRAPE_WAIT = 1.0
"""Seconds that a scrape waits for the one before it."""
ENDING = ("stopping", fleet.STOPPED)


class Answer(NamedTuple):
    """One HTTP response."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


class Endpoints:
    """The endpoints of one worker, for all its relays."""

    def __init__(self, relays: RelayGroup, meter: Meter | None) -> None:
        self._relays = relays
        self._meter = meter
        self._scraping = Lock()
        self._paths: dict[str, Callable[[], Answer]] = {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
        }

    def answer(self, path: str) -> Answer:
        """The answer to a GET of this path."""
        found = self._paths.get(path)
        if found is None:
            return _text(
                HTTPStatus.NOT_FOUND, f"There is nothing here; try {', '.join(self._paths)}."
            )
        return found()

    def _livez(self) -> Answer:
        """Whether a restart would help."""
        faults = {each.store.name: fault(each) for each in self._relays.services}
        return _verdict({name: text for name, text in faults.items() if text}, {"": "alive"})

    def _readyz(self) -> Answer:
        """Whether this worker does its part: every relay works or stands by."""
        services = self._relays.services
        if self._relays.is_draining:
            return _verdict({each.store.name: "the worker is stopping" for each in services})
        hindrances = {each.store.name: hindrance(each) for each in services}
        return _verdict(
            {name: text for name, text in hindrances.items() if text},
            {each.store.name: each.state for each in services},
        )

    def _metrics(self) -> Answer:
        # One at a time: a collector of the project's that hangs must not take the probes' threads.
        if not self._scraping.acquire(timeout=SCRAPE_WAIT):
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "Another scrape is being answered.")
        try:
            # Behind the barrier: a fork meanwhile would copy locks of the metrics while held.
            with forks.barrier:
                page = None if self._meter is None else self._meter.page()
        finally:
            self._scraping.release()
        if page is None:
            return _text(HTTPStatus.NOT_FOUND, NO_METRICS)
        return Answer(HTTPStatus.OK, page.body, page.content_type)


def fault(service: RelayService) -> str | None:
    """What only a restart would mend. A broker or a database that is away is no fault, nor is one
    of a destination."""
    if service.state in ENDING:
        return None
    found = _fault_of(service, "relay")
    if found is None and service.destinations is not None:
        threads: list[tuple[LoopThread, str]] = [(service.destinations, "waker of destinations")]
        threads += [(each, f"relay for {each.destination}") for each in service.destinations.relays]
        faults = (_fault_of(thread, name) for thread, name in threads if thread.is_started)
        found = next(filter(None, faults), None)
    return found


def _fault_of(thread: LoopThread, name: str) -> str | None:
    if thread.has_crashed:
        return f"the {name}'s thread has ended"
    if thread.seconds_still > thread.longest_still:
        return f"the {name}'s loop has not moved for {thread.seconds_still:.0f} s"
    return None


def hindrance(service: RelayService) -> str | None:
    """Why this relay can't do its part at this moment; None if it can."""
    found = fault(service)
    if found is not None:
        return found
    if service.state == fleet.PAUSED:
        return f"paused: {service.pause_reason}"
    if service.state not in (fleet.RELAYING, fleet.STANDING_BY):
        return service.state
    return None if service.has_checked_in else "has not reached its database yet"


def _verdict(bad: dict[str, str], good: dict[str, str] | None = None) -> Answer:
    """One line for each database that is not all right; otherwise one for each."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if bad else HTTPStatus.OK
    lines = (bad or good or {}).items()
    return _text(status, "\n".join(f"{name}: {text}" if name else text for name, text in lines))


def _text(status: HTTPStatus, text: str) -> Answer:
    lines = (printable(line) for line in text.splitlines())
    return Answer(status, ("\n".join(lines) + "\n").encode())
