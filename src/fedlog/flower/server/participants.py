"""The sites that take part in a run: greet the connected sites, and leave out those that cannot take part."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field

from fedlog.data.schema import Schema
from fedlog.files.json_text import write_json
from fedlog.flower.protocol.check_in import describe_clock
from fedlog.flower.protocol.frame import Frame, FrameKind, SendableError, make_run_tag
from fedlog.flower.protocol.greeting import SiteProfile, encode_hello, make_versions, read_time, read_welcome
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.run_folder import RunFolder
from fedlog.flower.server.site_requests import Clock, MessageGrid, WaitingRules, ask_sites, find_connected_sites

# During a run, new sites are greeted between two rounds, and the others wait that long at most.
GREETING_SECONDS = 60.0
LOOK_SECONDS = 1.0


@dataclass
class Participants:
    """The sites that take part in one run: those that received the plan and answered with their profile."""

    grid: MessageGrid
    plan: Plan
    schema: Schema
    run_folder: RunFolder
    clock: Clock
    log: Callable[..., None]
    seen_at_gate: Callable[[], Collection[str]] = frozenset  # the sites that call the server
    profiles: dict[str, SiteProfile] = field(default_factory=dict)  # of the sites that take part
    wall_clock: Callable[[], float] = time.time
    width: int = 0  # of the features, the same at all sites; 0 until the first greetings have decided it

    def gather_sites(self, minimum: int, patience_seconds: float) -> dict[str, int]:
        """Send the plan to new sites until `minimum` sites take part or the time is up; return site -> Flower node."""
        end = self.clock.now() + patience_seconds
        refused: set[str] = set()
        while True:
            dropped = self.run_folder.read_dropped_sites()
            nodes = {name: node for name, node in find_connected_sites(self.grid).items() if name not in dropped}
            newcomers = {
                name: node for name, node in nodes.items() if name not in self.profiles and name not in refused
            }
            if newcomers:
                refused |= self._greet_sites(
                    newcomers, end - self.clock.now(), enough_sites=len(self.profiles) >= minimum
                )
            present = {name: node for name, node in nodes.items() if name in self.profiles}
            if len(present) >= minimum or self.clock.now() >= end:
                return present
            self.clock.sleep(LOOK_SECONDS)

    def choose_feature_width(self) -> None:
        """Choose the feature width that most sites have, and leave out the other sites."""
        # If two widths are equally common, the first site by name decides.
        widths = Counter(self.profiles[name].width for name in sorted(self.profiles))
        self.width = widths.most_common(1)[0][0]
        for site, profile in sorted(self.profiles.items()):
            if profile.width != self.width:
                self._leave_out(site, _describe_other_width(profile, self.width))
        self._leave_out_other_bodies()

    def _leave_out_other_bodies(self) -> None:
        """If the run needs equal bodies, leave out the sites whose body differs from the most common one."""
        if not self.plan.needs_equal_bodies:
            return
        found = Counter(profile.digest for _, profile in sorted(self.profiles.items())).most_common(1)[0][0]
        usual = next(
            profile.as_required_body for _, profile in sorted(self.profiles.items()) if profile.digest == found
        )
        write_json(self.run_folder.body_file, asdict(usual))
        for site, profile in sorted(self.profiles.items()):
            if reason := usual.describe_difference(profile):
                self._leave_out(site, reason)

    def _log_wrong_clock(self, site: str, payload: bytes, sent: float) -> None:
        """Log that a site's clock is off, unless the travel time of the messages may explain the difference.

        `payload` is the site's answer to the greeting, and `sent` the time when the greeting was sent.
        """
        shown, now = read_time(payload), self.wall_clock()
        if shown is None:
            return
        ahead = shown - now if shown > now else min(0.0, shown - sent)
        if describe_clock(ahead) is not None:
            self.log("clock", site=site, ahead_seconds=round(ahead, 1))

    def _leave_out(self, site: str, reason: str) -> None:
        self.log("left out", site=site, reason=reason)
        del self.profiles[site]

    def _greet_sites(self, newcomers: Mapping[str, int], patience_seconds: float, enough_sites: bool) -> set[str]:
        """Send the plan to new sites, add those that can take part, and return those that cannot.

        If `enough_sites` is true, the server waits only briefly for the answers, because the sites that already take
        part do nothing meanwhile.
        """
        ours = make_versions(self.schema.digest)
        sent = self.wall_clock()
        frame = Frame(FrameKind.HELLO, make_run_tag(self.plan.name), 0, 0, encode_hello(ours, self.plan, sent))
        seconds = max(1.0, min(GREETING_SECONDS, patience_seconds) if enough_sites else patience_seconds)
        wait = WaitingRules(seconds, dropped=self.run_folder.read_dropped_sites, seen_at_gate=self.seen_at_gate)
        replies = ask_sites(self.grid, newcomers, dict.fromkeys(newcomers, frame), FrameKind.WELCOME, wait, self.clock)
        reasons = dict(replies.refused)
        for site, answer in sorted(replies.answers.items()):
            try:
                profile = read_welcome(answer.payload, ours, site)
                if self.width and profile.width != self.width:
                    raise SendableError(_describe_other_width(profile, self.width))
                if (body := self.run_folder.read_required_body()) is not None and (
                    reason := body.describe_difference(profile)
                ):
                    raise SendableError(reason)
                self.profiles[site] = profile
                self._log_wrong_clock(site, answer.payload, sent)
            except SendableError as error:
                reasons[site] = error.one_line
        for site, reason in sorted(reasons.items()):
            self.log("left out", site=site, reason=reason)
        for site in replies.silent:
            self.log("left out", site=site, reason=f"no answer within {seconds:.0f} s")
        if welcome := sorted(set(newcomers) & set(self.profiles)):
            self.log("greeted", sites=welcome)
        return set(reasons)


def _describe_other_width(profile: SiteProfile, width: int) -> str:
    return f"expected a body with {width} features, found {profile.width}: {profile.body}"
