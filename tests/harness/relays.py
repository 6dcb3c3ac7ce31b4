"""A relay in this process, with its thread, as a worker runs it.

A suite subclasses `RunningRelay` and chooses store, publisher and settings. Nothing here waits for
rows: use `tests.helpers.wait_for`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

    from celery_outbox_steps.worker.service import RelayService


class RunningRelay:
    """Starts and stops `service`; a subclass creates it and its `store`."""

    service: RelayService
    store: Any

    def start(self) -> Self:
        self.service.start()
        self.service.broker_up()
        return self

    def stop(self) -> None:
        self.service.ask_to_stop(5)
        self.service.join()
        self.store.close()
