"""The relays of one worker: one service for each Store, started and stopped together.

The bootsteps, remote control and the HTTP endpoints use the group. `stop` asks all services to stop
before it waits for the first, so that they stop at the same time. The next step of the path is
`worker.service`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.worker.gauges import gauges_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_outbox_steps.observe.metrics import Gauge
    from celery_outbox_steps.worker.http_server import HttpServer
    from celery_outbox_steps.worker.service import RelayService


class RelayGroup:
    """The services of one worker, one per Store, and the server that answers for them."""

    def __init__(self, services: list[RelayService]) -> None:
        self.services = services
        self.server: HttpServer | None = None
        self.is_draining = False
        """Whether the worker is stopping. The relays work until its pool has drained."""

    def start(self) -> None:
        if self.server is not None:
            self.server.start()
        for service in self.services:
            service.start()

    def broker_up(self) -> None:
        for service in self.services:
            service.broker_up()

    def broker_down(self) -> None:
        for service in self.services:
            service.broker_down()

    def pause(self, reason: str) -> None:
        for service in self.services:
            service.pause(reason)

    def resume(self) -> None:
        for service in self.services:
            service.resume()

    def check_in_now(self, *, if_at_work: bool = False) -> None:
        for service in self.services:
            if service.at_work or not if_at_work:
                service.check_in_now()

    def drain(self) -> None:
        self.is_draining = True

    def stop(self, timeout: float | None = None) -> None:
        for service in self.services:
            service.ask_to_stop(timeout)
        for service in self.services:
            service.join()
        if self.server is not None:
            self.server.close()

    def gauges(self) -> Iterator[Gauge]:
        for service in self.services:
            yield from gauges_of(service)

    def info(self) -> list[dict[str, Any]]:
        return [service.info() for service in self.services]
