"""The probe of the docs, as the kubelet runs it: a command, and the status that it exits with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import DOCS, ROOT, blocks
from tests.docs.processes import clean_environment, run, with_programs_of

SHOP = ROOT / "examples" / "shop"
A_LATE_CALL = """
from datetime import timedelta
from django.core.management import call_command
from django.db import transaction
from django_integration.models import CeleryOutbox
from shop.celery import app
call_command("migrate", verbosity=0)
with transaction.atomic():
    app.send_task("orders.tasks.send_receipt", (1,))
late = CeleryOutbox.objects.get().due_at - timedelta(minutes=5)
CeleryOutbox.objects.update(due_at=late)
"""


def probes() -> list[list[str]]:
    """The commands of all exec probes in the docs that ask for the age of messages."""
    pages = (DOCS / "how-to" / "monitoring.md", DOCS / "how-to" / "kubernetes.md")
    texts = [block.text for page in pages for block in blocks(page) if block.language == "yaml"]
    found = [each for text in texts for document in yaml.safe_load_all(text)
             for each in commands_in(document)]  # fmt: skip
    return [command for command in found if "--max-age" in command]


def commands_in(value: Any) -> list[list[str]]:
    if isinstance(value, list):
        return [each for item in value for each in commands_in(item)]
    if not isinstance(value, dict):
        return []
    command = value.get("exec", {}).get("command") if isinstance(value.get("exec"), dict) else None
    return [command] if command else commands_in(list(value.values()))


@pytest.mark.timeout(300)
def test_the_probe_fails_only_while_a_message_is_late(tmp_path: Path) -> None:
    environment = clean_environment(PYTHONPATH=str(ROOT), SHOP_HOME=str(tmp_path))
    environment = with_programs_of(Path(sys.executable).parents[1], environment)
    commands = {tuple("shop" if word == "proj" else word for word in each) for each in probes()}
    assert commands

    def statuses() -> set[int]:
        done = (
            subprocess.run(command, cwd=SHOP, env=environment, capture_output=True, check=False)
            for command in commands
        )
        return {each.returncode for each in done}

    run([sys.executable, "manage.py", "shell", "-c", A_LATE_CALL], SHOP, environment)
    assert statuses() == {1}
    run(["celery", "-A", "shop", "outbox", "drain"], SHOP, environment)
    assert statuses() == {0}
