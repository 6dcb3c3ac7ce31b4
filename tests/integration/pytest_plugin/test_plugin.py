"""The plugin in a project of its own, in a process of its own: the docs page, run."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.pytest_plugin.conftest import snippets

if TYPE_CHECKING:
    from collections.abc import Callable


def count_of_tests() -> int:
    found = (re.findall(r"^ *def test_", text, re.MULTILINE) for text in snippets().values())
    return sum(map(len, found))


def test_every_snippet_of_the_page_works(run: Callable[..., pytest.RunResult]) -> None:
    assert count_of_tests() >= 13
    run().assert_outcomes(passed=count_of_tests())


def test_the_failure_says_what_was_sent_instead(
    project: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    (project.path / "test_failing.py").write_text(
        """
from shop.checkout import pay


def test_other_arguments(assert_task_sent):
    pay(5)
    assert_task_sent("shop.tasks.ship_order", args=[7])


def test_nothing(assert_task_sent):
    assert_task_sent("shop.tasks.ship_order")


def test_too_often(assert_task_sent):
    pay(5)
    pay(5)
    assert_task_sent("shop.tasks.ship_order", count=1)
"""
    )
    result = run("test_failing.py")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: shop.tasks.ship_order with args=[[]7[]] was not sent. Sent in *:",
            "E*1. shop.tasks.ship_order(5, express=True) to queue shipping, eta *",
            "E*AssertionError: shop.tasks.ship_order was not sent. No task was sent in this test.*",
            "E*AssertionError: shop.tasks.ship_order was sent 2 times. Sent in this test:",
        ]
    )
    assert "django_integration/testing" not in result.stdout.str()  # hidden from the traceback


def test_the_failure_says_what_was_published_instead(
    project: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    (project.path / "test_failing_events.py").write_text(
        """
from proj.celery import app


def test_other_data(assert_event_published):
    app.outbox.publish("order.paid", {"id": 5}, to=["events", "lake"], key="order:5")
    assert_event_published("order.paid", {"id": 7}, to="lake")


def test_another_destination(assert_event_published):
    app.outbox.publish("order.paid", b"5", to="lake", content_type="text/plain", countdown=60)
    event = assert_event_published("order.paid", b"5", to="lake", count=1)
    assert (event.data, event.content_type, event.eta is not None) == (b"5", "text/plain", True)
    assert_event_published("order.paid", to="events")


def test_nothing(assert_event_published):
    assert_event_published("order.paid")


def test_a_task_of_another_installation(outbox, fake_relay):
    app.send_task("partner.charge", (1,), queue="in", outbox_destination="lake")
    assert [(call.task_name, call.queue, call.destination) for call in outbox] == [
        ("partner.charge", "in", "lake")
    ]
    fake_relay.run()
    assert [call.destination for call in fake_relay.published] == ["lake"]
    assert not outbox
"""
    )
    result = run("test_failing_events.py")
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: order.paid with data={'id': 7}, to=('lake',) was not published. *:",
            "E*1. order.paid {'id': 5} to events, lake, key order:5",
            "E*AssertionError: order.paid with to=('events',) was not published. Published in *:",
            "E*1. order.paid b'5' to lake, eta *",
            "E*AssertionError: order.paid was not published. No event was published in this test.*",
        ]
    )


def test_none_is_an_assertion_too(
    project: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    (project.path / "test_none.py").write_text(
        """
from shop.checkout import pay


def test_none(assert_task_sent):
    pay(5)
    assert assert_task_sent("shop.tasks.send_receipt", count=0) is None
    assert_task_sent("shop.tasks.ship_order", args=[6], count=0)


def test_one_too_many(assert_task_sent):
    pay(5)
    assert_task_sent("shop.tasks.ship_order", count=0)
"""
    )
    result = run("test_none.py")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E*shop.tasks.ship_order was sent 1 times. Sent in this test:"])


def test_a_test_can_require_transactions(
    project: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    (project.path / "test_required.py").write_text(
        """
import pytest
from django.db import transaction
from django.test import TestCase

from django_integration import TransactionRequired
from shop.checkout import pay
from shop.tasks import send_receipt


def test_where_it_is_protected(outbox):
    pay(5)
    assert len(outbox) == 1


def test_where_it_is_not(db):
    with pytest.raises(TransactionRequired):
        send_receipt.delay(5)


@pytest.mark.django_db(transaction=True)
def test_without_a_transaction_around_the_test():
    with pytest.raises(TransactionRequired):
        send_receipt.delay(5)


class Tests(TestCase):
    def test_in_a_testcase(self):
        with self.assertRaises(TransactionRequired):
            send_receipt.delay(5)
        with transaction.atomic():
            send_receipt.delay(5)
"""
    )
    (project.path / "test_other.py").write_text(
        """
from shop.tasks import send_receipt


def test_elsewhere_it_is_not_required(outbox):
    send_receipt.delay(5)
    assert len(outbox) == 1
"""
    )
    required = run("test_required.py", "-o", "usefixtures=outbox_require_transaction")
    required.assert_outcomes(passed=4)
    run("test_other.py").assert_outcomes(passed=1)


def test_a_project_may_have_another_fixture_called_outbox(
    project: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    (project.path / "conftest.py").write_text(
        """
import pytest


@pytest.fixture
def outbox():
    return ["a mail"]
"""
    )
    (project.path / "test_mails.py").write_text(
        """
from shop.tasks import send_receipt, ship_order


def test_sent_and_run(outbox, assert_task_sent, drain_outbox):
    send_receipt.delay(5)
    assert_task_sent(send_receipt, args=[5])
    assert drain_outbox()[0].get() == "receipt for 5"
    assert outbox == ["a mail"]


def test_relayed(outbox, fake_relay):
    ship_order.delay(5)
    fake_relay.run()
    assert [call.args for call in fake_relay.published] == [[5]]
"""
    )
    run("test_mails.py").assert_outcomes(passed=2)


def test_rows_of_another_test_are_not_seen(
    project: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    (project.path / "test_apart.py").write_text(
        """
import pytest
from django.db import transaction

from shop.tasks import send_receipt


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), transaction.atomic():
        send_receipt.delay(1)


def test_committed_before(outbox, drain_outbox, fake_relay):
    assert not outbox
    assert drain_outbox() == []


@pytest.mark.django_db(transaction=True)
def test_with_real_commits(outbox, drain_outbox):
    with transaction.atomic():
        send_receipt.delay(2)
    assert [call.args for call in outbox] == [[2]]
    assert drain_outbox()[0].get() == "receipt for 2"
"""
    )
    run("test_apart.py").assert_outcomes(passed=2)


def test_tasks_that_retry_link_and_repeat(
    project: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    (project.path / "shop/tasks.py").write_text(
        """
from celery import shared_task


@shared_task(bind=True, max_retries=3)
def flaky(self):
    if self.request.retries < 2:
        raise self.retry(countdown=1000)
    return self.request.retries


@shared_task
def forever():
    forever.delay()


@shared_task
def note(*args):
    return list(args)


@shared_task(bind=True)
def who(self):
    return self.request.id, self.request.root_id, self.request.delivery_info["routing_key"]


@shared_task
def sorry(task_id):
    return task_id


@shared_task
def broken():
    raise LookupError("broken")
"""
    )
    (project.path / "test_tasks.py").write_text(
        """
from datetime import datetime, timedelta

import pytest

from proj.celery import app
from shop import tasks


def test_a_retry_runs_at_once(drain_outbox):
    tasks.flaky.delay()
    assert drain_outbox()[0].get() == 2


def test_what_expires_before_it_is_due_is_dropped(drain_outbox, outbox):
    tasks.note.apply_async([1], countdown=100, expires=50)
    tasks.note.apply_async([2], countdown=100, expires=150)
    assert [each.get() for each in drain_outbox(until=timedelta(hours=1))] == [[2]]
    assert not outbox


@pytest.mark.parametrize("until", [60, "tomorrow", datetime(2031, 5, 6)])
def test_until_is_a_time(drain_outbox, until):
    with pytest.raises(TypeError, match="timedelta, or a datetime with a time zone"):
        drain_outbox(until=until)


def test_a_task_that_calls_itself_is_found_out(drain_outbox):
    tasks.forever.delay()
    with pytest.raises(RuntimeError, match="Does a task call itself"):
        drain_outbox(limit=20)


def test_links_and_errbacks(drain_outbox, outbox):
    tasks.note.apply_async([1], link=tasks.note.s(2))
    failing = tasks.broken.apply_async(link_error=tasks.sorry.s())
    results = drain_outbox(propagate=False)
    assert [result.state for result in results] == ["SUCCESS", "FAILURE", "SUCCESS", "SUCCESS"]
    assert results[2].get() == [[1], 2]
    assert results[3].get() == failing.id


def test_the_request_is_the_messages(drain_outbox):
    result = tasks.who.apply_async(queue="other")
    assert drain_outbox()[0].get() == (result.id, result.id, "other")


def test_groups(drain_outbox):
    from celery import group

    group(tasks.note.s(number) for number in range(3)).delay()
    assert [result.get() for result in drain_outbox()] == [[0], [1], [2]]


def test_a_task_of_somebody_else(drain_outbox, fake_relay, outbox):
    app.send_task("elsewhere.task", ["x"])
    with pytest.raises(LookupError, match="elsewhere.task is not registered"):
        drain_outbox()
    fake_relay.run()
    assert fake_relay.published[0].args == ["x"]


@pytest.mark.parametrize("options", [
    {"serializer": "pickle"}, {"serializer": "yaml"}, {"compression": "gzip"}, {"priority": 3},
    {"headers": {"tenant": "a"}}, {"expires": 60},
])
def test_whatever_the_message_is_made_of(outbox, assert_task_sent, options):
    tasks.note.apply_async([1, (2, 3)], **options)
    call = assert_task_sent(tasks.note, args=(1, [2, 3]), kwargs={})
    assert call.priority == options.get("priority", call.priority)
    assert call.headers.get("tenant") == options.get("headers", {}).get("tenant")
    assert (call.expires is not None) == ("expires" in options)
"""
    )
    run("test_tasks.py").assert_outcomes(passed=16)


@pytest.mark.postgresql
def test_on_postgresql_inside_of_the_tests_transaction(
    project: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    from tests.proj.settings import database_settings

    settings = database_settings("postgresql", "outbox_plugin")
    with (project.path / "proj/settings.py").open("a") as file:
        file.write(f"DATABASES = {{'default': {settings!r}}}\n")
    result = run("--create-db")
    result.assert_outcomes(passed=count_of_tests())


def test_who_does_not_use_it_does_not_even_import_django(project: pytest.Pytester) -> None:
    """Every pytest run of the environment loads the plugin, so it must be next to nothing."""
    (project.path / "test_plain.py").write_text(
        """
import sys


def test_plain(request):
    assert request.config.pluginmanager.hasplugin("celery_outbox")
    assert "django_integration.pytest_plugin" in sys.modules
    heavy = {"django", "celery", "kombu", "celery_outbox_steps", "django_integration.testing"}
    assert heavy & set(sys.modules) == set()
"""
    )
    (project.path / "pytest.ini").unlink()
    others = [f"-pno:{name}" for name in ("django", "celery", "pytest_celery", "celery.contrib")]
    result = project.runpytest_subprocess(*others, "test_plain.py")
    result.assert_outcomes(passed=1)


def test_the_import_alone_is_as_light() -> None:
    code = "import sys, django_integration.pytest_plugin; print('django' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
