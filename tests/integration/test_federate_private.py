"""Private runs over Flower's messages: what leaves a site, who adds the noise, and who counts the spending."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from three_sites import BODIES, SCHEMA, InProcess, events_named, fill_site, make_server, quick_clock

from fedlog.cli.federate_report import print_private_report
from fedlog.cli.main import main
from fedlog.core.keys import Key
from fedlog.data.site import RowPreparation
from fedlog.engine.protocol import checkpoint
from fedlog.errors import InputError, RunError
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.event_text import SiteEventDescriber, describe_run_event, describe_site_event
from fedlog.flower.ops.run import remove_site
from fedlog.flower.protocol.frame import Frame, FrameKind, decode_frame, make_run_tag
from fedlog.flower.protocol.plan import Plan, SecureSumRules, check_plan, describe_large_delta, read_plan
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import PrivateSiteReport, RoundRules, RunFolder, read_site_report
from fedlog.flower.site.answer import answer_request
from fedlog.flower.site.data import load_data
from fedlog.flower.site.run_state import RunState
from fedlog.flower.site.site_release_log import PrivacyRequirement, describe_spending
from fedlog.privacy.accounting import NoiseKind, RandomSource
from fedlog.privacy.guarantee import Trust, Unit
from fedlog.privacy.protection import Protection
from fedlog.privacy.release_log import FILE_NAME, compute_spending_across_runs, read_log
from fedlog.settings.promise import Promise
from fedlog.wire.codec import find_codec
from fedlog.wire.ledger import Direction
from fedlog.wire.message import Contribution

CENTRAL = Promise("client", "central", 20.0, 1e-5, message_norm=20.0)
LOCAL = replace(CENTRAL, trust="local")
RECORD = Promise("record", "central", 20.0, 1e-5, clip="l2:3")
OPTIONS: dict[str, str | int | float | None] = {"epochs": 1, "learning_rate": 0.01}


def plan(promise: Promise, **more: object) -> Plan:
    return Plan("trial", rounds=2, options=OPTIONS, seed=4, promise=promise, **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Listening(InProcess):
    """Keeps every frame that a site sends."""

    heard: list[Frame]

    def push_messages(self, messages):  # type: ignore[no-untyped-def]
        sent = super().push_messages(messages)
        for reply in self.replies.values():
            self.heard.append(decode_frame(reply.content["fedlog"]["frame"]))
        return sent


@pytest.fixture
def post(tmp_path: Path) -> Listening:
    made = Listening({name: fill_site(SiteFolder(tmp_path / name), name, own) for name, own in BODIES.items()})
    made.heard = []
    return made


@pytest.fixture
def equals(tmp_path: Path) -> Listening:
    made = Listening({name: fill_site(SiteFolder(tmp_path / name), name, "mlp:8") for name in BODIES})
    made.heard = []
    return made


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    return make_server(ServerFolder(tmp_path / "server"))


def conduct(post: InProcess, server: ServerFolder, what: Plan) -> checkpoint.ServerState:
    Run(post, server, SCHEMA, what, RoundRules(2, 20.0), quick_clock()).conduct()
    return checkpoint.read(RunFolder.of_run(server, what.name).checkpoint, lambda _: None)


@pytest.mark.parametrize("promise", [CENTRAL, LOCAL])
def test_a_private_run_counts_at_the_server_and_at_every_site(
    post: Listening, server: ServerFolder, promise: Promise
) -> None:
    conduct(post, server, plan(promise))
    guard = plan(promise).build_protection(3, 8)
    assert guard is not None
    paths = [
        RunFolder.of_run(server, "trial").path,
        *(RunState.of_run(f, make_run_tag("trial")).path for f in post.sites.values()),
    ]
    for path in paths:
        log = read_log(path / FILE_NAME)
        assert [release.round for release in log.releases] == [1, 2]
        assert {release.noise for release in log.releases} == {NoiseKind.DISCRETE}
        assert {release.entropy for release in log.releases} == {RandomSource.SYSTEM}
        assert log.releases[0].sigma == guard.mechanism.sigma
    report = RunFolder.of_run(server, "trial").read_report()
    assert report is not None
    assert report["privacy"]["epsilon"] == pytest.approx(promise.epsilon, rel=1e-3)
    assert f"unit: {promise.unit}" in report["privacy"]["statement"]


def statistics_of(post: Listening, round_number: int, step: float = 1.0) -> dict[str, torch.Tensor]:
    """What each site has sent in that round, in units of the features; `step`: the grid of messages in whole steps."""
    sent = [f.payload for f in post.heard if f.kind is FrameKind.UPLOAD and f.round_number == round_number]
    return {
        name: find_codec("f32").decode(blob).arrays[0].double() * step
        for name, blob in zip(post.sites, sent, strict=True)
    }


def clipped_in_round_1(folder: Path) -> dict[str, torch.Tensor]:
    """What the sites would send in the first round without noise: the first head comes from the seed alone.

    From a run with the same seed and norm under central noise, whose messages are exact.
    """
    folder.mkdir()
    twins = Listening({name: fill_site(SiteFolder(folder / name), name, own) for name, own in BODIES.items()})
    twins.heard = []
    without_a_class(twins.sites["east"])
    conduct(twins, make_server(ServerFolder(folder / "server")), plan(CENTRAL))
    guard = plan(CENTRAL).build_protection(3, 8)
    assert guard is not None
    return statistics_of(twins, 1, guard.mechanism.grid)


def without_a_class(folder: SiteFolder) -> None:
    """Take the rows of the last class out of the site's table."""
    path = Path(folder.read_config().data or "")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if SCHEMA.label_values[-1] not in line))


def test_nothing_leaves_a_site_but_dense_noisy_statistics_and_the_name_of_its_body(
    post: Listening, server: ServerFolder, tmp_path: Path
) -> None:
    without_a_class(post.sites["east"])
    exact = clipped_in_round_1(tmp_path / "twins")
    assert bool((exact["east"][2] == 0).all())
    conduct(post, server, plan(LOCAL))
    guard = plan(LOCAL).build_protection(3, 8)
    assert guard is not None
    std = guard.mechanism.client_std
    noise = torch.stack([sums - exact[name] for name, sums in statistics_of(post, 1).items()])
    # 81 draws: a std beyond these bounds has a probability below 1e-7.
    assert 0.6 * std < float(noise.square().mean().sqrt()) < 1.5 * std
    # On every entry, counts and the class that one site lacks among them; as close to 0 as this once in 10,000 runs.
    assert float(noise.abs().min()) > 1e-6 * std
    kinds = {frame.kind for frame in post.heard}
    assert kinds == {FrameKind.WELCOME, FrameKind.UPLOAD, FrameKind.REPORT}
    for frame in post.heard:
        if frame.kind is FrameKind.UPLOAD:
            (sums,) = find_codec("f32").decode(frame.payload).arrays
            assert sums.shape == (3, 9)
        elif frame.kind is FrameKind.REPORT:
            assert set(json.loads(frame.payload)) == {"body"}
        else:
            assert set(json.loads(frame.payload)) == {"fedlog", "frame", "schema", "body", "width"}
    report = RunFolder.of_run(server, "trial").read_report()
    assert report is not None
    assert [set(site) for site in report["sites"]] == [{"name", "body"}] * 3
    assert not any("accuracy" in line for line in (server.event_log).read_text().splitlines())


def test_central_noise_is_on_the_sum_and_messages_stay_within_their_norm(
    post: Listening, server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[torch.Tensor] = []
    original = Protection.add_server_noise

    def finished(self: Protection, total: Contribution, key: Key) -> Contribution:
        found = original(self, total, key)
        released.append(found.arrays[0])
        return found

    monkeypatch.setattr(Protection, "add_server_noise", finished)
    conduct(post, server, plan(CENTRAL))
    guard = plan(CENTRAL).build_protection(3, 8)
    assert guard is not None
    assert RunFolder.of_run(server, "trial").read_uploads() == {}
    noise = []
    for number in (1, 2):
        exact = list(statistics_of(post, number, guard.mechanism.grid).values())
        assert all(0 < float(sums.norm()) <= 20.0 for sums in exact)
        noise.append(released[number - 1] - torch.stack(exact).sum(0))
    # 54 draws: a std beyond these bounds has a probability below 1e-8.
    std = float(torch.stack(noise).square().mean().sqrt())
    assert 0.5 * guard.mechanism.sigma < std < 1.7 * guard.mechanism.sigma


def test_single_records_are_protected_behind_equal_bodies_that_nobody_trained_and_public_scaling(
    equals: Listening, server: ServerFolder, tmp_path: Path
) -> None:
    equals.sites["west"] = fill_site(SiteFolder(tmp_path / "west"), "west", "mlp:9,8")
    conduct(equals, server, plan(RECORD))
    assert "expected body mlp:8@l2:3 at every site" in str(events_named(server, "left out")[0]["reason"])
    guard = plan(RECORD).build_protection(3, 8)
    assert guard is not None
    assert guard.mechanism.sensitivity == pytest.approx(10**0.5)
    sent = [frame.payload for frame in equals.heard if frame.kind is FrameKind.UPLOAD and frame.round_number == 2]
    for name, blob in zip(BODIES, sent, strict=True):
        # Untrained: the second round's statistics are those of the first head's body, count by count.
        sums = find_codec("f32").decode(blob).arrays[0].double() * guard.mechanism.grid
        folder = equals.sites[name]
        own = load_data(folder, folder.read_config(), RowPreparation.ALONE)
        assert sums[:, 0].tolist() == torch.bincount(own.federation.train.labels[own.shard.train], minlength=3).tolist()
    scaled, public = (load_data(folder, folder.read_config(), preparation) for preparation in RowPreparation)
    assert not torch.equal(scaled.federation.train.inputs, public.federation.train.inputs)
    assert public.encoder is not None
    assert set(public.encoder.mean) == {0.0}
    assert set(public.encoder.std) == {1.0}


def test_a_site_gives_no_more_than_it_agreed_to_whatever_the_server_asks(post: Listening, server: ServerFolder) -> None:
    conduct(post, server, plan(LOCAL))
    state = RunState.of_run(post.sites["east"], make_run_tag("trial"))
    blob = find_codec("f32").encode(plan(LOCAL).build_algorithm(3, 8).broadcast({"seed": torch.tensor([5])}))
    again = Frame(FrameKind.WORK, make_run_tag("trial"), 2, 0, blob)
    with pytest.raises(RunError, match="does not cover another release"):
        answer_request(again, post.sites["east"])
    assert len(read_log(state.path / FILE_NAME).releases) == 2


def test_a_round_begun_twice_is_paid_for_twice_and_the_run_is_finished_all_the_same(
    post: Listening, server: ServerFolder
) -> None:
    class KilledError(Exception):
        pass

    going = Run(post, server, SCHEMA, plan(CENTRAL), RoundRules(2, 20.0), quick_clock())
    original = going._log_sites_without_answer
    told: list[int] = []

    def dying(outcome, number, *more):  # type: ignore[no-untyped-def]
        told.append(number)
        if len(told) == 1:  # the sites have worked, and the server never hears of it
            raise KilledError
        original(outcome, number, *more)

    going._log_sites_without_answer = dying  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        going.conduct()
    conduct(post, server, plan(CENTRAL))
    (spent,) = events_named(server, "budget spent")
    assert spent["round"] == 2
    assert "the run ends with the head that it has" in str(describe_run_event(spent))
    assert RunFolder.of_run(server, "trial").read_report() is not None
    assert len(read_log(RunFolder.of_run(server, "trial").path / FILE_NAME).releases) == 2


def test_a_run_that_ended_early_reports_the_rounds_there_were_and_why(
    post: Listening, server: ServerFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    home = RunFolder.of_run(server, "trial")
    guard = plan(LOCAL).build_protection(3, 8)
    home.record_release(guard, 1, "statistics")  # begun before, and killed: paid for all the same
    state = conduct(post, server, plan(LOCAL))
    report = home.read_report()
    assert report is not None
    assert (state.round_number, report["rounds"], report["rounds_planned"]) == (1, 1, 2)
    assert "does not cover another release: round 2" in report["ended_early"]
    # After round 1 the last head alone went out: the broadcast of the round that was not begun is not counted.
    head = find_codec("f32").encode(plan(LOCAL).build_algorithm(3, 8).broadcast(state.values))
    assert state.ledger.sum_bits(Direction.DOWN, round_number=1) == 8 * len(BODIES) * len(head)
    print_private_report(report)
    said = capsys.readouterr().out
    assert "1 of 2 rounds" in said
    assert "ended early: the privacy budget does not cover another release" in said
    # The same command once more finds the same end.
    assert conduct(post, server, plan(LOCAL)).round_number == 1


def test_nobody_is_taken_out_of_a_private_head(post: Listening, server: ServerFolder) -> None:
    conduct(post, server, plan(CENTRAL))
    with pytest.raises(InputError, match="a further release, which the privacy promise of the run does not cover"):
        remove_site(server, "east", "trial", print)


def test_a_site_asks_for_noise_and_a_budget_of_its_own(post: Listening, server: ServerFolder) -> None:
    east = post.sites["east"]
    east.write_config(replace(east.read_config(), privacy="local:1:1e-5"))
    conduct(post, server, plan(LOCAL))
    reason = str(events_named(server, "left out")[0]["reason"])
    assert "this site allows epsilon 1 at delta 1e-05, found: epsilon 20 at delta 1e-05" in reason
    limit = PrivacyRequirement.parse("distributed:60:1e-5")
    limit.check_promise(LOCAL)
    for less in (None, CENTRAL, replace(LOCAL, epsilon=61.0), replace(LOCAL, delta=2e-5)):
        with pytest.raises(InputError, match="this site"):
            limit.check_promise(less)
    for wrong in ("local:8", "local", "paper:local:8:1e-5", "a:b:c:d:e", "record:8:1e-5"):
        with pytest.raises(InputError, match="expected TRUST:EPSILON:DELTA"):
            PrivacyRequirement.parse(wrong)


def test_a_site_can_ask_for_what_is_to_be_protected(post: Listening, server: ServerFolder) -> None:
    PrivacyRequirement.parse("client:local:20:1e-5").check_promise(LOCAL)
    PrivacyRequirement.parse("record:central:20:1e-5").check_promise(RECORD)
    with pytest.raises(InputError, match="requires client privacy, found: record"):
        PrivacyRequirement.parse("client:central:20:1e-5").check_promise(RECORD)
    east = post.sites["east"]
    east.write_config(replace(east.read_config(), privacy="record:local:20:1e-5"))
    conduct(post, server, plan(LOCAL))
    assert "this site requires record privacy, found: client" in str(events_named(server, "left out")[0]["reason"])


def test_a_delta_above_one_over_the_records_is_warned_of_at_the_site(equals: Listening, server: ServerFolder) -> None:
    conduct(equals, server, plan(replace(RECORD, delta=0.1)))
    said = [event for event in read_events(equals.sites["east"].event_log) if event["event"] == "warning"]
    assert "delta 0.1 is above 1/" in str(said[0]["reason"])
    assert len(said) == 1  # once in a run, not in every round
    assert "run trial: warning: delta 0.1 is above 1/" in str(SiteEventDescriber().describe(said[0]))
    assert describe_large_delta(replace(CENTRAL, delta=0.5), 100, 3) is not None
    assert describe_large_delta(CENTRAL, 100, 3) is None is describe_large_delta(None, 100, 3)


def test_a_sites_own_limit_is_for_all_runs_together(post: Listening, server: ServerFolder) -> None:
    east = post.sites["east"]
    east.write_config(replace(east.read_config(), privacy="local:25:1e-5"))
    conduct(post, server, plan(LOCAL))
    conduct(post, server, replace(plan(LOCAL), name="another"))
    assert refusals_of(server, "east", "trial") == []
    assert refusals_of(server, "east", "another") != []  # epsilon 20 twice is more than 25
    log = read_log(east.state / FILE_NAME)
    assert log.budget.epsilon == 25
    assert 2 <= len(log.releases) < 4


def refusals_of(server: ServerFolder, site: str, run: str) -> list[str]:
    events = [event for name in ("refused", "left out") for event in events_named(server, name)]
    return [str(event["reason"]) for event in events if (event["site"], event["run"]) == (site, run)]


def test_runs_with_different_promises_count_against_one_limit(equals: Listening, server: ServerFolder) -> None:
    east = equals.sites["east"]
    east.write_config(replace(east.read_config(), privacy="central:16:1e-5"))
    for name, promise in (("whole", LOCAL), ("rows", replace(RECORD, trust="local")), ("trusting", CENTRAL)):
        conduct(equals, server, replace(plan(replace(promise, epsilon=4.0)), name=name))
        assert refusals_of(server, "east", name) == []
    log = read_log(east.state / FILE_NAME)
    assert len(log.releases) == 6
    found = compute_spending_across_runs(log.events, 1e-5).guarantee
    assert found is not None
    assert (found.unit, found.trust) == (Unit.RECORD, Trust.CENTRAL)
    # Three runs of epsilon 4 and of equal mu would come to about 8.5, and with the last at twice its sensitivity to 12.
    assert found.epsilon is not None
    assert 10 < found.epsilon <= 16
    conduct(equals, server, replace(plan(replace(CENTRAL, epsilon=4.0)), name="more"))
    assert "the limit of this site on all its runs together" in refusals_of(server, "east", "more")[0]
    assert compute_spending_across_runs(read_log(east.state / FILE_NAME).events, 1e-5).guarantee.epsilon <= 16  # type: ignore[union-attr, operator]


def test_a_limit_may_be_changed_and_what_was_spent_before_still_counts(post: Listening, server: ServerFolder) -> None:
    east = post.sites["east"]
    assert describe_spending(east) is None
    promised = plan(replace(LOCAL, epsilon=4.0))
    conduct(post, server, promised)  # without a limit: counted all the same
    assert "epsilon 4 at" in str(describe_spending(east))
    east.write_config(replace(east.read_config(), privacy="local:4:1e-5"))
    assert "does not cover another release" in str(describe_spending(east))
    conduct(post, server, replace(promised, name="second"))
    (reason,) = set(refusals_of(server, "east", "second"))
    assert "the limit of this site on all its runs together" in reason
    said = [describe_site_event(event) for event in read_events(east.event_log) if event["event"] == "refused"]
    assert "does not cover another release" in str(said[0])
    assert not (RunState.of_run(east, make_run_tag("second")).path).exists()
    east.write_config(replace(east.read_config(), privacy="local:9:1e-5"))
    told = str(describe_spending(east))
    assert "the limit is epsilon 9 at delta 1e-05" in told
    assert "does not cover" not in told
    conduct(post, server, replace(promised, name="third"))
    assert refusals_of(server, "east", "third") == []
    log = read_log(east.state / FILE_NAME)
    assert (log.budget.epsilon, len(log.releases)) == (9, 4)


def test_a_server_that_asks_for_more_than_a_run_has_does_not_use_up_the_limit_of_a_site(
    post: Listening, server: ServerFolder
) -> None:
    east = post.sites["east"]
    east.write_config(replace(east.read_config(), privacy="local:22:1e-5"))
    conduct(post, server, plan(LOCAL))
    blob = find_codec("f32").encode(plan(LOCAL).build_algorithm(3, 8).broadcast({"seed": torch.tensor([5])}))
    with pytest.raises(RunError, match="does not cover another release"):
        answer_request(Frame(FrameKind.WORK, make_run_tag("trial"), 2, 0, blob), east)
    assert len(read_log(east.state / FILE_NAME).releases) == 2


def test_what_was_spent_can_be_asked_at_the_server_and_at_a_site(
    post: Listening, server: ServerFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    conduct(post, server, plan(LOCAL))
    for folder in (
        RunFolder.of_run(server, "trial").path,
        RunState.of_run(post.sites["east"], make_run_tag("trial")).path,
    ):
        assert main(["privacy", "spend", str(folder), "--json"]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["guarantee"]["epsilon"] == pytest.approx(20.0, rel=1e-3)
        assert said.err == ""  # nothing about simulation: the noise is private


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--epsilon", "1"], "these settings need --privacy: epsilon"),
        (["--privacy", "client"], "needs a budget"),
        (["--privacy", "client", "--epsilon", "1", "--delta", "2"], "delta must be"),
        (["--aggregation", "secure"], "expected the roster (the list of the sites' keys)"),
        (["--privacy", "client", "--epsilon", "1", "--delta", "1e-5"], "needs a bound on each client's message"),
        (["--honest", "3"], "these settings need a secure sum: honest"),
        (["--refused-share", "1.5"], "refused share must be at least 0 and below 1, found: 1.5"),
    ],
)
def test_the_command_refuses_what_it_cannot_promise(
    server: ServerFolder, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    server.write_config(ServerConfig(("127.0.0.1",), "127.0.0.1", 1))
    assert main(["federate", "run", str(server.path), *given]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "fedproto"}, "cannot be used with --privacy"),
        ({"promise": {**asdict(CENTRAL), "unit": "paper"}}, "record or client"),
        ({"promise": {**asdict(CENTRAL), "trust": "nobody"}}, "unknown trust"),
        ({"promise": {**asdict(CENTRAL), "epsilon": 0.0}}, "epsilon must be"),
        ({"promise": {**asdict(CENTRAL), "message_norm": None}}, "needs a bound on each client's message"),
        ({"promise": {**asdict(RECORD), "clip": None}}, "needs a bound on each record"),
        ({"promise": {**asdict(CENTRAL), "trust": "distributed"}}, "needs secure sums"),
        ({"promise": {**asdict(CENTRAL), "noise": "float"}}, "discrete noise and exact calibration"),
        ({"promise": {**asdict(CENTRAL), "calibration": "paper"}}, "discrete noise and exact calibration"),
        ({"secure": {"honest": 3, "sites": 5}}, "cannot be used with secure sums"),
        ({"secure": {"honest": 2, "sites": 5}, "promise": None}, "--honest must be 3 to 5"),
        ({"secure": {"honest": 3, "sites": 10**5}, "promise": None}, "sites must be at most 10000"),
    ],
)
def test_promises_that_cannot_be_kept_are_refused(change: dict[str, object], said: str) -> None:
    wrong = {**plan(CENTRAL).as_json(), **change}
    with pytest.raises(InputError, match=said):
        read_plan(json.loads(json.dumps(wrong)))


def test_a_plan_goes_through_json_with_its_promise_and_older_ones_have_none() -> None:
    for given in (plan(LOCAL), plan(RECORD), Plan("trial"), Plan("trial", secure=SecureSumRules(3, 4))):
        assert read_plan(json.loads(json.dumps(given.as_json()))) == check_plan(given)
    assert "promise" not in Plan("trial").as_json()
    assert plan(LOCAL).list_forbidden_changes(replace(plan(LOCAL), rounds=3)) == ["rounds"]
    with pytest.raises(InputError):
        read_site_report(b'{"body": "mlp:8", "accuracy": 0.5}', PrivateSiteReport)
