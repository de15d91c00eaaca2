"""The files that a site keeps of a run between messages: its state after each step, and the reply that it gave.

A step is one exchange of one round. Its folder `state/RUN/step-ROUND-EXCHANGE` has the state (safetensors), the payload
of the reply, and the digest of the request's payload. The folder is written under another name and then renamed, so
that a crash leaves a whole step or none. If the same request comes again, because the server was restarted, it gets the
stored reply. If another request comes for the same step, because the server went back to an earlier checkpoint, the
work is done again from the state before that step.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlog.files.durable import move_folder, write_file
from fedlog.files.json_text import read_json, write_json
from fedlog.flower.folders.folder import SubPath
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.frame import SendableError
from fedlog.flower.protocol.greeting import SiteProfile
from fedlog.flower.protocol.plan import Plan, read_plan

STEP = re.compile(r"step-(\d{10})-(\d{3})")
KEPT_STEPS = 3
STATE, REPLY, REQUEST = "state.safetensors", "answer.bin", "question.txt"
HEADS, ANSWERS, DATA = "heads.json", "answers.txt", "data.txt"
StepNumber = tuple[int, int]


@dataclass(frozen=True)
class RunState:
    """The folder of one run at a site: the plan, and for each step (an exchange of a round) the state and the reply."""

    path: Path

    plan_file = SubPath("plan.json")  # with the run's plan, and the body with which this site began the run

    @classmethod
    def of_run(cls, folder: SiteFolder, run: bytes) -> RunState:
        """Return the folder of the run with this tag."""
        return cls(folder.state / run.hex())

    def store_plan(self, plan: Plan, profile: SiteProfile) -> None:
        """Store the plan and the site's profile; raise SendableError if the run began with another plan or body."""
        if self.plan_file.exists():
            if changed := self.read_plan().list_forbidden_changes(plan):
                raise SendableError(
                    f"expected the settings with which run {plan.name} began, found other values: {', '.join(changed)}",
                    hint="give a new run another --name",
                )
            self.check_body(profile)
        agreed = {
            "plan": plan.as_json(),
            "body": profile.body,
            "digest": profile.digest,
            "closed_world": profile.closed_world,
        }
        write_json(self.plan_file, agreed)

    def check_body(self, profile: SiteProfile) -> None:
        """Raise SendableError if the site's body or its parameters are not those with which it began the run."""
        stored = self._read_plan_file()
        if stored["body"] != profile.body:
            raise SendableError(
                f"expected body {stored['body']}, with which this site began the run, found: {profile.body}",
                hint=f"start the site with --body {stored['body']}",
            )
        if stored.get("digest") != profile.digest:
            raise SendableError(
                f"expected body {profile.body} as it was when this site began the run, found other parameters",
                hint="restore the body's file, or take part in a new run",
            )

    def check_world_setting(self, profile: SiteProfile) -> None:
        """Raise SendableError if `world` (the rows of the head that the site gets) has changed since the greeting."""
        if self._read_plan_file().get("closed_world", False) != profile.closed_world:
            raise SendableError(
                "this site has changed its setting `world` since the greeting",
                hint="nothing to do: the server greets this site again before the next round",
            )

    def read_plan(self) -> Plan:
        """Read the plan of the run; raise SendableError if the server has not sent one to this site."""
        if not self.plan_file.exists():
            raise SendableError("expected a greeting first, found a request of a run that this site does not know")
        return read_plan(self._read_plan_file()["plan"])

    def _read_plan_file(self) -> dict[str, Any]:
        return dict(json.loads(self.plan_file.read_text()))

    def find_stored_reply(self, step: StepNumber, payload: bytes) -> bytes | None:
        """Find the reply that this site gave to the same request before; return None for a new request."""
        place = self._find_step_folder(step)
        if not place.is_dir() or (place / REQUEST).read_text() != _compute_digest(payload):
            return None
        return (place / REPLY).read_bytes()

    def find_state_before(self, step: StepNumber) -> Path | None:
        """Find the file with the newest stored state before this step; return None if there is none."""
        earlier = [
            found for found in self.list_steps() if found < step and (self._find_step_folder(found) / STATE).exists()
        ]
        return self._find_step_folder(max(earlier)) / STATE if earlier else None

    def save_step(self, step: StepNumber, payload: bytes, reply: bytes, save: Callable[[Path], None]) -> None:
        """Store the state after a step, the reply and the request's digest, all or nothing; `save` writes the state.

        Keep the last few steps up to this one. Remove later steps: the server has gone back to an earlier checkpoint.
        """
        place = self._find_step_folder(step)
        draft = place.with_name(place.name + ".part")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save(draft / STATE)
        (draft / REPLY).write_bytes(reply)
        (draft / REQUEST).write_text(_compute_digest(payload))
        move_folder(draft, place)
        kept = sorted(found for found in self.list_steps() if found <= step)[-KEPT_STEPS:]
        for found in self.list_steps():
            if found not in kept:
                shutil.rmtree(self._find_step_folder(found))

    def store_head_digest(self, round_number: int, broadcast: bytes) -> int | None:
        """Store the digest of a round's head; return the first earlier round with the same head, or None."""
        heads = {**self.read_head_digests(), round_number: _compute_digest(broadcast)}
        write_json(self.path / HEADS, heads)
        same = [number for number in heads if number < round_number and heads[number] == heads[round_number]]
        return min(same, default=None)

    def store_data_digest(self, digest: str) -> bool:
        """Store the digest of the site's data; return whether the data have changed since the last request."""
        path = self.path / DATA
        before = path.read_text() if path.exists() else None
        if before != digest:
            write_file(path, digest)
        return before not in (None, digest)

    def count_answer(self, limit: int | None) -> None:
        """Count one more answer in this run, before it is sent; raise SendableError if `limit` answers were counted."""
        path = self.path / ANSWERS
        begun = int(path.read_text()) if path.exists() else 0
        if limit is not None and begun >= limit:
            raise SendableError(
                f"this site gives at most {limit} different answers in a run, and has given that many",
                hint="allow more rounds at this site: `fedlog federate caps DIR --rounds N`",
            )
        write_file(path, f"{begun + 1}\n")

    def read_head_digests(self) -> dict[int, str]:
        """Read round -> digest of the head at the start of the round, for the rounds in which this site was asked."""
        return {int(number): head for number, head in read_json(self.path / HEADS, {}).items()}

    def has_head_changed(self, broadcast: bytes) -> bool:
        """Whether this head differs from the first head that this site received in the run."""
        heads = self.read_head_digests()
        return not heads or heads[min(heads)] != _compute_digest(broadcast)

    def list_steps(self) -> list[StepNumber]:
        """List the stored steps as (round, exchange), sorted."""
        if not self.path.is_dir():
            return []
        found = (STEP.fullmatch(path.name) for path in self.path.iterdir())
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def _find_step_folder(self, step: StepNumber) -> Path:
        return self.path / f"step-{step[0]:010d}-{step[1]:03d}"


def parse_step_number(state: Path) -> StepNumber:
    """Return the round and the exchange to which a state file belongs, from the name of its folder."""
    _, number, exchange = state.parent.name.split("-")
    return int(number), int(exchange)


def _compute_digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()
