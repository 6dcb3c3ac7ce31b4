"""A publisher without a broker: it records what it is given, and fails where a test says so.

It keeps the contract of `celery_outbox_steps.publishers.base`: errors of single messages, outages
and interruptions included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_outbox_steps.errors import Interrupted, Outage, describe
from celery_outbox_steps.messages import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_outbox_steps.messages import Message


class RecordingPublisher:
    """A Publisher that records. `published` holds what "the broker" accepted, in order."""

    lazy = True

    def __init__(self) -> None:
        self.published: list[Message] = []
        self.batches = 0
        self.down: Exception | None = None
        """While set, the broker can't be reached, for this reason."""
        self.can_tell = True
        """Whether `reachable()` knows the broker's state; on many transports it does not."""
        self.closed = False
        self._by_task: dict[str, Exception] = {}
        self._by_index: dict[int, Exception] = {}
        self._breaking: dict[str, Exception] = {}

    def fail_task(self, task_name: str, error: Exception) -> None:
        """From now on every message of this task, or event of this name, fails."""
        self._by_task[task_name] = error

    def fail_index(self, index: int, error: Exception) -> None:
        """The message at this position fails once, in the next batch that has one there."""
        self._by_index[index] = error

    def break_on_task(self, task_name: str, error: Exception) -> None:
        """From now on every message of this task breaks the connection.

        Unless the publisher is lazy, messages sent before it arrive without a receipt.
        """
        self._breaking[task_name] = error

    def heal(self) -> None:
        """From now on nothing fails."""
        self.down = None
        self._by_task.clear()
        self._by_index.clear()
        self._breaking.clear()

    def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:  # noqa: ARG002  the protocol's signature
        self.batches += 1
        if self.down is not None:
            raise Outage(describe(self.down)) from self.down
        receipts = self._one_by_one(messages)
        yield from receipts if self.lazy else list(receipts)

    def reachable(self, timeout: float) -> bool:  # noqa: ARG002  the protocol's signature
        return self.can_tell and self.down is None

    def close(self) -> None:
        self.closed = True

    def _one_by_one(self, messages: Iterable[Message]) -> Iterator[Receipt]:
        for index, message in enumerate(messages):
            task_name = name_of(message)
            if task_name in self._breaking:
                error = self._breaking[task_name]
                raise Interrupted(describe(error)) from error
            failure = self._by_index.pop(index, None) or self._by_task.get(task_name)
            if failure is None:
                self.published.append(message)
            yield Receipt(index, failure)


def name_of(message: Message) -> str:
    """The name of the task, or of the event: its attribute `type`, whatever the prefix."""
    if message.is_task:
        return str(message.headers.get("task", ""))
    names = (value for name, value in reversed(message.headers.items()) if name.endswith("type"))
    return str(next(names, ""))
