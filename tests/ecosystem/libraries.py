"""The one table of libraries that are tried: what is installed, where, and what to know.

Plain data: `noxfile.py` installs from it, the tests are marked with it, and the page "Works with"
is written from it and from the results of the run.
"""

from __future__ import annotations

from dataclasses import dataclass

PYTHON = "3.12"
NEW, OLD = "Celery 5.7", "Celery 5.6"

ENVIRONMENTS = {
    NEW: ("celery[redis]~=5.7.0", "Django~=6.0.0"),
    OLD: (
        "celery[redis]~=5.6.0",
        "kombu<5.7",
        "Django~=5.2.0",
    ),  # for libraries that refuse a newer Celery
}
HARNESS = ("psycopg[binary]>=3.1", "pytest>=8", "pytest-celery>=1.3", "pytest-django>=4.8",
           "pytest-timeout>=2.3", "msgpack", "PyYAML")  # fmt: skip


def distribution(requirement: str) -> str:
    """`name` of `name[extra]>=1.0`."""
    for end in "[<>=~! ":
        requirement = requirement.partition(end)[0]
    return requirement


@dataclass(frozen=True)
class Library:
    """The first requirement is the one that gives the row its name and version."""

    requirements: tuple[str, ...]
    note: str = ""
    environment: str = NEW
    caution: bool = False
    """Whether the note asks something of the reader."""

    @property
    def name(self) -> str:
        return distribution(self.requirements[0])


LIBRARIES = (
    Library(
        ("django-celery-beat>=2.8",),
        "What its scheduler calls is stored and relayed like every other call.",
    ),
    Library(("celery-redbeat>=2.3",), "Entries of the settings and of Redis."),
    Library(
        ("django-celery-results>=2.5",),
        "A chord that is called in a transaction ends too: its tasks start when its counter is"
        " committed.",
    ),
    Library(
        ("flower>=2.0",),
        "Calls from its API are stored by Flower's own process, which therefore needs the"
        " project's settings and its database. A call that meets a lost session fails, the next"
        " one is stored.",
        caution=True,
    ),
    Library(("django-structlog[celery]>=9",), "Tasks have the request's id, as with plain Celery."),
    Library(
        ("django-tenants>=3.7", "tenant-schemas-celery>=3"),
        "Keep `django_integration` in `SHARED_APPS` only, so that the rows of all tenants are in"
        " the public schema; see [multi-tenancy](multi-tenancy.md).",
        caution=True,
    ),
    Library(
        ("sentry-sdk>=2.0",),
        "One trace from the request to the task; see [tracing](tracing.md).",
    ),
    Library(
        ("opentelemetry-instrumentation-celery>=0.50b0", "opentelemetry-sdk",
         "opentelemetry-instrumentation-psycopg", "opentelemetry-instrumentation-redis"),
        "One trace from the request to the task. An idle relay makes no spans, also where the"
        " worker's main process is instrumented; see [tracing](tracing.md).",
    ),
    Library(
        ("ddtrace>=3.0",),
        "One trace from the request to the task. Of an idle relay the agent keeps nothing; see"
        " [tracing](tracing.md).",
    ),
    Library(
        ("django-tasks-celery>=0.1",),
        "`enqueue()` becomes part of the transaction: what is rolled back does not run.",
    ),
    Library(
        ("celery-singleton>=0.3.1",),
        "The lock is taken at call time, and a rollback leaves it: later calls are swallowed until"
        " it expires. Call such tasks in `transaction.on_commit`, and give the lock an expiry"
        " (`lock_expiry`; there is none by default).",
        caution=True,
    ),
    Library(
        ("celery-once>=3.0.1",),
        "The lock is taken at call time, and a rollback leaves it until its timeout. Call such"
        " tasks in `transaction.on_commit`, and choose a short `timeout`.",
        caution=True,
    ),
    Library(
        ("celery-batches>=0.10",),
        "It refuses Celery 5.7 itself.",
        environment=OLD,
    ),
)  # fmt: skip

BY_NAME = {library.name: library for library in LIBRARIES}


def requirements(environment: str) -> list[str]:
    """Everything that an environment needs beside the package itself."""
    there = [library for library in LIBRARIES if library.environment == environment]
    return [*ENVIRONMENTS[environment], *HARNESS,
            *(each for library in there for each in library.requirements)]  # fmt: skip
