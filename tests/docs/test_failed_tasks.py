"""The page "Failed tasks" shows what the command prints, and the limits that the code has."""

from __future__ import annotations

import re
from typing import Any

from celery_outbox_steps.status_text import dead_text
from celery_outbox_steps.store import LONGEST_REASON
from django_integration.celery_hooks.failed_tasks import LONGEST_TRACEBACK
from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "how-to" / "failed-tasks.md"
AGES = {"5 min": 300.0, "20 min": 1200.0}
LETTER = re.compile(
    r"^(?P<id>\d+)  (?P<kind>\w+)  (?P<dead_at>\S+)Z  (?P<ago>.+) ago  "
    r"(?P<task_name>[\w.]+)\[(?P<task_id>\S+)\]\n    (?P<failure_reason>.+)$",
    re.MULTILINE,
)


def listing() -> str:
    (block,) = [each for each in blocks(PAGE) if "Z  5 min ago" in each.text]
    return block.text.strip()


def letters() -> list[dict[str, Any]]:
    found = [match.groupdict() for match in LETTER.finditer(listing())]
    return [{**each, "seconds": AGES[each["ago"]], "database": "default"} for each in found]


def test_the_listing_is_what_the_command_prints() -> None:
    assert len(letters()) == 2
    assert dead_text(letters(), None) == listing()


def test_the_page_says_the_limits() -> None:
    text = PAGE.read_text()
    assert f"at most {LONGEST_REASON:,} characters" in text
    assert f"At most {LONGEST_TRACEBACK:,} characters" in text
