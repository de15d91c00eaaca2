"""The gate: the only part of the server that can be reached from outside. It lets in the sites' calls only.

Flower's SuperLink answers three kinds of callers on one port: SuperNodes (`/v1/fleet/`, signed with a registered key),
operators (`/v1/control/`: register a key, start a run with any code) and its own workers (`/v1/runtime/`). The last two
need not prove who they are. So the SuperLink listens on the loopback only, and this gate, with the server's
certificate, forwards calls of the first kind. It also answers the sites' check-ins itself.

The headers of a call hold a public key and a signature. Before the gate reads the content of a call, it checks that
the call was signed with this key; a call that it forwards must also have been signed just now. The SuperLink decides
whether the key may call. From a call with an unregistered key, the gate reads at most 64 KiB.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import ssl
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from fedlog.files.json_text import write_json
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.protocol.check_in import CHECK_IN_PATH, LIMIT_BYTES, CheckInAnswer, read_site_state
from fedlog.flower.server.callers import Caller, Presence, RegisteredKeys, verify_caller

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

FLEET_PREFIX = "/v1/fleet/"
# Without register-node and unregister-node: only the operator registers keys. The paths are raw bytes, since the
# SuperLink decodes a path once more.
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
CHECK_IN = CHECK_IN_PATH.encode()
WRITE_SECONDS = 2.0
DEFAULT_LIMIT_BYTES = 64 * 2**20
STRANGER_LIMIT_BYTES = 2**16  # for a key that is not registered: enough for the call that the SuperLink refuses
# Headers that belong to one connection and not to the message (RFC 9110, 7.6.1), and those that each server sets.
CONNECTION_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host", b"content-length"}
)
ANSWER_HEADERS = CONNECTION_HEADERS | {b"date", b"server"}


class CallTooLargeError(Exception):
    """The content of a call is larger than allowed."""


@dataclass
class CallCounts:
    """How many calls of one kind the gate forwarded, and their bytes: HTTP with headers, before encryption."""

    count: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


def _count_bytes(first_line_bytes: int, headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    """Count the bytes of an HTTP/1.1 message: the first line, `name: value` lines, an empty line, the content."""
    return first_line_bytes + 2 + sum(len(name) + len(value) + 4 for name, value in headers) + 2 + len(body)


@dataclass(frozen=True)
class Gate:
    """An ASGI application that forwards signed calls to Flower's SuperLink, and refuses unsigned or too large ones."""

    upstream: str  # https://127.0.0.1:PORT
    client: httpx.AsyncClient
    callers: RegisteredKeys
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    traffic: Path | None = None  # the file for the counts of calls and bytes
    presence: Presence = field(default_factory=Presence)
    presence_file: Path | None = None
    calls: dict[str, CallCounts] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._answer_http(scope, receive, send)

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._keep_writing_status_files())
        while True:
            event = await receive()
            if event["type"] == "lifespan.shutdown":
                # Written here: at the end uvicorn raises the signal again, and `main` does not go on after it.
                writing.cancel()
                self.presence.connected.clear()
                self._write_status_files()
            await send({"type": event["type"] + ".complete"})
            if event["type"] == "lifespan.shutdown":
                return

    async def _keep_writing_status_files(self) -> None:
        """Write the counts and the connected sites every few seconds, for `status`, the metrics and the status page."""
        while True:
            self.presence.mark_lost_sites(dt.datetime.now(dt.UTC))
            with suppress(OSError):  # a full disk must not stop the gate; it writes again in a few seconds
                self._write_status_files()
            await asyncio.sleep(WRITE_SECONDS)

    def _write_status_files(self) -> None:
        counted = {path: asdict(calls) for path, calls in sorted(self.calls.items())}
        for path, content in ((self.traffic, counted), (self.presence_file, self.presence.as_json())):
            if path is not None:
                write_json(path, content)

    async def _answer_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: bytes = scope["raw_path"]
        if scope["method"] in ("GET", "HEAD") and path == b"/health":
            await _send_answer(send, 200)
        elif scope["method"] != "POST" or path not in {*ALLOWED, CHECK_IN} or scope["query_string"]:
            await _send_answer(send, 404)
        else:
            await self._answer_signed_call(path, scope["headers"], receive, send)

    async def _answer_signed_call(
        self, path: bytes, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send
    ) -> None:
        """Answer a check-in, or forward another call to the SuperLink; refuse a call without a valid signature."""
        now = dt.datetime.now(dt.UTC)
        caller = verify_caller(headers, now)
        site = None if caller is None else self.callers.find_site_name(caller.key)
        if caller is None:
            self.presence.count_refusal("no good signature", None, now)
            await _send_answer(send, 401)
        elif path == CHECK_IN:
            await self._answer_check_in(caller, site, receive, send)
        elif not caller.is_recent:
            self.presence.count_refusal("the clock is off", site, now, ahead_seconds=round(caller.ahead_seconds, 1))
            await _send_answer(send, 401)
        else:
            await self._forward_call(path.decode("ascii"), headers, receive, send, site)

    async def _answer_check_in(self, caller: Caller, site: str | None, receive: Receive, send: Send) -> None:
        """Answer whether a site's key is registered and its clock right; log the state that it reports."""
        try:
            state = read_site_state(await _read_content(receive, LIMIT_BYTES))
        except CallTooLargeError:
            await _send_answer(send, 413)
            return
        if site is not None and state is not None and caller.is_recent:
            self.presence.record_site_state(site, state, dt.datetime.now(dt.UTC))
        await _send_answer(send, 200, None, CheckInAnswer(site is not None, caller.ahead_seconds).encode())

    async def _forward_call(
        self, path: str, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send, site: str | None
    ) -> None:
        """Send a signed call on to the SuperLink and its answer back to the site, and count the bytes of both."""
        now = dt.datetime.now(dt.UTC)
        try:
            body = await _read_content(
                receive, self.limit_bytes if site is not None else min(STRANGER_LIMIT_BYTES, self.limit_bytes)
            )
        except CallTooLargeError:
            self.presence.count_refusal("too large", site, now)
            await _send_answer(send, 413)
            return
        kept = [(name, value) for name, value in headers if name.lower() not in CONNECTION_HEADERS]
        try:
            reply = await self.client.post(self.upstream + path, content=body, headers=kept)
        except httpx.HTTPError:
            await _send_answer(send, 503)  # Flower's client tries again after 503
            return
        if site is not None:
            self.presence.record_call(site, path.removeprefix(FLEET_PREFIX), reply.status_code, now)
        elif reply.status_code == 401:
            self.presence.count_refusal("the key is not registered", None, now)
        # `content` is already unpacked, so the SuperLink's content-encoding does not hold any more.
        dropped = ANSWER_HEADERS | {b"content-encoding"}
        answer = [(name, value) for name, value in reply.headers.raw if name.lower() not in dropped]
        await _send_answer(send, reply.status_code, answer, reply.content)
        counted = self.calls.setdefault(path.removeprefix(FLEET_PREFIX), CallCounts())
        counted.count += 1
        counted.bytes_up += _count_bytes(len(f"POST {path} HTTP/1.1"), headers, body)
        counted.bytes_down += _count_bytes(len("HTTP/1.1 200 OK"), answer, reply.content)


async def _read_content(receive: Receive, limit_bytes: int) -> bytes:
    """Return a call's content, empty if the caller has gone; raise CallTooLargeError if it is larger than the limit."""
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return b""
        part: bytes = event.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise CallTooLargeError
        parts.append(part)
        if not event.get("more_body", False):
            return b"".join(parts)


async def _send_answer(
    send: Send, status: int, headers: list[tuple[bytes, bytes]] | None = None, body: bytes = b""
) -> None:
    sized = [*(headers or []), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": sized})
    await send({"type": "http.response.body", "body": body})


def main(arguments: list[str] | None = None) -> int:
    """Run the gate, which forwards the sites' signed calls to Flower's SuperLink, until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="fedlog-gate", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="the server's folder")
    parser.add_argument("upstream_port", type=int, help="the port of the SuperLink on the loopback")
    chosen = parser.parse_args(arguments)
    folder = ServerFolder(chosen.folder)
    config, files = folder.read_config(), folder.certificates
    trust = ssl.create_default_context(cafile=files.authority)
    gate = Gate(
        f"https://127.0.0.1:{chosen.upstream_port}",
        # No proxy and no other setting of the environment: this connection never leaves the machine.
        httpx.AsyncClient(verify=trust, trust_env=False, timeout=httpx.Timeout(60.0)),
        RegisteredKeys(folder.sites),
        traffic=folder.traffic_file,
        presence=Presence(folder.event_log),
        presence_file=folder.presence_file,
    )
    uvicorn.run(
        gate,
        host=config.listen,
        port=config.port,
        ssl_certfile=files.server,
        ssl_keyfile=files.server_key,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
