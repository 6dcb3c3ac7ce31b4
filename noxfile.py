"""`make package` and `make matrix`: the package as users get it, on the versions they have.

Their tests run in a directory without the two packages, so that only the installed wheel can be
imported. `make ecosystem`: the package beside other people's libraries.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["package"]
nox.options.error_on_missing_interpreters = False
nox.options.envdir = ".venvs/nox"

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))
from tests.ecosystem import libraries  # noqa: E402  the tools do not install the tests

# What the tests read besides themselves.
BESIDES = ["docs", "examples", "tests", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE",
           "Makefile", "mkdocs.yml", "CONTRIBUTING.md", "SECURITY.md"]  # fmt: skip
TOOLS = ["pytest>=8", "pytest-django>=4.8", "pytest-timeout>=2.3", "hypothesis>=6.100", "PyYAML",
         "prometheus-client>=0.20", "pydantic>=2", "msgpack"]  # fmt: skip

# The corners, and each supported version at least once: (Python, Celery, Django).
MATRIX = [
    ("3.10", "5.4", "4.2"),
    ("3.10", "5.7", "5.2"),
    ("3.11", "5.4", "5.0"),
    ("3.11", "5.5", "4.2"),
    ("3.12", "5.5", "5.1"),
    ("3.12", "5.6", "6.0"),
    ("3.13", "5.6", "5.2"),
    ("3.13", "5.7", "6.1"),
]
# The kombu of its time, and not the newest one that it accepts.
KOMBU = {"5.4": "kombu<5.4", "5.5": "kombu<5.6", "5.6": "kombu<5.7", "5.7": "kombu>=5.7"}
CALLS = [
    f"tests/integration/enqueue/test_{each}.py"
    for each in ("hold", "changes", "held_retries", "on_commit", "keys", "failed_tasks",
                 "events", "destinations", "order_keys")
]  # fmt: skip
ONCE = "tests/integration/inbox"


@nox.session
def package(session: nox.Session) -> None:
    """Build both, check their metadata and content, run the fast tests on the wheel."""
    session.install("build", "twine")
    dist = build(session, ROOT / "dist")
    session.run("twine", "check", "--strict", *map(str, dist.iterdir()), silent=False)
    install_wheel(session, dist)
    run_tests(session, dist, "tests/packaging", "tests/unit")


@nox.session
@nox.parametrize(
    ("python", "celery", "django"), MATRIX, ids=[f"py{p}-celery{c}-django{d}" for p, c, d in MATRIX]
)
def matrix(session: nox.Session, celery: str, django: str) -> None:
    """The unit tests, calls for later and with keys, events, `@once`, failed tasks, and the demo
    with its real worker, on one combination of versions. Databases: SQLite, and those that answer.
    """
    session.install("build")
    dist = build(session)
    install_wheel(session, dist, f"celery[redis]~={celery}.0", f"Django~={django}.0", KOMBU[celery])
    session.run("python", "-c", "import celery, django, kombu, sys; print("
                "f'Python {sys.version.split()[0]}, Celery {celery.__version__}, '"
                "f'kombu {kombu.__version__}, Django {django.__version__}')")  # fmt: skip
    session.install("psycopg[binary]", "mysqlclient")
    run_tests(session, dist, "tests/unit", *CALLS, ONCE)
    with session.chdir(stage(session) / "examples" / "shop"):
        session.run("python", "-m", "demo", env=clean())


def installed(version: str) -> str:
    """The interpreter of this version; pyenv keeps more of them than it puts on the path."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(kept[-1]) if kept else version


@nox.session(python=installed(libraries.PYTHON))
@nox.parametrize("environment", list(libraries.ENVIRONMENTS), ids=list(libraries.ENVIRONMENTS))
def ecosystem(session: nox.Session, environment: str) -> None:
    """The scenarios of the libraries that this environment has; they leave their results."""
    session.install("--editable", str(ROOT), *libraries.requirements(environment))
    session.run("python", "-m", "pytest", "-q", "tests/ecosystem", *session.posargs,
                env=clean(ECOSYSTEM=environment))  # fmt: skip


def build(session: nox.Session, dist: Path | None = None) -> Path:
    dist = dist or Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(dist), str(ROOT), silent=True)
    return dist


def install_wheel(session: nox.Session, dist: Path, *versions: str) -> None:
    (wheel,) = dist.glob("*.whl")
    session.install("--force-reinstall", "--no-deps", str(wheel))
    session.install(f"celery-outbox-steps[redis] @ {wheel.as_uri()}", *versions, *TOOLS)


def run_tests(session: nox.Session, dist: Path, *paths: str) -> None:
    with session.chdir(stage(session)):
        session.run("python", "-m", "pytest", "-q", *paths, *session.posargs,
                    env=clean(OUTBOX_DIST=str(dist)))  # fmt: skip


def stage(session: nox.Session) -> Path:
    """A new copy of everything but the packages."""
    target = Path(session.create_tmp()).resolve() / "stage"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name in BESIDES:
        copy(ROOT / name, target / name)
    return target


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "var")
        shutil.copytree(source, target, ignore=ignored)
    elif source.exists():
        shutil.copy(source, target)


def clean(**extra: str) -> dict[str, str | None]:
    """Nothing of the caller's project; None takes a variable away."""
    gone = dict.fromkeys(("PYTHONPATH", "DJANGO_SETTINGS_MODULE", "DATABASE_URL", "BROKER_URL"))
    return {**gone, "PYTHONSAFEPATH": None, **extra}
