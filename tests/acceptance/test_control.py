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


def test_inspect_pause_and_resume(stage: Stage) -> None:
    worker = stage.worker()
    stage.wait_until_ran(stage.enqueue(3))
    (relay,) = stage.control(worker, "inspect", "outbox")
    assert relay["state"] == "relaying"
    assert relay["database"] == "default"
    assert relay["listening"] is True
    assert relay["counters"]["published"] == 3
    assert relay["last_error"] is None
    assert relay["seconds_since_publish"] < 60

    assert stage.control(worker, "control", "outbox_pause", "maintenance") == {
        "ok": "outbox relay paused"
    }
    waiting = stage.enqueue(2)
    (relay,) = stage.control(worker, "inspect", "stats")["outbox"]
    assert (relay["state"], relay["pause_reason"]) == ("paused", "maintenance")
    assert stage.rows("claimed_by IS NULL") == 2
    assert stage.control(worker, "control", "outbox_resume") == {"ok": "outbox relay resumed"}
    stage.wait_until_ran(waiting)


def test_an_idle_relay_is_silent_and_costs_next_to_nothing(
    stage: Stage, record_property: Callable[[str, object], None]
) -> None:
    plain, relaying = stage.worker(relay=False), stage.worker()
    assert "error" in stage.ask(plain, "outbox")
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
