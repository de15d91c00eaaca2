"""A small HTTP server for the metrics and the status page of `fedlog federate server` and `fedlog federate site`."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedlog.errors import InputError

LOOPBACK = "127.0.0.1"
# The names of this machine in a browser. A foreign page whose name was made to point here sends another name.
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def parse_status_address(text: str) -> tuple[str, int]:
    """Parse the host and the port in the text `[HOST:]PORT`; without HOST the host is 127.0.0.1."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) < 65536:
        raise InputError(f"expected PORT or HOST:PORT, found: {text!r}", hint="for example 9464, or 0.0.0.0:9464")
    return host.strip("[]") or LOOPBACK, int(port)


@contextmanager
def serve_status(address: str, make_metrics: Callable[[], bytes], make_page: Callable[[], str]) -> Iterator[str]:
    """Serve the page at `/` and the metrics at `/metrics` until the block ends, and yield the URL.

    Page and metrics are made anew for each request.
    """
    host, port = parse_status_address(address)
    try:
        server = ThreadingHTTPServer((host, port), _make_handler(make_metrics, make_page, local=is_loopback(host)))
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="give --metrics another port"
        ) from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="fedlog-watch", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _make_handler(
    make_metrics: Callable[[], bytes], make_page: Callable[[], str], local: bool
) -> type[BaseHTTPRequestHandler]:
    """Make the class that answers requests. If `local`, it refuses requests whose host name is not this machine."""

    class Handler(BaseHTTPRequestHandler):
        """Answers GET requests for `/` and `/metrics`."""

        def do_GET(self) -> None:
            """Answer one request."""
            host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host")
            if local and host not in LOCAL_NAMES:
                self._send_response(403, "text/plain", b"this address is for this machine\n")
            elif self.path == "/metrics":
                self._send_response(200, METRICS_TYPE, make_metrics())
            elif self.path == "/":
                self._send_response(200, "text/html; charset=utf-8", make_page().encode())
            else:
                self._send_response(404, "text/plain", b"/ is the page, /metrics the metrics\n")

        def _send_response(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            headers = {"Content-Type": content_type, "Content-Length": str(len(body)), **PAGE_HEADERS}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing: Prometheus asks every few seconds."""

    return Handler
