"""Points in time, errors and long texts, formatted for the pages of the admin.

Pure functions without a query. Texts that come from a row are escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.template.defaultfilters import truncatechars
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html

from celery_outbox_steps.health import age

if TYPE_CHECKING:
    from datetime import datetime


LONGEST_TEXT = 20_000


def moment(point: datetime | None) -> str:
    """How long ago, or in how long; the date and time on hover."""
    if point is None:
        return ""
    seconds = (timezone.now() - point).total_seconds()
    text = f"{age(seconds, 1)} ago" if seconds >= 0 else f"in {age(-seconds, 1)}"
    local = timezone.localtime(point) if timezone.is_aware(point) else point
    exact = date_format(local, "DATETIME_FORMAT")
    return format_html('<time datetime="{}" title="{}">{}</time>', point.isoformat(), exact, text)


def failure(attempts: int, error: str | None) -> str:
    """How often it failed, and the first line of the last error; all of it on hover."""
    line = next(iter((error or "").strip().splitlines()), "")
    if not attempts and not line:
        return ""
    return format_html(
        '<span class="outbox-error" title="{}">{}</span> <span class="outbox-quiet">{}</span>',
        (error or "")[:1000],
        truncatechars(line, 90),
        f"{attempts} failed attempt{'' if attempts == 1 else 's'}",
    )


def preformatted(text: str) -> str:
    """A long text as it is, up to a limit."""
    cut = len(text) - LONGEST_TEXT
    if cut > 0:
        text = f"{text[:LONGEST_TEXT]}\n… {cut:,} more characters"
    return format_html('<pre class="outbox-text">{}</pre>', text) if text else "-"
