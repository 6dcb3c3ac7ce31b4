"""OpenTelemetry in every process of the project."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan


class ToFile(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ["SPANS"]).open("a") as file:
            for span in spans:
                parent = span.parent and span.parent.span_id
                line = {
                    "trace": span.context.trace_id,
                    "parent": parent,
                    "name": span.name,
                    "links": [link.context.trace_id for link in span.links],
                }
                file.write(json.dumps(line) + "\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
trace.set_tracer_provider(provider)
for instrumentor in (CeleryInstrumentor, PsycopgInstrumentor, RedisInstrumentor):
    instrumentor().instrument()
