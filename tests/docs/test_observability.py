"""The reference pages of metrics, signals and log events say what the code says, and no more."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from celery_outbox_steps.observe.metrics import METRICS
from celery_outbox_steps.settings import BY_NAME

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
PACKAGES = ("celery_outbox_steps", "django_integration")
EVENT = re.compile(r"celery_outbox_[a-z_]+(?=$|:)")
LEVELS = ("debug", "info", "warning", "error")
OF_THE_JOURNAL = {"database", "relay"}


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


class Found:
    """What the source says of one event, over all places that log it."""

    def __init__(self) -> None:
        self.levels: set[str] = set()
        self.fields: set[str] = set()


def logged_events() -> dict[str, Found]:
    """Every event that is logged, read from the calls themselves."""
    events: dict[str, Found] = {}
    for text in source().values():
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if method not in (*LEVELS, "_log", "log", "exception"):
                continue
            for name in filter(None, map(_event_name, call.args)):
                found = events.setdefault(name, Found())
                found.levels |= _levels(call, method)
                found.fields |= _fields(call) | (OF_THE_JOURNAL if method == "_log" else set())
    return events


def _event_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        found = EVENT.match(node.value)
        return found[0] if found else None
    return None


def _levels(call: ast.Call, method: str) -> set[str]:
    if method in LEVELS:
        return {method.upper()}
    names = [node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)]
    return {name for name in names if name.lower() in LEVELS and name.isupper()}


def _fields(call: ast.Call) -> set[str]:
    given = {keyword.arg for keyword in call.keywords if keyword.arg}
    extra = [keyword.value for keyword in call.keywords if keyword.arg == "extra"]
    keys = {
        key.value
        for each in extra
        if isinstance(each, ast.Dict)
        for key in each.keys
        if isinstance(key, ast.Constant)
    }
    return {str(name) for name in (given | keys) - {"extra", "exc_info", "to", "event"}}


def test_every_log_event_is_documented_with_level_and_fields() -> None:
    documented, found = table("log-events.md"), logged_events()
    assert set(documented) == set(found)
    for name, event in found.items():
        level, fields, meaning = documented[name]
        assert set(level.split(", ")) == event.levels, name
        assert event.fields <= quoted(fields), name
        assert meaning


def test_no_event_is_logged_in_a_way_that_the_check_above_overlooks() -> None:
    words = {word for text in source().values() for word in re.findall(r"celery_outbox_\w+", text)}
    suspicious = {w for w in words if w.endswith(("_failed", "_error", "_lost", "_unavailable"))}
    assert suspicious <= set(logged_events())


def test_every_metric_is_documented() -> None:
    documented = {name: row for name, row in table("metrics.md").items() if "." in name}
    documented |= {name: row for name, row in table("metrics.md").items() if name in METRICS}
    assert documented == {
        name: [metric.kind, ", ".join(f"`{tag}`" for tag in metric.tags), metric.help]
        for name, metric in METRICS.items()
    }


def test_every_emitted_metric_is_in_the_catalogue() -> None:
    parts = "|".join(sorted({name.partition(".")[0] for name in METRICS if "." in name}))
    emitted = re.compile(rf'"((?:{parts})\.[a-z_]+|oldest_pending_age_seconds)"')
    others = ("metrics.py", "tracing.py")  # the catalogue itself, and the names of spans
    texts = [text for path, text in source().items() if path.name not in others]
    assert {name for text in texts for name in emitted.findall(text)} == set(METRICS)


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
