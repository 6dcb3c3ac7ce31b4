"""The report of a run: Markdown for people, JSON for programs."""

from __future__ import annotations

import json
import platform
from datetime import datetime, timezone
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tests.chaos.plan import KINDS, Blast
from tests.chaos.workers import FLAVOURS
from tests.chaos.world import BATCH, LEASE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.run import Outcome
    from tests.chaos.world import World

PACKAGES = ("celery", "kombu", "amqp", "Django", "psycopg")


def environment(world: World) -> dict[str, str]:
    servers = (world.postgres, world.rabbit, world.redis)
    return {
        "Python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        **{server.service.name: server.service.version for server in servers},
    }


def save(outcome: Outcome, world: World, folder: Path) -> list[Path]:
    """Both files, named after the seed."""
    folder.mkdir(parents=True, exist_ok=True)
    versions = environment(world)
    paths = [folder / f"seed-{outcome.seed}.md", folder / f"seed-{outcome.seed}.json"]
    paths[0].write_text(markdown(outcome, versions))
    paths[1].write_text(json.dumps(_content(outcome, versions), indent=2) + "\n")
    return paths


def summary(outcome: Outcome) -> str:
    """The table for the terminal."""
    width = max(len(kind.title) for kind in KINDS.values())
    lines = [f"{'fault':<{width}}  times  extra copies  most after one  allowed"]
    for row in _rows(outcome):
        lines.append(f"{row[0]:<{width}}  {row[1]:>5}  {row[2]:>12}  {row[3]:>14}  {row[4]:>7}")
    lines.append("")
    lines += [f"{name}: {value}" for name, value in _figures(outcome).items()]
    lines += [f"BROKEN: {text}" for text in outcome.broken]
    lines.append(f"seed {outcome.seed}: {'FAILED' if outcome.broken else 'every promise kept'}")
    return "\n".join(lines)


def markdown(outcome: Outcome, versions: dict[str, str]) -> str:
    verdict = "**A promise was broken.**" if outcome.broken else "Every promise was kept."
    minutes = max(1, round(outcome.seconds / 60))
    parts = [
        f"# Chaos run, seed {outcome.seed}",
        f"{datetime.now(timezone.utc):%Y-%m-%d}. {verdict} {sum(outcome.faults.values())} faults in"
        f" {outcome.seconds / 60:.0f} minutes (rounds: {outcome.rounds}), under load all the time."
        f" {outcome.workers} workers were started; four ran at a time.",
        f"To repeat it: `make chaos MINUTES={minutes} SEED={outcome.seed}`. The faults, their order"
        " and their targets are the same then; what they hit at that moment is not.",
        *[f"- {text}" for text in outcome.broken],
        "## Promises",
        _table(("what", "figure"), _figures(outcome).items()),
        "## Faults",
        "An extra copy is a message that reached the broker once more. It is put down to the fault"
        " around which the copy before it arrived. *Allowed* is the limit for a single fault: one"
        f" batch ({BATCH} rows here) of each relay that it hits, or none.",
        _table(
            ("fault", "times", "extra copies", "most after one", "allowed", "why"), _rows(outcome)
        ),
        "## A worker that lasted",
        "The witness is never stopped; it lives through every fault of broker and database."
        " Its process at the end of each round:",
        _table(("round", "memory, MB", "threads", "file descriptors"), _vitals(outcome)),
        "## Flavours of the other workers",
        "Chosen from the seed at each start: " + "; ".join(FLAVOURS) + ".",
        "## Log events of all workers",
        _table(("event", "lines"), sorted(outcome.events.items())),
        "## Versions",
        _table(("what", "version"), versions.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _figures(outcome: Outcome) -> dict[str, Any]:
    verdict = outcome.verdict
    extra = f"{verdict.extra} ({verdict.extra / max(1, verdict.committed):.2%})"
    waits = ", ".join(f"{name} {value:g} s" for name, value in verdict.latency.items())
    return {
        "calls committed": verdict.committed,
        "calls rolled back": verdict.rolled_back,
        "calls in transactions whose COMMIT got no answer": verdict.unknown,
        "lost (committed, never arrived)": len(verdict.lost),
        "ghosts (not committed, arrived or ran)": len(verdict.ghosts),
        "messages that reached the broker": verdict.messages,
        "extra copies": extra,
        "extra copies with no fault near them that may be blamed": len(verdict.unexplained),
        "tasks with @once that took effect": verdict.ran,
        "took effect twice": len(verdict.twice),
        "runs of these tasks, those that were rolled back included": verdict.runs,
        "arrived and not run": len(verdict.not_run),
        "dead letters, all of them the poison that was put in": verdict.dead,
        "slowest stop of a worker": f"{outcome.slowest_stop} s",
        "call → broker, faults included": waits,
        "starts refused because the database was away": outcome.refusals,
        "prefork pools of Celery's that hung after a restart of the broker": outcome.hung,
        "lease / batch": f"{LEASE:g} s / {BATCH} rows",
    }


def _rows(outcome: Outcome) -> list[tuple[Any, ...]]:
    """Faults that may cost nothing are never blamed: a 0 there would look like a measurement."""
    allowed = {Blast.NONE: "0", Blast.ONE: "1 batch", Blast.ALL: "1 per relay"}
    verdict = outcome.verdict
    rows: list[tuple[Any, ...]] = []
    for name, kind in KINDS.items():
        blamed: tuple[Any, Any] = (verdict.extra_by_kind[name], verdict.most_by_kind[name])
        if kind.blast is Blast.NONE:
            blamed = ("not blamed", "-")
        rows.append((kind.title, outcome.faults[name], *blamed, allowed[kind.blast], kind.why))
    return rows


def _vitals(outcome: Outcome) -> list[tuple[Any, ...]]:
    return [(n, v.rss_mb, v.threads, v.descriptors) for n, v in enumerate(outcome.vitals, 1)]


def _content(outcome: Outcome, versions: dict[str, str]) -> dict[str, Any]:
    """Counts, not ids: those mean nothing in another run."""
    content: dict[str, Any] = json.loads(json.dumps(vars(outcome), default=vars))
    for name in ("lost", "ghosts", "not_run", "unexplained"):
        content["verdict"][name] = len(content["verdict"][name])
    return {**content, "versions": versions, "batch": BATCH, "lease": LEASE}


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
