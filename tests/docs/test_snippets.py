"""Python blocks of the how-to pages run: what they import exists, what they set is allowed.

They are pieces of a project, so they get the names that such a project has. Functions are defined
and not called. The README and the tutorial have tests of their own, which run all of it; so do the
pages on testing, tracing, metrics, writing a store, consuming events, and multi-tenancy, whose
library changes Celery for the process.
"""

from __future__ import annotations

import re
import sys
import uuid
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from celery import _state, shared_task
from django.db import transaction

from celery_outbox_steps.settings import SETTINGS
from tests.docs.pages import DOCS, README, Block, blocks, name, pages

if TYPE_CHECKING:
    from pathlib import Path

ELSEWHERE = {
    README,
    DOCS / "tutorial.md",
    DOCS / "how-to" / "consume-events.md",
    DOCS / "how-to" / "multi-tenancy.md",
    DOCS / "how-to" / "testing.md",
    DOCS / "how-to" / "tracing.md",
    DOCS / "how-to" / "writing-a-store.md",
    DOCS / "reference" / "metrics.md",
}
PYTHON = [
    block
    for page in pages()
    if page not in ELSEWHERE
    for block in blocks(page)
    if block.language == "python"
]


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a project has where such a piece is put. Its tasks are forgotten afterwards:
    Celery gives shared tasks to every app that is made later."""
    from django_integration import OutboxCelery, once

    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))

    module = ModuleType("proj.celery")
    module.app = app = OutboxCelery("docs", set_as_current=False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "proj", ModuleType("proj"))
    monkeypatch.setitem(sys.modules, "proj.celery", module)
    return {
        "__name__": f"snippet_{uuid.uuid4().hex}",
        "app": app,
        "once": once,
        "shared_task": shared_task,
        "transaction": transaction,
        "INSTALLED_APPS": [],
    }


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_a_block_runs(block: Block, project: dict[str, Any]) -> None:
    exec(compile(block.text, str(block.page), "exec"), project)
    for setting in SETTINGS:
        if setting.django_name in project:
            setting.parse(project[setting.django_name])


def page_languages(page: Path) -> set[str]:
    return {block.language for block in blocks(page)}


def test_every_block_has_a_language_that_some_test_looks_at() -> None:
    known = {"python", "sh", "text", "yaml", "json", "ini", "sql"}
    assert set().union(*map(page_languages, pages())) <= known


WIDEST = 80
"""Columns of a fenced block that the site shows on a screen of 1280 px without scrolling."""


@pytest.mark.parametrize("page", pages(), ids=name)
def test_a_drawing_of_letters_is_not_cut_off(page: Path) -> None:
    drawings = [each.text for each in blocks(page) if re.search("[│▶◀]", each.text)]
    lines = [line for text in drawings for line in text.splitlines()]
    assert [line for line in lines if len(line) > WIDEST] == []
