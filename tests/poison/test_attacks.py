"""Other ways in which a few rows, a setting or a server could stop a relay or double its work."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connection

from celery_outbox_steps.messages import Message
from celery_outbox_steps.publishers import publisher_for
from django_integration.signals import outbox_message_sent
from tests import helpers
from tests.harness.databases import complete, installed
from tests.proj.settings import database_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.poison.bench import Bench
    from tests.poison.brokers import Rabbit, RedisServer

pytestmark = pytest.mark.postgresql


@contextmanager
def every(seconds: float, work: Callable[[], Any]) -> Iterator[None]:
    """Do something again and again while the block runs."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_returned_messages_are_matched_in_linear_time(rabbit: Rabbit, bench_on: Any) -> None:
    bench = bench_on(rabbit, start=False)
    publisher = publisher_for(bench.app)

    def cost(count: int) -> float:
        messages = [unroutable(number) for number in range(count)]
        before = time.thread_time()
        assert all(error for _, error in publisher.publish(messages, 60))
        return time.thread_time() - before

    cost(100)  # connects
    few, many = cost(1000), cost(8000)
    print(f"1,000 returned messages: {few:.2f} s of CPU; 8,000: {many:.2f} s")
    assert many < 8 * few * 2.5


def unroutable(number: int) -> Message:
    properties = {"correlation_id": str(number), "delivery_mode": 2}
    return Message(b"[]", "application/json", "utf-8", {}, properties, 0, "", "no-such-queue")


def test_rows_of_an_unknown_version_do_not_slow_the_claim(bench_on: Callable[..., Bench]) -> None:
    """A rolling deploy leaves such rows, and they are the oldest."""
    bench = bench_on("memory", start=False)
    before = claims(bench)
    bench.sql(
        "INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, created_at, due_at,"
        " retries, schema_version) SELECT n, 'later', '[]', '{}', '{}', now(),"
        " now() - interval '1 hour', 0, 999 FROM generate_series(1, 300000) n"
    )
    after = claims(bench)
    bench.sql("TRUNCATE celery_outbox")
    print(f"20 claims: {before:.2f} s without and {after:.2f} s with 300,000 such rows")
    assert after < before + 2.0


def claims(bench: Bench) -> float:
    start = time.monotonic()
    for _ in range(20):
        (task_id,) = bench.good()
        (row,) = bench.store.claim(50, 60, "a test")
        assert row.task_id == task_id
        bench.sql("DELETE FROM celery_outbox WHERE task_id = %s", task_id)
    return time.monotonic() - start


def test_a_relay_whose_sessions_are_terminated_publishes_nothing_twice(
    bench_on: Callable[..., Bench],
) -> None:
    bench = bench_on("rabbitmq", start=False, stale_timeout=6.0)
    ids = bench.good(2000)
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    bench.start()
    end = time.monotonic() + 40
    while bench.waiting() and time.monotonic() < end:
        bench.sql(kill)
        threading.Event().wait(0.3)
    bench.wait_until_empty(1)
    assert bench.assert_arrived(ids) == 0
    bench.assert_no_retry_spent(ids)


def test_redis_clients_that_are_killed_cost_at_most_one_copy(
    bench_on: Callable[..., Bench], redis_server: RedisServer
) -> None:
    bench = bench_on("redis")
    ids: list[str] = []

    def kill() -> None:
        redis_server.client.client_kill_filter(_type="normal", skipme=True)

    with every(0.5, kill):
        for _ in range(25):
            ids += bench.good(50)
        bench.wait_until_empty(40)
    bench.assert_no_retry_spent(ids)
    print(f"extra copies: {bench.assert_arrived(ids)} of {len(ids)}")


def test_a_batch_of_100_000_arrives(bench_on: Callable[..., Bench]) -> None:
    bench = bench_on("rabbitmq", start=False, batch_size=100_000, send_timeout=30.0)
    (first,) = bench.good()
    copy_rows(bench, 10_000)
    ids = [row[0] for row in bench.sql("SELECT task_id FROM celery_outbox")]
    assert len(ids) == 10_001
    assert first in ids
    bench.start()
    bench.wait_until_empty(60)
    assert bench.assert_arrived(ids) == 0


def copy_rows(bench: Bench, count: int) -> None:
    """Copies of the one row that is there, with task ids of their own."""
    columns = "task_name, args, kwargs, created_at, due_at, retries, schema_version"
    bench.sql(
        f"INSERT INTO celery_outbox (task_id, options, {columns})"
        f" SELECT md5(n::text), replace(options, task_id, md5(n::text)), {columns}"
        " FROM celery_outbox, generate_series(1, %s) n",
        count,
    )


def test_a_broker_that_takes_longer_than_the_send_timeout_gets_everything(
    bench_on: Callable[..., Bench],
) -> None:
    """Every batch is cut off by the clock; what was confirmed by then is not sent again."""
    bench = bench_on("rabbitmq", start=False, batch_size=2000, send_timeout=0.2)
    (_,) = bench.good()
    copy_rows(bench, 4000)
    ids = [row[0] for row in bench.sql("SELECT task_id FROM celery_outbox")]
    bench.start()
    bench.wait_until_empty(60)
    bench.assert_no_retry_spent(ids)
    print(f"extra copies: {bench.assert_arrived(ids)} of {len(ids)}")


def test_a_write_url_of_its_own_is_the_one_that_is_published_to(
    bench_on: Callable[..., Bench], rabbit: Rabbit
) -> None:
    nowhere = "amqp://guest:guest@127.0.0.1:1//"
    urls = {"broker_read_url": nowhere, "broker_write_url": rabbit.url}
    bench = bench_on(rabbit, conf={"broker_url": nowhere, **urls})
    ids = bench.good(10)
    bench.wait_until_empty()
    assert bench.assert_arrived(ids) == 0


@pytest.mark.parametrize("broker", ["rabbitmq", "redis"])
def test_an_event_that_can_not_be_sent_costs_no_message_anything(
    bench_on: Callable[..., Bench], broker: str
) -> None:
    """A `task-sent` event is for monitors: its message has arrived by then."""
    bench = bench_on(broker, conf={"task_send_sent_event": True})

    def spoil(options: dict[str, Any]) -> None:
        options["event"]["headers"]["x"] = float("nan")
        if broker == "redis":
            options["event"]["routing_key"] = "\ud800"

    ids: list[str] = []
    for _ in range(10):
        ids += [*bench.good(5), bench.edited(spoil), *bench.good(5)]
    bench.wait_until_empty()
    assert bench.assert_arrived(ids) == 0
    bench.assert_no_retry_spent(ids)


def test_a_task_name_can_not_forge_a_log_line(
    bench_on: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bench = bench_on("rabbitmq")
    forged = "evil\nCRITICAL root: everything is lost\r\x1b[31m"
    bench.call(forged, queue="amq.reserved")
    bench.call(forged)
    bench.wait_until_empty()
    assert len(bench.dead()) == 1
    ours = [each for each in caplog.records if each.name.startswith("celery_outbox")]
    assert ours
    lines = [each.getMessage() for each in ours]
    assert [line for line in lines if set(line) & {"\n", "\r", "\x1b"}] == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_receiver_that_ends_the_process_does_not_end_the_relay(
    bench_on: Callable[..., Bench], error: type[BaseException]
) -> None:
    bench = bench_on("memory")

    def leave(**_: Any) -> None:
        if error is SystemExit:
            sys.exit("a receiver called sys.exit")
        raise error

    outbox_message_sent.connect(leave, weak=False, dispatch_uid="leave")
    try:
        first = bench.good()
        helpers.wait_for(lambda: not bench.waiting(), 5, bench.report)
    finally:
        outbox_message_sent.disconnect(dispatch_uid="leave")
    second = bench.good()
    bench.wait_until_empty(4)
    assert bench.assert_arrived(first + second) == 0


def test_an_error_text_that_the_database_can_not_hold(bench_on: Callable[..., Bench]) -> None:
    """A database in Latin-1, and a broker that answers with the name of a Cyrillic exchange."""
    with latin1_database(), stopped_in_the_end(bench_on("rabbitmq")) as bench:
        good = bench.good(5)
        bad = bench.edited(lambda options: options.update(exchange="склад", declare=[]))
        good += bench.good(5)
        bench.wait_until_empty(6)
        assert bench.assert_arrived(good) == 0
        assert set(bench.dead()) == {bad}


@contextmanager
def latin1_database() -> Iterator[None]:
    """The default database is such a one for a while."""
    name = f"poison_latin1_{uuid4().hex[:8]}"
    settings = complete(database_settings("postgresql", name))
    with connection._nodb_cursor() as cursor:
        cursor.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
            " TEMPLATE template0"
        )
        try:
            with installed("default", settings):
                call_command("migrate", "celery_outbox", verbosity=0)
                yield
        finally:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def stopped_in_the_end(bench: Bench) -> Iterator[Bench]:
    try:
        yield bench
    finally:
        bench.stop()
