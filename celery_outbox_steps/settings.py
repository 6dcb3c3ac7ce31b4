"""Every setting and flag of the product, in one table, and the relay's frozen view of it.

`SETTINGS` is the only place for names, defaults, units and valid values: the worker flags, Django's
system checks and the reference docs are made from it. A flag overrides a setting. `RelayConfig` is
what the relay runs with; it is built once, at worker start, and invalid values stop the worker.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from celery.utils.imports import symbol_by_name

from celery_outbox_steps.destinations import DESTINATIONS, Destination
from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.kinds import (
    BOOLEAN,
    BOOLEAN_IF_STRUCTLOG,
    COUNT,
    DOTTED,
    FILE,
    MAYBE_ADDRESS,
    MAYBE_APP,
    MAYBE_COUNT,
    MAYBE_DOTTED,
    MAYBE_HOLD,
    MAYBE_NAMES,
    MAYBE_SECONDS,
    NAMES,
    PAUSE,
    RETRIES,
    SECONDS,
    SINKS,
    TEXT,
    Kind,
)
from celery_outbox_steps.rates import RATES, Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: `CELERY_OUTBOX_<NAME>`, `app.conf.outbox_<name>`, `--outbox-<name>`."""

    name: str
    default: Any
    kind: Kind
    help: str
    flag: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Short names of dotted paths."""

    @property
    def django_name(self) -> str:
        return f"CELERY_OUTBOX_{self.name.upper()}"

    @property
    def conf_name(self) -> str:
        return f"outbox_{self.name}"

    @property
    def flag_name(self) -> str:
        return f"--outbox-{self.name.replace('_', '-')}"

    def parse(self, value: Any, called: str | None = None) -> Any:
        """The value in its final type, or a `ConfigurationError` that says what is allowed."""
        try:
            return self.kind.parse(value)
        except ConfigurationError:
            raise
        except ValueError:
            found = f"a {type(value).__name__}" if self.kind.is_secret else repr(value)
            raise ConfigurationError(
                f"{called or self.django_name} must be {self.kind.words}, not {found}."
            ) from None

    def load(self, value: Any) -> Any:
        """Like `parse`, but a dotted path is replaced by the object that it names."""
        value = self.parse(value)
        if self.kind.can_name is None:
            return value
        if isinstance(value, tuple):
            return tuple(self._named(each, self.kind.can_name) for each in value)
        return self._named(value, self.kind.can_name)

    def _named(self, value: Any, is_right: Callable[[Any], bool]) -> Any:
        """The object that a dotted path names; anything else is that object already."""
        if not isinstance(value, str):
            return value
        try:
            found = symbol_by_name(self.aliases.get(value, value))
        except Exception as exc:  # the project's code is imported, and may raise anything
            raise self._unusable(value, f"can't be imported: {exc}") from exc
        if not is_right(found):
            raise self._unusable(value, f"names {found!r}, which is of the wrong type")
        return found

    def _unusable(self, path: str, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.django_name} = {path!r} {why.splitlines()[0].rstrip('.')}. {self.help}"
        )


SETTINGS = (
    Setting("relay", False, BOOLEAN, "Run an outbox relay in this worker.", flag=True),
    Setting(
        "relays",
        2,
        MAYBE_COUNT,
        "How many relays work at a time, for each database. The other workers that have "
        "--outbox-relay stand by, without a database session. None: all of them work.",
        flag=True,
    ),
    Setting(
        "app",
        None,
        MAYBE_APP,
        'Dotted path of the Celery app, such as "proj.celery.app", for management commands and '
        "tests. Default: Celery's current app.",
    ),
    Setting(
        "store",
        "django_integration.store:stores",
        DOTTED,
        "Dotted path of a function that takes the app and returns a list of Stores; one relay runs "
        "for each.",
        flag=True,
    ),
    Setting(
        "databases",
        None,
        MAYBE_NAMES,
        "Aliases of the databases that hold an outbox; one relay runs for each. "
        "Default: the alias that the database router names for writes.",
    ),
    Setting(
        "batch_size",
        500,
        COUNT,
        "Rows per claim. Larger batches publish faster; smaller ones use less memory, and fewer "
        "messages are repeated if a relay dies.",
        flag=True,
    ),
    Setting(
        "idle_time",
        1.0,
        PAUSE,
        "Longest pause between two polls of the table, in seconds. A shorter pause lowers the "
        "latency where nothing wakes the relay, and costs more queries. Set a longer one for all "
        "processes, not only as a worker's flag: a caller tells the relay about a call for later "
        "that is due before the next poll.",
        flag=True,
    ),
    Setting(
        "backoff_time",
        120.0,
        SECONDS,
        "Delay after a message's first failure, in seconds. It doubles with each further failure.",
        flag=True,
    ),
    Setting(
        "max_backoff",
        3600.0,
        SECONDS,
        "Longest delay after a failure, in seconds: the limit of the doubling.",
        flag=True,
    ),
    Setting(
        "max_retries",
        5,
        RETRIES,
        "Failed attempts after which a message becomes a dead letter; with 0 or 1, the first "
        "failure is the last. Broker outages do not count.",
        flag=True,
    ),
    Setting(
        "stale_timeout",
        None,
        MAYBE_SECONDS,
        "Lease in seconds; a crashed relay's rows can be claimed again after it. A batch that "
        "takes longer renews it. Default: 5 seconds more than send_timeout.",
        flag=True,
    ),
    Setting(
        "send_timeout",
        10.0,
        SECONDS,
        "Longest wait for the broker's answers to a batch, or to a message that is sent alone, in "
        "seconds. A shorter wait detects a hanging broker sooner; a longer one tolerates a slow "
        "broker.",
        flag=True,
    ),
    Setting(
        "shutdown_timeout",
        30.0,
        SECONDS,
        "Longest time for the relay's last batch during a warm shutdown, in seconds. Allow the "
        "process manager more than this before it kills the worker.",
        flag=True,
    ),
    Setting(
        "broker_outage_cooldown",
        30.0,
        SECONDS,
        "Pause after two broker outages in a row, in seconds; then a single message is tried.",
        flag=True,
    ),
    Setting(
        "liveness_file",
        None,
        FILE,
        "File that the relay touches about once a second while it is alive, for a liveness probe.",
        flag=True,
    ),
    Setting(
        "http",
        None,
        MAYBE_ADDRESS,
        "Where a worker that has --outbox-relay serves /livez, /readyz and /metrics: a port, or a "
        "host and a port. Loopback, unless a host is named.",
        flag=True,
    ),
    Setting(
        "exclude_tasks",
        (),
        NAMES,
        "Task names and fnmatch patterns that bypass the outbox: their calls go directly to the "
        "broker.",
    ),
    Setting(
        "destinations",
        {},
        DESTINATIONS,
        "Other brokers, by name, that `app.outbox.publish()` and calls with `outbox_destination` "
        "can send to: the URL, the exchange or queue, and more. Each has its own schedule, breaker "
        "and dead letters.",
    ),
    Setting(
        "event_source",
        "",
        TEXT,
        "The source of events, an attribute of CloudEvents: a URI or a path. Default: a slash and "
        "the name of the Celery app.",
    ),
    Setting(
        "rates",
        {},
        RATES,
        "Release rates by task or event name and fnmatch pattern. What exceeds its rate waits in "
        "the table. All relays of a database share a rate; the first pattern that fits counts.",
    ),
    Setting(
        "hold",
        0.0,
        MAYBE_HOLD,
        "A call whose eta or countdown is more than this many seconds ahead waits in the table and "
        "is published when it is due. Others go to the broker with their eta. None: never.",
    ),
    Setting(
        "hold_retries",
        60.0,
        MAYBE_HOLD,
        "A retry whose countdown is longer than this many seconds waits in the table. Shorter ones "
        "go to the broker, which needs no database. None: never.",
    ),
    Setting(
        "require_transaction",
        False,
        BOOLEAN,
        "Raise TransactionRequired for a call outside a transaction, instead of a warning in the "
        "log.",
    ),
    Setting(
        "notify",
        True,
        BOOLEAN,
        "Wake the relay at the commit with PostgreSQL's LISTEN/NOTIFY. Without it the relay polls.",
        flag=True,
    ),
    Setting(
        "declare",
        True,
        BOOLEAN,
        "Declare the queues of a message before it is published. Without it every queue must "
        "already exist.",
        flag=True,
    ),
    Setting(
        "retention",
        None,
        MAYBE_SECONDS,
        "Seconds to keep published rows until a purge may delete them. Default: rows are deleted "
        "when they are published.",
        flag=True,
    ),
    Setting(
        "dlq_retention",
        None,
        MAYBE_SECONDS,
        "Seconds to keep dead letters until a purge may delete them. Default: forever.",
    ),
    Setting(
        "inbox_retention",
        7 * 86_400.0,
        SECONDS,
        "Seconds to remember work that `@once` protects, unless it names another time; then a "
        "purge may delete the entry. A message that is delivered again after that runs again.",
    ),
    Setting(
        "keep_failed_tasks",
        (),
        NAMES,
        "Task names and fnmatch patterns. A task that failed for good in a worker is kept as a "
        "dead letter, and can be replayed.",
    ),
    Setting(
        "redactor",
        None,
        MAYBE_DOTTED,
        "Dotted path of `(task_name, args, kwargs) -> (args, kwargs)`, which returns the arguments "
        "that people may see. The published message is not changed.",
    ),
    Setting(
        "structlog_context_keys",
        None,
        MAYBE_NAMES,
        "Store only these context variables of structlog. An empty list: none. Default: all.",
    ),
    Setting(
        "structlog_bind_in_tasks",
        False,
        BOOLEAN_IF_STRUCTLOG,
        "Send the caller's structlog variables with each message, in one header, and bind them "
        "while its task runs. Set it for all processes: those that call, relay and run tasks.",
    ),
    Setting(
        "lineage",
        False,
        BOOLEAN,
        "Send the ids of all ancestors with each message that a task causes, in one header. "
        "`lineage()` returns them to the task. Set it for the workers.",
    ),
    Setting(
        "metrics",
        (),
        SINKS,
        'Where metrics go: "prometheus", "opentelemetry", "datadog", the dotted path of a function '
        "that takes the app and returns a metrics sink, or several of these; in a flag with commas "
        "between them. Default: no metrics.",
        flag=True,
        aliases={
            name: f"celery_outbox_steps.observe.recorders.{module}:sink"
            for name, module in (
                ("prometheus", "prometheus"),
                ("opentelemetry", "opentelemetry_metrics"),
                ("datadog", "datadog"),
            )
        },
    ),
    Setting(
        "metrics_task_names",
        None,
        MAYBE_NAMES,
        "Task names and fnmatch patterns to use as tags; all other tasks are tagged `other`. An "
        "empty list: no tag, one time series per counter. Default: every task has its own tag.",
    ),
    Setting(
        "sample_interval",
        15.0,
        SECONDS,
        "Seconds between two samples of the table for the gauges. Each relay takes its own.",
        flag=True,
    ),
)

BY_NAME = {setting.name: setting for setting in SETTINGS}

_NOT_HERE = "It has no counterpart here. Remove it."
_STATSD = "Use MONITORING_STATSD_HOST, _PORT, _PREFIX and _TAGS instead."
FORMER = {
    "STALE_TIMEOUT_SECONDS": "Use CELERY_OUTBOX_STALE_TIMEOUT instead.",
    "PII_REDACTOR": "Use CELERY_OUTBOX_REDACTOR instead.",
    "MONITORED_TASKS": "Use CELERY_OUTBOX_METRICS_TASK_NAMES instead.",
    "DISABLE_TASK_NAME_TAGS": "Use CELERY_OUTBOX_METRICS_TASK_NAMES = [] instead.",
    "LOG_EXCEPTION_TRACEBACK": _NOT_HERE,
    "STRUCTLOG_ENABLED": "Use CELERY_OUTBOX_STRUCTLOG_CONTEXT_KEYS = [] to store no variable.",
    "STRUCTLOG_FILTER_KEYS": "Name the variables to store in CELERY_OUTBOX_STRUCTLOG_CONTEXT_KEYS.",
    "STATSD_HOST": _STATSD,
    "STATSD_PORT": _STATSD,
    "STATSD_PREFIX": _STATSD,
    "STATSD_TAGS": _STATSD,
}
"""Settings of django-celery-outbox, by their names without prefix, and what to do with each. The
nearest name would be a wrong one: EXCLUDE_TASKS for MONITORED_TASKS."""


def read(conf: Mapping[str, Any], name: str) -> Any:
    """The validated value of one setting from a Celery configuration."""
    setting = BY_NAME[name]
    return setting.parse(conf.get(setting.conf_name, setting.default))


def load(conf: Mapping[str, Any], name: str) -> Any:
    """Like `read`, but a dotted path is replaced by the object that it names."""
    setting = BY_NAME[name]
    return setting.load(conf.get(setting.conf_name, setting.default))


def validate(conf: Mapping[str, Any]) -> None:
    """Refuse invalid settings, including those that only task calls or commands read."""
    refuse_unknown(conf)
    for setting in SETTINGS:
        load(conf, setting.name)
    refuse_contradictions(conf)


def refuse_contradictions(conf: Mapping[str, Any]) -> None:
    """Refuse values that are right each, but not together; also those of a destination."""
    config = RelayConfig.from_conf(conf)
    for destination in read(conf, "destinations").values():
        config.of(destination)


def unknown(names: Iterable[Any]) -> list[str]:
    """Names that look like settings of the outbox and are not, in Django's spelling."""
    spelled = {str(name).upper().removeprefix("CELERY_") for name in names}
    known = {setting.conf_name.upper() for setting in SETTINGS}
    return sorted(f"CELERY_{name}" for name in spelled - known if name.startswith("OUTBOX_"))


def refuse_unknown(names: Iterable[Any]) -> None:
    """Refuse a misspelled setting, which would otherwise be ignored silently."""
    for name in unknown(names):
        raise ConfigurationError(f"{name} is not a setting of the outbox. {meant_by(name)}")


def meant_by(name: str) -> str:
    """The hint in an error about an unknown name."""
    former = FORMER.get(_own(name))
    if former:
        return f"It is a setting of django-celery-outbox. {former}"
    known = nearest(name)
    return f"Did you mean {known}?" if known else "The reference lists all settings."


def nearest(name: str) -> str | None:
    """The known setting that an unknown `CELERY_OUTBOX_*` name was probably meant to be."""
    # Without the prefix, which would make all names similar.
    known = {setting.name.upper(): setting.django_name for setting in SETTINGS}
    found = difflib.get_close_matches(_own(name), known, 1, 0.5)
    return known[found[0]] if found else None


def _own(name: str) -> str:
    return name.removeprefix("CELERY_OUTBOX_")


def _default(name: str) -> Any:
    """The default of a setting. Only the table above holds it."""
    return BY_NAME[name].default


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """What the relay runs with. Times in seconds."""

    relays: int | None = _default("relays")
    batch_size: int = _default("batch_size")
    idle_time: float = _default("idle_time")
    backoff_time: float = _default("backoff_time")
    max_backoff: float = _default("max_backoff")
    max_retries: int = _default("max_retries")
    stale_timeout: float | None = _default("stale_timeout")
    send_timeout: float = _default("send_timeout")
    shutdown_timeout: float = _default("shutdown_timeout")
    broker_outage_cooldown: float = _default("broker_outage_cooldown")
    liveness_file: str | None = _default("liveness_file")
    rates: Mapping[str, Rate] = field(default_factory=dict)
    declare: bool = _default("declare")
    sample_interval: float = _default("sample_interval")

    @classmethod
    def from_app(cls, app: Any) -> RelayConfig:
        """The app's settings, validated. In a worker, its flags have been written into them."""
        return cls.from_conf(app.conf)

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> RelayConfig:
        """The same from a configuration."""
        return cls(**{field.name: read(conf, field.name) for field in fields(cls)})

    def of(self, destination: Destination) -> RelayConfig:
        """The configuration with the destination's own values."""
        declare = self.declare if destination.declare is None else destination.declare
        try:
            return replace(self, **destination.relay_options, declare=declare)
        except ConfigurationError as error:
            raise ConfigurationError(f"{destination.described}: {error}") from None

    @property
    def lease(self) -> float:
        """How long a claim lasts: longer than a wait for the broker, so that it can be settled."""
        return self.send_timeout + 5.0 if self.stale_timeout is None else self.stale_timeout

    def __post_init__(self) -> None:
        if self.lease <= self.send_timeout:
            raise ConfigurationError(
                f"CELERY_OUTBOX_STALE_TIMEOUT ({self.lease:g} s) must be longer than "
                f"CELERY_OUTBOX_SEND_TIMEOUT ({self.send_timeout:g} s): another relay would take "
                "over a batch that is still being sent, and publish it twice."
            )
        if self.max_backoff < self.backoff_time:
            raise ConfigurationError(
                f"CELERY_OUTBOX_MAX_BACKOFF ({self.max_backoff:g} s) must not be shorter than "
                f"CELERY_OUTBOX_BACKOFF_TIME ({self.backoff_time:g} s)."
            )
