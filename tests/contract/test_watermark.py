"""Where a claim begins: at the last one's end, and from the very beginning when that is cheap."""

from __future__ import annotations

from django_integration.store.watermark import FULL_SCAN_PAUSE, REACH_BACK, Start, Watermark


def after_full_scan(seconds: float) -> Watermark:
    watermark = Watermark()
    watermark.record_full_scan(100.0, 100.0 + seconds)
    watermark.advance(10, 20, 5)
    return watermark


def test_the_first_claim_begins_at_the_beginning():
    assert Watermark().start(0.0) is None


def test_without_a_claimed_row_there_is_nothing_to_remember():
    watermark = Watermark()
    watermark.record_full_scan(100.0, 101.0)
    assert watermark.start(101.0) is None


def test_the_next_claim_begins_where_the_last_one_ended():
    assert after_full_scan(1.0).start(101.5) == Start(last=20, earliest=10)


def test_a_full_scan_comes_again_after_a_pause_of_many_times_its_duration():
    watermark = after_full_scan(1.0)
    assert not watermark.allows_full_scan(101.0 + FULL_SCAN_PAUSE - 0.1)
    assert watermark.allows_full_scan(101.0 + FULL_SCAN_PAUSE)
    assert watermark.start(101.0 + FULL_SCAN_PAUSE) is None


def test_a_cheap_full_scan_comes_again_soon():
    assert after_full_scan(0.001).start(100.1) is None


def test_it_reaches_back_behind_the_last_rows_and_no_further():
    watermark = after_full_scan(1.0)
    watermark.advance(20, 30, REACH_BACK - 1)
    assert watermark.start(102.0) == Start(last=30, earliest=10)
    watermark.advance(30, 40, 1)
    assert watermark.start(102.0) == Start(last=40, earliest=20)
    watermark.advance(40, 50, REACH_BACK)
    assert watermark.start(102.0) == Start(last=50, earliest=40)


def test_it_goes_back_where_older_rows_were_found():
    watermark = after_full_scan(1.0)
    watermark.advance(3, 4, 5)
    assert watermark.start(102.0) == Start(last=4, earliest=3)


def test_full_scans_take_about_a_twentieth_of_the_time():
    watermark, now, spent = Watermark(), 0.0, 0.0
    while now < 1000.0:
        cost = 0.5 if watermark.start(now) is None else 0.01
        if cost == 0.5:
            watermark.record_full_scan(now, now + cost)
            spent += cost
        now += cost
        watermark.advance(now, now, 1)
    assert spent / now < 0.06
