"""`OutboxCelery`: a Celery app whose task calls become rows in the caller's transaction.

Celery's own `send_task` builds the message: routing, headers, stamps, parent ids, signals. It is
given a producer that captures instead of publishing, and the captured message is stored. Celery's
signature is not repeated here, so no option can be lost. Next: `capture.py`, then `enqueuer.py`.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from celery import Celery, signals
from django.apps import apps
from django.core.checks import CheckMessage, register
from django.core.checks import Error as CheckError
from django.core.signals import setting_changed
from django.db import Error, InterfaceError, OperationalError
from kombu.exceptions import OperationalError as BrokerError
from kombu.utils.objects import cached_property

from celery_outbox_steps.errors import StoreNotReady, describe
from celery_outbox_steps.messages import ETA_HEADER
from celery_outbox_steps.observe.log import log
from celery_outbox_steps.observe.recorders.structlog import bind_in_tasks
from celery_outbox_steps.worker.options import add_step, install
from django_integration.celery_hooks.fast_settings import install_fast_settings, with_fast_lookup
from django_integration.celery_hooks.other_apps import watch_other_apps
from django_integration.celery_hooks.result_backends import refuse_endless_waits, stay_offline
from django_integration.celery_hooks.tasks import (
    OutboxTaskRegistry,
    bypasses_outbox,
    bypassing_outbox,
    extend_registry,
)
from django_integration.conf import NOT_INSTALLED, DjangoDefaults, is_installed
from django_integration.enqueue.capture import CapturingProducer
from django_integration.enqueue.destination import (
    DESTINATION,
    refuse_destination,
    take_destination,
)
from django_integration.enqueue.headers import with_headers
from django_integration.enqueue.hold import when_of, without_time
from django_integration.enqueue.keys import KEY, ON_CONFLICT, drop_key, take_key, wanted_key
from django_integration.keys import stored_key
from django_integration.schema import APP_LABEL, Key
from django_integration.upstream.celery import DjangoTaskByDefault, registry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.result import AsyncResult

    from celery_outbox_steps.destinations import Destination
    from django_integration.enqueue.keys import WantedKey
    from django_integration.schema import When

_SEND_TASK = inspect.signature(Celery.send_task)
_NAME_ARGS_KWARGS = 3


class OutboxCelery(DjangoTaskByDefault):
    """Use it in place of `Celery`. Calls are stored; a worker with `--outbox-relay` publishes."""

    registry_cls = OutboxTaskRegistry
    control_cls = "celery_outbox_steps.remote:OutboxControl"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Not in `on_init`: a subclass or mixin may override it without calling ours.
        extend_registry(registry_of(self))
        self._destination_connections: dict[str, tuple[Destination, Any]] = {}
        self._outbox_defaults = DjangoDefaults()
        self.add_defaults(self._outbox_defaults.load)
        self.on_after_configure.connect(self._on_configured)
        if self.configured:
            self._on_configured(self.conf)
        setting_changed.connect(self._on_setting_changed)
        install(self)
        add_step(self)
        watch_other_apps(OutboxCelery)
        for beat_starts in (signals.beat_init, signals.beat_embedded_init):
            # Older Celery treats the same method of two apps as one receiver.
            beat_starts.connect(self._on_beat, dispatch_uid=f"celery_outbox.{id(self)}")
        signals.task_failure.connect(self._on_failure, dispatch_uid=f"celery_outbox.{id(self)}")
        signals.worker_init.connect(self._on_worker, dispatch_uid=f"celery_outbox.{id(self)}")

    def prepare_config(self, c: Any) -> Any:
        """As Celery's, but Django's settings are read faster."""
        return with_fast_lookup(super().prepare_config(c))

    @cached_property  # type: ignore[untyped-decorator]  # kombu's takes a lock, functools' may not
    def outbox(self) -> Any:
        """The enqueue side, created by the first call."""
        from django_integration.enqueue.enqueuer import Enqueuer

        if not apps.ready:  # in a command such as `celery call`; this sets up Django
            self.loader.import_default_modules()
        return Enqueuer(self)

    def send_task(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Store the call; same arguments as Celery's, and `outbox_using` for a database alias.

        `outbox_destination` names another broker of `CELERY_OUTBOX_DESTINATIONS`, whose workers run
        the task; the rest of a chain is sent by them too. `outbox_key` is not for such calls.

        With `outbox_key`, only if no call with this key waits; `outbox_on_conflict="replace"` puts
        it in that one's place. The result's `was_stored` tells; its id is of the one that waits.
        If the database is away, a call of a worker that is in no transaction goes to the broker:
        it may continue a chain, whose tasks so far are done.
        """
        using = kwargs.pop("outbox_using") if "outbox_using" in kwargs else None
        if len(args) > _NAME_ARGS_KWARGS:
            args, kwargs = (), self._named(args, kwargs)
        name = kwargs["name"] if "name" in kwargs else args[0] if args else ""
        if bypasses_outbox.get():
            return self._send_directly(name, using, args, kwargs)
        task = kwargs["task_type"] if "task_type" in kwargs else None  # noqa: SIM401  each call counts
        asked = key = None
        if KEY in kwargs or ON_CONFLICT in kwargs or getattr(task, KEY, None) is not None:
            asked = take_key(task, kwargs)
            key = wanted_key(asked, task, name, args, kwargs, strict=not self.current_worker_task)
        settings = self.outbox.settings
        destination = take_destination(kwargs, settings, key) if DESTINATION in kwargs else None
        is_excluded = destination is None and settings.exclude_tasks and settings.excludes(name)
        if settings.adds_headers:
            kwargs = with_headers(self, kwargs, direct=is_excluded)
        if is_excluded:
            return super().send_task(*args, **kwargs)
        try:
            result = self._store(name, using, args, kwargs, key=key, destination=destination)
        except (InterfaceError, OperationalError) as exc:
            in_task = self.current_worker_task is not None and destination is None
            if not in_task or not self.outbox.can_not_store(using):
                raise
            log("celery_outbox_not_stored", name, describe(exc), task_name=name)
            result = super().send_task(*args, **kwargs)
        if asked is not None and not hasattr(result, "was_stored"):
            result.was_stored = True
        return result

    def _store(
        self,
        name: str,
        using: str | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        key: WantedKey | None,
        destination: Destination | None,
    ) -> AsyncResult:
        database, options, when = self.outbox.database(name, using), kwargs, None
        if "countdown" in kwargs or "eta" in kwargs:
            when = when_of(kwargs, self.outbox.settings.hold)
            options = kwargs if when is None else without_time(kwargs)
        connection = None if destination is None else self._connection_of(destination)
        producer, result = self.capture(args, options, connection)
        kwargs["task_id"] = result.id  # the same if it is sent because the INSERT had no answer
        if not producer.messages:  # a custom AMQP class, or one in a test, dropped it
            return result
        if destination is not None:
            self.outbox.store(
                database, name, result.id, producer, when=when, destination=destination.name
            )
        elif key is None:
            self.outbox.store(database, name, result.id, producer, when=when)
        else:
            result.was_stored = None  # in a bulk, that is known at its end
            wanted = Key(stored_key(key.text), key.replace, result)
            self.outbox.store(database, name, result.id, producer, when=when, key=wanted)
        return result

    async def asend_task(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """`send_task` for async code."""
        return await sync_to_async(self.send_task)(*args, **kwargs)

    def outbox_bulk(self) -> AbstractContextManager[None]:
        """Collect the calls of a `with` block and store them in one INSERT at its end."""
        bulk: AbstractContextManager[None] = self.outbox.bulk()
        return bulk

    def producer_or_acquire(self, producer: Any = None) -> Any:
        """As Celery's. Groups and chord headers acquire one producer for all their sends, so the
        rows of these sends are collected here: one INSERT per chunk.
        """
        return nullcontext(producer) if producer is not None else _Reentrant(self._acquire_for_many)

    @property
    def backend(self) -> Any:
        """As Celery's, but a call makes it neither connect nor subscribe, and a wait that could not
        end is refused."""
        backend = super().backend
        if "on_task_call" not in vars(backend):  # not prepared yet
            stay_offline(backend)
            refuse_endless_waits(backend)
        return backend

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, for a call that gives more than three by position."""
        named = _SEND_TASK.bind(self, *args, **kwargs).arguments
        del named["self"]
        options = named.pop("options", {})
        return {**named, **options}

    def capture(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], connection: Any = None
    ) -> tuple[Any, Any]:
        """Let Celery build the message. The caller's own producer or connection is ignored.

        `connection`: that of another broker, which the message is for. Never connected."""
        for name in ("producer", "publisher", "connection"):
            kwargs.pop(name, None)
        if connection is None:
            producer = CapturingProducer(self._outbox_connection)
        else:
            producer = CapturingProducer(connection, is_own=False)
        return producer, super().send_task(*args, producer=producer, **kwargs)

    def _send_directly(
        self, name: str, using: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Send a retry or replacement; hold it in the table if it has long to wait.

        If the database is down, the broker gets it, and if the broker is down, the table does.
        Receivers of Celery's signals may call tasks: those calls are not retries, and are stored.
        """
        settings = self.outbox.settings
        drop_key(kwargs)
        refuse_destination(kwargs)
        with bypassing_outbox(bypass=False):
            _forget_last_eta(kwargs)
            if settings.adds_headers:
                kwargs = with_headers(self, kwargs, direct=True)
            when = when_of(kwargs, settings.hold_retries)
            if when is not None and not settings.excludes(name):
                try:
                    return self._store_apart(name, using, args, kwargs, when)
                except (Error, StoreNotReady) as exc:
                    log("celery_outbox_retry_not_held", name, describe(exc), task_name=name)
            try:
                return super().send_task(*args, **kwargs)
            except BrokerError as broker_error:
                when = when_of(kwargs, settings.hold)
                try:
                    return self._store_apart(name, using, args, kwargs, when)
                except (Error, StoreNotReady):
                    raise broker_error from None

    def _store_apart(
        self,
        name: str,
        using: str | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        when: When | None,
    ) -> AsyncResult:
        """Store a call so that it is committed even if the caller's transaction is rolled back."""
        options = dict(kwargs) if when is None else without_time(kwargs)
        producer, result = self.capture(args, options)
        if producer.messages:
            self.outbox.store_apart(using, name, result.id, producer, when)
        return result

    @contextmanager
    def _acquire_for_many(self) -> Iterator[Any]:
        with self.outbox.bulk(as_it_grows=True), super().producer_or_acquire() as producer:
            yield producer

    @functools.cached_property
    def _outbox_connection(self) -> Any:
        """Never connected: CapturingProducer and tracing libraries read the transport from it."""
        return self.connection_for_write()

    def _connection_of(self, destination: Destination) -> Any:
        """The same for a destination."""
        known, connection = self._destination_connections.get(destination.name, (None, None))
        if known is not destination:
            from celery_outbox_steps.publishers.broker import connection_for

            connection = connection_for(destination)
            self._destination_connections[destination.name] = destination, connection
        return connection

    def _on_beat(self, **_: Any) -> None:
        self.outbox.in_beat = True

    def _on_failure(self, sender: Any, **failure: Any) -> None:
        # Another app in this process has settings of its own.
        if sender.app is self and self.conf.get("outbox_keep_failed_tasks"):
            # Imported here: it uses parts of Celery that only a worker loads.
            from django_integration.celery_hooks.failed_tasks import keep_failed_task

            keep_failed_task(self, sender, failure)

    def _on_worker(self, sender: Any, **_: Any) -> None:
        """Sent before the pool forks, in every worker, with a relay or without."""
        if sender.app is self:
            bind_in_tasks(self)

    def _on_configured(self, source: Any, **_: Any) -> None:
        install_fast_settings(source, self._forget_settings)
        self._forget_settings()

    def _on_setting_changed(self, **_: Any) -> None:
        """Only tests send this. Any name may be Celery's: projects choose the prefix."""
        self._outbox_defaults.load()
        self._forget_settings()

    def _forget_settings(self) -> None:
        if "outbox" in vars(self):
            self.outbox.forget_settings()


@register(APP_LABEL)
def check_installed(app_configs: Any = None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Here, because Django imports `checks.py` only if the app is installed."""
    hint = 'INSTALLED_APPS += ["django_integration"], and run: python manage.py migrate'
    found = CheckError(f"{NOT_INSTALLED}.", hint=hint, id="celery_outbox.E008")
    return [] if is_installed() else [found]


def _forget_last_eta(options: dict[str, Any]) -> None:
    """A retry repeats the headers of its task, among them the time that the task was held until."""
    headers = options.get("headers")
    if headers and ETA_HEADER in headers:
        options["headers"] = {name: each for name, each in headers.items() if name != ETA_HEADER}


class _Reentrant:
    """A context manager that can be entered again, as Celery's can: each entry makes a new one."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._context: Any = None

    def __enter__(self) -> Any:
        self._context = self._make()
        return self._context.__enter__()

    def __exit__(self, *error: object) -> Any:
        return self._context.__exit__(*error)
