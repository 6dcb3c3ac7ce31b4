"""The results of the scenarios: a committed file, and the page that is written from it."""

from __future__ import annotations

import json
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.ecosystem.libraries import BY_NAME, ENVIRONMENTS, LIBRARIES, Library, distribution

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "ecosystem" / "results.json"
PAGE = DOCS / "how-to" / "works-with.md"
MARK = re.compile(r"(<!-- generated:ecosystem -->\n).*(<!-- end -->)", re.DOTALL)


def load() -> dict[str, Any]:
    found: dict[str, Any] = {"environments": {}, "libraries": {}}
    return {**found, **json.loads(RESULTS.read_text())} if RESULTS.exists() else found


def record(environment: str, outcomes: dict[str, dict[str, str]]) -> None:
    """Put what has run into the file, in the place of what was there of the same libraries."""
    known = load()
    known["environments"][environment] = {
        "Python": platform.python_version(), "Celery": version("celery"),
        "kombu": version("kombu"), "Django": version("Django"),
    }  # fmt: skip
    for name in outcomes:
        known["libraries"][name] = {
            "environment": environment,
            "versions": _versions(BY_NAME[name]),
            "scenarios": dict(sorted(outcomes[name].items())),
        }
    known["libraries"] = dict(sorted(known["libraries"].items()))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=2) + "\n")


def page() -> str:
    """The page with its table made anew."""
    return MARK.sub(lambda match: f"{match[1]}\n{table(load())}\n\n{match[2]}", PAGE.read_text())


def table(known: dict[str, Any]) -> str:
    rows = [_row(library, known["libraries"].get(library.name)) for library in LIBRARIES]
    head = ["| library | version | result | to know |", "|---|---|---|---|"]
    return "\n".join([*_environments(known), "", *head, *rows])


def verdict(library: Library, scenarios: dict[str, str]) -> str:
    if set(scenarios.values()) != {"passed"}:
        return "**fails**"
    return "works with care" if library.caution else "works"


def _row(library: Library, found: dict[str, Any] | None) -> str:
    if found is None:
        return f"| {library.name} | | not tried | {library.note} |"
    own, *others = found["versions"].items()
    versions = "<br>".join([own[1], *(f"{name} {number}" for name, number in others)])
    result = verdict(library, found["scenarios"])
    return f"| {library.name} | {versions} | {result} | {library.note} |"


def _environments(known: dict[str, Any]) -> list[str]:
    there = [known["environments"][name] for name in ENVIRONMENTS if name in known["environments"]]
    lists = [", ".join(f"{name} {number}" for name, number in each.items()) for each in there]
    return [f"- {each}" for each in lists]


def _versions(library: Library) -> dict[str, str]:
    return {name: version(name) for name in map(distribution, library.requirements)}
