"""Why a site's SuperNode ended or could not begin, in words, and whether it helps to start it again."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from fedlog.errors import RunError
from fedlog.files.durable import is_nearly_full
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.check_in import CertificateError, UnreachableError, check_in
from fedlog.flower.protocol.check_in import AHEAD_SECONDS, BEHIND_SECONDS, News, Standing, describe_clock

NOT_ACTIVATED = "Failed to activate SuperNode"
SET_THE_CLOCK = "set the clock, best by a time service (timedatectl set-ntp true), and start the site again"


class Restart(Enum):
    """What another start of the SuperNode would do."""

    FINAL = "end in the same way"
    UNKNOWN_KEY = "help once the operator has registered the key"
    STILL_LISTED = "help once the server has noticed that the earlier process is gone"
    UNREACHABLE = "help once the server is back"
    ENDED = "help, unless it ends again and again"


@dataclass(frozen=True)
class Trouble:
    """What is wrong, and what to do about it."""

    kind: Restart
    reason: str
    hint: str | None = None
    news: News | None = None  # what the server is told


def find_trouble(folder: SiteFolder, exit_code: int, tail: str) -> Trouble:
    """Return why the SuperNode ended; `tail` is the end of its log."""
    if is_nearly_full(folder.path):
        reason = f"the disk is full: {folder.path}"
        return Trouble(Restart.FINAL, reason, "make room and start the site again", News.NO_SPACE)
    try:
        standing = check_in(folder)
    except CertificateError as error:
        return Trouble(Restart.FINAL, error.message, error.hint)
    except UnreachableError as error:
        return Trouble(Restart.UNREACHABLE, f"the server does not answer: {error.message}")
    if trouble := find_clock_trouble(standing):
        return trouble
    if not standing.registered:
        return Trouble(
            Restart.UNKNOWN_KEY,
            "the server refuses this site's key: the operator has not registered it, or has taken it off the list",
            f"the operator registers it with `fedlog federate register`: {folder.public_key}; a key that was taken off "
            f"is not taken again, and `fedlog federate rekey {folder.path}` makes a new one",
        )
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return Trouble(Restart.ENDED, f"the SuperNode was killed ({name})", news=News.KILLED)
    if NOT_ACTIVATED in tail:
        reason = "not let in yet: the server still lists an earlier process of this site, for up to a minute"
        return Trouble(Restart.STILL_LISTED, reason)
    reason = f"the SuperNode ended with exit code {exit_code}; its log ends:\n{tail}"
    return Trouble(Restart.ENDED, reason, news=News.ENDED)


def find_clock_trouble(standing: Standing) -> Trouble | None:
    """Return what is wrong with this site's clock; None where Flower takes its calls."""
    if -BEHIND_SECONDS < standing.ahead_seconds < AHEAD_SECONDS:
        return None
    told = describe_clock(standing.ahead_seconds) or f"{standing.ahead_seconds:.1f} s off"
    return Trouble(
        Restart.FINAL,
        f"the clock of this machine is {told}, and the server takes no call from more than {AHEAD_SECONDS:.0f} s ahead "
        f"or {BEHIND_SECONDS:.0f} s behind",
        SET_THE_CLOCK,
        News.CLOCK,
    )


def make_error(trouble: Trouble) -> RunError:
    """The error that ends the command."""
    return RunError(trouble.reason, hint=trouble.hint)
