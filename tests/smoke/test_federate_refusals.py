"""What a site refuses in the middle of a run, before anything leaves and before anything is spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from three_sites import SCHEMA, fill_site

from fedlog.flower.folders import SiteFolder
from fedlog.flower.frame import FINISH_EXCHANGE, Frame, FrameError, FrameKind, run_tag
from fedlog.flower.handshake import identity
from fedlog.flower.plan import Plan, hello
from fedlog.flower.promise import Promise
from fedlog.flower.site_state import RunState
from fedlog.flower.site_work import respond
from fedlog.wire.codec import codec

CENTRAL = Promise("client", "central", 8.0, 1e-5, message_norm=20.0)
OPEN = Plan("trial", rounds=2, options={"epochs": 1, "learning_rate": 0.01}, seed=4)
HEAD = codec("f32").encode(OPEN.algorithm(3, 8).broadcast({"seed": torch.tensor([5])}))


def ask(kind: FrameKind, round_number: int = 0, exchange: int = 0, payload: bytes = b"") -> Frame:
    return Frame(kind, run_tag("trial"), round_number, exchange, payload)


def greeting(plan: Plan) -> Frame:
    return ask(FrameKind.HELLO, payload=hello(identity(SCHEMA.digest), plan))


@pytest.fixture
def east(tmp_path: Path) -> SiteFolder:
    return fill_site(SiteFolder(tmp_path / "east"), "east", "mlp:8")


def require(site: SiteFolder, limit: str) -> None:
    site.write_config(replace(site.read_config(), privacy=limit))


@pytest.mark.parametrize(
    ("promise", "said"),
    [(None, "private runs only"), (CENTRAL, "asks for local noise, found: central")],
)
def test_a_limit_holds_in_runs_that_were_greeted_before_it_was_set(
    east: SiteFolder, promise: Promise | None, said: str
) -> None:
    plan = replace(OPEN, promise=promise)
    assert respond(greeting(plan), east).kind is FrameKind.WELCOME
    assert respond(ask(FrameKind.WORK, 1, payload=HEAD), east).kind is FrameKind.UPLOAD
    require(east, "local:8:1e-5")
    state = RunState.of(east, run_tag("trial"))
    before = sorted(path for path in state.path.rglob("*") if path.is_file())
    for request in (
        ask(FrameKind.WORK, 1, payload=HEAD),  # its answer is stored, and may never have arrived
        ask(FrameKind.WORK, 2, payload=HEAD),
        ask(FrameKind.SECURE, 1, payload=b"\1"),
        ask(FrameKind.FINISH, 2, FINISH_EXCHANGE, HEAD),
    ):
        with pytest.raises(FrameError, match=said):
            respond(request, east)
    assert sorted(path for path in state.path.rglob("*") if path.is_file()) == before
    assert not east.models.exists()
