"""The Store: where rows live, and the contract that every implementation keeps.

The invariant behind every write: **a row belongs to the relay whose id stands in `claimed_by`
until `claimed_until`, by the database's clock, and to nobody else.** All writes of a relay are
fenced with its id, so one that comes late changes nothing; only what the broker has is settled also
where the claim was forgotten or given back. Every implementation passes the suite
`celery_outbox_steps.testing.contract`; `celery_outbox_steps.testing.MemoryStore` has no database.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from celery_outbox_steps.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_outbox_steps.messages import ClaimedMessage, Outcome

ORPHANED = ""
"""`claimed_by` of a row that no relay holds and that is still `orphaned`: it was only deferred."""
INTERRUPTED = "the relay ended while it published this message"
"""The `last_error` of an attempt that was begun and that has no outcome."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The three numbers behind the gauges. Counts are capped so that looking stays cheap."""

    depth: int
    dead_letters: int
    oldest_pending_seconds: float


@dataclass(frozen=True, slots=True)
class Stats:
    """What a person wants to know of the outbox."""

    depth: int
    """Rows waiting to be published, in flight or backing off."""
    in_flight: int
    failing: int
    """Rows with at least one failed attempt."""
    dead_letters: int
    published: int
    """Published rows that are kept (retention)."""
    oldest_pending_seconds: float
    capped: bool
    """True where a count stopped at its cap: read it as "at least"."""
    relays: tuple[dict[str, Any], ...] = field(default=())
    """Who holds rows: relay, rows, seconds left of the lease."""
    top_failing: tuple[dict[str, Any], ...] = field(default=())
    """Failing tasks: task_name, rows, last_error."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Which dead letters are meant; by default all. Ages in seconds, by the database's clock."""

    ids: Sequence[int] | None = None
    task_name: str | None = None
    """The name, or a pattern with `*` for any text and `?` for any character."""
    older_than: float | None = None
    newer_than: float | None = None


class Store(Protocol):
    """One outbox table. Used by one thread; never shared between a process and its fork."""

    name: str
    """What people call it in logs and `inspect`: the database alias."""

    def check(self) -> None:
        """Raise `StoreNotReady`, naming the fix, where the relay can never work (no table)."""

    def claim(
        self,
        limit: int,
        lease: float,
        relay_id: str,
        *,
        max_bytes: int | None = None,
        adopt: bool = False,
    ) -> list[ClaimedMessage]:
        """Lease up to `limit` due rows to `relay_id` for `lease` seconds, oldest due first.

        As many as fit into `max_bytes` together, and at least one: a row that alone exceeds it
        comes alone, `oversized` and without its contents. Rows of a schema version that this
        package does not know are left alone. Costs O(limit), whatever else the table holds. Two
        claims never return the same row while a lease lasts; with `adopt` the rows that
        `relay_id` holds itself count as free, which is for a relay that has none in hand.
        """

    def begin_attempt(self, message: ClaimedMessage, relay_id: str) -> ClaimedMessage | None:
        """Count an attempt before it is made, so that the row remembers it if the relay dies.

        The message with its contents, its `retries` as they were before; None if the row is not
        ours any more. May be repeated. A settle writes what it knows over it.
        """

    def settle(self, outcomes: Sequence[Outcome], relay_id: str) -> int:
        """Write what became of claimed rows, all or nothing. Returns how many were fenced off.

        Fenced off are rows that the relay does not hold, and `Published` ones that another relay
        holds. The retries are counted from those of the message, not from those of the row. A
        `Deferred` row stays orphaned if it was. May be
        repeated after an error of unknown effect: what was settled is not settled twice.
        """

    def release(self, ids: Sequence[int], relay_id: str) -> int:
        """Give claimed rows back, due at once, retries untouched. Returns how many were ours."""

    def wait(self, timeout: float) -> bool:
        """Block until rows may be waiting, `wake()` is called or `timeout` seconds pass."""

    def wake(self) -> None:
        """End a `wait()` early. Callable from any thread, and from a signal handler."""

    def sample(self) -> Sample:
        """The gauges, cheaply."""

    def stats(self, top: int = 10) -> Stats:
        """Everything `status` shows. For people: never called per batch."""

    def count_dead_letters(self, which: DeadLetters) -> int:
        """How many dead letters are meant."""

    def replay(self, which: DeadLetters, limit: int = 1000) -> int:
        """Move up to `limit` dead letters back into the outbox, due now, retries at 0."""

    def purge_dead_letters(self, which: DeadLetters, limit: int = 1000) -> int:
        """Delete up to `limit` dead letters."""

    def count_published(self, older_than: float) -> int:
        """How many published rows are older than so many seconds."""

    def purge_published(self, older_than: float, limit: int = 1000) -> int:
        """Delete up to `limit` published rows that are older than so many seconds."""

    def close(self) -> None:
        """Close the connection. The next use opens it again."""


def how_many_fit(sizes: Iterable[int], max_bytes: int) -> int:
    """How many rows of these sizes a claim takes: what fits together, and at least one."""
    total = count = 0
    for size in sizes:
        total += size
        if count and total > max_bytes:
            break
        count += 1
    return count


def load_stores(app: Any) -> list[Store]:
    """The Stores that the app is configured with: `CELERY_OUTBOX_STORE` names who builds them."""
    stores: list[Store] = load(app.conf, "store")(app)
    return stores
