"""A site refuses plans with absurd numbers, or above its own caps."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from three_sites import SCHEMA, fill_site

from fedlog.cli.main import main
from fedlog.errors import InputError
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.site_folder import AcceptedRuns, RunCaps, SiteFolder
from fedlog.flower.protocol.frame import Frame, FrameKind, SendableError, make_run_tag
from fedlog.flower.protocol.greeting import encode_hello, make_versions
from fedlog.flower.protocol.plan import Plan, read_plan
from fedlog.flower.site.answer import answer_or_refuse, answer_request
from fedlog.flower.site.context import SPARE_ANSWERS
from fedlog.privacy.release_log import FILE_NAME
from fedlog.settings.promise import Promise
from fedlog.wire.codec import WireError, find_codec
from fedlog.wire.message import Kind, Message

LOCAL = Promise("client", "local", 4.0, 1e-5, message_norm=20.0)
CENTRAL = replace(LOCAL, trust="central")
PLAIN = Plan("run-1", rounds=2, options={"epochs": 1, "learning_rate": 0.01}, seed=4)


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    return fill_site(SiteFolder(tmp_path / "east"), "east", "mlp:8")


def greet(site: SiteFolder, plan: Plan) -> FrameKind:
    payload = encode_hello(make_versions(SCHEMA.digest), plan)
    return answer_request(Frame(FrameKind.HELLO, make_run_tag(plan.name), 0, 0, payload), site).kind


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"options": {"epochs": 10**9}}, "option epochs must be -10000 to 10000"),
        ({"options": {"learning_rate": 1e300}}, "option learning_rate must be"),
        ({"seed": 2**64}, "the seed must be .*, found: 2.65 or so"),
        ({"clip": "clamp:1e300"}, "the clip.s bound must be"),
        ({"optimiser": {**asdict(PLAIN.optimiser), "weight_decay": 1e300}}, "weight decay must be"),
        (
            {"promise": {**asdict(CENTRAL), "unit": "record", "message_norm": None, "clip": "l2:1e300"}},
            "the clip.s bound must",
        ),
        ({"promise": {**asdict(CENTRAL), "message_norm": 1e300}}, "the message norm must"),
        ({"promise": {**asdict(CENTRAL), "epsilon": 1e300}}, "epsilon must be"),
        ({"promise": {**asdict(CENTRAL), "delta": 1e-300}}, "delta must be"),
    ],
)
def test_numbers_beyond_all_use_are_refused_in_a_plan(change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_plan(json.loads(json.dumps({**PLAIN.as_json(), **change})))


@pytest.mark.parametrize(
    ("caps", "plan", "said"),
    [
        (RunCaps(), replace(PLAIN, rounds=1001), "1000 rounds a run, found: 1001"),
        (RunCaps(rounds=1), PLAIN, "1 rounds a run, found: 2"),
        (RunCaps(), replace(PLAIN, options={"epochs": 101}), "100 epochs a round, found: 101"),
        (RunCaps(), replace(PLAIN, options={"epochs": 0}), "trains the body too little"),
        (RunCaps(), replace(PLAIN, options={"epochs": 1, "learning_rate": 1e-9}), "trains the body too little"),
        (RunCaps(), replace(PLAIN, method="fed-ncm", options={}), "trains the body too little"),
        (
            RunCaps(),
            replace(PLAIN, method="fedlog-c", options={"first_head": "statistics"}),
            "trains the body too little",
        ),
        (RunCaps(), replace(PLAIN, options={"epochs": 9, "learning_rate": 1e-5}), "trains the body too little"),
        (RunCaps(), replace(PLAIN, promise=replace(LOCAL, epsilon=1e4), options={"epochs": 0}), "body too little"),
        (RunCaps(only=AcceptedRuns.PRIVATE), replace(PLAIN, promise=replace(LOCAL, epsilon=1e4)), "private runs only"),
        (
            RunCaps(only=AcceptedRuns.SECURE),
            replace(PLAIN, promise=replace(LOCAL, epsilon=1e4)),
            "secure sum or with local",
        ),
        (RunCaps(plain_runs=0), replace(PLAIN, promise=CENTRAL), "begins at most 0 plain runs"),
        (RunCaps(only=AcceptedRuns.PRIVATE), PLAIN, "private runs only"),
        (RunCaps(only=AcceptedRuns.SECURE), PLAIN, "in runs with a secure sum or with local noise"),
        (
            RunCaps(only=AcceptedRuns.SECURE),
            replace(PLAIN, promise=CENTRAL),
            "in runs with a secure sum or with local noise",
        ),
        (
            RunCaps(plain_runs=0),
            PLAIN,
            r"begins at most 0 plain runs in 24 hours \(no secure sum, no noise from the site\)",
        ),
    ],
)
def test_a_plan_beyond_the_caps_of_a_site_is_refused(site: SiteFolder, caps: RunCaps, plan: Plan, said: str) -> None:
    site.write_config(replace(site.read_config(), caps=caps))
    with pytest.raises(SendableError, match=said) as refusal:
        greet(site, plan)
    assert "or allow it at this site: `fedlog federate caps DIR --" in str(refusal.value.hint)
    assert not list(site.path.glob(f"**/{FILE_NAME}"))
    site.write_config(replace(site.read_config(), caps=RunCaps(None, None, None, untrained=True)))
    assert greet(site, plan) is FrameKind.WELCOME


def test_the_hint_of_a_refusal_is_in_the_log_of_the_site_and_is_not_sent(site: SiteFolder) -> None:
    site.write_config(replace(site.read_config(), caps=RunCaps(rounds=1)))
    payload = encode_hello(make_versions(SCHEMA.digest), PLAIN)
    reply = answer_or_refuse(Frame(FrameKind.HELLO, make_run_tag(PLAIN.name), 0, 0, payload), site)
    assert reply.payload == b"this site allows 1 rounds a run, found: 2"
    (logged,) = read_events(site.event_log)
    assert "found: 2; start a run with fewer rounds; or allow it at this site" in logged["reason"]


def test_plain_runs_are_counted_a_day_and_a_run_under_way_goes_on(site: SiteFolder) -> None:
    site.write_config(replace(site.read_config(), caps=RunCaps(plain_runs=2)))
    for name in ("run-1", "run-2", "run-1"):
        assert greet(site, replace(PLAIN, name=name)) is FrameKind.WELCOME
    with pytest.raises(SendableError, match=r"at most 2 plain runs in 24 hours \(.*\), and has begun 2"):
        greet(site, replace(PLAIN, name="run-3"))
    assert greet(site, replace(PLAIN, name="run-4", promise=LOCAL)) is FrameKind.WELCOME


def test_a_round_beyond_the_plan_is_refused_before_anything_is_counted(site: SiteFolder) -> None:
    greet(site, PLAIN)
    with pytest.raises(SendableError, match="expected a round from 0 to 2, found: 3"):
        answer_request(Frame(FrameKind.WORK, make_run_tag("run-1"), 3, 0, b""), site)
    assert not (site.state / FILE_NAME).exists()


@pytest.mark.parametrize("promise", [None, LOCAL])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_head_that_is_none_is_refused_before_anything_is_counted(
    site: SiteFolder, promise: Promise | None, number: float
) -> None:
    """Otherwise every such head would spend privacy and teach nobody anything."""
    plan = replace(PLAIN, promise=promise)
    greet(site, plan)
    head = torch.zeros(SCHEMA.n_class, 9)
    head[1, 2] = number
    broadcast = find_codec(plan.codec).encode(Message(Kind.HEAD, (head,)))
    with pytest.raises(SendableError, match="expected finite numbers in the broadcast"):
        answer_request(Frame(FrameKind.WORK, make_run_tag("run-1"), 1, 0, broadcast), site)
    assert not (site.state / FILE_NAME).exists()


def test_one_run_has_one_state_at_a_site_and_so_one_set_of_caps(site: SiteFolder) -> None:
    """Otherwise another tag under the name of a running run would start a new run that no cap counts."""
    greet(site, PLAIN)
    payload = encode_hello(make_versions(SCHEMA.digest), PLAIN)
    with pytest.raises(SendableError, match="in the greeting of run run-1"):
        answer_request(Frame(FrameKind.HELLO, make_run_tag("run-2"), 0, 0, payload), site)
    assert len(list(site.state.glob("*/plan.json"))) == 1


def test_the_last_round_of_a_falling_rate_is_not_asked_first(site: SiteFolder) -> None:
    plan = replace(PLAIN, rounds=100, optimiser=replace(PLAIN.optimiser, decay="cosine"))
    greet(site, plan)
    with pytest.raises(SendableError, match="trains the body too little"):
        answer_request(Frame(FrameKind.WORK, make_run_tag("run-1"), 100, 0, b""), site)
    assert not (site.state / FILE_NAME).exists()
    with pytest.raises(WireError):  # the rate of round 1 is all of it; these are no bytes of a head
        answer_request(Frame(FrameKind.WORK, make_run_tag("run-1"), 1, 0, b""), site)


def test_a_step_that_is_asked_again_with_other_heads_is_asked_so_often_and_no_more(site: SiteFolder) -> None:
    site.write_config(replace(site.read_config(), caps=RunCaps(rounds=2)))
    greet(site, PLAIN)
    said: Counter[str] = Counter()
    for number in range(2 + SPARE_ANSWERS + 3):
        kind = FrameKind.FINISH if number % 4 == 3 else FrameKind.WORK
        reply = answer_or_refuse(Frame(kind, make_run_tag("run-1"), 1, 0, bytes([number])), site)
        said[reply.payload.decode()] += 1
    refused = "this site gives at most 12 different answers in a run, and has given that many"
    assert said.pop(refused) == 3
    assert sum(said.values()) == 2 + SPARE_ANSWERS


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('privcay = "local:8:1e-5"', "unknown setting of a site: privcay"),
        ("[cap]\nrounds = 1", "unknown setting of a site: cap"),
        ("privacy = 8", "privacy must be of type str, found: 8"),
    ],
)
def test_a_limit_under_a_name_that_nobody_reads_is_an_error(site: SiteFolder, line: str, said: str) -> None:
    site.config_file.write_text(f"{site.config_file.read_text()}{line}\n")
    with pytest.raises(InputError, match=said):
        site.read_config()


def test_a_cap_is_removed_by_a_command_and_not_by_deleting_its_line(
    site: SiteFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ["federate", "caps", str(site.path)]
    assert main([*shown, "--epochs", "7", "--only", "secure"]) == 0
    assert site.read_config().caps == RunCaps(epochs=7, only=AcceptedRuns.SECURE)
    assert main([*shown, "--remove", "epochs", "--remove", "only", "--remove", "untrained"]) == 0
    assert site.read_config().caps == RunCaps(epochs=None, untrained=True)
    assert "epochs of a round: no cap" in capsys.readouterr().out
    text = site.config_file.read_text()
    site.config_file.write_text("\n".join(line for line in text.splitlines() if "epochs" not in line) + "\n")
    assert site.read_config().caps == RunCaps(untrained=True)
    assert main([*shown, "--remove", "everything"]) == 2
    assert main([*shown, "--rounds", "-1"]) == 2
    for wrong in ("epoch = 3", 'epochs = "many"', "epochs = true", "untrained = 1", 'only = "friends"'):
        site.config_file.write_text(f'name = "east"\nserver = "a:1"\n[caps]\n{wrong}\n')
        with pytest.raises(InputError, match="cap"):
            site.read_config()
