"""Make a `Transport` from a run's settings. In its own file, because codecs import PyTorch and flags must not."""

from __future__ import annotations

from fedlog.settings.training import Down, RoundSettings, World
from fedlog.wire.transport import Transport


def transport_of(settings: RoundSettings) -> Transport:
    """The transport that these settings ask for; InputError if they contradict each other."""
    return Transport(
        codec=settings.codec,
        codec_down=settings.codec_down,
        differences=settings.down is Down.DIFFERENCES,
        closed_world=settings.world is World.CLOSED,
        skip_below=settings.skip_below,
    )
