"""The Flower ClientApp of a site: one frame in, one frame out, and nothing of the site's data in an error."""

from __future__ import annotations

import traceback
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedlog.flower.folders.event_log import log_event
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.frame import Frame, FrameError, FrameKind, from_content, to_content
from fedlog.flower.site.answer import respond

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """The answer to one message; the site's folder comes from `--node-config`."""
    folder = SiteFolder(Path(str(context.node_config["folder"])))
    return Message(to_content(answer(message, folder)), reply_to=message)


def answer(message: Message, folder: SiteFolder) -> Frame:
    """The frame that goes back: always one, whatever came.

    Flower sends the text of an exception to the server, and such a text may hold a value from a record. So the server
    learns the class of an error and nothing else, and the site's log the place in the code besides.
    """
    log = folder.logs / "events.jsonl"
    request = Frame(FrameKind.REFUSAL, bytes(8), 0, 0, b"")
    try:
        request = from_content(message)
        return respond(request, folder)
    except FrameError as error:
        log_event(log, "refused", reason=error.message, round=request.round_number)
        # What is wrong with a frame is said in terms of the frame, so it may be told.
        return request.reply(FrameKind.REFUSAL, error.message.encode("ascii", "replace")[:200])
    except Exception as error:
        log_event(log, "failed", reason=f"{type(error).__name__} {_place(error)}", round=request.round_number)
        return request.reply(FrameKind.REFUSAL, f"{type(error).__name__}; see the log at the site".encode())


def _place(error: Exception) -> str:
    """Where an error was raised: the file and the line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"at {Path(last.filename).name}:{last.lineno}"
