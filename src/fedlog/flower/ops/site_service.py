"""Keep a site connected: start its SuperNode again if that may help, else stop with the reason."""

from __future__ import annotations

import datetime as dt
import signal
import ssl
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import Enum

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedlog.errors import InputError, RunError
from fedlog.files.durable import is_disk_nearly_full
from fedlog.flower.folders.folder import LineFollower
from fedlog.flower.folders.keys import check_authority_certificate
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.event_text import SiteEventDescriber
from fedlog.flower.ops.processes import Say
from fedlog.flower.ops.site import run_site
from fedlog.flower.ops.status import render_site_metrics, render_site_page
from fedlog.flower.ops.status_server import serve_status
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

WATCH_SECONDS = 0.5
RETRY_SECONDS = 5.0
# For two heartbeats of 30 s the server lists a killed SuperNode, and refuses another one with the same key.
PATIENCE_SECONDS = 120.0
# A SuperNode that ends is started again after 1, 2, 4, ... seconds; if it ran for long, after 1 second.
LONGEST_PAUSE = 60.0
LONG_LIFE_SECONDS = 600.0
MOST_ENDS = 8
# Flower's texts in the log of a SuperNode.
LET_IN, RETRYING, RECOVERED = "SuperNode ID: ", "Connection attempt failed, retrying", "Connection successful after"
TIMEOUT_SECONDS = 10.0
NOT_ACTIVATED = "Failed to activate SuperNode"
START_AGAIN = "find the cause in logs/supernode.log of the site's folder, and start the site again"
SET_THE_CLOCK = "set the clock, best by a time service (timedatectl set-ntp true), and start the site again"


class UnreachableError(RunError):
    """The server did not answer at the address in the site's settings."""


class CertificateError(RunError):
    """The program at the server's address has no certificate that this federation's authority signed."""


def _read_key(folder: SiteFolder) -> ec.EllipticCurvePrivateKey:
    """Read the site's private key; raise InputError if the file does not hold one."""
    hint = f"restore the file from a copy, or `fedlog federate rekey {folder.path}` makes a new key"
    try:
        key = serialization.load_ssh_private_key(folder.private_key.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # damaged, with a password, of an unknown kind
        raise InputError(f"expected a site's private key, found none in: {folder.private_key}", hint=hint) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"expected an elliptic-curve key, found {type(key).__name__}: {folder.private_key}", hint=hint)
    return key


def check_in(folder: SiteFolder, state: SiteState | None = None, now: dt.datetime | None = None) -> CheckInAnswer:
    """Report the site's state to the server, and return the server's answer about the site's key and clock.

    `now` is the time on this machine's clock. Raise UnreachableError if no server answers, CertificateError if the
    program that answers has no certificate of this federation.
    """
    server = folder.read_config().server
    key = _read_key(folder)
    check_authority_certificate(folder.authority)
    trust = ssl.create_default_context(cafile=folder.authority)
    headers = sign_call(key, now or dt.datetime.now(dt.UTC))
    try:
        with httpx.Client(verify=trust, timeout=TIMEOUT_SECONDS) as client:
            answer = client.post(f"https://{server}{CHECK_IN_PATH}", content=encode_site_state(state), headers=headers)
        answer.raise_for_status()
        return read_check_in_answer(answer.content)
    except httpx.ConnectError as error:
        if "certificate" in str(error).lower():
            raise CertificateError(
                f"expected at {server} a certificate that {folder.authority} has signed, found another: {error}",
                hint="is the address right, and is ca.crt the one of this federation?",
            ) from None
        raise UnreachableError(
            f"expected a server at {server}, found none: {error}",
            hint="is the address right, and does `fedlog federate server` run there?",
        ) from None
    except (httpx.HTTPError, InputError) as error:
        found = error.one_line if isinstance(error, InputError) else error
        raise UnreachableError(
            f"expected the server of a federation at {server}, found: {found}",
            hint="is the address right, and does the server have the same version of fedlog?",
        ) from None


def report_state(folder: SiteFolder, state: SiteState) -> None:
    """Report the site's state to the server; do nothing if the server cannot be reached."""
    with suppress(RunError, InputError, OSError):
        check_in(folder, state)


class RestartEffect(Enum):
    """What a restart of the site's SuperNode would do; each value completes the sentence "a restart would ..."."""

    FINAL = "end in the same way"
    UNKNOWN_KEY = "help once the operator has registered the key"
    STILL_LISTED = "help once the server has noticed that the earlier process is gone"
    UNREACHABLE = "help once the server is back"
    ENDED = "help, unless it ends again and again"


NOT_LET_IN = (RestartEffect.UNKNOWN_KEY, RestartEffect.STILL_LISTED)


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong at a site, whether a restart of its SuperNode may help, and a hint for the person at the site."""

    restart: RestartEffect
    reason: str
    hint: str | None = None
    state_to_report: SiteState | None = None  # to the server

    @property
    def error(self) -> RunError:
        """The error that ends `fedlog federate site`, with the reason and the hint."""
        return RunError(self.reason, hint=self.hint)


def diagnose_exit(folder: SiteFolder, exit_code: int, log_end: str) -> Diagnosis:
    """Return why the site's SuperNode ended, and whether a restart may help; `log_end` is the end of its log."""
    if is_disk_nearly_full(folder.path):
        reason = f"the disk is full: {folder.path}"
        return Diagnosis(RestartEffect.FINAL, reason, "make room and start the site again", SiteState.NO_SPACE)
    try:
        answer = check_in(folder)
    except CertificateError as error:
        return Diagnosis(RestartEffect.FINAL, error.message, error.hint)
    except UnreachableError as error:
        return Diagnosis(RestartEffect.UNREACHABLE, f"the server does not answer: {error.message}")
    if diagnosis := diagnose_clock(answer):
        return diagnosis
    if not answer.registered:
        return Diagnosis(
            RestartEffect.UNKNOWN_KEY,
            "the server refuses this site's key: the operator has not registered it, or has unregistered it",
            f"the operator registers it with `fedlog federate register`: {folder.public_key}; a key that was "
            f"unregistered cannot be registered again: `fedlog federate rekey {folder.path}` makes a new one",
        )
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return Diagnosis(RestartEffect.ENDED, f"the SuperNode was killed ({name})", START_AGAIN, SiteState.KILLED)
    if NOT_ACTIVATED in log_end:
        reason = "not let in yet: the server still lists an earlier process of this site, for up to a minute"
        hint = "does another process use this site's folder or a copy of it? end it, and start the site again"
        return Diagnosis(RestartEffect.STILL_LISTED, reason, hint)
    reason = f"the SuperNode ended with exit code {exit_code}; its log ends:\n{log_end}"
    return Diagnosis(RestartEffect.ENDED, reason, START_AGAIN, SiteState.ENDED)


def diagnose_clock(answer: CheckInAnswer) -> Diagnosis | None:
    """Return what is wrong with this machine's clock; None if Flower accepts calls signed with this clock's time."""
    if -BEHIND_SECONDS < answer.ahead_seconds < AHEAD_SECONDS:
        return None
    told = describe_clock(answer.ahead_seconds) or f"{answer.ahead_seconds:.1f} s off"
    return Diagnosis(
        RestartEffect.FINAL,
        f"the clock of this machine is {told}, and the server takes no call from more than {AHEAD_SECONDS:.0f} s ahead "
        f"or {BEHIND_SECONDS:.0f} s behind",
        SET_THE_CLOCK,
        SiteState.CLOCK,
    )


@dataclass
class SuperNodeLog:
    """Finds three events in a SuperNode's log: connected, server lost, and server found (again)."""

    lines: LineFollower
    lost: bool = False
    connected: bool = False

    def read_connection_events(self) -> list[str]:
        """Return the events that were logged since the last call: connected, server lost, server found."""
        found = []
        for line in self.lines.read_new_lines():
            if LET_IN in line and not self.connected:
                self.connected, self.lost = True, False
                found.append("connected")
            elif RETRYING in line and not self.lost:
                self.lost = True
                found.append("server lost")
            elif RECOVERED in line and self.lost:
                self.lost = False
                found.extend(["server found"] if self.connected else [])
        return found


@dataclass
class SiteService:
    """Runs a site's SuperNode until Ctrl-C or SIGTERM, and starts it again as long as that may help."""

    folder: SiteFolder
    say: Say
    patience_seconds: float = PATIENCE_SECONDS
    describer: SiteEventDescriber = field(default_factory=SiteEventDescriber)
    disk_full: bool = False
    was_connected: bool = False
    refused_since: float | None = None
    ends: int = 0  # how often in a row the SuperNode ended soon after its start

    def serve(self) -> None:
        """Run the SuperNode, and restart it after longer and longer pauses; raise RunError if a restart cannot help."""
        self._check_clock()
        follower = LineFollower.from_end(self.folder.event_log)
        while True:
            started = time.monotonic()
            code, tail = self._run_once(follower)
            diagnosis = diagnose_exit(self.folder, code, tail)
            if diagnosis.state_to_report is not None:
                report_state(self.folder, diagnosis.state_to_report)
            if self._should_give_up(diagnosis, time.monotonic() - started):
                self.folder.log("ended", reason=diagnosis.reason)
                raise diagnosis.error
            seconds = (
                RETRY_SECONDS if diagnosis.restart in NOT_LET_IN else min(LONGEST_PAUSE, 2.0 ** max(0, self.ends - 1))
            )
            self.folder.log("starting again", reason=diagnosis.reason.splitlines()[0], seconds=seconds)
            self.say(f"{diagnosis.reason}\nnext try in {seconds:.0f} s")
            time.sleep(seconds)

    def _should_give_up(self, diagnosis: Diagnosis, lived_seconds: float) -> bool:
        """Whether to stop, because another restart would not help; `lived_seconds` is how long the SuperNode ran."""
        if diagnosis.restart is RestartEffect.FINAL or (
            diagnosis.restart is RestartEffect.UNKNOWN_KEY and self.was_connected
        ):
            return True
        if diagnosis.restart in NOT_LET_IN:
            self.refused_since = self.refused_since or time.monotonic()
            return time.monotonic() - self.refused_since > self.patience_seconds
        self.refused_since = None
        if diagnosis.restart is RestartEffect.UNREACHABLE:
            return False
        self.ends = 1 if lived_seconds > LONG_LIFE_SECONDS else self.ends + 1
        if self.ends > MOST_ENDS:
            report_state(self.folder, SiteState.GIVES_UP)
        return self.ends > MOST_ENDS

    def _run_once(self, follower: LineFollower) -> tuple[int, str]:
        """Run the SuperNode until it ends, and return its exit code and the last lines of its log."""
        with run_site(self.folder, self.say) as running:
            log = SuperNodeLog(LineFollower(running.log, running.log_start))
            while (code := running.exit_code) is None:
                time.sleep(WATCH_SECONDS)
                for event in log.read_connection_events():
                    self._report_connection(event)
                for line in filter(None, map(self.describer.describe, follower.read_new_events())):
                    self.say(line)
                self._check_disk_space()
            return code, running.read_log_end(25)

    def _report_connection(self, event: str) -> None:
        """Log a change of the connection (connected, server lost, server found), and tell the person at the site."""
        with suppress(OSError):
            self.folder.log(event)
        server = self.folder.read_config().server
        match event:
            case "connected":
                self.was_connected, self.refused_since = True, None
                self.say(f"connected to {server}; Ctrl-C stops the site")
            case "server lost":
                self.say(f"lost the server at {server}: asking again until it answers")
            case "server found":
                self.say(f"found the server at {server} again")
                report_state(self.folder, SiteState.FOUND)

    def _check_clock(self) -> None:
        """Raise RunError if this machine's clock is too far off for Flower; warn if it is a little off."""
        try:
            answer = check_in(self.folder, SiteState.STARTS)
        except UnreachableError as error:
            self.say(f"{error.message}; trying until it answers")
            return
        if diagnosis := diagnose_clock(answer):
            report_state(self.folder, SiteState.CLOCK)
            self.folder.log("ended", reason=diagnosis.reason)
            raise diagnosis.error
        if difference := describe_clock(answer.ahead_seconds):
            self.say(f"warning: the clock of this machine is {difference}; {SET_THE_CLOCK}")

    def _check_disk_space(self) -> None:
        """If the disk has become full, tell the person at the site, and report it to the server."""
        full = is_disk_nearly_full(self.folder.path)
        if full and not self.disk_full:
            self.say(f"the disk is full: {self.folder.path}; rounds are refused until there is room")
            report_state(self.folder, SiteState.NO_SPACE)
        self.disk_full = full


def serve_site(folder: SiteFolder, say: Say, metrics_address: str | None = None) -> None:
    """Run the site until Ctrl-C or SIGTERM; raise RunError if it ends earlier.

    If `metrics_address` is given, serve Prometheus metrics and the status page there.
    """
    with ExitStack() as stack:
        if metrics_address is not None:
            pages = serve_status(metrics_address, lambda: render_site_metrics(folder), lambda: render_site_page(folder))
            say(f"metrics and a page: {stack.enter_context(pages)}")
        try:
            SiteService(folder, say).serve()
        except KeyboardInterrupt:  # also after SIGTERM
            folder.log("stopped")
            report_state(folder, SiteState.STOPS)
            raise
