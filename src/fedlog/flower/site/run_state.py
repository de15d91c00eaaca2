"""A site's files of a run between messages: its state after every exchange, with the reply that it gave.

A step is a folder `state/RUN/step-ROUND-EXCHANGE` with the state (safetensors), the payload of the reply, and the
digest of the request's payload. It is written beside and renamed, so that a kill at any moment leaves a whole step or
none. A request that comes again (the server was restarted) gets the stored reply; another request for the same step,
because the server went back to an earlier checkpoint, is worked on from the state before it.
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
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.frame import FrameError
from fedlog.flower.protocol.plan import Guest, Plan, read_plan

STEP = re.compile(r"step-(\d{10})-(\d{3})")
KEPT_STEPS = 3
STATE, REPLY, REQUEST = "state.safetensors", "answer.bin", "question.txt"
HEADS, ANSWERS = "heads.json", "answers.txt"
StepNumber = tuple[int, int]


@dataclass(frozen=True)
class RunState:
    """One run's folder at a site."""

    path: Path

    @classmethod
    def of(cls, folder: SiteFolder, run: bytes) -> RunState:
        """Return the state of the run with this tag."""
        return cls(folder.state / run.hex())

    @property
    def plan_file(self) -> Path:
        """The plan of the run, and the body with which this site began it."""
        return self.path / "plan.json"

    def agree(self, plan: Plan, guest: Guest) -> None:
        """Keep the plan and the body; refuse when this run began under another plan or with another body."""
        if self.plan_file.exists():
            if not self.plan().same_run(plan):
                raise FrameError(f"expected the plan under which run {plan.name} began, found another")
            self.check_body(guest)
        agreed = {
            "plan": plan.as_plain(),
            "body": guest.body,
            "digest": guest.digest,
            "closed_world": guest.closed_world,
        }
        write_json(self.plan_file, agreed)

    def check_body(self, guest: Guest) -> None:
        """Refuse another body than the one with which this site began the run, or other weights of it."""
        stored = self._read_plan_file()
        if stored["body"] != guest.body:
            raise FrameError(f"expected body {stored['body']}, with which this site began the run, found: {guest.body}")
        if stored.get("digest") != guest.digest:
            raise FrameError(f"expected body {guest.body} as this site began the run with it, found other parameters")

    def check_world(self, guest: Guest) -> None:
        """Refuse if the site has changed its world since it told the server of it; the server then greets it again."""
        if self._read_plan_file().get("closed_world", False) != guest.closed_world:
            raise FrameError("expected the world that this site told the server of, found another in its settings")

    def plan(self) -> Plan:
        """Return the plan of the run; raise FrameError when the site was not greeted."""
        if not self.plan_file.exists():
            raise FrameError("expected a greeting first, found a request of a run that this site does not know")
        return read_plan(self._read_plan_file()["plan"])

    def _read_plan_file(self) -> dict[str, Any]:
        return dict(json.loads(self.plan_file.read_text()))

    def find_stored_reply(self, step: StepNumber, payload: bytes) -> bytes | None:
        """Return what this site sent when it had this very request before; None for a new request."""
        place = self._place(step)
        if not place.is_dir() or (place / REQUEST).read_text() != _digest(payload):
            return None
        return (place / REPLY).read_bytes()

    def state_before(self, step: StepNumber) -> Path | None:
        """Return the newest state before this step; None when there is none yet."""
        earlier = [found for found in self.steps() if found < step and (self._place(found) / STATE).exists()]
        return self._place(max(earlier)) / STATE if earlier else None

    def keep(self, step: StepNumber, payload: bytes, reply: bytes, save: Callable[[Path], None]) -> None:
        """Write a step as a whole; drop old steps, and later ones, which the server has gone back on."""
        place = self._place(step)
        draft = place.with_name(place.name + ".part")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save(draft / STATE)
        (draft / REPLY).write_bytes(reply)
        (draft / REQUEST).write_text(_digest(payload))
        move_folder(draft, place)
        kept = sorted(found for found in self.steps() if found <= step)[-KEPT_STEPS:]
        for found in self.steps():
            if found not in kept:
                shutil.rmtree(self._place(found))

    def note_head(self, round_number: int, broadcast: bytes) -> int | None:
        """Note the head of a round, and return the earlier round that had it already; None for a new one."""
        heads = {**self.heads(), round_number: _digest(broadcast)}
        write_json(self.path / HEADS, heads)
        same = [number for number in heads if number < round_number and heads[number] == heads[round_number]]
        return min(same, default=None)

    def count_answers(self) -> int:
        """How many different answers this site has given, or begun to give, in the run."""
        path = self.path / ANSWERS
        return int(path.read_text()) if path.exists() else 0

    def add_answer(self) -> None:
        """Count one answer more."""
        write_file(self.path / ANSWERS, f"{self.count_answers() + 1}\n")

    def heads(self) -> dict[int, str]:
        """The digest of the head that each round began with, as far as this site was asked."""
        return {int(number): head for number, head in read_json(self.path / HEADS, {}).items()}

    def saw_new_head(self, broadcast: bytes) -> bool:
        """Whether the last head differs from the first one that this site saw."""
        heads = self.heads()
        return not heads or heads[min(heads)] != _digest(broadcast)

    def steps(self) -> list[StepNumber]:
        """Return the whole steps there are."""
        if not self.path.is_dir():
            return []
        found = (STEP.fullmatch(path.name) for path in self.path.iterdir())
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def _place(self, step: StepNumber) -> Path:
        return self.path / f"step-{step[0]:010d}-{step[1]:03d}"


def step_of(state: Path) -> StepNumber:
    """Return the step that a state file belongs to."""
    _, number, exchange = state.parent.name.split("-")
    return int(number), int(exchange)


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()
