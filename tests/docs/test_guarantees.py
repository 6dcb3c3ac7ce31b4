"""Each promise names a test, and that test exists."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.pages import DOCS, ROOT, name, pages
from tests.explorer.bounds import BOUNDS

PAGE = DOCS / "explanation" / "guarantees.md"
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
COST = re.compile(r"^\| `([\w ]+)`: .*? \| (\d+) \| (\d+) \| (\d+) \|", re.MULTILINE)
NAMED = re.compile(r"`((?:tests|celery_outbox_steps)/[\w/]+\.py)::(\w+)`")


def named_tests() -> list[tuple[str, str, str]]:
    return [(name(page), *found) for page in pages() for found in NAMED.findall(page.read_text())]


@pytest.mark.parametrize(("page", "file", "test"), named_tests(), ids=str)
def test_a_named_test_exists(page: str, file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    functions = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
    assert test in functions, f"{page} names {file}::{test}, which does not exist"


def test_every_row_names_a_test() -> None:
    promises, costs = TABLE.findall(PAGE.read_text())
    rows = promises.splitlines()[2:]
    assert len(rows) > 30
    assert len(costs.splitlines()[2:]) == len(BOUNDS)
    assert [row for row in rows if not NAMED.search(row)] == []


def test_the_cost_of_each_fault_is_what_the_explorer_allows() -> None:
    said = [(fault, *map(int, numbers)) for fault, *numbers in COST.findall(PAGE.read_text())]
    assert said == [(each.fault, each.relays, each.copies, each.waiting) for each in BOUNDS]
