"""The page "Schedule for later" shows what the commands print, and the settings' defaults."""

from __future__ import annotations

from typing import Any

from celery_outbox_steps.settings import BY_NAME
from celery_outbox_steps.status_text import scheduled_text
from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "how-to" / "schedule-for-later.md"
SECONDS = {"send_receipt": [88.4], "remind": [3598.4, 2591998.4]}
"""The time until the calls of the listing are due, by task."""


ARGUMENTS = {"[5]": "{}", "[7]": "{}", "[8]": '{"by": "mail"}'}


def listing() -> str:
    """The listing of the page."""
    (block,) = [each for each in blocks(PAGE) if "Z  in " in each.text]
    return block.text.strip()


def call(line: str) -> dict[str, Any]:
    due, _, task_id, what = line.split("  ", 1)[0], *line.rsplit("  ", 2)
    name, args, *_ = what.split(" ")
    seconds = SECONDS[name.rpartition(".")[2]].pop(0)
    return {
        "args": args,
        "kwargs": ARGUMENTS[args],
        "database": "default",
        "task_id": task_id,
        "task_name": name,
        "due_at": due.replace("Z", ".000000+00:00"),
        "seconds": seconds,
    }


def test_the_listing_is_what_the_command_prints() -> None:
    assert scheduled_text([call(line) for line in listing().splitlines()], None) == listing()


def test_the_page_says_the_defaults() -> None:
    text = PAGE.read_text()
    assert BY_NAME["hold"].default == 0
    assert f"`CELERY_OUTBOX_HOLD_RETRIES` ({BY_NAME['hold_retries'].default:.0f} s)" in text
