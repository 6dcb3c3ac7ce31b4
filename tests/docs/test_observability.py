"""Log events come from one table; the reference pages say what the code says, and no more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_outbox_steps.observe.log import EVENTS, log
from celery_outbox_steps.settings import BY_NAME

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
PACKAGES = ("celery_outbox_steps", "django_integration")
TABLE = ROOT / "celery_outbox_steps/observe/log.py"


def table(page: str) -> dict[str, list[str]]:
    """The rows of a page's tables: the name in the first column, and the other columns."""
    rows = {}
    for line in (REFERENCE / page).read_text().splitlines():
        found = re.match(r"\| `([\w.]+)` \| (.*) \|$", line)
        if found:
            rows[found[1]] = [cell.strip() for cell in found[2].split("|")]
    return rows


def quoted(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def source() -> dict[Path, str]:
    return {path: path.read_text() for name in PACKAGES for path in (ROOT / name).rglob("*.py")}


def test_every_event_that_is_logged_is_in_the_table_and_every_one_of_the_table_is_logged() -> None:
    texts = [text for path, text in source().items() if path != TABLE]
    logged = {name for text in texts for name in re.findall(r'\blog\(\s*"([^"]*)"', text)}
    logged |= {name for text in texts for name in re.findall(r'\b_event\(\s*"([^"]*)"', text)}
    assert logged == set(EVENTS)


def test_an_event_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(KeyError):
        log("celery_outbox_no_such_event")


def test_there_is_no_other_way_to_log() -> None:
    used = {path for path, text in source().items() if re.search(r"getLogger|logger\.", text)}
    assert used == {TABLE}


def test_text_from_outside_can_not_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    log("celery_outbox_context_failed", "one\nceleryd: two\x1b[31m")
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert record.__dict__["event"] == "celery_outbox_context_failed"
    assert record.msg.startswith("celery_outbox_context_failed: ")


def test_the_settings_that_the_pages_name_exist() -> None:
    known = {setting.django_name for setting in BY_NAME.values()}
    for page in ("metrics.md", "signals.md", "log-events.md"):
        text = (REFERENCE / page).read_text()
        assert set(re.findall(r"CELERY_OUTBOX_[A-Z_]+", text)) <= known
    text = (REFERENCE / "metrics.md").read_text()
    read = re.findall(r"MONITORING_[A-Z_]+", "".join(source().values()))
    assert set(read) - {"MONITORING_STATSD_"} == set(re.findall(r"MONITORING_[A-Z_]+", text))


def test_every_signal_is_documented_with_its_arguments() -> None:
    text = (ROOT / "django_integration/signals.py").read_text()
    declared = re.findall(r'(?m)^(outbox_\w+) = Signal\(\)\n"""Arguments: (.*?)\. Sender', text)
    assert len(declared) == text.count("= Signal()") == 4
    documented = table("signals.md")
    assert set(documented) == {name for name, _ in declared}
    for name, arguments in declared:
        names = set(re.findall(r"\b(?:task_\w+|retries)\b", arguments))
        assert quoted(documented[name][0]) == names
        for argument in names:
            assert f"{argument}=" in text
