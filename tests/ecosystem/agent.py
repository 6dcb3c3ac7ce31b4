"""The part of Datadog's agent that receives traces, for one test."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgpack

PRIORITY = "_sampling_priority_v1"


class Agent:
    """Collects what tracers send: `kept` is what an agent would pass on, `dropped` the rest."""

    def __init__(self) -> None:
        self.traces: list[list[dict[str, Any]]] = []
        agent = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({"endpoints": ["/v0.4/traces"]})

            def do_PUT(self) -> None:
                body = self._body()
                if self.path.endswith("/traces"):
                    agent.traces += msgpack.unpackb(body, strict_map_key=False)
                self._answer({"rate_by_service": {}})

            do_POST = do_PUT  # noqa: N815  the name that http.server looks for

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def _answer(self, value: Any) -> None:
                text = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Nothing: the test looks at the traces."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def kept(self) -> list[dict[str, Any]]:
        return [span for trace in list(self.traces) if _is_kept(trace) for span in trace]

    @property
    def dropped(self) -> list[dict[str, Any]]:
        return [span for trace in list(self.traces) if not _is_kept(trace) for span in trace]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _is_kept(trace: list[dict[str, Any]]) -> bool:
    return all(span.get("metrics", {}).get(PRIORITY, 1) > 0 for span in trace)
