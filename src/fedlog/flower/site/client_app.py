"""The Flower ClientApp of a site: it answers one frame with another, and no error tells anything about the data."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.frame import Frame, FrameError, FrameKind, unwrap_frame, wrap_frame
from fedlog.flower.site.worker import answer_in_worker

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Return the reply to one message; the site's folder is given by `--node-config`."""
    folder = SiteFolder(Path(str(context.node_config["folder"])))
    return Message(wrap_frame(answer(message, folder)), reply_to=message)


def answer(message: Message, folder: SiteFolder) -> Frame:
    """Return the frame to send back; a REFUSAL if the message holds no frame."""
    try:
        request = unwrap_frame(message)
    except FrameError as error:
        folder.log("refused", reason=error.message, round=0)
        return Frame(FrameKind.REFUSAL, bytes(8), 0, 0, error.message.encode("ascii", "replace")[:200])
    return answer_in_worker(request, folder)
