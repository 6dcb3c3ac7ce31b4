"""Django's `CELERY_OUTBOX_*` settings as defaults of the Celery app's configuration.

A project that loads its settings with `namespace="CELERY"` has them there already; for all others
this is how they arrive. Everything in the package reads `app.conf.outbox_*` and nothing else.
"""

from __future__ import annotations

from typing import Any

from celery.app.utils import Settings as CelerySettings
from celery.utils.collections import DictAttribute
from django.conf import LazySettings, Settings

from celery_outbox_steps.errors import ConfigurationError


def django_settings() -> dict[str, Any]:
    """What Django's settings say; nothing where Django is not configured."""
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    try:
        # Unknown names come along, so that a worker can refuse a misspelled one.
        found = {
            name.removeprefix("CELERY_").lower(): getattr(settings, name)
            for name in dir(settings)
            if name.startswith("CELERY_OUTBOX_")
        }
        if getattr(settings, "MONITORING_METRICS_ENABLED", False):
            found.setdefault("outbox_metrics", "datadog")
    except ImproperlyConfigured:
        return {}
    return found


class DjangoSettings(DictAttribute):  # type: ignore[misc]
    """Django's settings as Celery reads them, with a short way to "nobody has set that".

    Celery asks for four spellings of each name, and Django takes longest over those that are not
    there: a third of a task call. Nothing is remembered here, so `override_settings` works.
    """

    def __getitem__(self, name: str) -> Any:
        holder = self.obj._wrapped  # noqa: SLF001  Django offers no way to ask without a search
        if type(holder) is Settings and name not in vars(holder):
            raise KeyError(name)
        return super().__getitem__(name)


def with_fast_misses(config: Any) -> Any:
    """The same configuration; if it is Django's settings, one that is faster to read."""
    if type(config) is DictAttribute and isinstance(config.obj, LazySettings):
        return DjangoSettings(config.obj)
    return config


class RememberedSettings(CelerySettings):  # type: ignore[misc]
    """An app's configuration for a short while, in which each setting is looked up once.

    What is changed through it is changed in the app's own, and counts at once.
    """

    def __init__(self, conf: CelerySettings) -> None:
        self.__dict__.update(vars(conf), memory={})  # the same maps, not copies of them

    def __getitem__(self, key: str) -> Any:
        memory = self.memory
        if key not in memory:
            memory[key] = super().__getitem__(key)
        return memory[key]

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.memory.clear()

    def update(self, *args: Any, **kwargs: Any) -> None:
        super().update(*args, **kwargs)
        self.memory.clear()


def celery_app() -> Any:
    """The app of `CELERY_OUTBOX_APP`, for management commands, or Celery's current one."""
    from celery import current_app
    from celery.utils.imports import symbol_by_name
    from django.conf import settings

    path = getattr(settings, "CELERY_OUTBOX_APP", None)
    if path is None:
        return current_app._get_current_object()  # noqa: SLF001  Celery's documented way
    try:
        return symbol_by_name(path) if isinstance(path, str) else path
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigurationError(
            f"CELERY_OUTBOX_APP = {path!r} can't be imported: {exc}. "
            'It is the dotted path of the Celery app, like "proj.celery.app".'
        ) from exc
