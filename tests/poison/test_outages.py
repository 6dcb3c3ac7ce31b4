"""An outage spends no retry: afterwards everything arrives, and at most twice."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from celery_outbox_steps.messages import Retry
from celery_outbox_steps.settings import RelayConfig
from tests import helpers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.poison.bench import Bench
    from tests.poison.brokers import Rabbit, RedisServer

pytestmark = pytest.mark.postgresql
BEFORE, DURING = 60, 200


@contextmanager
def rabbitmq_stopped(rabbit: Rabbit) -> Iterator[None]:
    rabbit.server.stop()
    try:
        yield
    finally:
        rabbit.server.start()
        rabbit.limit()


@contextmanager
def memory_alarm(rabbit: Rabbit) -> Iterator[None]:
    rabbit.ctl("set_vm_memory_high_watermark", "0.0000001")
    try:
        yield
    finally:
        rabbit.ctl("set_vm_memory_high_watermark", "0.4")


@contextmanager
def password_changed_in_rabbitmq(rabbit: Rabbit) -> Iterator[None]:
    rabbit.ctl("change_password", rabbit.USER, "another")
    rabbit.ctl("close_all_connections", "for a test")
    try:
        yield
    finally:
        rabbit.ctl("change_password", rabbit.USER, rabbit.PASSWORD)


@pytest.mark.parametrize("outage", [rabbitmq_stopped, memory_alarm, password_changed_in_rabbitmq])
def test_rabbitmq_is_away(
    bench_on: Callable[..., Bench],
    rabbit: Rabbit,
    outage: Callable[[Rabbit], AbstractContextManager[None]],
    record_property: Any,
) -> None:
    bench = bench_on(rabbit, send_timeout=1.0)
    assert_nothing_is_spent(bench, outage(rabbit), record_property)


def config(**changes: Any) -> Callable[[RedisServer], AbstractContextManager[None]]:
    @contextmanager
    def changed(server: RedisServer) -> Iterator[None]:
        before = {name: server.client.config_get(name)[name] for name in changes}
        for name, value in changes.items():
            server.client.config_set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                server.client.config_set(name, value)

    return changed


@contextmanager
def snapshot_failed(server: RedisServer) -> Iterator[None]:
    """MISCONF: Redis takes no writes while it can't save what it has."""
    folder = Path(server.client.config_get("dir")["dir"])
    with config(save="3600 1000000")(server):
        folder.chmod(0o500)
        try:
            server.save()
            assert server.client.info("persistence")["rdb_last_bgsave_status"] == "err"
            yield
        finally:
            folder.chmod(0o700)
            server.save()


@contextmanager
def password_changed_in_redis(server: RedisServer) -> Iterator[None]:
    server.client.execute_command("ACL", "SETUSER", "relay", "resetpass", ">another")
    server.client.client_kill_filter(_type="normal", skipme=True)
    try:
        yield
    finally:
        server.client.execute_command("ACL", "SETUSER", "relay", "resetpass", ">secret")


@contextmanager
def became_a_replica(server: RedisServer) -> Iterator[None]:
    server.client.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        server.client.replicaof("NO", "ONE")


@contextmanager
def frozen(server: RedisServer) -> Iterator[None]:
    os.kill(server.server.service.pids[-1], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.server.service.pids[-1], signal.SIGCONT)


REDIS_OUTAGES = {
    "out-of-memory": config(maxmemory=1),
    "no-replicas": config(**{"min-replicas-to-write": 1}),
    "snapshot-failed": snapshot_failed,
    "password-changed": password_changed_in_redis,
    "replica": became_a_replica,
    "frozen": frozen,
}


@pytest.mark.parametrize("outage", REDIS_OUTAGES.values(), ids=REDIS_OUTAGES)
def test_redis_is_away(
    bench_on: Callable[..., Bench],
    redis_server: RedisServer,
    outage: Callable[[RedisServer], AbstractContextManager[None]],
    record_property: Any,
) -> None:
    bench = bench_on("redis", send_timeout=1.0)
    assert_nothing_is_spent(bench, outage(redis_server), record_property)


def test_a_write_permission_that_was_lost_makes_no_dead_letters(
    bench_on: Callable[..., Bench], rabbit: Rabbit
) -> None:
    """With the default settings there are two minutes to put it right before the second try."""
    default = RelayConfig()
    bench = bench_on(
        rabbit, backoff_time=default.backoff_time, max_backoff=default.max_backoff,
        max_retries=default.max_retries,
    )  # fmt: skip
    bench.copies()  # declares the queue
    rabbit.allow(write="^$")
    try:
        ids = [bench.edited(lambda options: options.pop("declare")) for _ in range(20)]
        helpers.wait_for(lambda: len(bench.settled(Retry)) == 20 or bench.dead(), 20, bench.report)
        assert bench.dead() == {}
        assert set(bench.settled(Retry).values()) == {1}
    finally:
        rabbit.allow()
    bench.sql("UPDATE celery_outbox SET due_at = now()")
    bench.wait_until_empty()
    bench.assert_arrived(ids)
    assert bench.dead() == {}


def assert_nothing_is_spent(
    bench: Bench, outage: AbstractContextManager[None], record_property: Callable[[str, Any], None]
) -> None:
    ids = bench.good(BEFORE)
    bench.wait_until_empty()
    with outage:
        ids += bench.good(DURING)
        helpers.wait_for(
            lambda: bench.service.state == "cooling down after an outage" or bench.dead(),
            30,
            bench.report,
        )
        assert bench.waiting() == DURING, bench.report()
    bench.wait_until_empty(40)
    bench.assert_no_retry_spent(ids)
    extra = bench.assert_arrived(ids)
    record_property("extra copies", extra)
    print(f"extra copies: {extra} of {len(ids)}, deferred {bench.deferred} times")
