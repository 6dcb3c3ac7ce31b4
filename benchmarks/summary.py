"""The numbers of README and of the site's home page: a few rows of a full run.

The program writes them between two comments on each page. It changes nothing else there, and only
after a complete full run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.results import number
from benchmarks.sections import enqueue, growth, latency, relay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.plan import Plan
    from benchmarks.results import Results

PLAIN = "plain Celery, or the bare loop"
MARK = re.compile(r"(<!-- numbers:begin -->\n).*?(<!-- numbers:end -->)", re.DOTALL)


class Shown(NamedTuple):
    """What a page shows: a link to all numbers, and rows of the table by their place."""

    link: str
    rows: Sequence[int]


PAGES = {
    "README.md": Shown("docs/benchmarks/index.md", range(7)),
    "docs/index.md": Shown("benchmarks/index.md", (0, 2, 3, 5)),
}


def update(root: Path, results: Results, plan: Plan) -> None:
    """Replace the text between the comments of both pages."""
    for page, shown in PAGES.items():
        text = "\n".join(lines(results, plan, shown))
        path = root / page
        path.write_text(MARK.sub(rf"\g<1>{text}\n\g<2>", path.read_text()))


def lines(results: Results, plan: Plan, shown: Shown) -> Iterator[str]:
    cores = f"{results.machine['cores']} cores ({results.machine['cpu']})"
    yield f"Medians of `make bench` on {cores}, everything on one"
    yield f"machine; [all of it]({shown.link}), with spread, plots and what falls short:"
    yield ""
    yield f"| | this package | django-celery-outbox | {PLAIN} |"
    yield "|---|---|---|---|"
    rows = list(_rows(results, plan))
    for what, cells in (rows[place] for place in shown.rows):
        yield f"| {what} | {' | '.join(cells)} |"


def _rows(results: Results, plan: Plan) -> Iterator[tuple[str, list[str]]]:
    def cells(section: str, metric: str, *contenders: str) -> list[str]:
        found = results.sections[section]
        spreads = [found.spread(each, metric) for each in contenders]
        shown = [number(spread.median) if spread else "" for spread in spreads]
        return shown + [""] * (3 - len(shown))

    calls = enqueue.SINGLE, enqueue.PEER, enqueue.DIRECT
    yield "one call, µs", cells("enqueue", "call", *calls)
    yield "one of many calls, µs", cells("enqueue", "call", enqueue.BULK, "", "")
    confirmed = relay.OURS, relay.PEER_CONFIRMED, relay.AMQP
    yield "to RabbitMQ, confirmed, messages/s", cells("relay_rabbitmq", "rate", *confirmed)
    parked = [growth.parked_name(side, plan.parked) for side in (growth.OURS, growth.PEER)]
    waiting = f"{sum(plan.parked):,} rows, {plan.parked[0]:,} backing off"
    yield f"the same with {waiting}", cells("backlog", "rate", *parked)
    redis = relay.OURS, relay.PEER, relay.KOMBU
    yield "to Redis, messages/s", cells("relay_redis", "rate", *redis)
    steady = [latency.contender(side, 200) for side in (latency.OURS, latency.PEER)]
    for metric in ("p50", "p99"):
        yield f"`COMMIT` to consumer at 200/s, {metric}, ms", cells("latency", metric, *steady)
