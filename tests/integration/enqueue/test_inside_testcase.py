"""In Django's TestCase the code under test needs transactions of its own, as in production."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from django.test import TestCase, override_settings

from django_integration import TransactionRequired
from tests.proj.relaying import rows

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


def in_testcase(body: Callable[[], Any], set_up: Callable[[], Any] = lambda: None) -> None:
    """Run a function as the only test of a TestCase; whatever it raises is raised."""
    found: list[BaseException] = []

    class Case(TestCase):
        @classmethod
        def setUpTestData(cls) -> None:
            set_up()

        def test(self) -> None:
            try:
                body()
            except BaseException as error:
                found.append(error)
                raise

    result = unittest.TestResult()
    unittest.TestSuite([Case("test")]).run(result)
    if found:
        raise found[0]
    assert result.wasSuccessful(), result.errors
    assert result.testsRun == 1


@pytest.fixture
def strict(make_app: Callable[..., Any]) -> Any:
    """The task of an app that requires transactions."""
    return make_app(outbox_require_transaction=True).tasks["enqueue.add"]


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(each, "event", "") for each in caplog.records]


def test_a_call_outside_the_codes_own_transaction_is_refused(strict: Any) -> None:
    with pytest.raises(TransactionRequired, match="outside a transaction"):
        in_testcase(lambda: strict.delay(1))


def test_inside_of_one_it_is_stored(strict: Any, caplog: pytest.LogCaptureFixture) -> None:
    def body() -> None:
        with transaction.atomic(), transaction.atomic():
            strict.delay(1)
        assert len(rows()) == 1

    in_testcase(body)
    assert events(caplog) == []
    assert rows() == []


def test_in_the_tests_of_a_class_with_data_too(strict: Any) -> None:
    def set_up() -> None:
        with pytest.raises(TransactionRequired):
            strict.delay(1)
        with transaction.atomic():
            strict.delay(1)

    in_testcase(lambda: None, set_up)


def test_where_none_is_required_it_is_stored_and_logged(
    add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def body() -> None:
        add.delay(1)
        assert len(rows()) == 1

    in_testcase(body)
    assert events(caplog) == ["celery_outbox_not_in_transaction"]


def test_a_hook_that_the_test_runs_is_a_hook(strict: Any, caplog: pytest.LogCaptureFixture) -> None:
    def body() -> None:
        with TestCase.captureOnCommitCallbacks(execute=True), transaction.atomic():
            transaction.on_commit(lambda: strict.delay(1))
        assert len(rows()) == 1

    in_testcase(body)
    assert events(caplog) == ["celery_outbox_after_commit"]
    assert f"in an on_commit hook at {__file__}" in caplog.text


def test_a_call_after_the_captured_hooks_is_no_hook(strict: Any) -> None:
    def body() -> None:
        with TestCase.captureOnCommitCallbacks(execute=True), transaction.atomic():
            strict.delay(1)
        strict.delay(2)

    with pytest.raises(TransactionRequired):
        in_testcase(body)


def test_a_running_task_needs_none(strict: Any) -> None:
    @strict.app.task(name="enqueue.caller", shared=False)
    def caller() -> None:
        strict.delay(1)

    def body() -> None:
        caller.apply(throw=True)
        assert len(rows()) == 1

    in_testcase(body)


def test_override_settings_turns_it_on_for_a_test(app: Any) -> None:
    def body() -> None:
        app.tasks["enqueue.add"].delay(1)
        with override_settings(CELERY_OUTBOX_REQUIRE_TRANSACTION=True):
            app.tasks["enqueue.add"].delay(2)

    app.config_from_object("django.conf:settings", namespace="CELERY")
    with pytest.raises(TransactionRequired):
        in_testcase(body)
