"""The operations behind the commands and the purge task.

They work on any Store, in chunks, and report their progress to a callback: on the outbox of every
database of the app, or of those that are named. Nothing here prints or parses: `cli.py` does.
`status.py` collects the status, `draining.py` publishes. The next step of the path is
`celery_outbox_steps.store.OperatorStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.destinations import SETTING
from celery_outbox_steps.draining import Draining
from celery_outbox_steps.errors import OutboxError, StoreError
from celery_outbox_steps.messages import BatchResult
from celery_outbox_steps.settings import read
from celery_outbox_steps.store import DeadLetters, OperatorStore, load_stores

if TYPE_CHECKING:
    from celery_outbox_steps.fleet import Pause
    from celery_outbox_steps.store import DeadLetter, ScheduledCall

CHUNK = 1000

Progress = Callable[[int], None]
"""Called with the number of rows that a chunk has done."""


class NotDrained(OutboxError):
    """Some brokers were not available. `result` is what was published to the others."""

    def __init__(self, problems: Collection[str], result: BatchResult) -> None:
        super().__init__("\n".join(dict.fromkeys(problems)))
        self.result = result


def no_progress(_: int) -> None:
    """For callers that show no progress."""


def pause(
    app: Any,
    reason: str,
    paused_by: str,
    destination: str = "",
    databases: Collection[str] = (),
) -> None:
    """Pause the outbox, or one destination, in every database."""
    if destination:
        require_destination(app, destination, databases)
    _for_each_store(app, lambda store: store.pause(reason, paused_by, destination), databases)


def resume(app: Any, destination: str = "", databases: Collection[str] = ()) -> bool:
    """End the pause of the outbox, or of one destination. False if there was none.

    One that has been removed from the settings can be resumed as long as it is paused.
    """
    found = _for_each_store(app, lambda store: store.resume(destination), databases)
    if destination and not any(found):
        require_destination(app, destination, databases)
    return any(found)


def paused_destinations(app: Any, databases: Collection[str] = ()) -> dict[str, Pause]:
    """The destinations that are paused by their names, in one database or several."""
    found: dict[str, Pause] = {}
    for store in load_stores(app, databases):
        with closing_store(store):
            found.update(store.fleet().pauses)
    return found


def require_destination(app: Any, name: str | None, databases: Collection[str] = ()) -> None:
    """Raise an `OutboxError` if no message can be for this destination: it names those that exist.

    One that has been removed from the settings exists as long as it has messages or dead letters.
    None, which stands for all of them, is right.
    """
    if name is None:
        return
    known = set(read(app.conf, "destinations"))
    which = DeadLetters(destination=name)
    for store in load_stores(app, databases) if name not in known else ():
        with closing_store(store):
            known.update(store.destinations())
            if name in known or store.count_dead_letters(which):
                return
    if name not in known:
        raise OutboxError(f"There is no destination {name!r}. {_existing(known)}")


def scheduled(
    app: Any,
    task_name: str | None,
    limit: int,
    *,
    destination: str | None = None,
    databases: Collection[str] = (),
) -> tuple[list[dict[str, Any]], bool]:
    """The calls that are not due yet, the next one first, and whether there are more."""

    def listed(store: OperatorStore) -> Sequence[ScheduledCall]:
        return store.scheduled(task_name, limit + 1, destination)

    return _listed(app, listed, limit, databases)


def dead_letters(
    app: Any, which: DeadLetters, limit: int, databases: Collection[str] = ()
) -> tuple[list[dict[str, Any]], bool]:
    """The selected dead letters, the newest first, and whether there are more."""
    return _listed(app, lambda store: store.list_dead_letters(which, limit + 1), limit, databases)


def cancel(app: Any, task_ids: Sequence[str]) -> dict[str, bool]:
    """Delete calls that still wait. Returns the tasks that were found: False if the message may
    have left before."""
    cancelled: dict[str, bool] = {}
    for store in load_stores(app):
        with closing_store(store):
            for task_id, sure in store.cancel(task_ids).items():
                cancelled[task_id] = sure and cancelled.get(task_id, True)
    return cancelled


def send_now(app: Any, task_ids: Sequence[str]) -> set[str]:
    """Make calls that still wait due. Returns the tasks that were found."""
    found: set[str] = set()
    for store in load_stores(app):
        with closing_store(store):
            found.update(store.send_now(task_ids))
    return found


def count_waiting(
    app: Any, *, destination: str | None = None, databases: Collection[str] = ()
) -> int:
    """How many messages are due and held by no relay, of those that `drain` would publish."""
    return _sum_of(
        app,
        lambda store: sum(
            store.stats(0, name).waiting for name in _drained(app, store, destination)
        ),
        databases,
    )


def drain(
    app: Any,
    progress: Progress = no_progress,
    *,
    destination: str | None = None,
    databases: Collection[str] = (),
) -> BatchResult:
    """Publish every due message from this process; with a `destination`, only those for it.

    Those for a destination that is paused are left, unless it is named. If a broker is not
    available, the others get their messages all the same; then `NotDrained` names it, and its rows
    stay in the outbox.
    """
    if destination is not None:
        _require_configured(app, destination)
    total, problems = BatchResult(), []
    for store in load_stores(app, databases):
        with closing_store(store):
            draining = Draining(app, store, destination, _paused(app, store))
            with closing(draining.batches()) as batches:
                for result in batches:
                    total = _sum(total, result)
                    progress(result.claimed)
            problems += draining.problems
    if problems:
        raise NotDrained(problems, total)
    return total


def replay(
    app: Any,
    which: DeadLetters,
    progress: Progress = no_progress,
    limit: int | None = None,
    databases: Collection[str] = (),
) -> int:
    """Move dead letters back into the outbox; one that dies again meanwhile is not moved again."""
    total = 0
    for store in load_stores(app, databases):
        with closing_store(store):
            remaining = _at_most(limit, total, store.count_dead_letters(which))
            while remaining > 0 and (done := store.replay(which, min(CHUNK, remaining))):
                remaining -= done
                total += done
                progress(done)
    return total


def without_dead_letter(app: Any, which: DeadLetters, databases: Collection[str] = ()) -> list[int]:
    """Those of the selected ids that no dead letter has in any database."""
    wanted = set(which.ids or ())
    for store in load_stores(app, databases) if wanted else ():
        with closing_store(store):
            wanted -= {each.id for each in store.list_dead_letters(which, len(which.ids or ()))}
    return sorted(wanted)


def discard(app: Any, which: DeadLetters, databases: Collection[str] = ()) -> int:
    """Delete the selected dead letters. Refuses ids that stand for letters of several databases."""
    found = []
    for store in load_stores(app, databases):
        with closing_store(store):
            found += [store.name] if store.count_dead_letters(which) else []
    if len(found) > 1 and not databases:
        raise OutboxError(
            f"Dead letters with these ids are in several databases: {', '.join(found)}. Name one"
            " with --database."
        )
    return _in_chunks(
        app, lambda store: store.purge_dead_letters(which, CHUNK), no_progress, databases
    )


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
    *,
    destination: str | None = None,
) -> PurgePlan:
    """The plan; an age that is not given comes from the setting `retention` or `dlq_retention`."""
    published = _given_or_set(app, published_older_than, "retention")
    dead = _given_or_set(app, dead_older_than, "dlq_retention")
    letters = DeadLetters(task_name=task_name, older_than=dead, kind=kind, destination=destination)
    return PurgePlan(published, None if dead is None else letters)


def purge(
    app: Any,
    plan: PurgePlan,
    progress: Progress = no_progress,
    databases: Collection[str] = (),
) -> dict[str, int]:
    """Delete what the plan names, in chunks. Returns the number of rows of each kind."""
    steps: dict[str, Callable[[OperatorStore], int]] = {
        "published": partial(_purge_published, plan),
        "dead_letters": partial(_purge_dead_letters, plan),
        "inbox": lambda store: store.purge_expired_entries(CHUNK),
    }
    return {kind: _in_chunks(app, step, progress, databases) for kind, step in steps.items()}


def count_purgeable(app: Any, plan: PurgePlan, databases: Collection[str] = ()) -> dict[str, int]:
    """How many rows of each kind a purge would delete."""
    counts: dict[str, Callable[[OperatorStore], int]] = {
        "published": partial(_count_published, plan),
        "dead_letters": partial(_count_dead_letters, plan),
        "inbox": lambda store: store.count_expired_entries(),
    }
    return {kind: _sum_of(app, count, databases) for kind, count in counts.items()}


def count_dead_letters(
    app: Any, which: DeadLetters, limit: int | None = None, databases: Collection[str] = ()
) -> int:
    """How many dead letters match, up to `limit`: for progress bars and dry runs."""
    found = _sum_of(app, lambda store: store.count_dead_letters(which), databases)
    return _at_most(limit, 0, found)


def _existing(names: Collection[str]) -> str:
    if not names:
        return f"{SETTING} is empty, and no message is stored for any."
    return f"There are {', '.join(sorted(names))}."


def _require_configured(app: Any, name: str) -> None:
    """Without its URL nothing can be sent to it."""
    configured = read(app.conf, "destinations")
    if name not in configured:
        there_are = f"has {', '.join(sorted(configured))}" if configured else "is empty"
        raise OutboxError(f"There is no destination {name!r}: {SETTING} {there_are}.")


def _drained(app: Any, store: OperatorStore, destination: str | None) -> list[str | None]:
    """What a drain publishes: to these destinations, or (None) to the app's own broker."""
    if destination is not None:
        return [destination]
    return [None, *(set(read(app.conf, "destinations")) - _paused(app, store))]


def _paused(app: Any, store: OperatorStore) -> frozenset[str]:
    """The destinations that are paused by their names."""
    return frozenset(store.fleet().pauses if read(app.conf, "destinations") else ())


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


def _count_published(plan: PurgePlan, store: OperatorStore) -> int:
    age = plan.published_older_than
    return 0 if age is None else store.count_published(age)


def _count_dead_letters(plan: PurgePlan, store: OperatorStore) -> int:
    return 0 if plan.dead_letters is None else store.count_dead_letters(plan.dead_letters)


def _sum(one: BatchResult, other: BatchResult) -> BatchResult:
    names = (
        "claimed", "published", "retried", "dead", "deferred", "expired", "paced", "released",
        "fenced",
    )  # fmt: skip
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in names})


def _in_chunks(
    app: Any, step: Callable[[OperatorStore], int], progress: Progress, databases: Collection[str]
) -> int:
    total = 0
    for store in load_stores(app, databases):
        with closing_store(store):
            while done := step(store):
                total += done
                progress(done)
    return total


def _sum_of(app: Any, count: Callable[[OperatorStore], int], databases: Collection[str]) -> int:
    total = 0
    for store in load_stores(app, databases):
        with closing_store(store):
            total += count(store)
    return total


def _listed(
    app: Any,
    rows_of: Callable[[OperatorStore], Sequence[ScheduledCall | DeadLetter]],
    limit: int,
    databases: Collection[str],
) -> tuple[list[dict[str, Any]], bool]:
    """What is nearest in time, of all databases, and whether there is more than `limit`."""
    found = []
    for store in load_stores(app, databases):
        with closing_store(store):
            found += [{"database": store.name, **asdict(each)} for each in rows_of(store)]
    found.sort(key=lambda each: each["seconds"])
    return found[:limit], len(found) > limit


def _for_each_store(
    app: Any, step: Callable[[OperatorStore], Any], databases: Collection[str]
) -> list[Any]:
    """One database that is away does not keep the others from it; then it is reported."""
    found, errors = [], []
    for store in load_stores(app, databases):
        try:
            with closing_store(store):
                found.append(step(store))
        except OutboxError as error:  # noqa: PERF203  see above
            errors.append(error)
    if errors:
        raise errors[0]
    return found


@contextmanager
def closing_store(store: OperatorStore) -> Iterator[None]:
    """Close the Store afterwards. If its tables are missing, the error says what to run."""
    try:
        yield
    except StoreError:
        store.check()
        raise
    finally:
        store.close()
