"""The tables of the fleet: one row for each member, and one for each pause.

The rules of a check-in are in `celery_outbox_steps.places`; here are its statements. Each one is a
transaction of its own, and the unique column `slot` decides between members that come at the same
time. All times are the database's. Rows that were edited by hand to nonsense count as dead or are
read as empty, and the next check-in of their member writes them anew.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from celery_outbox_steps import places
from celery_outbox_steps.fleet import (
    MEMBERSHIP,
    REMEMBERED,
    STANDING_BY,
    STOPPED,
    TOLD,
    Fleet,
    Member,
    Pause,
    SeenMember,
)
from celery_outbox_steps.places import (
    CLOSE,
    GAP,
    LONGEST_MEMBERSHIP,
    LONGEST_STANDBY,
    Entry,
    Holder,
    Look,
    Turns,
)
from django_integration.schema import PAUSE, RELAY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_outbox_steps.fleet import Place
    from django_integration.store.dialect import Dialect
    from django_integration.store.session import Session

COLUMNS = ("worker", "version", "state", "rate", "counters", "last_error")
"""The columns that a member tells at each check-in."""
DESTINATIONS = "destinations"
"""Among the counters: what the member does for destinations."""
WIDTH = 255
"""The most characters of a name or a state."""


class FleetTables:
    """The members and the pauses, on one session. A `celery_outbox_steps.places.MemberTable`."""

    def __init__(self, session: Session, dialect: Dialect) -> None:
        self._session = session
        self._dialect = dialect

    def check_in(self, member: Member, relays: int | None, *, wants_slot: bool) -> Place:
        return places.check_in(self, member, relays, wants_slot=wants_slot)

    def check_out(self, relay_id: str) -> list[str]:
        now = self._dialect.now
        self._session.run(
            f"UPDATE {RELAY} SET state = '{STOPPED}', slot = NULL, turn_at = NULL,"
            f" seen_at = {now}, expires_at = {now} WHERE relay_id = %s",
            [relay_id],
        )
        rows = self._session.rows(
            f"SELECT worker FROM {RELAY} WHERE {self._alive()} AND state = '{STANDING_BY}'"
            f" ORDER BY seen_at DESC LIMIT {TOLD}"
        )
        return [worker for (worker,) in rows]

    def read(self) -> Fleet:
        """Every member, by slot and name, and the pauses."""
        rows = self._session.rows(
            f"SELECT relay_id, {', '.join(COLUMNS)}, slot, -({self._until('started_at')}),"
            f" -({self._until('seen_at')}), {_flag(self._alive())} FROM {RELAY}"
        )
        pauses = self.pauses()
        members = sorted(map(_seen_member, rows), key=places.by_slot_and_name)
        return Fleet(tuple(members), pauses.pop("", None), pauses)

    def pauses(self) -> dict[str, Pause]:
        """By destination; that of the whole outbox has no name."""
        rows = self._session.rows(f"SELECT name, {self._pause_columns} FROM {PAUSE}")
        return {name: Pause(reason, by, _age(seconds)) for name, reason, by, seconds in rows}

    def pause(self, reason: str, paused_by: str, destination: str = "") -> None:
        """A pause that is there already keeps its time."""
        values = [self._text(reason), self._text(paused_by)[:WIDTH], destination]
        while not self._session.run(
            f"UPDATE {PAUSE} SET reason = %s, paused_by = %s WHERE name = %s", values
        ):
            if self._session.try_run(
                f"INSERT INTO {PAUSE} (reason, paused_by, name, paused_at)"
                f" VALUES (%s, %s, %s, {self._dialect.now})",
                values,
            ):
                return

    def resume(self, destination: str = "") -> bool:
        return self._session.run(f"DELETE FROM {PAUSE} WHERE name = %s", [destination]) > 0

    # -- what a check-in reads and writes ----------------------------------------------------------

    def look(self, relay_id: str) -> Look:
        """One row for each slot that is in use, one for the member, and the same sums in all."""
        rows = self._session.rows(
            f"SELECT relay_id, slot, {_flag(self._alive())}, -({self._until('last_seen')}),"
            f" standbys, {_flag(self._forgettable('first_end', 'last_end'))},"
            f" {self._pause_columns}"
            f" FROM ({self._sums()}) AS fleet LEFT JOIN {PAUSE} ON name = ''"
            f" LEFT JOIN {RELAY} ON slot IS NOT NULL OR relay_id = %s",
            [relay_id, relay_id],
        )
        silence, standbys, forgettable, *paused = rows[0][3:]
        return Look(
            is_known=any(row[0] == relay_id for row in rows),
            holders={
                slot: Holder(name, bool(alive))
                for name, slot, alive, *_ in rows
                if slot is not None
            },
            silence=silence,
            standbys=int(standbys or 0),
            has_forgettable=bool(forgettable),
            pause=_pause(*paused),
        )

    def turns(self, relay_id: str) -> Turns:
        now, times = self._dialect.now, f"{self._until('turn_at')}, {self._until('seen_at')}"
        others = (
            f"SELECT {times} FROM {RELAY} WHERE turn_at > {self._in(-CLOSE)}"
            f" AND expires_at > {now} AND relay_id <> %s"
        )
        is_gap = f"turn >= 0 AND (following IS NULL OR following > turn + {GAP})"
        found = self._session.rows(
            f"SELECT min(CASE WHEN {is_gap} THEN turn END),"
            f" sum({_flag(f'turn < {CLOSE} OR seen > -{CLOSE}')}) - 1"  # without this moment
            " FROM (SELECT turn, seen, lead(turn) OVER (ORDER BY turn) AS following"
            f" FROM (SELECT 0e0 AS turn, 0e0 AS seen UNION ALL {others}) AS turns) AS ordered",
            [relay_id],
        )
        return Turns(float(found[0][0]), int(found[0][1]))

    def end_silence(self, silence: float) -> None:
        from_now = self._dialect.from_now
        self._session.try_run(
            f"UPDATE {RELAY} SET expires_at = {from_now} WHERE state <> '{STOPPED}'"
            f" AND expires_at > {from_now} AND expires_at < {from_now}",
            [MEMBERSHIP, -silence, MEMBERSHIP],
        )

    def add(self, member: Member, entry: Entry) -> None:
        now = self._dialect.now
        changes = self._changes(member, entry)
        self._session.try_run(
            f"INSERT INTO {RELAY} (relay_id, started_at, {', '.join(changes)})"
            f" VALUES (%s, {now}, {', '.join(sql for sql, _ in changes.values())})",
            [member.relay_id, *_parameters(changes)],
        )

    def write(self, member: Member, entry: Entry) -> bool:
        changes = self._changes(member, entry)
        assignments = ", ".join(f"{name} = {sql}" for name, (sql, _) in changes.items())
        written = self._session.try_run(
            f"UPDATE {RELAY} SET {assignments} WHERE relay_id = %s",
            [*_parameters(changes), member.relay_id],
        )
        return bool(written)

    def vacate(self, slot: int, holder: str) -> None:
        self._session.try_run(
            f"UPDATE {RELAY} SET slot = NULL WHERE relay_id = %s AND slot = %s"
            f" AND NOT ({self._alive()})",
            [holder, slot],
        )

    def forget(self) -> None:
        self._session.try_run(f"DELETE FROM {RELAY} WHERE {self._forgettable()}")

    def _changes(self, member: Member, entry: Entry) -> Mapping[str, tuple[str, list[Any]]]:
        """Column → its SQL and the parameters of that."""
        now, from_now = self._dialect.now, self._dialect.from_now
        told = {name: ("%s", [value]) for name, value in self._told(member, entry).items()}
        return {
            **told,
            "slot": ("%s", [entry.slot]),
            "seen_at": (now, []),
            "expires_at": (from_now, [entry.expires]),
            "turn_at": ("NULL", []) if entry.turn is None else (from_now, [entry.turn]),
        }

    def _told(self, member: Member, entry: Entry) -> dict[str, Any]:
        error = member.last_error
        told = {name: dict(each) for name, each in member.destinations.items()}
        values = (
            self._text(member.worker)[:WIDTH],
            self._text(member.version)[:WIDTH],
            self._text(entry.state)[:WIDTH],
            member.rate if math.isfinite(member.rate) else 0.0,
            json.dumps({**member.counters, **({DESTINATIONS: told} if told else {})}),
            None if error is None else self._text(error),
        )
        return dict(zip(COLUMNS, values, strict=True))

    def _sums(self) -> str:
        """What a look counts. One parameter, the id of the member that looks.

        Every member is read, so each costs no more than a few comparisons.
        """
        now = self._dialect.now
        stands_by = f"expires_at > {now} AND state = '{STANDING_BY}' AND relay_id <> %s"
        # A time in the future was written by hand, or before the clock was set.
        seen = f"seen_at <= {now} AND state <> '{STOPPED}'"
        return (
            f"SELECT max(CASE WHEN {seen} THEN seen_at END) AS last_seen,"
            f" sum({_flag(stands_by)}) AS standbys, min(expires_at) AS first_end,"
            f" max(expires_at) AS last_end FROM {RELAY}"
        )

    def _alive(self) -> str:
        longest = f"CASE WHEN slot IS NULL THEN {LONGEST_STANDBY} ELSE {LONGEST_MEMBERSHIP} END"
        return f"expires_at > {self._dialect.now} AND expires_at < {self._in(longest)}"

    def _forgettable(self, first: str = "expires_at", last: str = "expires_at") -> str:
        """Ended long ago; or ends at a time that no member writes."""
        return f"{first} < {self._in(-REMEMBERED)} OR {last} > {self._in(LONGEST_STANDBY)}"

    def _in(self, seconds: float | str) -> str:
        """The time this number of seconds from now: a constant, or SQL."""
        return self._dialect.from_now.replace("%s", str(seconds))

    @property
    def _pause_columns(self) -> str:
        return f"reason, paused_by, -({self._until('paused_at')}) AS paused_for"

    def _until(self, column: str) -> str:
        return self._dialect.seconds_until.format(column)

    def _text(self, text: str) -> str:
        return self._dialect.storable_text(text)


def _flag(condition: str) -> str:
    return f"CASE WHEN {condition} THEN 1 ELSE 0 END"


def _parameters(changes: Mapping[str, tuple[str, list[Any]]]) -> list[Any]:
    return [value for _, values in changes.values() for value in values]


def _pause(reason: str | None, paused_by: str | None, seconds: float | None) -> Pause | None:
    return None if reason is None else Pause(reason, paused_by or "", _age(seconds))


def _seen_member(row: Sequence[Any]) -> SeenMember:
    relay_id, worker, version, state, rate, counters, last_error, slot, started, seen, alive = row
    numbers, destinations = _counted(counters)
    member = Member(relay_id, worker, version, state, rate, numbers, last_error, destinations)
    return SeenMember(member, slot, _age(started), _age(seen), bool(alive))


def _counted(text: str) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
    """What the member counted, and does for destinations; nothing if the text is not of a member's
    kind."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}, {}
    if not isinstance(found, dict):
        return {}, {}
    told = found.pop(DESTINATIONS, None)
    destinations = told.items() if isinstance(told, dict) else ()
    return (
        {name: value for name, value in found.items() if isinstance(value, int)},
        {name: each for name, each in destinations if isinstance(each, dict)},
    )


def _age(seconds: float | None) -> float:
    return 0.0 if seconds is None else max(0.0, float(seconds))
