"""The only door of the server to the outside: it lets SuperNodes through and nothing else.

Flower's SuperLink answers three kinds of callers on one port: SuperNodes (`/v1/fleet/`, signed with a registered key),
operators (`/v1/control/`: register a key, start a run with any code) and its own workers (`/v1/runtime/`). The last two
need no proof of who calls. So the SuperLink listens on the loopback alone, and this gate, with the certificate of the
server, forwards the first kind. Before it reads a body it checks that the call was signed just now with the key that
it names. Whether that key may call is the SuperLink's to say; until the operator has registered it, a few kilobytes
are all that the gate holds in memory for it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import ssl
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from fedlog.flower.server.callers import Callers, read_signing_key

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

FLEET_PREFIX = "/v1/fleet/"
# Without register-node and unregister-node: an operator registers keys, and a node that could add itself would make the
# list of keys meaningless. As raw bytes, since the server behind the gate decodes a path once more.
ALLOWED = frozenset(
    f"{FLEET_PREFIX}{call}".encode()
    for call in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
DEFAULT_LIMIT_BYTES = 64 * 2**20
STRANGER_LIMIT_BYTES = 2**16  # with a key that is not registered: enough to ask to be let in, and to be told no
# Headers that belong to one connection and not to the message (RFC 9110, 7.6.1), and those the two servers set anew.
CONNECTION_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host", b"content-length"}
)
ANSWER_HEADERS = CONNECTION_HEADERS | {b"date", b"server"}


class TooLargeError(Exception):
    """A body over the limit."""


@dataclass
class Calls:
    """How often one kind of call came through, and its bytes with HTTP's headers, inside TLS."""

    count: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


def _size(first_line: int, headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    """The bytes of an HTTP/1.1 message: the first line, `name: value` lines, an empty line, the body."""
    return first_line + 2 + sum(len(name) + len(value) + 4 for name, value in headers) + 2 + len(body)


@dataclass(frozen=True)
class Gate:
    """An ASGI application in front of one SuperLink."""

    upstream: str  # https://127.0.0.1:PORT
    client: httpx.AsyncClient
    callers: Callers
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    traffic: Path | None = None  # where to write the counts at the end
    calls: dict[str, Calls] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.shutdown" and self.traffic is not None:
                # Here, since the server raises the signal that stopped it once more and never comes back to `main`.
                counted = {path: asdict(calls) for path, calls in sorted(self.calls.items())}
                self.traffic.write_text(json.dumps(counted, indent=1) + "\n")
            await send({"type": event["type"] + ".complete"})
            if event["type"] == "lifespan.shutdown":
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: bytes = scope["raw_path"]
        if scope["method"] in ("GET", "HEAD") and path == b"/health":
            await _answer(send, 200)
        elif scope["method"] != "POST" or path not in ALLOWED or scope["query_string"]:
            await _answer(send, 404)
        elif (key := read_signing_key(scope["headers"], dt.datetime.now(dt.UTC))) is None:
            await _answer(send, 401)
        else:
            limit = self.limit_bytes if self.callers.is_registered(key) else min(STRANGER_LIMIT_BYTES, self.limit_bytes)
            await self._forward(path.decode("ascii"), scope["headers"], receive, send, limit)

    async def _forward(
        self, path: str, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send, limit_bytes: int
    ) -> None:
        try:
            body = await _body(receive, limit_bytes)
        except TooLargeError:
            await _answer(send, 413)
            return
        kept = [(name, value) for name, value in headers if name.lower() not in CONNECTION_HEADERS]
        try:
            reply = await self.client.post(self.upstream + path, content=body, headers=kept)
        except httpx.HTTPError:
            await _answer(send, 503)  # Flower's client tries again after 503
            return
        # `content` is already unpacked, so the encoding of the hop behind us must not be announced again.
        dropped = ANSWER_HEADERS | {b"content-encoding"}
        answer = [(name, value) for name, value in reply.headers.raw if name.lower() not in dropped]
        await _answer(send, reply.status_code, answer, reply.content)
        counted = self.calls.setdefault(path.removeprefix(FLEET_PREFIX), Calls())
        counted.count += 1
        counted.bytes_up += _size(len(f"POST {path} HTTP/1.1"), headers, body)
        counted.bytes_down += _size(len("HTTP/1.1 200 OK"), answer, reply.content)


async def _body(receive: Receive, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return b""
        part: bytes = event.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise TooLargeError
        parts.append(part)
        if not event.get("more_body", False):
            return b"".join(parts)


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]] | None = None, body: bytes = b"") -> None:
    sized = [*(headers or []), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": sized})
    await send({"type": "http.response.body", "body": body})


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal; `python -m fedlog.flower.server.gate` is what `fedlog federate server` starts."""
    parser = argparse.ArgumentParser(prog="fedlog-gate", description=main.__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream-port", type=int, required=True)
    parser.add_argument("--certificate", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--authority", required=True)
    parser.add_argument("--sites", type=Path, required=True, help="folder of the registered public keys")
    parser.add_argument("--traffic", type=Path, help="write how many bytes came through here, at the end")
    parser.add_argument("--limit-bytes", type=int, default=DEFAULT_LIMIT_BYTES)
    chosen = parser.parse_args(arguments)
    trust = ssl.create_default_context(cafile=chosen.authority)
    # No proxy and no other setting of the environment: this connection never leaves the machine.
    client = httpx.AsyncClient(verify=trust, trust_env=False, timeout=httpx.Timeout(60.0))
    upstream = f"https://127.0.0.1:{chosen.upstream_port}"
    gate = Gate(upstream, client, Callers(chosen.sites), chosen.limit_bytes, chosen.traffic)
    uvicorn.run(
        gate,
        host=chosen.host,
        port=chosen.port,
        ssl_certfile=chosen.certificate,
        ssl_keyfile=chosen.key,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
