"""What each fault may cost: the table behind docs/explanation/guarantees.md.

Per fault, whatever the order of events: how many batches may be published once more, and how many
may have to wait until a lease ends. Nothing is ever lost, and no relay settles a row under another
relay's claim.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from time import monotonic

from tests.explorer.search import Choices, plays
from tests.explorer.world import BATCH, Case, Outcome, World

MEASURES = ("lost", "stolen", "dead", "copies", "waiting", "overtaken")


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that one fault may cost, in batches."""

    fault: str
    relays: int
    copies: int
    waiting: int
    switches: int = 2
    """The budget in `make test`: how often another actor goes on than the one that would."""

    def __str__(self) -> str:
        return f"{self.fault}, {self.relays} relay{'s' * (self.relays > 1)}"

    @property
    def cases(self) -> list[Case]:
        """What `make test` explores."""
        case = Case(self.fault, self.relays, switches=self.switches)
        return variants(case) if self.relays == 1 else [case]

    def allows(self, case: Case) -> dict[str, int]:
        """The most of each measure, in rows."""
        per_fault = {
            "lost": 0,
            "stolen": 0,
            "dead": 0,
            "overtaken": 0,
            "copies": self.copies,
            "waiting": self.waiting,
        }
        return {name: batches * BATCH * case.faults for name, batches in per_fault.items()}


BOUNDS = (
    Bound("none", relays=1, copies=0, waiting=0, switches=4),
    Bound("none", relays=2, copies=0, waiting=0),
    Bound("kill", relays=1, copies=1, waiting=2, switches=3),
    Bound("kill", relays=2, copies=1, waiting=2, switches=1),
    Bound("stop", relays=1, copies=0, waiting=0, switches=3),
    Bound("stop", relays=2, copies=0, waiting=0, switches=1),
    Bound("broker away", relays=1, copies=1, waiting=0, switches=3),
    Bound("broker away", relays=2, copies=1, waiting=0, switches=1),
    Bound("lost reply", relays=1, copies=0, waiting=0, switches=3),
    Bound("lost reply", relays=2, copies=0, waiting=0),
    Bound("pause", relays=1, copies=0, waiting=2, switches=3),
    Bound("pause", relays=2, copies=1, waiting=2, switches=1),
    Bound("database crash", relays=1, copies=0, waiting=0, switches=3),
    Bound("database crash", relays=2, copies=1, waiting=0),
    Bound("database away", relays=1, copies=0, waiting=0, switches=3),
    Bound("database away", relays=2, copies=0, waiting=0, switches=1),
    Bound("poison", relays=1, copies=1, waiting=0, switches=3),
    Bound("poison", relays=2, copies=1, waiting=0, switches=1),
    Bound("killer", relays=1, copies=1, waiting=2, switches=3),
    Bound("killer", relays=2, copies=1, waiting=2, switches=1),
)


@dataclass(slots=True)
class Report:
    """The worst of all plays of a case, and the events that led to it."""

    case: Case
    plays: int = 0
    complete: bool = True
    worst: Counter[str] = field(default_factory=Counter)
    logs: dict[str, list[str]] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.plays += 1
        for name in MEASURES:
            value = getattr(outcome, name)
            if value > self.worst[name]:
                self.worst[name], self.logs[name] = value, outcome.log

    def beyond(self, bound: Bound) -> list[str]:
        """What exceeds the bound, with the events that led to it."""
        return [
            f"{name}: {self.worst[name]} rows, allowed {most}\n  " + "\n  ".join(self.logs[name])
            for name, most in bound.allows(self.case).items()
            if self.worst[name] > most
        ]


def explore(case: Case, until: float = float("inf")) -> Report:
    """All plays of a case, or as many as there is time for."""
    report = Report(case)

    def play(choices: Choices) -> Outcome:
        return World(case, choices).play()

    for outcome in plays(play):
        report.add(outcome)
        if monotonic() > until:
            report.complete = False
            break
    return report


def variants(case: Case) -> list[Case]:
    """With a pipeline and one by one, with and without the next batch claimed ahead."""
    return [
        replace(case, lazy=lazy, claim_ahead=ahead)
        for lazy in (False, True)
        for ahead in (True, False)
    ]
