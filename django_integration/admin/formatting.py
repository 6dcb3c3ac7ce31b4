"""Numbers, points in time, errors and long texts, formatted for the pages of the admin.

Pure functions without a query. Texts that come from a row are escaped, and characters that are
invisible or that reorder a line are shown by their number. What is stored is never changed.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING

from django.template.defaultfilters import truncatechars
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import format_html

from celery_outbox_steps.health import age

if TYPE_CHECKING:
    from datetime import datetime

    from celery_outbox_steps.health import Verdict


LONGEST_TEXT = 20_000
LONGEST_LINE = 255
MISSING = "-"

_ESCAPE = re.compile(
    r"(?P<code>\\ud[89ab][\da-f]{2}\\ud[c-f][\da-f]{2}"  # a character in two halves
    r"|\\u[\da-f]{4}|\\U[\da-f]{8}|\\x[\da-f]{2})|\\.",
    re.ASCII | re.DOTALL,
)
"""A backslash and what it escapes: an escaped backslash does not begin another escape."""
_JOINERS = "\u200c\u200d"
"""Invisible, but needed to write Persian, or a family's emoji."""


def moment(point: datetime | None) -> str:
    """How long ago, or in how long, with date and time below it; the zone on hover."""
    if point is None:
        return ""
    return format_html(
        '<time datetime="{}" title="{}">{}</time> <span class="outbox-quiet">{}</span>',
        point.isoformat(),
        exact(point),
        _distance(point),
        f"{_local(point):%Y-%m-%d %H:%M:%S}",
    )


def exact_moment(point: datetime | None) -> str:
    """The exact time, and how far away it is."""
    if point is None:
        return MISSING
    return format_html(
        '<time datetime="{}">{}</time> <span class="outbox-quiet">{}</span>',
        point.isoformat(),
        exact(point),
        _distance(point),
    )


def exact(point: datetime) -> str:
    """Date, time with seconds, and zone: 2026-11-18 09:14:03 CET."""
    local = _local(point)
    return f"{local:%Y-%m-%d %H:%M:%S} {local.tzname() or ''}".rstrip()


def failure(attempts: int, error: str | None) -> str:
    """How often it failed, and the first line of the last error; all of it on hover."""
    line = next(iter((error or "").strip().splitlines()), "")
    if not attempts and not line:
        return ""
    return format_html(
        '<span class="outbox-error" title="{}">{}</span> <span class="outbox-quiet">{}</span>',
        visible((error or "")[:1000]),
        truncatechars(visible(line), 90),
        f"{attempts} failed attempt{'' if attempts == 1 else 's'}",
    )


def counted(rows: int, cap: int | None = None, *, partly: bool = False) -> str:
    """Exact below the cap; from there on the database's estimate, or "at least"."""
    text = number_format(rows, force_grouping=True)
    if cap is not None and rows > cap:
        return f"≈ {text}"
    return f"{text}+" if partly or rows == cap else text


def shown_verdict(verdict: Verdict) -> Verdict:
    """The verdict for a page: reasons of pauses, and errors, are texts of people and of brokers."""
    return replace(verdict, text=visible(verdict.text))


def one_line(text: str) -> str:
    """A short text of a row, whatever it holds."""
    return visible(text[:LONGEST_LINE]).replace("\n", "\\n") or MISSING


def preformatted(text: str, *, escaped: bool = False) -> str:
    """A long text up to a limit; `escaped` if it was stored in ASCII, see `readable`."""
    cut, shown = len(text) - LONGEST_TEXT, text[:LONGEST_TEXT]
    shown = visible(readable(shown) if escaped else shown)
    if cut > 0:
        shown += f"\n… {cut:,} more characters"
    return format_html('<pre class="outbox-text">{}</pre>', shown) if text else MISSING


def readable(text: str) -> str:
    """Texts that were stored in ASCII, as people write them: `Zoë` for `Zo\\u00eb`.

    Only what can be seen is unescaped, and nothing of ASCII, so the text is still valid JSON.
    """
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def visible(text: str) -> str:
    """The text with invisible characters as numbers: they could hide or reorder what it says."""
    if text.isprintable():
        return text
    return "".join(each if _is_visible(each) or each in "\n\t" else _number(each) for each in text)


def _local(point: datetime) -> datetime:
    return timezone.localtime(point) if timezone.is_aware(point) else point


def _distance(point: datetime) -> str:
    seconds = (timezone.now() - point).total_seconds()
    return f"{age(seconds, 1)} ago" if seconds >= 0 else f"in {age(-seconds, 1)}"


def _unescaped(found: re.Match[str]) -> str:
    code = found["code"]
    if code is None:
        return found[0]
    try:
        halves = code.encode().decode("unicode_escape")
        character = halves.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeError:  # half a character, or a number that is none
        return code
    return code if character.isascii() or not _is_visible(character) else character


def _is_visible(character: str) -> bool:
    return unicodedata.category(character) not in _HIDDEN or character in _JOINERS


_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def _number(character: str) -> str:
    return character.encode("unicode_escape").decode()
