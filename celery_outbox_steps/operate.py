"""The operations behind the commands and the purge task.

They work on any Store, in chunks, and report their progress to a callback. Nothing here prints or
parses: `cli.py` does. The next step of the path is `celery_outbox_steps.store.OperatorStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.errors import OutboxError, StoreError
from celery_outbox_steps.health import MAX_AGE, judge
from celery_outbox_steps.messages import BatchResult
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.publishers import publisher_for
from celery_outbox_steps.relay.tick import Relay, new_relay_id
from celery_outbox_steps.settings import RelayConfig, read
from celery_outbox_steps.store import DeadLetters, OperatorStore, RelayStore, load_stores

if TYPE_CHECKING:
    from celery_outbox_steps.fleet import SeenMember
    from celery_outbox_steps.store import DeadLetter, ScheduledCall

CHUNK = 1000

Progress = Callable[[int], None]
"""Called with the number of rows that a chunk has done."""


def no_progress(_: int) -> None:
    """For callers that show no progress."""


def status(app: Any, top: int = 10, max_age: float | None = None) -> list[dict[str, Any]]:
    """The verdict on each database's outbox, its numbers, its relays and its pause."""
    found = []
    for store in load_stores(app):
        with _closing(store):
            found.append({"database": store.name, **_status_of(store, top, max_age)})
    return found


def _status_of(store: OperatorStore, top: int, max_age: float | None) -> dict[str, Any]:
    stats, fleet = store.stats(top), store.fleet()
    verdict = judge(stats, fleet, MAX_AGE if max_age is None else max_age)
    return {
        "verdict": {**asdict(verdict), "level": verdict.level, "late": verdict.is_late},
        "in_outbox": stats.in_outbox,
        **asdict(stats),
        "relays": [_relay(each) for each in fleet.members],
        "pause": None if fleet.pause is None else asdict(fleet.pause),
    }


def _relay(seen: SeenMember) -> dict[str, Any]:
    member = asdict(seen.member)
    return {
        "relay": member.pop("relay_id"),
        **member,
        "slot": seen.slot,
        "alive": seen.alive,
        "started_seconds": seen.started_ago,
        "seen_seconds": seen.seen_ago,
    }


def count_waiting(app: Any) -> int:
    """How many messages are due and held by no relay."""
    return _sum_of(app, lambda store: store.stats(0).waiting)


def pause(app: Any, reason: str, paused_by: str) -> None:
    """Pause the outbox of every database of the app."""
    _for_each_store(app, lambda store: store.pause(reason, paused_by))


def resume(app: Any) -> None:
    """Resume the outbox of every database of the app."""
    _for_each_store(app, lambda store: store.resume())


def scheduled(app: Any, task_name: str | None, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """The calls that are not due yet, the next one first, and whether there are more."""
    return _listed(app, lambda store: store.scheduled(task_name, limit + 1), limit)


def dead_letters(app: Any, which: DeadLetters, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """The selected dead letters, the newest first, and whether there are more."""
    return _listed(app, lambda store: store.list_dead_letters(which, limit + 1), limit)


def cancel(app: Any, task_ids: Sequence[str]) -> dict[str, bool]:
    """Delete calls that still wait. Returns the tasks that were found: False if the message may
    have left before."""
    cancelled: dict[str, bool] = {}
    for store in load_stores(app):
        with _closing(store):
            for task_id, sure in store.cancel(task_ids).items():
                cancelled[task_id] = sure and cancelled.get(task_id, True)
    return cancelled


def send_now(app: Any, task_ids: Sequence[str]) -> set[str]:
    """Make calls that still wait due. Returns the tasks that were found."""
    found: set[str] = set()
    for store in load_stores(app):
        with _closing(store):
            found.update(store.send_now(task_ids))
    return found


def drain(app: Any, progress: Progress = no_progress) -> BatchResult:
    """Publish every due message from this process.

    Stops with an `OutboxError` when the broker is unavailable; the rows stay in the outbox.
    """
    total = BatchResult()
    for store in load_stores(app):
        with closing(_batches(app, store)) as batches:
            for result in batches:
                total = _sum(total, result)
                progress(result.claimed)
                if result.outage:
                    raise OutboxError(f"The broker is not available: {result.outage}")
    return total


def replay(
    app: Any, which: DeadLetters, progress: Progress = no_progress, limit: int | None = None
) -> int:
    """Move dead letters back into the outbox; one that dies again meanwhile is not moved again."""
    total = 0
    for store in load_stores(app):
        with _closing(store):
            remaining = _at_most(limit, total, store.count_dead_letters(which))
            while remaining > 0 and (done := store.replay(which, min(CHUNK, remaining))):
                remaining -= done
                total += done
                progress(done)
    return total


def without_dead_letter(app: Any, which: DeadLetters) -> list[int]:
    """Those of the selected ids that no dead letter has in any database."""
    wanted = set(which.ids or ())
    for store in load_stores(app) if wanted else ():
        with _closing(store):
            wanted -= {each.id for each in store.list_dead_letters(which, len(which.ids or ()))}
    return sorted(wanted)


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """What a purge deletes, beside expired entries of the inbox. None: nothing of that kind."""

    published_older_than: float | None = None
    dead_letters: DeadLetters | None = None


def purge_plan(
    app: Any,
    published_older_than: float | None = None,
    dead_older_than: float | None = None,
    task_name: str | None = None,
    kind: str | None = None,
) -> PurgePlan:
    """The plan; an age that is not given comes from the setting `retention` or `dlq_retention`."""
    published = _given_or_set(app, published_older_than, "retention")
    dead = _given_or_set(app, dead_older_than, "dlq_retention")
    letters = DeadLetters(task_name=task_name, older_than=dead, kind=kind)
    return PurgePlan(published, None if dead is None else letters)


def purge(app: Any, plan: PurgePlan, progress: Progress = no_progress) -> dict[str, int]:
    """Delete what the plan names, in chunks. Returns the number of rows of each kind."""
    return {
        "published": _in_chunks(app, partial(_purge_published, plan), progress),
        "dead_letters": _in_chunks(app, partial(_purge_dead_letters, plan), progress),
        "inbox": _in_chunks(app, lambda store: store.purge_expired_entries(CHUNK), progress),
    }


def count_purgeable(app: Any, plan: PurgePlan) -> dict[str, int]:
    """How many rows of each kind a purge would delete."""
    age, dead = plan.published_older_than, plan.dead_letters
    return {
        "published": 0 if age is None else _sum_of(app, lambda each: each.count_published(age)),
        "dead_letters": 0 if dead is None else count_dead_letters(app, dead),
        "inbox": _sum_of(app, lambda store: store.count_expired_entries()),
    }


def count_dead_letters(app: Any, which: DeadLetters, limit: int | None = None) -> int:
    """How many dead letters match, up to `limit`: for progress bars and dry runs."""
    return _at_most(limit, 0, _sum_of(app, lambda store: store.count_dead_letters(which)))


def _at_most(limit: int | None, done: int, found: int) -> int:
    return found if limit is None else min(found, limit - done)


def _given_or_set(app: Any, given: float | None, name: str) -> float | None:
    value: float | None = read(app.conf, name) if given is None else given
    return value


def _purge_published(plan: PurgePlan, store: OperatorStore) -> int:
    age = plan.published_older_than
    return 0 if age is None else store.purge_published(age, CHUNK)


def _purge_dead_letters(plan: PurgePlan, store: OperatorStore) -> int:
    return 0 if plan.dead_letters is None else store.purge_dead_letters(plan.dead_letters, CHUNK)


def _batches(app: Any, store: RelayStore) -> Generator[BatchResult, None, None]:
    config = RelayConfig.from_app(app)
    publisher = publisher_for(app, config.declare)
    relay = Relay(app, store, publisher, config, new_relay_id(), recorders=recorders_for(app))
    try:
        while (result := relay.run_once()).claimed:
            yield result
    finally:
        with suppress(StoreError):
            relay.settle_in_hand()  # after Ctrl-C: claimed rows are released at once
        relay.close()


def _sum(one: BatchResult, other: BatchResult) -> BatchResult:
    names = (
        "claimed", "published", "retried", "dead", "deferred", "expired", "released", "fenced"
    )  # fmt: skip
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in names})


def _in_chunks(app: Any, step: Callable[[OperatorStore], int], progress: Progress) -> int:
    total = 0
    for store in load_stores(app):
        with _closing(store):
            while done := step(store):
                total += done
                progress(done)
    return total


def _sum_of(app: Any, count: Callable[[OperatorStore], int]) -> int:
    total = 0
    for store in load_stores(app):
        with _closing(store):
            total += count(store)
    return total


def _listed(
    app: Any, read: Callable[[OperatorStore], Sequence[ScheduledCall | DeadLetter]], limit: int
) -> tuple[list[dict[str, Any]], bool]:
    """What is nearest in time, of all databases, and whether there is more than `limit`."""
    found = []
    for store in load_stores(app):
        with _closing(store):
            found += [{"database": store.name, **asdict(each)} for each in read(store)]
    found.sort(key=lambda each: each["seconds"])
    return found[:limit], len(found) > limit


def _for_each_store(app: Any, step: Callable[[OperatorStore], Any]) -> None:
    """One database that is away does not keep the others from it; then it is reported."""
    errors = [error for store in load_stores(app) if (error := _attempt(step, store))]
    if errors:
        raise errors[0]


def _attempt(step: Callable[[OperatorStore], Any], store: OperatorStore) -> OutboxError | None:
    try:
        with _closing(store):
            step(store)
    except OutboxError as error:
        return error
    return None


@contextmanager
def _closing(store: OperatorStore) -> Iterator[None]:
    try:
        yield
    except StoreError:
        store.check()  # if the tables are missing, its error says what to run
        raise
    finally:
        store.close()
