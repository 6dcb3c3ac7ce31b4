"""The relay's decisions about time, with time as an argument."""

from __future__ import annotations

import pytest

from celery_outbox_steps.relay.policy import Backoff, Breaker, IdleSchedule, restart_pause


@pytest.mark.parametrize(("retries", "delay"), [(0, 120), (1, 240), (4, 1920), (5, 3600)])
def test_backoff_doubles_up_to_its_cap(retries: int, delay: float) -> None:
    assert Backoff(120, 3600).delay(retries, jitter=0) == delay


def test_backoff_adds_a_tenth_of_jitter_at_most() -> None:
    assert Backoff(100, 3600).delay(0, jitter=1) == pytest.approx(110)
    assert Backoff(100, 105).delay(0, jitter=1) == 105


def test_backoff_survives_absurd_numbers_of_retries() -> None:
    assert Backoff(120, 3600).delay(100_000, jitter=0.5) == 3600


class TestBreaker:
    def test_one_outage_changes_nothing(self) -> None:
        breaker = Breaker(cooldown=30)
        breaker.outage(now=100)
        assert not breaker.is_open
        assert breaker.allowance(500, now=100) == 500

    def test_two_in_a_row_stop_the_claims_until_the_cooldown_is_over(self) -> None:
        breaker = Breaker(cooldown=30)
        breaker.outage(now=100)
        breaker.outage(now=101)
        assert breaker.is_open
        assert breaker.allowance(500, now=130.9) == 0
        assert breaker.allowance(500, now=131) == 1

    def test_a_success_between_two_outages_counts(self) -> None:
        breaker = Breaker(cooldown=30)
        breaker.outage(now=100)
        breaker.success()
        breaker.outage(now=101)
        assert breaker.allowance(500, now=102) == 500

    def test_a_probe_that_fails_opens_it_for_another_cooldown(self) -> None:
        breaker = Breaker(cooldown=30)
        for now in (100, 101, 131):
            breaker.outage(now)
        assert breaker.allowance(500, now=160) == 0
        assert breaker.allowance(500, now=161) == 1

    def test_a_probe_that_succeeds_closes_it(self) -> None:
        breaker = Breaker(cooldown=30)
        breaker.outage(now=100)
        breaker.outage(now=101)
        breaker.success()
        assert not breaker.is_open
        assert breaker.allowance(500, now=102) == 500

    def test_who_sees_the_broker_alive_need_not_wait(self) -> None:
        breaker = Breaker(cooldown=30)
        breaker.outage(now=100)
        breaker.outage(now=101)
        breaker.probe_now()
        assert breaker.allowance(500, now=102) == 1


class TestIdleSchedule:
    def test_pauses_double_up_to_the_longest(self) -> None:
        idle = IdleSchedule(longest=0.1)
        assert [idle.after_nothing() for _ in range(6)] == [0.01, 0.02, 0.04, 0.08, 0.1, 0.1]

    def test_work_starts_over(self) -> None:
        idle = IdleSchedule(longest=1)
        for _ in range(9):
            idle.after_nothing()
        assert idle.after_work(more=False) == 0.01
        assert idle.after_nothing() == 0.01

    def test_no_pause_while_more_is_waiting(self) -> None:
        assert IdleSchedule(longest=1).after_work(more=True) == 0


def test_the_loop_rests_longer_after_each_failure_but_never_long() -> None:
    pauses = [restart_pause(failures) for failures in range(1, 7)]
    assert pauses == [0.5, 1, 2, 4, 5, 5]
    assert restart_pause(10_000) == 5
