"""The liveness file: fresh while the relay lives, old when it hangs; the probes of the docs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from django.db import connections, transaction

from tests import helpers
from tests.harness.http import free_port, request
from tests.harness.processes import LocalProcess
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/how-to/kubernetes.md"
DOCUMENTED_FILE = "/tmp/celery-outbox-alive"

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


def documented(title: str) -> Any:
    """The YAML of the page that has this title."""
    blocks = re.findall(r"(?ms)^```yaml\n# (\w+)\n(.*?)^```$", PAGE.read_text())
    return yaml.safe_load(dict(blocks)[title])


def liveness_command(file: Path) -> list[str]:
    command: list[str] = documented("liveness")["livenessProbe"]["exec"]["command"]
    assert DOCUMENTED_FILE in command[-1]
    return [part.replace(DOCUMENTED_FILE, str(file)) for part in command]


def alive(file: Path) -> bool:
    """What Kubernetes would conclude from the documented command."""
    return subprocess.run(liveness_command(file), check=False, capture_output=True).returncode == 0


def make_old(file: Path) -> None:
    os.utime(file, (time.time() - 300, time.time() - 300))
    assert not alive(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "alive"


def config(file: Path, **more: Any) -> dict[str, Any]:
    return {"liveness_file": str(file), **more}


def test_an_idle_relay_is_alive(app: Any, watch: Callable[..., Any], file: Path) -> None:
    assert not alive(file)  # the worker has not started yet
    # No look at the table for half a minute, which the file must not wait for.
    watch(app, config=config(file, idle_time=30.0))
    wait_for(lambda: alive(file), timeout=10)
    for _ in range(2):
        make_old(file)
        wait_for(lambda: alive(file), timeout=10)


def test_a_relay_that_waits_for_the_broker_or_is_paused_is_alive(
    app: Any, watch: Callable[..., Any], file: Path
) -> None:
    relay = watch(app, config=config(file))
    relay.service.broker_down()
    wait_for(lambda: alive(file))
    make_old(file)
    wait_for(lambda: alive(file))
    relay.service.broker_up()
    relay.service.pause("maintenance")
    make_old(file)
    wait_for(lambda: alive(file))


def test_a_relay_whose_database_is_away_is_alive(
    app: Any, watch: Callable[..., Any], file: Path, tmp_path: Path
) -> None:
    from celery_outbox_steps.errors import StoreError
    from celery_outbox_steps.testing import MemoryStore

    class Away(MemoryStore):
        def claim(self, *args: Any) -> Any:
            raise StoreError("connection refused")

    relay = watch(app, store=Away(), config=config(file))
    relay.counted("errors", 2)
    make_old(file)
    wait_for(lambda: alive(file))


def test_a_busy_relay_is_alive(app: Any, watch: Callable[..., Any], file: Path) -> None:
    with transaction.atomic(), app.outbox_bulk():
        for _ in range(300):
            app.send_task("shop.ship_order")
    relay = watch(app, config=config(file, batch_size=1))
    relay.counted("published", 20)
    wait_for(lambda: alive(file))
    relay.counted("published", 300)


def test_a_relay_that_hangs_in_the_database_is_not(
    app: Any, watch: Callable[..., Any], file: Path
) -> None:
    relay = watch(app, config=config(file))
    wait_for(lambda: alive(file))
    blocker = connections["default"].copy()
    try:
        blocker.set_autocommit(False)
        with blocker.cursor() as cursor:
            cursor.execute("LOCK TABLE celery_outbox IN ACCESS EXCLUSIVE MODE")
        wait_for(lambda: _waits_for_a_lock(blocker))
        make_old(file)
        # Nothing to wait for: nothing must happen. Twice as long as the file may stay untouched.
        threading.Event().wait(2.5)
        assert not alive(file)
        assert relay.service.state == "relaying"  # the relay itself can't know
    finally:
        blocker.rollback()
        blocker.close()
    wait_for(lambda: alive(file))


def _waits_for_a_lock(connection: Any) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def test_a_file_that_cannot_be_written_is_said_once(
    app: Any, watch: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    relay = watch(app, config=config(tmp_path / "no such directory/alive"))
    relay.counted("liveness_errors", 2)
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events.count("celery_outbox_liveness_failed") == 1


@pytest.fixture
def worker(tmp_path: Path, file: Path) -> Iterator[dict[str, str]]:
    """A real worker of a project called proj, started as the page says; its environment."""
    database = dict(connections["default"].settings_dict)
    name = f"outbox-test-{uuid.uuid4().hex[:8]}"
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj/__init__.py").touch()
    (tmp_path / "proj/settings.py").write_text(
        f"SECRET_KEY = 'x'\nUSE_TZ = True\nINSTALLED_APPS = ['django_integration']\n"
        f"DATABASES = {{'default': {database!r}}}\nCELERY_TASK_DEFAULT_QUEUE = {name!r}\n"
        f"CELERY_BROKER_URL = {helpers.require_service('rabbitmq').url!r}\n"
        f"CELERY_OUTBOX_IDLE_TIME = 0.1\n"
    )
    (tmp_path / "proj/celery.py").write_text(
        "import os\nfrom celery_outbox_steps import OutboxRelayStep\n"
        "from django_integration import OutboxCelery\n"
        "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'proj.settings')\n"
        "app = OutboxCelery('proj')\n"
        "app.config_from_object('django.conf:settings', namespace='CELERY')\n"
        "app.steps['worker'].add(OutboxRelayStep)\n"
    )
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("DJANGO_")},
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOSTNAME": f"{name}.{socket.gethostname()}",
    }
    container = documented("worker")["spec"]["template"]["spec"]["containers"][0]
    environment["PORT"] = str(free_port())
    command = [part.replace("9100", environment["PORT"]) for part in container["command"]]
    command += [f"--outbox-liveness-file={file}"]
    command += ["-P", "solo", "-n", f"celery@{environment['HOSTNAME']}"]
    process = LocalProcess(command, name="worker", cwd=tmp_path, env=environment)
    process.start()
    yield environment
    process.stop(30)


@pytest.mark.rabbitmq
def test_the_documented_worker_passes_all_documented_probes(
    worker: dict[str, str], file: Path, tmp_path: Path
) -> None:
    log = tmp_path / "worker.log"
    wait_for(lambda: alive(file), timeout=60, message=lambda: log.read_text()[-3000:])
    command = documented("readiness")["readinessProbe"]["exec"]["command"]

    def ready() -> bool:
        ended = subprocess.run(command, cwd=tmp_path, env=worker, check=False, capture_output=True)
        return ended.returncode == 0

    wait_for(ready, timeout=60, message=lambda: log.read_text()[-3000:])
    for probe in documented("probes").values():
        assert probe["httpGet"]["port"] == 9100
        assert request(int(worker["PORT"]), probe["httpGet"]["path"]).status == 200
    assert "celery_outbox_relay_state" in request(int(worker["PORT"]), "/metrics").text
    subprocess.run(
        ["celery", "-A", "proj", "control", "outbox_pause", "test", "-d",
         f"celery@{worker['HOSTNAME']}"],
        cwd=tmp_path, env=worker, check=True, capture_output=True,
    )  # fmt: skip
    wait_for(lambda: not ready(), timeout=60)
    assert alive(file)


def test_the_full_example_has_the_same_probes() -> None:
    container = documented("worker")["spec"]["template"]["spec"]["containers"][0]
    for name, probe in documented("probes").items():
        assert container[name] == {**probe, "httpGet": {**probe["httpGet"], "port": "outbox"}}
