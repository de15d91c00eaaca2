"""The worker: the process at a site that answers all messages, so that data, body and method stay in its memory.

Flower starts a process for each message. That process passes the frame to the worker, through a socket in a folder that
only the site's user can enter, and passes the reply back. Everything that a run needs after a restart is on disk: if
there is no worker, the process of the message answers itself.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path

from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.frame import Frame, FrameKind, decode_frame
from fedlog.flower.site.answer import answer_frame

_worker: tuple[str, bytes] | None = None  # its socket, and the secret that only this site's processes know


def use_worker(socket: str, secret: bytes) -> None:
    """Pass the frames of this process to the worker at this socket from now on."""
    global _worker
    _worker = (socket, secret)


def answer_in_worker(request: Frame, folder: SiteFolder) -> Frame:
    """Return the worker's reply; if no worker can be reached, answer in this process."""
    connection = _connect()
    if connection is None:
        return answer_frame(request, folder)
    try:
        with connection:
            connection.send_bytes(str(folder.path).encode())
            connection.send_bytes(request.encode())
            return decode_frame(connection.recv_bytes())
    except (OSError, EOFError) as error:
        # The worker may have counted a release before it ended, so the work is not done a second time here.
        folder.log("failed", reason=f"{type(error).__name__}: no worker", round=request.round_number)
        return request.reply(FrameKind.REFUSAL, b"the worker ended; see the log at the site")


def serve_frames(socket: str, secret: bytes) -> None:
    """Answer one frame after the other, until the process that started this worker ends."""
    folder = Path(socket).parent
    signal.signal(signal.SIGTERM, lambda *_: _end_process(folder))
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    with Listener(socket, family="AF_UNIX", backlog=16, authkey=secret) as listener:
        while True:
            try:
                with listener.accept() as connection:
                    site = SiteFolder(Path(connection.recv_bytes().decode()))
                    connection.send_bytes(answer_frame(decode_frame(connection.recv_bytes()), site).encode())
            except (multiprocessing.AuthenticationError, OSError, EOFError):
                continue  # the caller is gone


def _connect() -> Connection | None:
    if _worker is None:
        return None
    try:
        return Client(_worker[0], family="AF_UNIX", authkey=_worker[1])
    except (multiprocessing.AuthenticationError, OSError, EOFError):
        return None


def _end_with_parent(folder: Path) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _end_process(folder)


def _end_process(folder: Path) -> None:
    """Remove the folder of the socket and end this process at once: everything that must be kept is on disk."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
