"""Suppression without a tracing library: nothing happens, and nothing is imported."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from celery_outbox_steps.observe.suppression import traced, untraced

CODE = """
import sys
from celery_outbox_steps.observe.suppression import untraced
assert untraced(lambda value: value)(1) == 1
vendors = {"opentelemetry", "ddtrace", "sentry_sdk"}
print([name for name in sys.modules if name.split(".")[0] in vendors])
"""


def test_a_library_that_is_not_loaded_is_not_loaded_by_us() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_an_error_passes_through() -> None:
    with pytest.raises(LookupError):
        untraced(_raise)()


def test_a_tracing_library_that_breaks_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = SimpleNamespace(suppress_instrumentation=_raise)
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.utils", broken)
    assert untraced(lambda: 1)() == 1


def test_code_of_the_project_is_called_with_its_arguments() -> None:
    assert untraced(lambda: traced(dict, [("a", 1)], b=2))() == {"a": 1, "b": 2}


def _raise() -> None:
    raise LookupError
