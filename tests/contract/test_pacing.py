"""Release rates on a database: relays that ask at the same time, each with its own delays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from celery_outbox_steps.rates import Rate
from django_integration.models import CeleryOutboxRate

RATE = Rate("mail.*", 10.0)


def budget(database):
    row = CeleryOutboxRate.objects.using(database.alias).get()
    return row.used_until, row.planned_until


def test_asking_takes_nothing_from_the_rate(database):
    """Whatever time passes between the statements of a relay, or while it waits for another."""
    database.add(20)
    store = database.store()
    assert len(store.pace(RATE, store.claim(20, 300, "me"), "me")) == 10
    before = budget(database)

    def ask(number):
        relay = database.store()
        return [relay.pace(RATE, [], f"relay {number}") for _ in range(10)]

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(ask, range(3)))
    assert budget(database) == before


def test_relays_that_come_first_at_the_same_time_share_a_whole_burst(database):
    """None of them takes another's delay for rows that wait for their turns."""
    database.add(12)
    stores = [database.store() for _ in range(3)]
    batches = [store.claim(3, 300, f"relay {n}") for n, store in enumerate(stores)]
    with ThreadPoolExecutor(3) as pool:
        granted = list(pool.map(
            lambda n: len(stores[n].pace(RATE, batches[n], f"relay {n}")), range(3)
        ))  # fmt: skip
    assert sum(granted) == 9
