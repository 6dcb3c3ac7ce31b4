"""The relays of one worker: one service for each Store, started and stopped together.

The bootsteps and remote control use the group. `stop` asks all services to stop before it waits for
the first, so that they stop at the same time. The next step of the path is `worker.service`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_outbox_steps.worker.service import RelayService


class RelayGroup:
    """The services of one worker: one per Store."""

    def __init__(self, services: list[RelayService]) -> None:
        self.services = services

    def start(self) -> None:
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

    def stop(self, timeout: float | None = None) -> None:
        for service in self.services:
            service.ask_to_stop(timeout)
        for service in self.services:
            service.join()

    def info(self) -> list[dict[str, Any]]:
        return [service.info() for service in self.services]
