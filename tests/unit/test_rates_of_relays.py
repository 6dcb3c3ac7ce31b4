"""Several relays share a rate, which they reach together and do not exceed."""

from __future__ import annotations

import pytest

from celery_outbox_steps.messages import Published
from celery_outbox_steps.rates import BURST, parse_rates
from celery_outbox_steps.testing import MemoryStore


@pytest.mark.parametrize("relays", [1, 3])
@pytest.mark.parametrize("per_minute", [600, 1200])
def test_over_a_minute_a_rate_holds_within_five_per_cent(relays, per_minute):
    clock = [1_000_000.0]
    rate = parse_rates({"*": f"{per_minute}/m"})["*"]
    stores = [MemoryStore(clock=lambda: clock[0])]
    for _ in range(per_minute + 200):
        stores[0].add()
    stores += [stores[0].beside() for _ in range(relays - 1)]
    sent = []
    for _ in range(1240):
        for number, store in enumerate(stores):
            claimed = store.claim(100, 300.0, str(number))
            granted = store.pace(rate, claimed, str(number)) if claimed else set()
            store.settle([Published(each) for each in claimed if each.id in granted], str(number))
            sent += [clock[0]] * len(granted)
        clock[0] += 0.05
    begin = sent[0] + 2 * BURST
    counted = sum(begin <= moment < begin + 60 for moment in sent)
    assert counted == pytest.approx(per_minute, rel=0.05)
