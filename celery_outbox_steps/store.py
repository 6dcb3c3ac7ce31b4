"""The Store: one outbox table, and the contract that every implementation keeps.

The invariant behind every write: **until `claimed_until`, by the database's clock, a row belongs to
the relay whose id is in `claimed_by`, and to no other.** A relay's writes are fenced with its id: a
late write changes nothing. One exception: a published row is settled even if its claim was lost or
released. Every implementation passes the suite `celery_outbox_steps.testing.contract`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from celery_outbox_steps.errors import OutboxError
from celery_outbox_steps.settings import load

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from celery_outbox_steps.fleet import Fleet, Member, Pause, Place
    from celery_outbox_steps.messages import ClaimedMessage, Outcome
    from celery_outbox_steps.rates import Rate

ORPHANED = ""
"""The `claimed_by` of an orphaned row that was deferred: no relay holds it; it stays orphaned."""
INTERRUPTED = "the relay ended while it published this message"
"""The `last_error` of an attempt that was begun and has no outcome yet."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of the gauges. Counts are capped, so that sampling stays cheap."""

    depth: int
    """Rows that are due or were attempted: what is stored for later is no backlog."""
    dead_letters: int
    """Of both kinds."""
    failed_tasks: int
    """Of the dead letters, those of kind "task"."""
    oldest_pending_seconds: float
    """For how long the oldest row of `depth` should have been published."""
    oldest_due_seconds: float
    """The same, of rows that are due now: what backs off does not count."""
    waiting: int
    """Rows in the four states, as in `Stats`."""
    scheduled: int
    in_flight: int
    backing_off: int
    held_back: int = 0
    """Messages for a destination that wait for an earlier one with their key."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The state of an outbox, as `status` and the admin show it."""

    waiting: int
    """Rows that are due, and held by no relay."""
    scheduled: int
    """Rows that are not due yet: stored for later, or rescheduled."""
    in_flight: int
    """Rows that a relay holds."""
    backing_off: int
    """Rows that were attempted, and are due again later."""
    failing: int
    """Rows with at least one failed attempt, in any of the four states above."""
    dead_letters: int
    """Messages that could not be published, and failed tasks."""
    published: int
    """Published rows that are kept (retention)."""
    oldest_due_seconds: float
    """For how long the message that has been due longest has been due; 0 if none is due."""
    capped: bool
    """Whether a count stopped at its cap: read the counts as "at least"."""
    failed_tasks: int = 0
    """Of the dead letters, those of kind "task"."""
    holders: tuple[dict[str, Any], ...] = field(default=())
    """The relays that hold rows: relay, rows, seconds left of the lease."""
    top_failing: tuple[dict[str, Any], ...] = field(default=())
    """Failing tasks: task_name, rows, last_error."""
    held_back: int = 0
    """Messages for a destination that wait for an earlier one with their key."""

    @property
    def in_outbox(self) -> int:
        """Rows that are not published yet: each is in exactly one of these states."""
        states = self.waiting, self.scheduled, self.in_flight, self.backing_off, self.held_back
        return sum(states)


SHOWN = 200
"""Characters of the arguments of a call in a list."""


@dataclass(frozen=True, slots=True)
class ScheduledCall:
    """A call that is not due yet."""

    task_id: str
    task_name: str
    due_at: str
    """In ISO 8601."""
    seconds: float
    """Until it is due, by the database's clock."""
    args: str
    """As people may see them, and at most `SHOWN` characters of them."""
    kwargs: str
    destination: str | None = None
    """None: the app's own broker."""


MESSAGE, TASK = "message", "task"
KINDS = (MESSAGE, TASK)
"""A dead letter is a message that could not be published, or a task that failed in a worker."""
LONGEST_REASON = 2_000
"""Characters of a reason in a list."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter in a list."""

    id: int
    """For a replay."""
    kind: str
    """One of `KINDS`."""
    task_id: str
    task_name: str
    dead_at: str
    """In ISO 8601."""
    seconds: float
    """Since then, by the database's clock."""
    retries: int
    """Failed attempts to publish the message, or failed runs of the task."""
    failure_reason: str
    """At most `LONGEST_REASON` characters of it."""
    destination: str | None = None
    """None: the app's own broker."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A selection of dead letters; by default all. Ages in seconds, by the database's clock."""

    ids: Sequence[int] | None = None
    task_name: str | None = None
    """The name, or a pattern with `*` for any text and `?` for any character."""
    older_than: float | None = None
    newer_than: float | None = None
    kind: str | None = None
    """One of `KINDS`."""
    destination: str | None = None
    """None: of any, the app's own broker included."""


class LaneStore(Protocol):
    """The rows that one relay publishes: those for the app's own broker, or for one destination.

    Never shared between a process and its fork. Used by one thread at a time.
    """

    @property
    def name(self) -> str:
        """Its name in logs and `inspect`: the database alias."""

    def claim(
        self,
        limit: int,
        lease: float,
        relay_id: str,
        *,
        max_bytes: int | None = None,
        adopt: bool = False,
        orphans: bool = True,
        in_hand: Collection[int] = (),
    ) -> list[ClaimedMessage]:
        """Lease up to `limit` due rows to `relay_id` for `lease` seconds, oldest due first.

        Returns as many as fit into `max_bytes` together, and at least one: a row that exceeds it
        by itself is returned alone, `oversized` and without its contents. Rows of an unknown schema
        version are not claimed. Costs O(limit), whatever else the table holds. Two claims never
        return the same row while a lease lasts. With `adopt`, rows that `relay_id` itself holds
        count as free: for a relay that is working on none. Without `orphans`, rows with an expired
        lease of another relay do not count as free.

        A row with an `order_key` is returned only if every row of its key that has a lower id is
        published or discarded, or is returned too, or is one of those `in_hand`, which the relay
        publishes first. A dead letter counts as not published, with the id that it had.
        """

    def begin_attempt(self, message: ClaimedMessage, relay_id: str) -> ClaimedMessage | None:
        """Count an attempt before it is made, so that it stays counted if the relay dies.

        Returns the message with its contents and with its previous `retries`; None if the relay no
        longer holds the row. May be repeated. A settle overwrites the count.
        """

    def settle(self, outcomes: Sequence[Outcome], relay_id: str) -> int:
        """Write the outcomes of claimed rows, all or nothing. Returns how many were fenced off.

        Rows that the relay does not hold are fenced off; `Published` ones only if another relay
        holds them or they are gone. Retries are counted from those of the message, not from those
        of the row. A `Deferred` row stays orphaned if it was. May be repeated after an error of
        unknown effect: no outcome is applied twice.
        """

    def release(self, ids: Sequence[int], relay_id: str) -> int:
        """Release claimed rows: due at once, retries unchanged. Returns how many it held."""

    def renew(self, ids: Sequence[int], lease: float, relay_id: str) -> list[int]:
        """Lease rows that the relay holds for another `lease` seconds from now.

        Returns the ids that it held, even if their lease had expired: no other relay has them.
        """

    def pace(self, rate: Rate, rows: Sequence[ClaimedMessage], relay_id: str) -> set[int]:
        """Take from a release rate, which all relays share. Returns the ids that may be sent now.

        The others of these claimed rows are released, and due when it is their turn.
        """

    def close(self) -> None:
        """Close the connection. The next use opens it again."""


class DestinationStore(LaneStore, Protocol):
    """The rows of one destination."""

    def seconds_to_wait(self, timeout: float) -> float:
        """How long to wait before the next claim: no longer than until the next row is due."""

    def look_again(self) -> None:
        """Rows may have been stored that are due sooner. Callable from any thread."""

    def sample(self) -> Sample:
        """The values of the gauges, from cheap queries."""


class DeliveryStore(Protocol):
    """The messages for destinations of one database, for one thread per destination.

    However many these are, they share one connection.
    """

    @property
    def name(self) -> str:
        """Its name in logs: the database alias."""

    def lane(self, destination: str) -> DestinationStore:
        """The rows of one destination."""

    def wait(self, timeout: float) -> set[str] | None:
        """Block until rows for destinations may be waiting, or for `timeout` seconds at most.

        Returns the destinations, or None for all of them. For one thread.
        """

    def wake(self, destination: str | None = None) -> None:
        """End a `wait()` early, because of rows for this destination, or of any. Callable from any
        thread, from a signal handler, and from a forked child."""

    def pauses(self) -> Mapping[str, Pause]:
        """The destinations that are paused."""

    def close(self) -> None:
        """Close the connection. The next use opens it again."""


class RelayStore(LaneStore, Protocol):
    """What a relay needs from one outbox. `wake()` may be called from any thread."""

    deliveries: DeliveryStore | None
    """The messages for destinations; None if there are no destinations."""

    @property
    def listening(self) -> bool:
        """Whether the database itself ends a `wait()` when rows are committed."""

    @property
    def blocks_event_loop(self) -> bool:
        """Whether the driver would block all greenlets of a gevent or eventlet worker."""

    def check(self) -> None:
        """Raise `StoreNotReady`, naming the fix, if the relay can never work (no table)."""

    def check_in(self, member: Member, *, relays: int | None, wants_slot: bool) -> Place:
        """Tell the fleet that this relay is alive, and learn whether it is to work.

        A member that wants a slot keeps the one it has, as long as it is below `relays`, or takes
        the lowest free one: no member that is alive holds it. With `relays=None` everybody works,
        and nobody needs a slot. A member that does not want a slot loses the one it has. Members
        without a slot take turns: `check_in_after` lets all of them together come once per `TURN`.
        If nobody checked in for `SILENCE` seconds, and this member was there before, those who were
        alive then get a new membership first: the database was away. May be repeated.
        """

    def check_out(self, relay_id: str) -> list[str]:
        """The relay stops: its slot is free, and it is shown as stopped.

        Returns the names of a few workers that stand by, to be told about it.
        """

    def use_rates(self, rates: Collection[Rate]) -> int:
        """These release rates count from now on. Returns how many rows lost their turn.

        If they are not those that turns were given by, rows that wait for a turn, and were never
        attempted, are due at once: the next `pace()` gives them new ones, if they still need any.
        """

    def wait(self, timeout: float) -> bool:
        """Block until rows may be waiting, `wake()` is called or `timeout` seconds pass.

        After a claim that found nothing: no longer than until the next row is due. True if the
        wait ended early, or because a row is due.
        """

    def wake(self) -> None:
        """End a `wait()` early. Callable from any thread, and from a signal handler."""

    def sample(self) -> Sample:
        """The values of the gauges, from cheap queries."""


class OperatorStore(Protocol):
    """What operators need from one outbox table: commands, the admin, the purge task."""

    @property
    def name(self) -> str:
        """Its name in logs and commands: the database alias."""

    def check(self) -> None:
        """Raise `StoreNotReady`, naming the fix, if the tables can't be used."""

    def stats(self, top: int = 10, destination: str | None = None) -> Stats:
        """Everything that `status` shows: of the rows for the app's own broker, or for one
        destination. Too expensive to call for each batch."""

    def destinations(self) -> list[str]:
        """The destinations that are configured, and those that messages are stored for."""

    def rates(self) -> Mapping[str, float]:
        """By the pattern of a release rate: for how many seconds waiting messages have turns."""

    def fleet(self) -> Fleet:
        """The members of the fleet, by slot and name, and whether the outbox is paused."""

    def pause(self, reason: str, paused_by: str, destination: str = "") -> None:
        """Pause the outbox, or one destination, until `resume()`. The last reason counts."""

    def resume(self, destination: str = "") -> bool:
        """End the pause. False if there was none."""

    def scheduled(
        self, task_name: str | None = None, limit: int = 1000, destination: str | None = None
    ) -> list[ScheduledCall]:
        """Calls that are not due yet: stored for later, or rescheduled. The next one first.

        `task_name` is a name, or a pattern with `*` for any text and `?` for any character. Without
        a `destination`, those for any, the app's own broker included.
        """

    def cancel(self, task_ids: Sequence[str]) -> Mapping[str, bool]:
        """Delete the rows of these tasks that are not published and held by no relay.

        Returns the tasks that had such a row. True: no relay ever held it, so its message certainly
        never left. A row that a relay is claiming is either deleted or claimed.
        """

    def send_now(self, task_ids: Sequence[str]) -> list[str]:
        """Make the rows of these tasks due at once. Returns the tasks that still waited: with a row
        that is not published and held by no relay."""

    def list_dead_letters(self, which: DeadLetters, limit: int = 1000) -> list[DeadLetter]:
        """The selected dead letters, the newest first."""

    def count_dead_letters(self, which: DeadLetters) -> int:
        """How many dead letters are selected."""

    def replay(self, which: DeadLetters, limit: int = 1000) -> int:
        """Move up to `limit` dead letters back into the outbox, due now, retries at 0."""

    def purge_dead_letters(self, which: DeadLetters, limit: int = 1000) -> int:
        """Delete up to `limit` dead letters."""

    def count_published(self, older_than: float) -> int:
        """How many published rows are older than `older_than` seconds."""

    def purge_published(self, older_than: float, limit: int = 1000) -> int:
        """Delete up to `limit` published rows that are older than `older_than` seconds."""

    def count_expired_entries(self) -> int:
        """How many entries of the inbox have expired. A Store without an inbox has none."""

    def purge_expired_entries(self, limit: int = 1000) -> int:
        """Delete up to `limit` entries of the inbox that have expired."""

    def close(self) -> None:
        """Close the connection. The next use opens it again."""


class Store(RelayStore, OperatorStore, Protocol):
    """One outbox table, for relays and for operators."""


def how_many_fit(sizes: Iterable[int], max_bytes: int) -> int:
    """How many rows of these sizes a claim returns: as many as fit together, and at least one."""
    total = count = 0
    for size in sizes:
        total += size
        if count and total > max_bytes:
            break
        count += 1
    return count


def load_stores(app: Any, names: Collection[str] = ()) -> list[Store]:
    """The Stores of an app, built by the function that `CELERY_OUTBOX_STORE` names.

    With `names` only those. Raises an `OutboxError` that says which there are.
    """
    stores: list[Store] = load(app.conf, "store")(app)
    known = [store.name for store in stores]
    for name in names:
        if name not in known:
            raise OutboxError(
                f"The app has no outbox in a database {name!r}, but in {', '.join(known)}. "
                "CELERY_OUTBOX_DATABASES names them."
            )
    return [store for store in stores if not names or store.name in names]
