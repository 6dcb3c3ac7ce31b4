"""Where the story plays: a scratch directory, a database, a broker, and the processes on them."""

import os
import signal
import sys
import tempfile
import uuid
from pathlib import Path

from demo.broker import FileBroker, ServerBroker
from demo.worker import Worker


class Stage:
    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(
            prefix="outbox-demo-", ignore_cleanup_errors=True
        )
        self.home = Path(self._scratch.name)
        self.queue = f"shop-{uuid.uuid4().hex[:8]}"
        url = os.environ.get("BROKER_URL")
        self.broker = ServerBroker(url) if url else FileBroker(self.home)
        self.workers: list[Worker] = []
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through `finally`, which cleans up
        os.environ.update(
            DJANGO_SETTINGS_MODULE="shop.settings",
            SHOP_HOME=str(self.home),
            SHOP_QUEUE=self.queue,
            BROKER_URL=self.broker.url,
        )

    def set_up(self) -> None:
        """Set up Django and create the tables."""
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0, interactive=False)

    def start_worker(self, queue: str | None = None) -> Worker:
        worker = Worker(f"worker{len(self.workers) + 1}", self.home, queue or self.queue)
        self.workers.append(worker)
        worker.wait_until_ready()
        return worker

    def last_lines(self) -> str:
        """The last log lines of the newest worker."""
        return self.workers[-1].last_lines() if self.workers else ""

    def clear(self) -> None:
        for worker in self.workers:
            worker.kill()  # nothing is left that could be lost
        if not isinstance(self.broker, FileBroker):
            self._delete_queues()
        self._scratch.cleanup()

    def _delete_queues(self) -> None:
        from shop.celery import app

        with app.connection_for_write() as connection:
            for queue in (self.queue, f"{self.queue}-other"):
                connection.default_channel.queue_delete(queue)
