"""The test suites: one line per directory of tests/, in the order in which they are reported.

`tests/conftest.py` makes a mark of each, `make test` reports them in this order, and the table in
CONTRIBUTING.md is compared with this one. A directory with tests that is not in here fails
`tests/services/test_suites.py`. Standard library only: the runner imports this without pytest.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
OTHER = "other"
"""The suite of a test that is not below tests/."""

SUITES = {
    "unit": "no database, no broker; seconds",
    "services": "finding and starting the test services; the table of suites",
    "contract": "the Store contract on every store, driver and database",
    "explorer": "every order of events within bounds, on the real relay",
    "integration": "Django with a real database and a real broker",
    "acceptance": "real worker processes, killed and starved",
    "canvas": "every kind of canvas, compared with plain Celery",
    "poison": "one message neither stops nor multiplies the others; outages spend no retry",
    "security": "what a hostile row cannot do",
    "budgets": "statements, round trips and calls per message, counted",
    "chaos": "random faults from a seed under load, then two ledgers compared",
    "docs": "the documentation's commands, snippets, links and tables",
    "packaging": "wheel and sdist (`make package`; skipped elsewhere)",
    "ecosystem": "other libraries in real projects (`make ecosystem`; skipped elsewhere)",
}


def suite_of(path: Path) -> str:
    """The suite that a test file belongs to: the name of its directory in tests/."""
    if not path.is_relative_to(TESTS):
        return OTHER
    return path.relative_to(TESTS).parts[0]


def directories_with_tests() -> set[str]:
    """Every directory in tests/ in which pytest would find something."""
    return {suite_of(path) for path in TESTS.rglob("test_*.py") if path.parent != TESTS}


def as_table() -> str:
    """The suites as CONTRIBUTING.md shows them."""
    rows = (f"| `{name}` | {meaning} |" for name, meaning in SUITES.items())
    return "\n".join(["| suite | what it shows |", "|---|---|", *rows])
