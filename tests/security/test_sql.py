"""SQL with parameters only: read in the source, and tried with names that would do harm."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from celery_outbox_steps.messages import Dead, Published, Retry
from celery_outbox_steps.store import DeadLetters
from tests.services import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.security.conftest import Bench

PACKAGES = ("celery_outbox_steps", "django_integration")
SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|WHERE|VALUES|ORDER BY|LIMIT|ALTER)\b")
# What SQL text may be joined from. Each of these is built in the module that uses it, from column
# names, placeholders and a dialect's own words. Check the origin of a name before you add it.
OURS = re.compile(
    r"""
    [A-Z_]+(\.text|\[table\])?                 # constants: tables, columns, states
    | (self|dialect|self\._dialect)\.[a-z_]+   # a dialect's attributes
    | (self|dialect|self\._dialect)\.is_state\(([A-Z_]+|part)\)  # a state's condition
    | (SETTINGS|(self\._)?dialect\.(seconds_until|iso_text))\.format\([a-z_=']+\)
    | self\._(alive|forgettable|in|sums|until)\(.*\)  # conditions and times of the fleet
    | (self\._)?dialect\.along(_due)?\([A-Za-z_., ]+\)      # a table and the hint for an index
    | FAR\[self\._dialect\.vendor\]
    | (self\._table|table|form\.table|(request\.)?lane\.table)\.name
    | lane\.rows                               # a condition with a placeholder
    | (until|later)\('[a-z_]+'\)               # a dialect's time of a column
    | '.*'\.join\(.*\)                         # placeholders and column names
    | _(rows_of|published_before|has_expired|flag|constants)\(.*\)   # SQL of the same module
    | (columns|values|selected|where|order|table|changes|sql|claimable|free|now|window|condition
      |fence|insert_rows|record|name|limit|rows|text
      |assignments|conflict|lock|waits|from_now|is_gap|others|seen|times
      |claimed|constants|for_tasks|held_back|marks|names|of_lane|ours|waiting|which
      |due|eta|held|is_soon|late|latest_due|named|next_due|notify|soon|unclaimed|until)
    """,
    re.VERBOSE,
)
HOSTILE = [
    "x'; DROP TABLE celery_outbox; --",
    'x"; DROP TABLE celery_outbox; --',
    "%s %d %(name)s %% %",
    "back\\slash\\' OR 1=1 /*",
    "{0} {name} ${HOME} $$; $1",
    "名前 ünï 🐍",
    "nul\x00 and surrogate\ud800",
    "<script>alert(1)</script>",
    "x" * 5000,
]


def test_every_joined_statement_is_joined_from_names_of_ours() -> None:
    strangers = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {{{text}}}"
        for path in _modules()
        for node in _statements(ast.parse(path.read_text()))
        for text in _insertions(node)
        if not OURS.fullmatch(text)
    ]
    assert strangers == []


def test_no_statement_is_made_with_percent_or_format() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in _modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if _formats_sql(node)
    ]
    assert found == []


def test_the_rule_would_notice() -> None:
    bad = 'cursor.execute(f"SELECT * FROM celery_outbox WHERE task_name = {task_name!r}")'
    (statement,) = _statements(ast.parse(bad))
    assert not OURS.fullmatch(next(_insertions(statement)))
    worse = 'cursor.execute("SELECT * FROM celery_outbox WHERE id = %s" % number)'
    assert any(_formats_sql(node) for node in ast.walk(ast.parse(worse)))


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_and_ids_all_the_way(
    any_database: str, bench_on: Callable[[], Bench], name: str
) -> None:
    bench = bench_on()
    safe = bench.call()
    bench.call(name, task_id=f"{name[:200]}-1")
    me = name.replace("\x00", "").replace("\ud800", "")[:100]
    first, second = sorted(bench.store.claim(10, 60, me), key=lambda row: row.id)
    assert first.task_id == safe
    seen = second.task_name
    assert bench.store.begin_attempt(first, me) == first
    assert bench.store.settle([Published(first), Retry(second, name, 0.0)], me) == 0
    (again,) = bench.store.claim(10, 60, me)
    assert bench.store.release([again.id], me) == 1
    (again,) = bench.store.claim(10, 60, me)
    assert bench.store.settle([Dead(again, name, 1)], me) == 0
    _bury_and_replay(bench, seen)


def _bury_and_replay(bench: Bench, name: str) -> None:
    store, which = bench.store, DeadLetters(task_name=name)
    assert bench.rows() == set()
    assert store.count_dead_letters(which) == 1
    assert store.count_dead_letters(DeadLetters(task_name=name + "x")) == 0
    assert store.replay(which) == 1
    assert bench.tick().published == 1
    assert len(bench.arrived()) == 1
    assert store.stats().dead_letters == 0
    assert store.purge_dead_letters(which) == 0


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_and_ids_of_calls_for_later(
    any_database: str, bench_on: Callable[[], Bench], name: str
) -> None:
    bench, task_id = bench_on(), f"{name[:200]}-1"
    safe = bench.call(countdown=600)
    bench.call(name, task_id=task_id, countdown=60)
    first, second = bench.store.scheduled()
    assert second.task_id == safe
    assert [each.task_id for each in bench.store.scheduled(first.task_name)] == [first.task_id]
    assert bench.store.scheduled(f"{name}x") == []
    assert bench.store.send_now([task_id]) == [task_id]
    assert bench.store.cancel([task_id, f"{name}x"]) == {task_id: True}
    assert [each.task_id for each in bench.store.scheduled()] == [safe]


@pytest.mark.parametrize("vendor", ["postgresql", "mysql"])
def test_hostile_searches_in_the_admin(
    vendor: str, require_service: Callable[[str], object]
) -> None:
    require_service(vendor)
    cases = Path(__file__).parent / "cases" / "admin_search.py"
    environment = {**os.environ, "OUTBOX_ADMIN_DB": vendor}
    environment.pop("OUTBOX_TEST_REPORT", None)
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "--ds=tests.integration.admin.settings", str(cases),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


# -- reading the source ---------------------------------------------------------------------------


def _modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def _statements(tree: ast.AST) -> list[ast.JoinedStr]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) and SQL.search(_literal(node))
    ]


def _literal(node: ast.JoinedStr) -> str:
    return "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))


def _insertions(node: ast.JoinedStr) -> Iterator[str]:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            yield ast.unparse(part.value) + ("" if part.conversion == -1 else "!")


def _formats_sql(node: ast.AST) -> bool:
    """`"SELECT …" % x`, `"SELECT …".format(x)` and `"SELECT …" + x`, but not + of two literals."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.Add)):
        return _is_sql(node.left) and not isinstance(node.right, (ast.Constant, ast.JoinedStr))
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "format"
        and _is_sql(node.func.value)
    )


def _is_sql(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and bool(SQL.search(str(node.value)))
