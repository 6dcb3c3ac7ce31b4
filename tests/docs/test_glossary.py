"""The glossary's table of outcomes has the names that metrics, log, signals and counters have."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import NamedTuple

import pytest
from django.dispatch import Signal

from celery_outbox_steps.messages import (
    BatchResult,
    ClaimedMessage,
    Dead,
    Deferred,
    Expired,
    Outcome,
    Published,
    Retry,
)
from celery_outbox_steps.observe.journal import Journal
from celery_outbox_steps.observe.metrics import METRIC_OF, METRICS
from django_integration import signals
from django_integration.store import DjangoStore
from tests.docs.pages import DOCS

ROW = re.compile(r"^\| (\w+) \|(.+)\|$", re.MULTILINE)
MESSAGE = ClaimedMessage(
    **{**dict.fromkeys(ClaimedMessage._fields), "task_name": "shop.tasks.send", "retries": 0}
)
RESULTS: dict[str, tuple[Outcome | None, BatchResult]] = {
    "published": (Published(MESSAGE), BatchResult(published=1)),
    "retry": (Retry(MESSAGE, "refused", 1.0), BatchResult(retried=1)),
    "dead": (Dead(MESSAGE, "refused", 5), BatchResult(dead=1)),
    "deferred": (Deferred(MESSAGE, "away", 1.0), BatchResult(deferred=1, outage="away")),
    "expired": (Expired(MESSAGE), BatchResult(expired=1)),
    "released": (None, BatchResult(released=1)),
    "fenced": (None, BatchResult(fenced=1)),
}
OUTCOMES = [name for name, (outcome, _) in RESULTS.items() if outcome is not None]


class Names(NamedTuple):
    """One row of the table; an empty string where a cell is empty."""

    metric: str
    event: str
    signal: str
    counter: str


def table() -> dict[str, Names]:
    section = (DOCS / "explanation/glossary.md").read_text().partition("\n## Outcomes\n")[2]
    rows = {name: cells.split("|")[1:] for name, cells in ROW.findall(section)}
    del rows["outcome"]  # the heading
    return {name: Names(*(cell.strip(" `") for cell in cells)) for name, cells in rows.items()}


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The log events of this test, whatever other tests have made of the logger."""
    lines: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(record.__dict__["event"]))
    logger = logging.getLogger("celery_outbox")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "isEnabledFor", lambda level: True)
    return lines


def counters(outcome: Outcome | None, result: BatchResult) -> set[str]:
    """What a batch with this one row is counted as."""
    journal = Journal("default", "relay")
    outcomes = () if outcome is None else (outcome,)
    journal.batch(replace(result, outcomes=outcomes, claimed=1))
    counted = {name for name, count in journal.counters.items() if count}
    return counted - {"batches", "claimed"}


@pytest.mark.parametrize("name", RESULTS)
def test_counter_and_log_event_are_those_of_the_table(name: str, events: list[str]) -> None:
    said = table()[name]
    assert counters(*RESULTS[name]) == {said.counter}
    assert set(events) == {said.event} - {""}


def test_the_table_has_every_outcome_with_its_metric() -> None:
    said = table()
    assert set(said) == {"enqueued", *RESULTS}
    assert {kind.__name__.lower(): metric for kind, metric in METRIC_OF.items()} == {
        name: said[name].metric for name in OUTCOMES
    }


def test_the_table_has_every_metric_of_messages() -> None:
    counters = {name for name in METRICS if name.startswith("messages.")}
    assert {each.metric for each in table().values()} - {""} == counters


def test_the_table_has_every_signal() -> None:
    sent = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert {each.signal for each in table().values()} - {""} == sent


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_sends_the_signal_of_the_table(name: str) -> None:
    known = {name: value for name, value in vars(signals).items() if isinstance(value, Signal)}
    sent: set[str] = set()
    receivers = {name: lambda name=name, **_: sent.add(name) for name in known}
    for each, receiver in receivers.items():
        known[each].connect(receiver)
    try:
        settled = [outcome for outcome in RESULTS[name][:1] if outcome]
        signals.signal_recorder.on_settled(DjangoStore("default"), settled)
    finally:
        for each, receiver in receivers.items():
            known[each].disconnect(receiver)
    assert sent == {table()[name].signal} - {""}


@pytest.mark.parametrize("page", ["log-events.md", "metrics.md", "signals.md"])
def test_the_reference_explains_the_names(page: str) -> None:
    text = (DOCS / "reference" / page).read_text()
    column = {"log-events.md": "event", "metrics.md": "metric", "signals.md": "signal"}[page]
    names = {getattr(each, column) for each in table().values()} - {""}
    assert names
    assert {name for name in names if f"| `{name}` |" not in text} == set()
