"""The reference knows what the code knows: no setting, flag, command or check is missing in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import pytest
import yaml

from celery_outbox_steps import errors, settings
from celery_outbox_steps.observe import metrics
from celery_outbox_steps.observe.log import EVENTS
from celery_outbox_steps.store import Store
from tests.docs.pages import DOCS, ROOT, name, pages
from tests.docs.processes import clean_environment

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE = DOCS / "reference"
KNOWN = {setting.django_name for setting in settings.SETTINGS}
FLAGS = {setting.flag_name for setting in settings.SETTINGS if setting.flag}
NOT_OURS = {"CELERY_OUTBOX_STEPS"}


def words(page: Path) -> str:
    return page.read_text()


def test_the_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"],
        cwd=ROOT,
        env=clean_environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"run: python docs/generate.py\n{done.stdout}{done.stderr}"


def test_every_setting_and_flag_has_a_row() -> None:
    page = words(REFERENCE / "settings.md")
    assert [each for each in sorted(KNOWN | FLAGS) if f"`{each}`" not in page] == []


@pytest.mark.parametrize("page", pages(), ids=name)
def test_pages_name_only_settings_and_flags_that_exist(page: Path) -> None:
    text = words(page)
    settings = set(re.findall(r"\bCELERY_OUTBOX_[A-Z_]*[A-Z]\b", text)) - NOT_OURS
    flags = {
        each.replace("--no-", "--") for each in re.findall(r"--(?:no-)?outbox-[a-z-]*[a-z]", text)
    }
    assert settings - KNOWN == set()
    assert flags - FLAGS == set()


def test_every_command_has_a_section() -> None:
    from celery_outbox_steps.cli import outbox

    page = words(REFERENCE / "commands.md")
    commands = [f"### `celery -A proj outbox {each}" for each in outbox.commands]
    scripts = (ROOT / "django_integration/management/commands").glob("celery_outbox_*.py")
    commands += [f"### `python manage.py {script.stem}" for script in scripts]
    assert len(commands) >= 8
    assert [each for each in commands if each not in page] == []


def test_every_check_has_a_row_and_every_row_a_check() -> None:
    pattern = r"celery_outbox\.[EWI]\d{3}"
    modules = (ROOT / "django_integration" / f"{name}.py" for name in ("checks", "app"))
    in_code = {each for module in modules for each in re.findall(pattern, words(module))}
    assert in_code
    assert set(re.findall(pattern, words(REFERENCE / "checks.md"))) == in_code


def test_the_api_page_names_what_is_public() -> None:
    page = words(REFERENCE / "api.md")
    public = [
        *import_module("celery_outbox_steps").__all__,
        *import_module("django_integration").__all__,
    ]
    public += [each for each in vars(errors) if isinstance(vars(errors)[each], type)]
    public += [f"{each}(" for each in vars(Store) if not each.startswith("_") and each != "name"]
    public += ["pending()", "due()", "in_flight()", "failing()", "published()"]
    assert [each for each in public if each not in page] == []


def paths_of_the_api() -> list[str]:
    page = words(REFERENCE / "api.md")
    ours = r"(?:celery_outbox_steps|django_integration)"
    imported = re.findall(rf"`from ({ours}[\w.]*) import (\w+)`", page)
    return sorted(
        {*re.findall(rf"`({ours}(?:\.\w+)*)`", page), *(".".join(each) for each in imported)}
    )


@pytest.mark.parametrize("path", paths_of_the_api())
def test_every_path_on_the_api_page_can_be_imported(path: str) -> None:
    assert resolve_name(path) is not None


def test_the_api_page_names_paths() -> None:
    assert {"django_integration.OutboxCelery", "celery_outbox_steps.store.Store"} <= set(
        paths_of_the_api()
    )


PROMETHEUS = {each.prometheus for each in metrics.METRICS.values() if each.prometheus}


@pytest.mark.parametrize(
    "file", ["files/alerts.yml", "files/grafana-dashboard.json", "how-to/monitoring.md"]
)
def test_only_metrics_that_prometheus_has_are_asked_for(file: str) -> None:
    used = set(re.findall(r"\bcelery_outbox_[a-z_]+", words(DOCS / file)))
    used = {each.removesuffix("_bucket") for each in used} - set(EVENTS)
    assert used
    assert used - PROMETHEUS == set()


def test_the_dashboard_shows_every_metric_and_the_reference_explains_it() -> None:
    for file in ("files/grafana-dashboard.json", "reference/metrics.md"):
        text = words(DOCS / file)
        assert {each for each in PROMETHEUS if each not in text} == set(), file


def test_every_query_of_the_dashboard_has_a_unit_and_a_legend() -> None:
    dashboard = json.loads(words(DOCS / "files" / "grafana-dashboard.json"))
    for panel in dashboard["panels"]:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_the_page_says_when_each_alert_fires() -> None:
    (group,) = yaml.safe_load(words(DOCS / "files" / "alerts.yml"))["groups"]
    page = words(DOCS / "how-to" / "monitoring.md")
    said = set(re.findall(r"`(Outbox[A-Z]\w+)`", page))
    assert said == {rule["alert"] for rule in group["rules"]}
    assert all(rule["expr"] and rule["annotations"] for rule in group["rules"])


def test_the_versions_page_is_the_matrix() -> None:
    noxfile = words(ROOT / "noxfile.py")
    matrix = re.findall(r'\("(3\.\d+)", "(\d\.\d)", "(\d\.\d)"\)', noxfile)
    page = words(REFERENCE / "versions.md")
    rows = re.findall(r"^\| (3\.\d+) \| (\d\.\d) \| (\d\.\d) \|", page, re.MULTILINE)
    assert matrix
    assert rows == matrix
