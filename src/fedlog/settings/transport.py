"""From a run's settings to the way its messages cross. In a file of its own: codecs need PyTorch, flags do not."""

from __future__ import annotations

from fedlog.settings.training import Down, RoundSettings, World
from fedlog.wire.transport import Transport


def transport_of(settings: RoundSettings) -> Transport:
    """How the messages of a run with these settings cross; InputError for ways that contradict each other."""
    return Transport(
        codec=settings.codec,
        codec_down=settings.codec_down,
        differences=settings.down is Down.DIFFERENCES,
        closed_world=settings.world is World.CLOSED,
        skip_below=settings.skip_below,
    )
