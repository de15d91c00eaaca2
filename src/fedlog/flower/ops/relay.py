"""A loopback relay that counts the bytes that cross it, with those of TLS and without TCP's own headers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

CHUNK_BYTES = 65536


@dataclass
class Traffic:
    """The bytes counted so far; up is towards the server."""

    up: int = 0
    down: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_up(self, count: int) -> None:
        """Count bytes towards the server."""
        with self._lock:
            self.up += count

    def add_down(self, count: int) -> None:
        """Count bytes from the server."""
        with self._lock:
            self.down += count


@contextmanager
def open_counting_relay(target_port: int) -> Iterator[tuple[int, Traffic]]:
    """Open a loopback port that leads to another one, and count the bytes until the block ends."""
    traffic = Traffic()
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = [listener]

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", target_port))
            except OSError:
                near.close()
                continue
            open_sockets.extend((near, far))
            for source, sink, count in ((near, far, traffic.add_up), (far, near, traffic.add_down)):
                threading.Thread(target=_pump, args=(source, sink, count), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1]), traffic
    finally:
        for each in open_sockets:
            # A shutdown wakes the thread that waits in accept or recv; a close alone does not.
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        thread.join(2)


def _pump(source: socket.socket, sink: socket.socket, count: Callable[[int], None]) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            count(len(data))
            sink.sendall(data)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
