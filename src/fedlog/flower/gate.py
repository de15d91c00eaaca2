"""The only door of the server to the outside: it lets SuperNodes through and nothing else.

Flower's SuperLink answers three kinds of callers on one port: SuperNodes (`/v1/fleet/`, signed with a registered key),
operators (`/v1/control/`: register a key, start a run with any code) and its own workers (`/v1/runtime/`). The last two
need no proof of who calls. So the SuperLink listens on the loopback alone, and this gate, with the certificate of the
server, forwards the signed kind. It also refuses a body over the limit before it is held in memory.
"""

from __future__ import annotations

import argparse
import ssl
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

FLEET_PREFIX = "/v1/fleet/"
# An operator registers keys; a node that could add itself would make the list of keys meaningless.
REFUSED = frozenset({"/v1/fleet/register-node", "/v1/fleet/unregister-node"})
DEFAULT_LIMIT_BYTES = 64 * 2**20
# Headers that belong to one connection and not to the message (RFC 9110, 7.6.1), and those the two servers set anew.
CONNECTION_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host", b"content-length"}
)
ANSWER_HEADERS = CONNECTION_HEADERS | {b"date", b"server"}


class TooLargeError(Exception):
    """A body over the limit."""


@dataclass(frozen=True)
class Gate:
    """An ASGI application in front of one SuperLink."""

    upstream: str  # https://127.0.0.1:PORT
    client: httpx.AsyncClient
    limit_bytes: int = DEFAULT_LIMIT_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if scope["method"] in ("GET", "HEAD") and path == "/health":
            await _answer(send, 200)
        elif scope["method"] != "POST" or not path.startswith(FLEET_PREFIX) or path in REFUSED or ".." in path:
            await _answer(send, 404)
        else:
            await self._forward(path, scope["headers"], receive, send)

    async def _forward(self, path: str, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send) -> None:
        try:
            body = await _body(receive, self.limit_bytes)
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


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = await receive()
        await send({"type": event["type"] + ".complete"})
        if event["type"] == "lifespan.shutdown":
            return


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal; `python -m fedlog.flower.gate` is what `fedlog federate server` starts."""
    parser = argparse.ArgumentParser(prog="fedlog-gate", description=main.__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream-port", type=int, required=True)
    parser.add_argument("--certificate", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--authority", required=True)
    parser.add_argument("--limit-bytes", type=int, default=DEFAULT_LIMIT_BYTES)
    chosen = parser.parse_args(arguments)
    trust = ssl.create_default_context(cafile=chosen.authority)
    # No proxy and no other setting of the environment: this connection never leaves the machine.
    client = httpx.AsyncClient(verify=trust, trust_env=False, timeout=httpx.Timeout(60.0))
    gate = Gate(f"https://127.0.0.1:{chosen.upstream_port}", client, chosen.limit_bytes)
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
