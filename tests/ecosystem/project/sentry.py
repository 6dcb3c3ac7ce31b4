"""Sentry in every process of the project."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import sentry_sdk
from sentry_sdk.transport import Transport


class ToFile(Transport):
    def capture_envelope(self, envelope: Any) -> None:
        event = envelope.get_transaction_event()
        if event is None:
            return
        trace = event["contexts"]["trace"]
        line = {"trace": trace["trace_id"], "parent": trace.get("parent_span_id"),
                "name": event["transaction"]}  # fmt: skip
        with Path(os.environ["SPANS"]).open("a") as file:
            file.write(json.dumps(line) + "\n")


sentry_sdk.init("https://key@sentry.invalid/1", transport=ToFile, traces_sample_rate=1.0)
