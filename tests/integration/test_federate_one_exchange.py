"""One exchange over Flower's messages: the simulator's heads, equal encoders at every site, record privacy, leaving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from three_sites import SCHEMA, InProcess, events_named, fill_site, make_server, quick_clock, simulation

from fedlog.core.keys import Key
from fedlog.engine.protocol import checkpoint
from fedlog.errors import InputError
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.run import remove_site
from fedlog.flower.protocol.plan import Plan, SecureSumRules, check_plan
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.models.body import HEAD
from fedlog.models.model_folder import load_model
from fedlog.settings.promise import Promise
from fedlog.wire.message import Kind, Message


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message takes its run and its sender from the process it is made in; here that is no Flower process."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def sites(tmp_path: Path, **bodies: str) -> InProcess:
    names = {"east": "identity", "north": "identity", "south": "identity", **bodies}
    return InProcess({name: fill_site(SiteFolder(tmp_path / name), name, body) for name, body in names.items()})


def conduct(post: InProcess, server: ServerFolder, plan: Plan) -> checkpoint.ServerState:
    Run(post, server, SCHEMA, plan, RoundRules(2, 20.0), quick_clock()).conduct()
    return checkpoint.read(RunFolder.of_run(server, plan.name).checkpoint, lambda _: None)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fed-lda", {}),
        ("fed-heads", {"personal": True}),
        ("fed-qda", {}),
        ("fedlog-once", {"classes": "own"}),
        ("fed-ncm", {"personal": True}),
        ("fed-nb", {"personal": True}),
        ("fed-ridge", {"personal": True}),
        ("ccvr", {"personal": True}),
        ("fedcof", {}),
        ("fedcof", {"personal": True}),
        ("fedpft", {"personal": True}),
        ("fedpft", {"parts": 3, "fewest": 12}),
    ],
)
def test_a_federation_solves_the_simulators_head(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    post, server = sites(tmp_path), make_server(ServerFolder(tmp_path / "server"))
    plan = Plan("once", method=method, options=options, rounds=1, seed=4)
    found = conduct(post, server, plan)
    simulated = simulation(post.sites.values(), plan)
    list(simulated.rounds())
    for name, value in simulated.server.state.items():
        torch.testing.assert_close(found.values[name], value, rtol=1e-6, atol=1e-7)
    for folder in post.sites.values():
        model = load_model(folder.models / plan.name)
        assert model.predict(folder.path / "data.csv").shape == (60,)


def test_sites_send_no_gaussian_of_a_few_records() -> None:
    """A site reads a plan by `check_plan` too, so a server cannot ask for more."""
    for options in ({"parts": 50}, {"parts": 2, "fewest": 10}, {"fewest": 1}):
        check_plan(Plan("once", method="fedpft", options=options, rounds=1))
    too_few = "must be at least 10 if there are several Gaussians per class, found: "
    with pytest.raises(InputError, match=too_few + "9") as refused:
        check_plan(Plan("once", method="fedpft", options={"parts": 2, "fewest": 9}, rounds=1))
    assert "parts=1" in str(refused.value.hint)
    with pytest.raises(InputError, match=too_few + "None"):
        check_plan(Plan("once", method="fedpft", options={"parts": 2, "fewest": None}, rounds=1))
    with pytest.raises(InputError, match="must be at most 50, found: 51"):
        check_plan(Plan("once", method="fedpft", options={"parts": 51}, rounds=1))


def test_asked_again_a_site_sends_the_same_gaussians(tmp_path: Path) -> None:
    """Else each round would say more about single records than the one before."""
    post, server = sites(tmp_path), make_server(ServerFolder(tmp_path / "server"))
    heads = [
        conduct(post, server, Plan("once", method="fedpft", options={"parts": 2}, rounds=rounds, seed=4)).values[HEAD]
        for rounds in (1, 2)
    ]
    assert torch.equal(*heads)


@pytest.mark.parametrize("method", ["fedcof", "fedpft"])
def test_class_means_and_gaussians_are_sent_in_the_open_alone(method: str) -> None:
    with pytest.raises(InputError, match="it needs each client's upload separately"):
        check_plan(Plan("once", method=method, rounds=1, secure=SecureSumRules(3, 3)))
    promise = Promise("record", "central", 8.0, 1e-5, clip="l2:1")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=rf"method {method} .* sends no statistics"):
        check_plan(Plan("once", method=method, rounds=1, promise=promise))


def test_a_site_with_another_encoder_is_left_out(tmp_path: Path) -> None:
    post = sites(tmp_path, south="identity+scale:2")
    server = make_server(ServerFolder(tmp_path / "server"))
    conduct(post, server, Plan("once", method="fed-lda", rounds=1))
    left = events_named(server, "left out")[0]
    assert left["site"] == "south"
    assert "identity+scale:2" in str(left["reason"])


def test_a_private_release_of_both_moments_is_one(tmp_path: Path) -> None:
    post, server = sites(tmp_path), make_server(ServerFolder(tmp_path / "server"))
    promise = Promise("record", "central", 8.0, 1e-5, clip="l2:1")  # type: ignore[arg-type]
    plan = Plan("private", method="fed-lda", rounds=1, promise=promise)
    guard = plan.build_protection(SCHEMA.n_class, SCHEMA.shape[0])
    assert guard is not None
    assert guard.mechanism.sensitivity == pytest.approx(3**0.5)
    assert torch.isfinite(conduct(post, server, plan).values[HEAD]).all()


def test_one_norm_bounds_both_moments_of_a_client() -> None:
    promise = Promise("client", "central", 8.0, 1e-5, message_norm=5.0)  # type: ignore[arg-type]
    guard = Plan("private", method="fed-lda", rounds=1, promise=promise).build_protection(2, 3)
    assert guard is not None
    sent = guard.protect(Message(Kind.MOMENTS, (torch.full((2, 4), 30.0), torch.full((6,), 40.0))), Key(0))
    steps = torch.cat([array.reshape(-1).double() for array in sent.arrays])
    assert float(torch.linalg.vector_norm(steps)) * guard.mechanism.grid == pytest.approx(5, rel=1e-3)


@pytest.mark.parametrize("method", ["fed-lda", "fedcof", "fedpft"])
def test_a_late_site_joins_and_the_sums_of_one_that_went_home_stay(tmp_path: Path, method: str) -> None:
    """The run goes on with one round more: the head is that of all three, though one answered only at first."""
    post, server = sites(tmp_path), make_server(ServerFolder(tmp_path / "server"))
    post.absent = {"south"}
    conduct(post, server, Plan("once", method=method, rounds=1, seed=4))
    post.absent = {"east"}
    found = conduct(post, server, Plan("once", method=method, rounds=2, seed=4))
    everyone = simulation(post.sites.values(), Plan("once", method=method, rounds=1, seed=4))
    list(everyone.rounds())
    torch.testing.assert_close(found.values[HEAD], everyone.server.state[HEAD], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", ["fed-lda", "fedcof", "fedpft"])
def test_after_a_site_left_the_head_is_that_of_the_others(tmp_path: Path, method: str) -> None:
    post, server = sites(tmp_path), make_server(ServerFolder(tmp_path / "server"))
    plan = Plan("once", method=method, rounds=1, seed=4)
    conduct(post, server, plan)
    remove_site(server, "south", plan.name, lambda _: None)
    after = checkpoint.read(RunFolder.of_run(server, plan.name).checkpoint, lambda _: None)
    rest = simulation([folder for name, folder in post.sites.items() if name != "south"], plan)
    list(rest.rounds())
    torch.testing.assert_close(after.values[HEAD], rest.server.state[HEAD], rtol=1e-10, atol=1e-10)
