"""Recorders: guarded, called only where they have something to do, and no vendor is imported."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_outbox_steps.messages import NO_CONTEXT, ClaimedMessage, Message
from celery_outbox_steps.observe.recorder import (
    HOOKS,
    Recorder,
    Recorders,
    register,
    registered,
    traced,
    untraced,
)
from celery_outbox_steps.observe.recorders import recorders_for

if TYPE_CHECKING:
    from collections.abc import Iterator

CODE = """
import sys
from types import SimpleNamespace
from celery_outbox_steps.observe.recorders import recorders_for
recorders = recorders_for(SimpleNamespace(conf={}))
assert recorders.run_untraced(lambda value: value, 1) == 1
assert recorders.caller_context() == (None, None, None)
vendors = {"opentelemetry", "ddtrace", "sentry_sdk", "structlog", "datadog", "prometheus_client"}
print([name for name in sys.modules if name.split(".")[0] in vendors])
"""
ROW = ClaimedMessage(1, "id", "task", "[]", "{}", "{}", None, 0, 1, None, None, None, None, 0.0)
MESSAGE = Message(b"", "", "", {}, {}, None, "", "")


def vendors() -> Recorders:
    return recorders_for(SimpleNamespace(conf={}))


class Entered(Recorder):
    """Breaks when its context is entered, or when it is left."""

    def __init__(self, *, late: bool) -> None:
        self._late = late

    @contextmanager
    def around_publishing(self, rows: Any) -> Iterator[None]:
        if not self._late:
            _raise()
        yield
        _raise()


class Kept(Recorder):
    """Remembers what was settled."""

    def __init__(self) -> None:
        self.settled: list[Any] = []

    def on_settled(self, store: Any, outcomes: Any) -> None:
        self.settled.append((store, outcomes))


class Ticking:
    """An object whose method is not traced."""

    def __init__(self, recorders: Recorders) -> None:
        self.recorders = recorders

    @untraced
    def tick(self, work: Any) -> Any:
        return work()


def _raise(*_: Any) -> None:
    raise LookupError


Broken = type("Broken", (Recorder,), dict.fromkeys(HOOKS, _raise))


def test_a_library_that_is_not_loaded_is_not_loaded_by_us() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_recorder_that_breaks_stops_nothing_and_no_other() -> None:
    kept = Kept()
    recorders = Recorders([Broken(), kept])
    store: Any = object()
    with recorders.storing([]), recorders.publishing([]), recorders.about(ROW):
        assert recorders.run_untraced(lambda: 1) == 1
    recorders.restore(ROW._replace(sentry_trace_id="a-b"), MESSAGE)
    recorders.report_enqueued("default", {})
    recorders.report_settled(store, [])
    recorders.report_batch("default", None)  # type: ignore[arg-type]
    recorders.report_sample("default", None)  # type: ignore[arg-type]
    recorders.report_error(LookupError(), "celery_outbox", {})
    assert kept.settled == [(store, [])]


@pytest.mark.parametrize("late", [False, True])
def test_a_context_that_breaks_stops_nothing_and_hides_no_error(late: bool) -> None:
    recorders = Recorders([Entered(late=late)])
    with recorders.publishing([]):
        done = True
    assert done
    with pytest.raises(ZeroDivisionError), recorders.publishing([]):
        raise ZeroDivisionError


def test_an_error_passes_through_untraced_work() -> None:
    with pytest.raises(LookupError):
        Ticking(vendors()).tick(_raise)


def test_a_tracing_library_that_breaks_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = SimpleNamespace(suppress_instrumentation=_raise)
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.utils", broken)
    assert Ticking(vendors()).tick(lambda: 1) == 1


def test_code_of_the_project_is_called_with_its_arguments() -> None:
    result = Ticking(vendors()).tick(lambda: traced(dict, [("a", 1)], b=2))
    assert result == {"a": 1, "b": 2}


def test_a_hook_is_not_called_while_its_library_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept()
    kept.library = "no_such_library"
    recorders = Recorders([kept])
    recorders.report_settled(None, [])  # type: ignore[arg-type]
    assert kept.settled == []
    monkeypatch.setitem(sys.modules, "no_such_library", SimpleNamespace())
    recorders.report_settled(None, [])  # type: ignore[arg-type]
    assert kept.settled == [(None, [])]


def test_the_callers_trace_goes_on_where_the_relay_has_no_sentry() -> None:
    message = Message(b"", "", "", {"id": "1"}, {}, None, "", "")
    vendors().restore(ROW._replace(sentry_trace_id="a-b-1", sentry_baggage="c=d"), message)
    trace = {"sentry-trace": "a-b-1", "baggage": "c=d"}
    assert message.headers == {"id": "1", "headers": trace, **trace}


def test_a_recorder_that_was_registered_is_in_every_relay_made_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("celery_outbox_steps.observe.recorder._registered", [])
    kept = Kept()
    register(kept)
    register(kept)
    vendors().report_settled(None, [])  # type: ignore[arg-type]
    assert registered() == (kept,)
    assert kept.settled == [(None, [])]


@pytest.mark.parametrize("found", [{"request_id": "x"}, {"structlog_context": {"a": 1}}])
def test_a_recorder_that_finds_what_no_column_takes_stops_no_call(found: dict[str, Any]) -> None:
    class Wrong(Recorder):
        def on_call(self) -> dict[str, Any]:
            return found

    assert Recorders([Wrong()]).caller_context() == NO_CONTEXT
