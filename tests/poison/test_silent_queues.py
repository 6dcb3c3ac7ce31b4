"""A queue that takes messages and never confirms, or whose declaration is never answered.

A quorum queue without a majority behaves so. Others must not wait for it, nor be sent again and
again; its own messages are dead in the end, since the broker is there and answers for the rest.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Exchange, Queue

from celery_outbox_steps.messages import Deferred, Retry
from celery_outbox_steps.settings import RelayConfig
from tests import helpers
from tests.poison.poisons import to_exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.poison.bench import Bench
    from tests.poison.brokers import Rabbit

pytestmark = pytest.mark.postgresql
GOOD = 120
SENT_ALONE = 3
"""Messages that may have been the ones to find out that a queue is silent."""


@contextmanager
def suspended(rabbit: Rabbit, name: str) -> Iterator[None]:
    """The process behind a queue answers no request until the end of the block."""
    with rabbit.admin() as connection:
        Queue(name, Exchange(name), name)(connection.default_channel).declare()
    find = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{name}">>)), '
    rabbit.eval(find + "sys:suspend(amqqueue:get_pid(Q)).")
    try:
        yield
    finally:
        rabbit.eval(find + "sys:resume(amqqueue:get_pid(Q)).")


def without_declaration(bench: Bench, name: str) -> str:
    return to_exchange("", name)(bench)


def with_declaration(bench: Bench, name: str) -> str:
    return bench.call(queue=Queue(name, Exchange(name), name))


@pytest.mark.parametrize("send", [without_declaration, with_declaration])
def test_a_silent_queue_holds_up_its_own_messages_only(
    bench_on: Callable[..., Bench],
    rabbit: Rabbit,
    send: Callable[[Bench, str], str],
    record_property: Any,
) -> None:
    bench = bench_on(rabbit, send_timeout=1.0, start=False)
    name = bench.name("silent")
    with suspended(rabbit, name):
        assert_it_holds_up_its_own_only(bench, lambda: send(bench, name), record_property)


def test_a_queue_that_pauses_costs_no_retry_of_what_was_not_sent(
    bench_on: Callable[..., Bench], rabbit: Rabbit
) -> None:
    """Most apps have one queue: for them a leader election of it is an outage of the broker.

    With the default backoff, so that a row that spent a retry does not arrive in time.
    """
    default = RelayConfig()
    bench = bench_on(
        rabbit, send_timeout=1.0, start=False,
        backoff_time=default.backoff_time, max_backoff=default.max_backoff,
    )  # fmt: skip
    bench.copies()  # declares the queue
    with suspended(rabbit, bench.queue):
        ids = [bench.call("good") for _ in range(120)]
        bench.start()
        helpers.wait_for(lambda: bench.settled(Retry, Deferred), 20, bench.report)
    helpers.wait_for(lambda: bench.waiting() <= SENT_ALONE, 30, bench.report)
    assert bench.dead() == {}
    spent = bench.settled(Retry)
    assert len(spent) <= SENT_ALONE, f"{len(spent)} of {len(ids)} spent a retry"


def assert_it_holds_up_its_own_only(
    bench: Bench, send: Callable[[], str], record_property: Callable[[str, Any], None]
) -> None:
    good = bench.good(GOOD // 2)
    bad = [send(), send()]
    good += bench.good(GOOD // 2)
    bench.start()
    bench.wait_until_empty(40)
    bench.assert_no_retry_spent(good)
    extra = bench.assert_arrived(good)
    record_property("extra copies", extra)
    print(f"extra copies: {extra} of {len(good)}, deferred {bench.deferred} times")
    assert set(bench.dead()) == set(bad)
