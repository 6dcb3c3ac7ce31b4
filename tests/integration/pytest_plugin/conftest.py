"""A project with nothing but the documented set-up: its files are the snippets of the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/how-to/testing.md"
SNIPPET = re.compile(r"^```(?:python|ini)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets() -> dict[str, str]:
    """The files of the page, by name."""
    return dict(SNIPPET.findall(PAGE.read_text()))


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The documented project, in a directory of its own, tested in a process of its own."""
    for name, text in snippets().items():
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (pytester.path / "shop/__init__.py").touch()
    _install(pytester.path / "installed")
    monkeypatch.setenv("PYTHONPATH", f"{pytester.path / 'installed'}:{ROOT}")
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return pytester


@pytest.fixture
def run(project: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    def run(*arguments: str) -> pytest.RunResult:
        return project.runpytest_subprocess("-p", "no:cacheprovider", *arguments, timeout=120)

    return run


def _install(directory: Path) -> None:
    """The entry points of pyproject.toml, as an installed package would offer them."""
    text = (ROOT / "pyproject.toml").read_text()
    plugin = text.partition("[project.entry-points.pytest11]\n")[2].partition("\n\n")[0]
    info = directory / "celery_outbox_steps-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-outbox-steps\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{plugin.replace(chr(34), '')}\n")
