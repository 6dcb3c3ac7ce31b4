"""Bar charts with whiskers, as hand-written SVG: readable on light and dark pages.

Needs no plotting library and no script in the page. `report.py` writes one file per section.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from benchmarks.results import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.results import Section, Spread

BARS, VALUES, LETTER = 480, 90, 7.4
ROW, TOP = 30, 44
COLOURS = {"this package": "#2f9e5b", "django-celery-outbox": "#d9822b"}
OTHERS = "#7d8aa0"

STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600 }
.page { fill: #ffffff } .whisker { stroke: #24292f; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .page { fill: #0d1117 } .whisker { stroke: #e6edf3 } }"""


def bars(section: Section) -> str:
    """One bar per contender: the median of the charted metric, its whisker from low to high."""
    metric = section.chart
    spreads = {
        name: spread
        for name in section.values
        if (spread := section.spread(name, metric)) is not None
    }
    labels = int(24 + LETTER * max(map(len, spreads), default=0))
    width, height = labels + BARS + VALUES, TOP + ROW * len(spreads) + 12
    title = escape(f"{section.title}: {metric}, {section.units[metric]}")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{title}</title><style>{STYLE}</style>",
            f'<rect class="page" width="{width}" height="{height}"/>',
            f'<text class="title" x="12" y="26">{title}</text>',
            *_rows(spreads, labels),
            "</svg>\n",
        ]
    )


def _rows(spreads: dict[str, Spread], left: int) -> Iterator[str]:
    largest = max((spread.high for spread in spreads.values()), default=0) or 1
    scale = BARS / largest
    for index, (name, spread) in enumerate(spreads.items()):
        y = TOP + ROW * index
        length = max(1.0, spread.median * scale)
        low, high = (left + max(0.0, value * scale) for value in (spread.low, spread.high))
        middle = y + 11
        yield f'<text x="{left - 10}" y="{y + 16}" text-anchor="end">{escape(name)}</text>'
        size = f'width="{length:.1f}" height="22"'
        yield f'<rect x="{left}" y="{y}" {size} fill="{_colour(name)}"/>'
        if spread.low < spread.high:
            yield (
                f'<path class="whisker" fill="none" d="M{low:.1f} {middle}H{high:.1f}'
                f'M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"/>'
            )
        end = max(left + length, high) + 8
        yield f'<text x="{end:.1f}" y="{y + 16}">{number(spread.median)}</text>'


def _colour(name: str) -> str:
    return next((colour for start, colour in COLOURS.items() if name.startswith(start)), OTHERS)
