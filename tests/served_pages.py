"""Pages of `fedlog watch`, served while a test looks at them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedlog.report.pages.live import PageServer, ServedPages


@contextmanager
def serve(pages: ServedPages) -> Iterator[PageServer]:
    """A server that answers until the block ends."""
    with PageServer(pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
