"""The project's settings as the admin reads them: one that is wrong never breaks a page.

Workers and calls read `app.conf`; here Django's settings fill it up, as the process of the admin
may not have loaded the app. What can't be read counts as not set, and a system check reports it.
"""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.settings import BY_NAME, read
from django_integration.conf import celery_app, django_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_outbox_steps.destinations import Destination
    from celery_outbox_steps.rates import Rate


def configuration() -> Mapping[str, Any]:
    """What is set, looked up by name. Raises whatever the import of the project's app does."""
    return ChainMap(celery_app().conf, django_settings())


def destinations() -> dict[str, Destination]:
    """The destinations that are configured, by name."""
    found: dict[str, Destination] = _configured("destinations")
    return found


def rates() -> dict[str, Rate]:
    """The release rates that are configured, by pattern."""
    found: dict[str, Rate] = _configured("rates")
    return found


def outbox_databases() -> list[str] | None:
    """The aliases that `CELERY_OUTBOX_DATABASES` names; None if it is not set."""
    found: list[str] | None = _configured("databases")
    return found


def _configured(name: str) -> Any:
    try:
        return read(configuration(), name)
    except Exception:  # noqa: BLE001  the project's code is imported, and its settings may be wrong
        return BY_NAME[name].parse(BY_NAME[name].default)
