"""An endpoint that answers with what the test laid out, for replies that Shoal never gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class CannedServer:
    """replies: by path, in order of use, the last one again and again: status, headers, body."""

    url: str = ""
    replies: dict[str, list[tuple[int, dict[str, str], bytes]]] = field(default_factory=dict)
    keys_seen: list[str | None] = field(default_factory=list)

    def reply(self, path: str, status: int, body: bytes, **headers: str) -> None:
        self.replies.setdefault(path, []).append((status, headers, body))


@contextmanager
def canned_server() -> Iterator[CannedServer]:
    canned = CannedServer()

    class _Request(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            canned.keys_seen.append(self.headers.get("authorization"))
            replies = canned.replies.get(self.path, [(404, {}, b'{"error": {"message": "No such path."}}')])
            status, headers, body = replies.pop(0) if len(replies) > 1 else replies[0]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), _Request)
    canned.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield canned
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
