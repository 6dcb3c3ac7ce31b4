"""SQL laid out for reading: a clause per line, subqueries indented. Changes white space only."""

from __future__ import annotations

import re
from textwrap import wrap

WIDTH = 96
CLAUSE = re.compile(
    r"(?<!\bFOR)(?<!\bDELETE)(?<!\bKEY)(?<!\bDO)(?<!\bDO UPDATE)"
    r" (?=(?:SELECT|FROM|WHERE|GROUP BY|ORDER BY|LIMIT|FOR UPDATE|RETURNING"
    r"|SET|VALUES|UPDATE|ON CONFLICT|ON DUPLICATE|LEFT JOIN|STRAIGHT_JOIN)\b)"
)
SUBQUERY = re.compile(r"(SELECT|INSERT)\b")
INLINE = 50
"""A subquery up to this length stays in its line."""
SHORT = 80
"""Parentheses up to this length are not broken."""


def laid_out(sql: str) -> str:
    text = re.sub(r"'[^']*'", lambda found: found[0].replace(" ", "\0"), " ".join(sql.split()))
    return "\n".join(_lines(text)).replace("\0", " ")


def _lines(text: str) -> list[str]:
    text, inner = _without_parentheses(text)
    lines: list[str] = []
    for clause in CLAUSE.split(text):
        for number, part in enumerate(_conditions(clause)):
            indent = "  " if number else ""
            lines += _wrapped(f"{indent}{_with_inline(part, inner)}")
    return [line for each in lines for line in _with_subqueries(each, inner)]


def _conditions(clause: str) -> list[str]:
    if not clause.startswith("WHERE"):
        return [clause]
    first, *more = clause.split(" AND ")
    return [first, *(f"AND {each}" for each in more)]


def _wrapped(line: str) -> list[str]:
    """Broken after commas only, and never within short parentheses."""
    if line.startswith("WITH"):
        return [line]
    return wrap(
        re.sub("(?<!,) ", "\0", line),
        WIDTH,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _without_parentheses(text: str) -> tuple[str, list[str]]:
    """The text with `<0>`, `<1>` … for what stands in its outermost parentheses, and those."""
    inner: list[str] = []
    outer, depth, start = "", 0, 0
    for position, sign in enumerate(text):
        depth -= sign == ")"
        if depth == 0 and sign == ")":
            outer += f"<{len(inner)}>"
            inner.append(text[start:position].strip())
        if depth == 0:
            outer += sign
        depth += sign == "("
        if depth == 1 and sign == "(":
            start = position + 1
    return outer, inner


def _is_subquery(text: str) -> bool:
    return bool(SUBQUERY.match(text)) and len(text) > INLINE


def _with_inline(text: str, inner: list[str]) -> str:
    def restored(found: re.Match[str]) -> str:
        content = inner[int(found[1])]
        if _is_subquery(content):
            return found[0]
        return content.replace(" ", "\0") if len(content) <= SHORT else content

    return re.sub(r"<(\d+)>", restored, text)


def _with_subqueries(line: str, inner: list[str]) -> list[str]:
    """The line, with its subqueries on indented lines of their own."""
    first, *rest = re.split(r"<(\d+)>", line)
    lines = [first]
    for number, after in zip(rest[::2], rest[1::2], strict=True):
        lines += [f"    {each}" for each in _lines(inner[int(number)])]
        lines.append(after)
    return lines
