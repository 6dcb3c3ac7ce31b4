"""What people see and steer: help, inspect, stats, pause, and an idle relay that is quiet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_outbox_steps.settings import SETTINGS
from tests import helpers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.stage import Stage


def test_flags_have_their_own_group_in_the_help(stage: Stage) -> None:
    _, _, after = stage.celery("worker", "--help").partition("Outbox Relay Options")
    group = after.partition("\n\n")[0]
    flags = [setting.flag_name for setting in SETTINGS if setting.flag]
    assert len(flags) > 10
    assert [flag for flag in flags if flag not in group] == []
    assert "CELERY_WORKER_OUTBOX_RELAY" in group


def test_inspect_answers_with_a_dict(stage: Stage) -> None:
    worker = stage.worker()
    stage.wait_until_ran(stage.enqueue(3))
    (relay,) = stage.control(worker, "inspect", "outbox")["relays"]
    assert relay["state"] == "relaying"
    assert relay["database"] == "default"
    assert relay["listening"] is True
    assert relay["counters"]["published"] == 3
    assert relay["last_error"] is None
    assert relay["seconds_since_publish"] < 60


def test_a_worker_without_a_relay_says_so(stage: Stage) -> None:
    worker = stage.prepare("-l", "ERROR", relay=False, concurrency=1)
    worker.process.start()
    worker.wait_for("outbox: no relay in this worker")
    helpers.wait_for(lambda: stage.client.control.ping([worker.node]), 30)
    answer = stage.control(worker, "inspect", "outbox")
    assert answer["relays"] == []
    assert "--outbox-relay" in answer["note"]


def test_a_pause_of_one_worker_lets_another_take_over(stage: Stage) -> None:
    paused, other = (stage.worker("--outbox-relays=1", concurrency=1) for _ in range(2))
    assert stage.control(paused, "control", "outbox_pause", "maintenance") == {
        "ok": "outbox relay paused"
    }
    other.wait_for("celery_outbox_relay_at_work")
    stage.wait_until_ran(stage.enqueue(2))
    (relay,) = stage.control(paused, "inspect", "stats")["outbox"]
    assert (relay["state"], relay["pause_reason"]) == ("paused", "maintenance")
    assert stage.control(paused, "control", "outbox_resume") == {"ok": "outbox relay resumed"}


def test_a_pause_without_a_destination_pauses_the_outbox_until_it_is_resumed(stage: Stage) -> None:
    worker = stage.worker(concurrency=1)
    stage.celery("control", "outbox_pause", "maintenance")
    worker.wait_for("celery_outbox_paused")
    waiting = stage.enqueue(2)
    later = stage.worker(concurrency=1)
    assert later.lines("outbox: default is paused by")
    assert "maintenance" in later.lines("outbox: ")[0]
    assert worker.stop() == 0
    assert stage.rows("claimed_by IS NULL") == 2
    stage.celery("control", "outbox_resume")
    stage.wait_until_ran(waiting)


def test_a_command_pauses_one_destination_and_resumes_it(stage: Stage) -> None:
    partner = {"partner": {"url": stage.broker, "queue": stage.parcels}}
    stage.settings["CELERY_OUTBOX_DESTINATIONS"] = partner
    stage.client.conf.outbox_destinations = partner
    worker = stage.worker(concurrency=1)
    said = stage.celery("outbox", "pause", "partner", "--reason", "they moved")
    assert "Destination partner is paused." in said
    assert "Relays at work have been told." in said
    waiting = stage.enqueue(2, outbox_destination="partner")
    stage.wait_until_ran(stage.enqueue(2))
    status = stage.celery("outbox", "status")
    assert "healthy: 1 relay at work\n  destination partner: paused for " in status
    (relay,) = stage.ask(worker, "outbox")["relays"]
    (destination,) = relay["destinations"]
    assert (destination["state"], destination["pause_reason"]) == ("paused", "they moved")
    stage.celery("outbox", "resume", "partner")
    helpers.wait_for(lambda: not stage.sql("SELECT id FROM celery_outbox_delivery"), 20)
    assert sorted(stage.arrived()) == sorted(waiting)
    healthy = "destination partner: healthy: 1 relay at work"
    helpers.wait_for(lambda: healthy in stage.celery("outbox", "status"), 20)


def test_an_idle_relay_is_silent_and_costs_next_to_nothing(
    stage: Stage, record_property: Callable[[str, object], None]
) -> None:
    plain, relaying = stage.worker(relay=False), stage.worker()
    stage.wait_until_ran(stage.enqueue(3))
    stage.wait_until_empty()
    lines = len(relaying.lines("celery_outbox"))
    begin, without, idle = time.monotonic(), plain.cpu_seconds(), relaying.cpu_seconds()
    helpers.wait_for(lambda: time.monotonic() - begin > 8, 20)
    took = time.monotonic() - begin
    cost = (relaying.cpu_seconds() - idle) - (plain.cpu_seconds() - without)
    record_property("share_of_a_core", round(cost / took, 4))
    assert cost / took < 0.02, f"{cost / took:.1%} of a core"
    assert len(relaying.lines("celery_outbox")) == lines


def test_liveness_file(stage_with: Callable[..., Stage]) -> None:
    stage = stage_with()
    file = stage.path / "alive"
    worker = stage.worker(f"--outbox-liveness-file={file}", "--outbox-idle-time=60")
    helpers.wait_for(file.exists, 10)
    touched = file.stat().st_mtime
    helpers.wait_for(lambda: file.stat().st_mtime > touched, 10, "not touched while idle")
    worker.kill("SIGSTOP")
    try:
        touched = file.stat().st_mtime
        begin = time.monotonic()
        helpers.wait_for(lambda: time.monotonic() - begin > 2.5, 10)
        assert file.stat().st_mtime == touched
    finally:
        worker.kill("SIGCONT")
