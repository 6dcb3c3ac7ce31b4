"""Whatever a row provokes, it ends as a dead letter with its reason, and the others arrive."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from tests.poison.poisons import CASES, IDS, POISONS, Poison

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.poison.bench import Bench

pytestmark = pytest.mark.postgresql
GOOD = 100
PER_POISON = 10
every_case = pytest.mark.parametrize(("poison", "broker"), CASES, ids=IDS)


@every_case
def test_alone_it_is_dead_with_its_reason(
    bench_on: Callable[..., Bench], poison: Poison, broker: str
) -> None:
    bench = bench_on(broker)
    poison.prepare(bench)
    task_id = poison.make(bench)
    bench.wait_until_empty()
    ((dead, reason),) = bench.dead().items()
    assert dead == task_id
    assert poison.reason in reason


@every_case
def test_among_good_ones_it_costs_them_at_most_one_copy(
    bench_on: Callable[..., Bench], poison: Poison, broker: str, record_property: Any
) -> None:
    bench = bench_on(broker, batch_size=20)
    poison.prepare(bench)
    good, bad = mixed(bench, [poison] * (GOOD // PER_POISON))
    assert_only_the_bad_die(bench, good, bad, record_property)


@pytest.mark.parametrize("broker", ["rabbitmq", "redis", "filesystem", "memory"])
def test_all_kinds_at_once(
    bench_on: Callable[..., Bench], broker: str, record_property: Any
) -> None:
    bench = bench_on(broker)
    kinds = [each for each in POISONS if broker in each.brokers]
    for poison in kinds:
        poison.prepare(bench)
    good, bad = mixed(bench, kinds)
    assert_only_the_bad_die(bench, good, bad, record_property)


def mixed(bench: Bench, poisons: Iterable[Poison]) -> tuple[list[str], list[str]]:
    """One per ten good ones, at a different place of each ten; a transaction for each ten."""
    good: list[str] = []
    bad: list[str] = []
    for poison, place in zip(poisons, cycle(range(PER_POISON)), strict=False):
        with transaction.atomic():
            good += bench.good(place)
            bad.append(poison.make(bench))
            good += bench.good(PER_POISON - place)
    return good, bad


def assert_only_the_bad_die(
    bench: Bench, good: list[str], bad: list[str], record_property: Callable[[str, Any], None]
) -> None:
    bench.wait_until_empty()
    extra = bench.assert_arrived(good)
    record_property("extra copies", extra)
    print(f"extra copies: {extra} of {len(good)}, deferred {bench.deferred} times")
    bench.assert_no_retry_spent(good)
    assert set(bench.dead()) == set(bad)
