"""`python -m benchmarks.fleet [--output FOLDER]`: simulate, and write the page; takes seconds."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.fleet import report
from benchmarks.fleet.policies import EverySecond, FirstGap, LastTurn, Proportional
from benchmarks.fleet.scenarios import SIZES, Effort, survey

DOCS = Path(__file__).resolve().parents[2] / "docs/benchmarks"
COMPARED = 1_000
"""The size at which the rules are compared."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the page")
    folder = parser.parse_args().output
    ours = {members: survey(FirstGap(), members, effort) for members, effort in SIZES.items()}
    others = {FirstGap.name: ours[COMPARED]}
    for policy in (LastTurn(), Proportional()):
        others[policy.name] = survey(policy, COMPARED, SIZES[COMPARED])
    others[EverySecond.name] = survey(EverySecond(), COMPARED, Effort(stops=3, whole=False))
    report.write(folder, list(ours.values()), others)
    print(f"the page is {folder / 'fleet.md'}")


if __name__ == "__main__":
    main()
