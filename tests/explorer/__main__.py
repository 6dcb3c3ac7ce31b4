"""`python -m tests.explorer --minutes 5`: larger and larger budgets for every bound.

First more switches between actors, then more rows, then two faults in one play. Says for each bound
what was explored, completely or until its time was up, and what it cost; ends with an error if a
bound is exceeded.
"""

from __future__ import annotations

import argparse
import sys
from time import monotonic
from typing import TYPE_CHECKING

from tests.explorer.bounds import BOUNDS, Bound, Report, explore, variants
from tests.explorer.world import BATCH, Case

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGETS = [(2, 2, 1), (3, 2, 1), (2, 3, 1), (2, 2, 2), (3, 3, 1), (3, 2, 2), (4, 3, 2), (5, 4, 2)]
"""Switches, batches of rows, faults."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", default="", help="bounds whose name begins so")
    options = parser.parse_args(arguments)
    chosen = [bound for bound in BOUNDS if str(bound).startswith(options.only)]
    seconds = 60 * options.minutes / max(1, len(chosen))
    broken = [found for bound in chosen for found in _deepen(bound, monotonic() + seconds)]
    print("\n".join(broken) or "all bounds hold")
    return 1 if broken else 0


def _deepen(bound: Bound, until: float) -> Iterator[str]:
    for case in _cases(bound):
        report = explore(case, until)
        _tell(bound, report)
        yield from (f"{bound}: {found}" for found in report.beyond(bound))
        if not report.complete:
            return


def _cases(bound: Bound) -> Iterator[Case]:
    for switches, batches, faults in BUDGETS:
        case = Case(bound.fault, bound.relays, batches * BATCH, faults, switches)
        yield from variants(case)


def _tell(bound: Bound, report: Report) -> None:
    case = report.case
    print(
        f"{bound}: {case.rows} rows, {case.switches} switches, {case.faults} faults,"
        f" {'one by one' if case.lazy else 'pipeline'},"
        f" {'claim ahead' if case.claim_ahead else 'no claim ahead'}:"
        f" {report.plays} plays{'' if report.complete else ', time was up'};"
        f" copies {report.worst['copies']}, waiting {report.worst['waiting']},"
        f" lost {report.worst['lost']}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
