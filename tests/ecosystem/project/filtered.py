"""Datadog's filter for the relay's spans, as the page about tracing shows it."""

from tests.docs.pages import DOCS, blocks

(block,) = [each for each in blocks(DOCS / "how-to/tracing.md") if "TraceFilter" in each.text]
exec(block.text)
