"""The architecture page is true: its rooms, its layers, its pictures and its budgets."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.pages import DOCS, ROOT
from tests.docs.paths import PACKAGES, functions_of
from tests.docs.processes import clean_environment, run

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = DOCS / "explanation" / "architecture.md"
SECTIONS = {"enqueue": "From the call to the row", "relay": "From the claim to the settle"}
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w/]+(?:\.\w+|/)")
FUNCTION = re.compile(r"[A-Z]\w+\.\w+")
BUDGET = re.compile(r"^\| (\w+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
NOT_ROOMS = {"__init__", "__pycache__"}


@cache
def drawing() -> Any:
    """docs/draw.py, which is in no package."""
    spec = spec_from_file_location("draw", DOCS / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def traced() -> dict[str, list[tuple[str, str]]]:
    """The functions of each path in a process of its own, in the order of their first calls."""
    command = [sys.executable, "-m", "tests.docs.paths", "--json"]
    paths = json.loads(run(command, ROOT, clean_environment()).splitlines()[-1])
    return {name: [(file, function) for file, function in path] for name, path in paths.items()}


def section(title: str) -> str:
    """The text below a heading, up to the next heading."""
    _, heading, below = PAGE.read_text().partition(f"# {title}\n")
    assert heading, f"the page has no section {title!r}"
    return below.partition("\n#")[0]


def rooms(package: str) -> list[str]:
    """The modules that the table of a package names in its first column, in order."""
    rows = re.findall(r"^\| (`.*?) \|", section(f"`{package}`"), re.MULTILINE)
    return [name.rstrip("/").removesuffix(".py") for row in rows for name in CODE.findall(row)]


def functions_in_code() -> Iterator[str]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            yield from functions_of(str(path.relative_to(ROOT))).values()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_in_the_table_of_rooms_once(package: str) -> None:
    there = {path.stem for path in (ROOT / package).iterdir() if path.suffix in {".py", ""}}
    assert sorted(rooms(package)) == sorted(there - NOT_ROOMS)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_rooms_are_in_the_order_of_the_layers(package: str) -> None:
    layers = drawing().layers(package)
    layer_of = {name: number for number, names in enumerate(layers) for name in names}
    found = [layer_of[name] for name in rooms(package) if name in layer_of]
    assert len(found) == len(layer_of)
    assert found == sorted(found)


def test_the_pictures_are_up_to_date() -> None:
    drawn = drawing().pictures()
    assert [path.name for path, text in drawn.items() if path.read_text() != text] == []


def test_the_page_shows_every_picture() -> None:
    shown = set(re.findall(r"\]\(\.\./images/([\w-]+\.svg)\)", PAGE.read_text()))
    assert shown == {path.name for path in drawing().pictures()} - {"overview.svg"}


@pytest.mark.parametrize("page", ["index.md", "explanation/how-it-works.md"])
def test_the_overview_is_shown(page: str) -> None:
    assert "images/overview.svg)" in (DOCS / page).read_text()


def test_the_overview_fits_on_a_phone() -> None:
    """372 px are what the site leaves of a screen of 400."""
    (width,) = re.findall(r'^<svg [^>]*width="(\d+)"', drawing().draw_overview())
    assert int(width) <= 372


def test_every_file_that_the_page_names_exists() -> None:
    named = {name for name in CODE.findall(PAGE.read_text()) if FILE.fullmatch(name)}
    named = {name for name in named if "/" in name or name.endswith(".py")}
    places = [ROOT, *(ROOT / package for package in PACKAGES)]
    assert len(named) > 50
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_function_that_the_page_names_exists() -> None:
    named = {name for name in CODE.findall(PAGE.read_text()) if FUNCTION.fullmatch(name)}
    assert len(named) > 10
    assert named - set(functions_in_code()) == set()


@pytest.mark.postgresql
@pytest.mark.rabbitmq
@pytest.mark.parametrize("path", SECTIONS)
def test_the_picture_shows_functions_of_the_path_in_the_order_of_their_calls(
    path: str, traced: dict[str, list[tuple[str, str]]]
) -> None:
    shown = [(step.file, step.function) for step in drawing().steps(path) if step.file]
    assert [each for each in shown if each not in traced[path]] == []
    assert shown == sorted(shown, key=traced[path].index)


@pytest.mark.postgresql
@pytest.mark.rabbitmq
@pytest.mark.parametrize("path", SECTIONS)
def test_the_text_about_a_path_names_functions_of_that_path(
    path: str, traced: dict[str, list[tuple[str, str]]]
) -> None:
    named = {name for name in CODE.findall(section(SECTIONS[path])) if FUNCTION.fullmatch(name)}
    assert named
    assert named - {function for _, function in traced[path]} == set()


@pytest.mark.postgresql
@pytest.mark.rabbitmq
def test_no_path_is_longer_than_its_budget(traced: dict[str, list[tuple[str, str]]]) -> None:
    budgets = {
        name: (int(most), int(files)) for name, most, files in BUDGET.findall(PAGE.read_text())
    }
    assert budgets.keys() == traced.keys()
    counted = {name: (len(path), len({file for file, _ in path})) for name, path in traced.items()}
    grown = {
        name for name, counts in counted.items() for i in (0, 1) if counts[i] > budgets[name][i]
    }
    assert grown == set(), f"counted {counted}, the page allows {budgets}"
