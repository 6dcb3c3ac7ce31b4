"""Where a claim begins: at the last one's end, and from the very beginning when that is cheap."""

from __future__ import annotations

from django_integration.store.watermark import COST, Watermark


def looked(seconds: float) -> Watermark:
    watermark = Watermark()
    watermark.looked(100.0, 100.0 + seconds)
    watermark.claimed("position")
    return watermark


def test_the_first_claim_begins_at_the_beginning():
    assert Watermark().start(0.0) is None


def test_without_a_claimed_row_there_is_nothing_to_remember():
    watermark = Watermark()
    watermark.looked(100.0, 101.0)
    assert watermark.start(101.0) is None


def test_the_next_claim_begins_where_the_last_one_ended():
    assert looked(1.0).start(101.5) == "position"


def test_a_full_look_comes_again_after_its_price_was_earned():
    watermark = looked(1.0)
    assert not watermark.may_look(101.0 + COST - 0.1)
    assert watermark.may_look(101.0 + COST)
    assert watermark.start(101.0 + COST) is None


def test_a_cheap_look_may_come_soon_again():
    assert looked(0.001).start(100.1) is None


def test_the_position_may_go_back_where_older_rows_were_found():
    watermark = looked(1.0)
    watermark.claimed("an older position")
    assert watermark.start(102.0) == "an older position"


def test_full_looks_take_about_a_twentieth_of_the_time():
    watermark, now, spent = Watermark(), 0.0, 0.0
    while now < 1000.0:
        cost = 0.5 if watermark.start(now) is None else 0.01
        if cost == 0.5:
            watermark.looked(now, now + cost)
            spent += cost
        now += cost
        watermark.claimed(now)
    assert spent / now < 0.06
