"""The Flower ClientApp of a site: it answers each frame with a frame, and its errors reveal nothing about the data.

Flower starts a process for each message. That process passes the frame to the worker and passes the reply back. The
worker is one process that answers all messages of the site, so that data, body and method stay in its memory; its
socket is in a folder that only the site's user can enter. If there is no worker, the process that Flower started for
the message answers it: everything that a run needs after a restart is on disk.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.frame import Frame, FrameKind, SendableError, decode_frame, unwrap_frame, wrap_frame
from fedlog.flower.site.answer import answer_or_refuse

app = ClientApp()
_worker: tuple[str, bytes] | None = None  # the worker's socket, and the secret that only this site's processes know


@app.train()  # type: ignore[untyped-decorator]
def answer_message(message: Message, context: Context) -> Message:
    """Answer a Flower message; the settings of the Flower node hold the path of the site's folder."""
    folder = SiteFolder(Path(str(context.node_config["folder"])))
    return Message(wrap_frame(answer_with_frame(message, folder)), reply_to=message)


def answer_with_frame(message: Message, folder: SiteFolder) -> Frame:
    """Answer the frame in a Flower message with a frame: a REFUSAL if the message holds no valid frame."""
    try:
        request = unwrap_frame(message)
    except SendableError as error:
        folder.log("refused", reason=error.message, round=0)
        return Frame(FrameKind.REFUSAL, bytes(8), 0, 0, error.message.encode("ascii", "replace")[:200])
    return answer_in_worker(request, folder)


def use_worker(socket: str, secret: bytes) -> None:
    """Make this process pass every frame that it receives to the worker process at this socket."""
    global _worker
    _worker = (socket, secret)


def answer_in_worker(request: Frame, folder: SiteFolder) -> Frame:
    """Let the worker process answer the request; if there is no worker, answer it in this process.

    If the worker ends before it has answered, return a REFUSAL.
    """
    connection = _connect_to_worker()
    if connection is None:
        return answer_or_refuse(request, folder)
    try:
        with connection:
            connection.send_bytes(str(folder.path).encode())
            connection.send_bytes(request.encode())
            return decode_frame(connection.recv_bytes())
    except (OSError, EOFError) as error:
        # The worker may have counted a release before it ended, so the work is not done a second time here.
        folder.log("failed", reason=f"{type(error).__name__}: no worker", round=request.round_number)
        return replace(request, kind=FrameKind.REFUSAL, payload=b"the worker ended; see the log at the site")


def serve_frames(socket: str, secret: bytes) -> None:
    """Answer the frames that arrive at this socket, one after another, until the parent process ends."""
    folder = Path(socket).parent
    signal.signal(signal.SIGTERM, lambda *_: _remove_folder_and_exit(folder))
    threading.Thread(target=_exit_when_parent_ends, args=(folder,), daemon=True).start()
    with Listener(socket, family="AF_UNIX", backlog=16, authkey=secret) as listener:
        while True:
            try:
                with listener.accept() as connection:
                    site = SiteFolder(Path(connection.recv_bytes().decode()))
                    connection.send_bytes(answer_or_refuse(decode_frame(connection.recv_bytes()), site).encode())
            except (multiprocessing.AuthenticationError, OSError, EOFError):
                continue  # the caller is gone


def _connect_to_worker() -> Connection | None:
    if _worker is None:
        return None
    try:
        return Client(_worker[0], family="AF_UNIX", authkey=_worker[1])
    except (multiprocessing.AuthenticationError, OSError, EOFError):
        return None


def _exit_when_parent_ends(folder: Path) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _remove_folder_and_exit(folder)


def _remove_folder_and_exit(folder: Path) -> None:
    """Remove the folder of the socket and end this process at once: everything that must be kept is on disk."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
