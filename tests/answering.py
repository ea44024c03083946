"""A small server on this machine that answers as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler, dict | None], None]


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """A server that answers so, its address, and the paths that were asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            asked.append(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            answer(self, json.loads(self.rfile.read(length)) if length else None)

        do_GET = do_POST = handle_one  # noqa: N815 http.server's names

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def send(handler: BaseHTTPRequestHandler, body: str | dict, status: int = 200, **headers: str) -> None:
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(data)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)
