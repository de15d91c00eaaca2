"""Find out why a site's SuperNode ended or could not start, and whether to start it again."""

from __future__ import annotations

import datetime as dt
import signal
import ssl
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedlog.errors import InputError, RunError
from fedlog.files.durable import is_disk_nearly_full
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.check_in import (
    AHEAD_SECONDS,
    BEHIND_SECONDS,
    CHECK_IN_PATH,
    CheckInAnswer,
    SiteState,
    describe_clock,
    encode_site_state,
    read_check_in_answer,
)
from fedlog.flower.server.callers import sign_call

TIMEOUT_SECONDS = 10.0
NOT_ACTIVATED = "Failed to activate SuperNode"
SET_THE_CLOCK = "set the clock, best by a time service (timedatectl set-ntp true), and start the site again"


class UnreachableError(RunError):
    """The server did not answer."""


class CertificateError(RunError):
    """The program that answers is not the server that this site knows."""


def check_in(folder: SiteFolder, news: SiteState | None = None, now: dt.datetime | None = None) -> CheckInAnswer:
    """Report the site's state to the gate, and return whether the key is registered and the clock right.

    `now` is the time on this machine's clock. UnreachableError if no server answers, CertificateError if another one
    does.
    """
    server = folder.read_config().server
    key = serialization.load_ssh_private_key(folder.private_key.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"expected an elliptic-curve key, found {type(key).__name__}: {folder.private_key}")
    trust = ssl.create_default_context(cafile=folder.authority)
    headers = sign_call(key, now or dt.datetime.now(dt.UTC))
    try:
        with httpx.Client(verify=trust, timeout=TIMEOUT_SECONDS) as client:
            answer = client.post(f"https://{server}{CHECK_IN_PATH}", content=encode_site_state(news), headers=headers)
        answer.raise_for_status()
        return read_check_in_answer(answer.content)
    except httpx.ConnectError as error:
        if "certificate" in str(error).lower():
            raise CertificateError(
                f"expected the server with a certificate under {folder.authority} at {server}, found another: {error}",
                hint="is the address right, and is ca.crt the one of this federation?",
            ) from None
        raise UnreachableError(f"expected a server at {server}, found none: {error}") from None
    except (httpx.HTTPError, InputError) as error:
        raise UnreachableError(f"expected the gate of a federation at {server}, found: {error}") from None


def report_state(folder: SiteFolder, news: SiteState) -> None:
    """Report the site's state to the gate, if it can be reached."""
    with suppress(RunError, InputError, OSError):
        check_in(folder, news)


class RestartChance(Enum):
    """Whether another start of the SuperNode would help."""

    FINAL = "end in the same way"
    UNKNOWN_KEY = "help once the operator has registered the key"
    STILL_LISTED = "help once the server has noticed that the earlier process is gone"
    UNREACHABLE = "help once the server is back"
    ENDED = "help, unless it ends again and again"


@dataclass(frozen=True)
class Trouble:
    """The reason why a SuperNode ended, whether to start it again, and a hint."""

    kind: RestartChance
    reason: str
    hint: str | None = None
    news: SiteState | None = None  # the state that the site reports to the gate

    @property
    def error(self) -> RunError:
        """The error that ends the command."""
        return RunError(self.reason, hint=self.hint)


def find_trouble(folder: SiteFolder, exit_code: int, tail: str) -> Trouble:
    """Return why the SuperNode ended; `tail` is the end of its log."""
    if is_disk_nearly_full(folder.path):
        reason = f"the disk is full: {folder.path}"
        return Trouble(RestartChance.FINAL, reason, "make room and start the site again", SiteState.NO_SPACE)
    try:
        standing = check_in(folder)
    except CertificateError as error:
        return Trouble(RestartChance.FINAL, error.message, error.hint)
    except UnreachableError as error:
        return Trouble(RestartChance.UNREACHABLE, f"the server does not answer: {error.message}")
    if trouble := find_clock_trouble(standing):
        return trouble
    if not standing.registered:
        return Trouble(
            RestartChance.UNKNOWN_KEY,
            "the server refuses this site's key: the operator has not registered it, or has unregistered it",
            f"the operator registers it with `fedlog federate register`: {folder.public_key}; a key that was "
            f"unregistered cannot be registered again: `fedlog federate rekey {folder.path}` makes a new one",
        )
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return Trouble(RestartChance.ENDED, f"the SuperNode was killed ({name})", news=SiteState.KILLED)
    if NOT_ACTIVATED in tail:
        reason = "not let in yet: the server still lists an earlier process of this site, for up to a minute"
        return Trouble(RestartChance.STILL_LISTED, reason)
    reason = f"the SuperNode ended with exit code {exit_code}; its log ends:\n{tail}"
    return Trouble(RestartChance.ENDED, reason, news=SiteState.ENDED)


def find_clock_trouble(standing: CheckInAnswer) -> Trouble | None:
    """Return what is wrong with this site's clock; None if it is right enough for Flower."""
    if -BEHIND_SECONDS < standing.ahead_seconds < AHEAD_SECONDS:
        return None
    told = describe_clock(standing.ahead_seconds) or f"{standing.ahead_seconds:.1f} s off"
    return Trouble(
        RestartChance.FINAL,
        f"the clock of this machine is {told}, and the server takes no call from more than {AHEAD_SECONDS:.0f} s ahead "
        f"or {BEHIND_SECONDS:.0f} s behind",
        SET_THE_CLOCK,
        SiteState.CLOCK,
    )
