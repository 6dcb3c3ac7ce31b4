"""Draws the overview, the lanes of destinations, the two paths of a message, and the layers.

    python docs/draw.py          # rewrite them in docs/images
    python docs/draw.py --check  # exit status 1 where one is out of date

`PATHS` names the functions that tell the story, in order; tests/docs/test_architecture.py compares
them with a trace of the real calls. The layers are those that the import linter checks. The
overview is narrow, so that a phone shows it at its full size.
"""

from __future__ import annotations

import re
import sys
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"

# `[…]` is the state of the transaction from there on, `>` happens outside our code.
PATHS = {
    "enqueue": """
[your transaction]
> your code: transaction.atomic(), then task.delay()
django_integration/app.py
    OutboxCelery.send_task: every task call arrives here
django_integration/enqueue/enqueuer.py
    Enqueuer.database: picks the connection that the row belongs to
    Enqueuer._check_transaction: without an open transaction, warns or refuses
django_integration/app.py
    OutboxCelery.capture: gives Celery a producer that sends nothing
> Celery's own send_task builds the message and publishes it
django_integration/enqueue/capture.py
    CapturingProducer.publish: lets kombu serialise the message
    CapturingProducer.basic_publish: keeps it; refuses what the broker could not accept
django_integration/enqueue/enqueuer.py
    Enqueuer.store: writes the row now, or at the end of a bulk
    Enqueuer._row: collects the columns, and redacts what people may see
celery_outbox_steps/envelope.py
    seal: turns the message into texts, with a version
celery_outbox_steps/observe/recorder.py
    Recorders.caller_context: adds the caller's trace and log context
django_integration/enqueue/after_commit.py
    after_commit: finds or makes the commit hook of this atomic() block
django_integration/enqueue/rows.py
    insert: one INSERT; on PostgreSQL it also sends a NOTIFY
django_integration/enqueue/after_commit.py
    AfterCommit.add: registers the commit hook
> COMMIT: relays see the row, PostgreSQL delivers the NOTIFY
[committed]
django_integration/enqueue/after_commit.py
    AfterCommit.__call__: Django runs the commit hook
django_integration/enqueue/writer.py
    Writer._committed: remembers when the last NOTIFY was committed
celery_outbox_steps/wakeups.py
    wake: wakes a relay in the same process
celery_outbox_steps/observe/recorder.py
    Recorders.report_enqueued: counts the rows for the metrics
""",
    "relay": """
[claim]
> in the relay's thread; a fork waits for the end of the tick
celery_outbox_steps/relay/tick.py
    Relay.run_once: one tick is claim, publish, settle
celery_outbox_steps/relay/policy.py
    Breaker.allowance: how many rows; after an outage one or none
celery_outbox_steps/relay/prefetch.py
    Claims.next_batch: the batch that was claimed ahead, or a new claim
django_integration/store/lane.py
    LaneStore.claim: starts in the index where the last claim ended
django_integration/store/postgresql.py
    PostgreSQL.lease_rows: one UPDATE sets claimed_by and claimed_until
django_integration/store/session.py
    Session.rows: runs it on the relay's own session, in autocommit
> the claim is committed: the rows are leased to this relay
[no transaction is open]
celery_outbox_steps/relay/publish.py
    PublishStep.publish_batch: gives every row of the batch an outcome
celery_outbox_steps/publishers/amqp/publisher.py
    AmqpPublisher.publish: takes the messages, answers for each of them
celery_outbox_steps/relay/publish.py
    PublishStep._open: a row that holds no valid message fails alone
celery_outbox_steps/envelope.py
    open_envelope: turns the stored texts into the message
celery_outbox_steps/publishers/pool.py
    pooled_producer: borrows a connection from the app's own pool
celery_outbox_steps/publishers/amqp/pipeline.py
    Pipeline.send_all: writes the whole batch, then waits for confirms
celery_outbox_steps/publishers/amqp/frames.py
    publish_frames: the message as the bytes that go to the socket
> RabbitMQ confirms
celery_outbox_steps/publishers/amqp/channel.py
    ConfirmChannel._on_basic_ack: notes which messages were confirmed
celery_outbox_steps/relay/publish.py
    PublishStep._outcome_of: Published, Retry or Dead
[settle]
celery_outbox_steps/relay/tick.py
    Relay._settle_batch: if this fails, the next tick does it again
celery_outbox_steps/relay/batch.py
    Batch.write_outcomes: only the outcomes that the Store does not have yet
django_integration/store/writes.py
    Writes.record_outcomes: all or nothing; never a row that another relay holds
> the settle is committed: the published rows are deleted
[done]
celery_outbox_steps/observe/recorder.py
    Recorders.report_settled: tells the recorders, which send the signals
celery_outbox_steps/relay/batch.py
    Batch.result: what happened, for the journal
""",
}
# A `[…]` is a place, with its lines below; `>` is what happens between two places.
OVERVIEW = """
[your code]
with transaction.atomic():
    order.save()
    send_receipt.delay(order.pk)
> enqueue: one INSERT, in your transaction
[your database]
the order, and a row with the message
COMMIT: both, or neither
> claim: a lease on a batch of rows
[your worker, --outbox-relay]
settle: delete the rows that are confirmed
> publish, and wait for the confirms
[your broker]
receives what Celery would have sent
"""
# What one transaction stores, the table of each row, the thread that publishes it, and where to.
# `~` is a broker that is away.
TRANSACTION = """
with transaction.atomic():
  order.save()
  receipt.delay(7)
  outbox.publish(
    "order.placed",
    {"number": 7},
    to=["events", "lake"],
  )
"""
LANES = """
celery_outbox: receipt > the relay > your broker
celery_outbox_delivery: for events > relay for events > RabbitMQ
celery_outbox_delivery: for lake, waits > relay for lake > ~Redis, away
"""
TITLES = {
    "enqueue": "From the call to the row, and the wake-up after the commit",
    "relay": "From the claim to the settle",
}

WIDTH, ROW, EVENT, GAP, TOP = 690, 42, 30, 6, 12
RAIL, FILES, TEXT = 12, 48, 276
LAYERS_WIDTH, LAYER = 600, 36
CODE_WIDTH, LANE, LANE_BOXES = 216, 54, ((256, 176), (456, 118), (598, 92))
OVERVIEW_WIDTH, LINE, ARROW = 372, 18, 36
LETTER = 6.9
"""The width of a letter, estimated generously."""
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24292f }
.function, .file { font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace }
.function, .place { font-weight: 600 } .file { font-size: 12px } .small { font-size: 11.5px }
.page { fill: #ffffff } .box { fill: #f3f5f7 } .grey { fill: #59636e }
.arrow { stroke: #59636e; fill: none; stroke-width: 1.5 } .head { fill: #59636e }
.line { stroke: #b4bcc5; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .page { fill: #0d1117 } .box { fill: #1b222b } .grey { fill: #9aa5b1 }
  .arrow { stroke: #9aa5b1 } .head { fill: #9aa5b1 } .line { stroke: #4a5460 } }"""
ORANGE, BLUE, PURPLE, GREEN, GREY = "#d9822b", "#2f81c7", "#8a5cc2", "#2f9e5b", "#8c96a3"
ROOMS = {"enqueue": ORANGE, "relay": BLUE, "publishers": PURPLE, "store": GREEN}
PLACES = [ORANGE, GREEN, BLUE, PURPLE]
PHASES = {"your transaction": ORANGE, "claim": GREEN, "settle": GREEN}


class Step(NamedTuple):
    """A function of ours, or with an empty `file` something outside our code."""

    phase: str
    file: str
    function: str
    caption: str


def steps(path: str) -> Iterator[Step]:
    """What the picture shows, in order."""
    phase = file = ""
    for line in PATHS[path].strip().splitlines():
        if line[0] == "[":
            phase = line.strip("[]")
        elif line[0] == ">":
            yield Step(phase, "", "", line[2:])
            file = ""
        elif line[0] != " ":
            file = line
        else:
            function, _, caption = line.strip().partition(": ")
            yield Step(phase, file, function, caption)


def layers(package: str) -> list[list[str]]:
    """The layers of a package, from the top, as the import linter checks them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (each for each in settings["contracts"] if each.get("containers") == [package])
    return [layer.split(" | ") for layer in contract["layers"]]


def draw_path(name: str) -> str:
    body: list[str] = []
    y = TOP
    for phase, in_phase in groupby(steps(name), key=lambda step: step.phase):
        start = y
        for file, in_file in groupby(in_phase, key=lambda step: step.file):
            found = list(in_file)
            body += _box(file, found, y) if file else [_event(found[0], y)]
            y += (ROW * len(found) if file else EVENT) + GAP
        body += _phase(phase, start, y - GAP)
    return _svg(TITLES[name], WIDTH, y - GAP + TOP, body)


def _box(file: str, found: list[Step], y: int) -> Iterator[str]:
    """One visit of a file: its name on the left, its functions on the right."""
    package, _, path = file.partition("/")
    height = ROW * len(found)
    colour = ROOMS.get(path.partition("/")[0], GREY)
    yield f'<rect class="box" x="{FILES}" y="{y}" width="{WIDTH - FILES - 12}" height="{height}"/>'
    yield f'<rect x="{FILES}" y="{y}" width="4" height="{height}" fill="{colour}"/>'
    yield _text(FILES + 14, y + 18, path, "file")
    yield _text(FILES + 14, y + 34, package, "grey small")
    for number, step in enumerate(found):
        yield _text(TEXT, y + ROW * number + 18, step.function, "function")
        yield _text(TEXT, y + ROW * number + 34, step.caption, "grey")


def _event(event: Step, y: int) -> str:
    middle = y + EVENT // 2
    line = f'<path class="line" d="M{FILES} {middle}H{TEXT - 12}"/>'
    return line + _text(TEXT, middle + 4, event.caption, "small")


def _phase(phase: str, start: int, end: int) -> Iterator[str]:
    """The bar on the left."""
    size = f'y="{start}" width="5" height="{end - start}"'
    yield f'<rect x="{RAIL}" {size} fill="{PHASES.get(phase, GREY)}"/>'
    turned = f'transform="translate({RAIL + 20} {(start + end) // 2}) rotate(-90)"'
    yield f'<text class="small" text-anchor="middle" {turned}>{escape(phase)}</text>'


def draw_overview() -> str:
    y = TOP
    body: list[str] = []
    colours = iter(PLACES)
    for part in re.split(r"\n(?=[\[>])", OVERVIEW.strip()):
        if part[0] == ">":
            body += _arrow(part[2:], y)
            y += ARROW
        else:
            place, *lines = part.splitlines()
            height = LINE * (len(lines) + 1) + 16
            body += _place(place.strip("[]"), lines, y, height, next(colours))
            y += height
    return _svg("From your call to the broker", OVERVIEW_WIDTH, y + TOP, body)


def _place(
    name: str,
    lines: list[str],
    y: int,
    height: int,
    colour: str,
    *,
    width: int = OVERVIEW_WIDTH - 24,
) -> Iterator[str]:
    yield f'<rect class="box" x="12" y="{y}" width="{width}" height="{height}"/>'
    yield f'<rect x="12" y="{y}" width="4" height="{height}" fill="{colour}"/>'
    yield _text(28, y + 22, name, "place", OVERVIEW_WIDTH)
    kind = "file" if len(lines) > 2 else "grey"
    for number, line in enumerate(lines, start=1):
        indent = 7.2 * (len(line) - len(line.lstrip()))
        yield _text(28 + indent, y + 22 + LINE * number, line.strip(), kind, OVERVIEW_WIDTH)


def _arrow(words: str, y: int) -> Iterator[str]:
    yield f'<path class="arrow" d="M34 {y + 4}V{y + ARROW - 12}"/>'
    yield f'<path class="head" d="M28 {y + ARROW - 13}h12l-6 10z"/>'
    yield _text(54, y + ARROW // 2 + 4, words, "grey", OVERVIEW_WIDTH)


def draw_lanes() -> str:
    """One transaction on the left, and a lane for each of its messages."""
    lanes = [line.split(" > ") for line in LANES.strip().splitlines()]
    code = TRANSACTION.strip().splitlines()
    height = max(LANE * len(lanes) - GAP, LINE * (len(code) + 1) + 16)
    body = list(_place("one transaction", code, TOP, height, ORANGE, width=CODE_WIDTH))
    for number, (lane, colour) in enumerate(zip(lanes, (GREY, BLUE, PURPLE), strict=True)):
        y = TOP + (height - LANE * len(lanes) + GAP) // 2 + LANE * number
        start = 12 + CODE_WIDTH
        for (x, width), text in zip(LANE_BOXES, lane, strict=True):
            body += _lane_box(x, y, width, text, colour)
            body += _arrow_right(start, x, y + (LANE - GAP) // 2)
            start = x + width
    return _svg("One transaction, several destinations", WIDTH + 12, height + 2 * TOP, body)


def _lane_box(x: int, y: int, width: int, text: str, colour: str) -> Iterator[str]:
    name, _, what = text.strip("~").replace(", ", ": ").partition(": ")
    kind = 'class="line" fill="none"' if text[0] == "~" else 'class="box"'
    size = f'y="{y}" height="{LANE - GAP}"'
    yield f'<rect {kind} x="{x}" {size} width="{width}"/>'
    yield f'<rect x="{x}" {size} width="4" fill="{colour}"/>'
    yield _text(x + 14, y + (20 if what else 29), name, "small", x + width + 40)
    if what:
        yield _text(x + 14, y + 38, what, "grey small", x + width + 40)


def _arrow_right(start: int, end: int, y: int) -> Iterator[str]:
    yield f'<path class="arrow" d="M{start + 2} {y}H{end - 8}"/>'
    yield f'<path class="head" d="M{end - 10} {y - 5}l8 5l-8 5z"/>'


def draw_layers() -> str:
    y = TOP
    body: list[str] = []
    for package in ("django_integration", "celery_outbox_steps"):
        y += 22
        body.append(_text(FILES, y - 8, package, "grey small"))
        for modules in layers(package):
            body += _layer(modules, y)
            y += LAYER
    body.append(f'<path class="arrow" d="M24 {TOP}V{y - 16}"/>')
    body.append(f'<path class="head" d="M18 {y - 18}h12l-6 12z"/>')
    return _svg("Imports point downward", LAYERS_WIDTH, y - GAP + TOP, body)


def _layer(modules: list[str], y: int) -> Iterator[str]:
    width = (LAYERS_WIDTH - FILES - 12 + GAP) / len(modules) - GAP
    for number, module in enumerate(modules):
        x = FILES + number * (width + GAP)
        size = f'y="{y}" height="{LAYER - GAP}"'
        yield f'<rect class="box" x="{x:g}" {size} width="{width:g}"/>'
        yield f'<rect x="{x:g}" {size} width="4" fill="{ROOMS.get(module, GREY)}"/>'
        yield _text(x + 16, y + 20, module, "file")


def _text(x: float, y: int, text: str, kind: str, width: int = WIDTH) -> str:
    if x + LETTER * len(text) > width:
        raise ValueError(f"too long for the picture: {text}")
    return f'<text class="{kind}" x="{x:g}" y="{y}">{escape(text, quote=False)}</text>'


def _svg(title: str, width: int, height: int, body: list[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            f'<rect class="page" width="{width}" height="{height}"/>',
            *body,
            "</svg>\n",
        ]
    )


def pictures() -> dict[Path, str]:
    paths = {IMAGES / f"path-{name}.svg": draw_path(name) for name in PATHS}
    others = {"destinations": draw_lanes(), "layers": draw_layers(), "overview": draw_overview()}
    return {**paths, **{IMAGES / f"{name}.svg": svg for name, svg in others.items()}}


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = [each for each in pictures().items() if _text_of(each[0]) != each[1]]
    for path, text in stale:
        print(f"{'out of date' if check else 'written'}: {path.name}")  # noqa: T201
        if not check:
            path.write_text(text)
    return int(check and bool(stale))


def _text_of(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
