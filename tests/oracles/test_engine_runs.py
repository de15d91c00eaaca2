"""Whole runs: the number of workers changes nothing, runs stop at their target, and a kill loses no record."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedlog.algorithms.registry import make_method
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.engine.clients import make_model_plan
from fedlog.engine.protocol import checkpoint
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.simulate.simulator import RoundRecord, Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.errors import InputError, RunError
from fedlog.models.body import logits
from fedlog.models.catalog import make_body
from fedlog.settings.execution import BackendChoice, Execution
from fedlog.settings.training import AdamMoments, HeldOutRecords, Initialisation, Optimiser, RunSettings
from fedlog.wire.ledger import Ledger
from fedlog.wire.message import JoinedContribution, Kind, Message, add_contributions

# From Python 3.12 on, forking a process that has threads is worth a warning; our workers use none of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

MakeFederation = Callable[..., Federation]
Simulate = Callable[..., Simulation]


@pytest.fixture
def simulate(make_federation: MakeFederation) -> Simulate:
    """A simulation of six unequal clients with two bodies where the method allows, one of them without records."""

    def made(
        method: str = "fedlog",
        choice: BackendChoice = BackendChoice.AUTO,
        told: dict[str, Any] | None = None,
        moments: AdamMoments = AdamMoments.EPOCH,
        jobs: int = 1,
        **course: Any,
    ) -> Simulation:
        federation = make_federation([9, 4, 0, 7, 12, 1], tests=[3, 2, 4, 0, 5, 3])
        names = ["mlp:6,5", "mlp:5"] if method == "fedlog" else ["mlp:6,5"]
        bodies = [make_body(names[at % len(names)], (4,)) for at in range(6)]
        plan = make_model_plan(federation, bodies)
        algorithm = make_method(method, plan, {"epochs": 2, "learning_rate": 0.01, **(told or {})})
        return Simulation(
            algorithm,
            federation,
            bodies,
            plan,
            Engine(Settings(batch_size=4, optimiser=Optimiser(moments)), choice),
            RunSettings(**{"rounds": 3, "execution": Execution(jobs=jobs), **course}),
        ).start()

    return made


def _plain(records: list[RoundRecord]) -> list[dict[str, Any]]:
    """The records without their seconds."""
    return [{name: value for name, value in asdict(record).items() if name != "seconds"} for record in records]


def _outcome(simulation: Simulation, folder: Path) -> tuple[Any, ...]:
    """Everything a run leaves behind: records, accuracy after closing, every client's model to the bit."""
    try:
        records = _plain(list(simulation.rounds()))
        closed = simulation.evaluate_after_closing()
        folder.mkdir(parents=True)
        simulation.save_models(folder)
    finally:
        simulation.stop()
    models = {path.name: {n: v.tolist() for n, v in load_file(path).items()} for path in sorted(folder.iterdir())}
    assert len(models) == 6
    return records, closed, models


@pytest.mark.parametrize(("method", "jobs"), [("fedlog", 9), ("fedlog-c", 2), ("fedrep", 2)])
def test_the_number_of_workers_decides_nothing(method: str, jobs: int, simulate: Simulate, tmp_path: Path) -> None:
    told = {"head_epochs": 1} if method == "fedrep" else {}
    alone, together = (
        _outcome(simulate(method, told=told, rounds=2, jobs=number, participation=0.7), tmp_path / str(number))
        for number in (1, jobs)
    )
    assert alone == together


@pytest.mark.parametrize(("before", "after", "moments"), [(1, 2, AdamMoments.EPOCH), (3, 1, AdamMoments.RUN)])
def test_a_resumed_run_repeats_the_other_to_the_bit_however_many_workers(
    before: int, after: int, moments: AdamMoments, simulate: Simulate, tmp_path: Path
) -> None:
    told: dict[str, Any] = {"rounds": 3, "participation": 0.7, "moments": moments}
    whole = _outcome(simulate(**told), tmp_path / "whole")
    first = simulate(**told, jobs=before)
    rounds = first.rounds()
    done = [next(rounds)]
    first.save(tmp_path / "checkpoint")
    first.stop()
    second = simulate(**told, jobs=after)
    second.resume(tmp_path / "checkpoint")
    records, closed, models = _outcome(second, tmp_path / "resumed")
    assert (_plain(done) + records, closed, models) == whole
    assert second.server.ledger.entries == _ledger_of(simulate(**told))


def _ledger_of(simulation: Simulation) -> object:
    list(simulation.rounds())
    return simulation.server.ledger.entries


def test_uploads_that_are_listed_are_still_listed_after_a_checkpoint(tmp_path: Path) -> None:
    """Mixtures of clients that pause are joined to the others', never added to them."""
    uploads = {
        name: JoinedContribution((torch.full((2, 3), value),)) for name, value in (("north", 1.0), ("south", 2.0))
    }
    checkpoint.write(tmp_path, checkpoint.ServerState(1, {}, Ledger(), dict(uploads)), lambda _: None)
    kept = checkpoint.read(tmp_path, lambda _: None).memory
    (found,) = add_contributions(list(kept.values())).arrays
    assert found[:, 0].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_a_checkpoint_cut_short_leaves_the_one_before(simulate: Simulate, tmp_path: Path) -> None:
    """A kill in the middle of writing the clients: the older checkpoint is still the newest whole one."""
    simulation = simulate()
    rounds = simulation.rounds()
    next(rounds)
    simulation.save(tmp_path)
    next(rounds)

    def killed(folder: Path) -> None:
        (folder / "clients-0.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    state = checkpoint.ServerState(2, simulation.server.state, simulation.server.ledger)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(tmp_path, state, killed)
    resumed = simulate()
    resumed.resume(tmp_path)
    assert resumed.round_number == 1
    assert [record.round for record in resumed.rounds()] == [2, 3]
    resumed.save(tmp_path)
    assert [path.name for path in sorted(tmp_path.glob("round-*"))] == ["round-000003"]


def test_a_checkpoint_is_on_the_disk_before_it_is_named(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the name must not stand for files that are empty: the older checkpoint is gone by then."""
    simulation = simulate()
    next(simulation.rounds())
    forced, force = list[str](), os.fsync

    def note(descriptor: int) -> None:
        forced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        force(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    simulation.save(tmp_path)
    named = next(at for at, name in enumerate(forced) if "latest.json" in name)
    files = {path.name for path in (tmp_path / "round-000001").iterdir()}
    assert {"server.safetensors", "ledger.json", "clients-0.safetensors"} <= files
    assert {*files, "round-000001"} <= set(forced[:named])


@pytest.mark.parametrize("damage", ["server.safetensors", "ledger.json", "clients-0.safetensors", "latest.json"])
def test_a_damaged_checkpoint_is_said_to_be_one(damage: str, simulate: Simulate, tmp_path: Path) -> None:
    simulation = simulate()
    next(simulation.rounds())
    simulation.save(tmp_path)
    (path,) = tmp_path.rglob(damage)
    path.write_bytes(path.read_bytes()[:5])
    with pytest.raises(InputError, match="checkpoint"):
        simulate().resume(tmp_path)


def test_a_checkpoint_of_other_clients_is_refused(
    simulate: Simulate, make_federation: MakeFederation, tmp_path: Path
) -> None:
    simulation = simulate()
    next(simulation.rounds())
    simulation.save(tmp_path)
    (path,) = tmp_path.rglob("clients-0.safetensors")
    save_file(load_file(path), path, metadata={"clients": "0 1 2 3 5", "format": str(checkpoint.FORMAT)})
    with pytest.raises(InputError, match="client-4"):
        simulate().resume(tmp_path)


@pytest.mark.parametrize("where", ["latest.json", "clients-0.safetensors"])
@pytest.mark.parametrize("written", [None, checkpoint.FORMAT + 1])
def test_a_checkpoint_of_another_format_is_refused(
    where: str, written: int | None, simulate: Simulate, tmp_path: Path
) -> None:
    simulation = simulate()
    next(simulation.rounds())
    simulation.save(tmp_path)
    (path,) = tmp_path.rglob(where)
    if where == "latest.json":
        known = json.loads(path.read_text())
        path.write_text(json.dumps({**known, "format": written} if written else {"folder": known["folder"]}))
    else:
        told = {"clients": "0 1 2 3 4", **({"format": str(written)} if written else {})}
        save_file(load_file(path), path, metadata=told)
    found = "none" if written is None else str(written)
    with pytest.raises(InputError, match=f"expected a checkpoint of format 1 in .*, found: {found}") as refused:
        simulate().resume(tmp_path)
    assert "the version of fedlog that wrote it" in str(refused.value.hint)


@pytest.mark.parametrize("bad", [3, 4])
def test_a_run_does_without_half_of_its_clients_at_most(
    bad: int, simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = Cohort.make_encoded_uploads

    def poisoned(self: Cohort, *told: Any) -> list[tuple[int, bytes | None]]:
        nothing = torch.full((3, 6), torch.nan)
        blob = self._transport.upload_codec.encode(Message(Kind.STATISTICS, (nothing,)))
        return [(index, blob if index < bad else sent) for index, sent in working(self, *told)]

    monkeypatch.setattr(Cohort, "make_encoded_uploads", poisoned)
    rounds = simulate(rounds=2).rounds()
    if bad == 3:
        assert [list(record.refused) for record in rounds] == [["client-0", "client-1", "client-2"]] * 2
    else:
        with pytest.raises(RunError, match=r"4 of 6 uploads cannot be used: client-0: .*; client-1: "):
            list(rounds)


def test_a_target_accuracy_ends_the_run_and_a_resumed_one_too(simulate: Simulate) -> None:
    free = list(simulate(rounds=6).rounds())
    target = max(record.accuracy_mean_over_clients for record in free[:3])
    reached = next(record.round for record in free if record.accuracy_mean_over_clients >= target)
    stopped = list(simulate(rounds=6, stop_at_accuracy=target).rounds())
    assert [record.round for record in stopped] == list(range(1, reached + 1))
    assert [r.correct_per_client for r in stopped] == [r.correct_per_client for r in free[:reached]]
    again = simulate(rounds=6, stop_at_accuracy=target)
    assert list(again.rounds(last=stopped[-1])) == []
    # A target that the mean misses by rounding alone.
    again = simulate(rounds=6, stop_at_accuracy=math.nextafter(target, 1))
    assert list(again.rounds(last=stopped[-1])) == []


def test_the_accuracy_after_closing_is_that_of_the_models_that_are_saved(simulate: Simulate, tmp_path: Path) -> None:
    simulation = simulate("fedbabu", told={"learning_rate": 0.3})
    *_, last = simulation.rounds()
    simulation.save_models(tmp_path)
    federation, shares = simulation.federation, []
    for shard, model in zip(federation.shards, simulation.bodies, strict=True):
        own = federation.test.at(shard.test)
        if len(own):
            params = load_file(tmp_path / f"{shard.name}.safetensors")
            guessed = logits(model.compute_features(params, own.inputs, None), params).argmax(1)
            shares.append(float((guessed == own.labels).double().mean()))
    assert simulation.evaluate_after_closing() == pytest.approx(shares)
    assert shares != [share for share in last.accuracy_per_client if share is not None]


def test_a_resumed_sum_of_what_is_remembered_is_the_same_to_the_bit(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients come first in an order that is not their names', and send what adds up differently in another order."""

    def unequal(self: Cohort, number: int, _: Any, indices: Sequence[int]) -> list[tuple[int, bytes | None]]:
        sent = []
        for index in indices:
            # Small terms that come after the large one are rounded one by one, those before it together.
            sums = torch.randn(3, 6, generator=Key(number).child(index).torch()) * (1.0 if index == 1 else 1e-12)
            sums[:, 0] = 1
            sent.append((index, self._transport.upload_codec.encode(Message(Kind.STATISTICS, (sums,)))))
        return sent

    monkeypatch.setattr(Cohort, "make_encoded_uploads", unequal)
    for after in (1, 2, 3):
        whole, first, second = (simulate(rounds=5, participation=0.34, seed=4) for _ in range(3))
        assert [whole.draw_participants(number) for number in (1, 2, 3, 5)] == [[4, 5], [3, 5], [1, 3], [0, 1]]
        records = list(whole.rounds())
        for _ in zip(range(after), first.rounds(), strict=False):
            pass
        first.save(tmp_path / str(after))
        second.resume(tmp_path / str(after))
        list(second.rounds(records[after - 1]))
        for name, value in whole.server.state.items():
            assert torch.equal(value, second.server.state[name]), (after, name)


def test_accuracy_is_the_plain_mean_over_clients_that_have_test_records(simulate: Simulate) -> None:
    record = next(simulate().rounds())
    assert record.records_per_client == [3, 2, 4, 0, 5, 3]
    shares = [c / n for c, n in zip(record.correct_per_client, record.records_per_client, strict=True) if n]
    assert record.accuracy_per_client == [*shares[:3], None, *shares[3:]]
    assert record.accuracy_mean_over_clients == pytest.approx(sum(shares) / 5)


@pytest.mark.parametrize("choice", [BackendChoice.LOOP, BackendChoice.BLOCK, BackendChoice.VMAP])
@pytest.mark.parametrize("jobs", [1, 2])
def test_training_that_diverges_stops_and_names_the_client(
    choice: BackendChoice, jobs: int, simulate: Simulate
) -> None:
    simulation = simulate(choice=choice, told={"learning_rate": 1e36}, jobs=jobs)
    try:
        with pytest.raises(RunError, match=r"client client-\d, round 1, parameter \S+ is not finite") as caught:
            list(simulation.rounds())
    finally:
        simulation.stop()
    assert "learning rate" in str(caught.value.hint)


def test_separate_initialisation_differs_by_client_and_is_the_same_in_any_order(
    make_federation: MakeFederation,
) -> None:
    federation = make_federation([3, 3, 3])
    found = make_body("mlp:5", (4,))
    plan = make_model_plan(federation, [found] * 3)
    algorithm = make_method("fedlog", plan, {})

    def homes(kind: Initialisation) -> list[list[float]]:
        simulation = Simulation(
            algorithm, federation, [found] * 3, plan, Engine(), RunSettings(rounds=1, initialisation=kind)
        ).start()
        return [home["1.weight"].flatten().tolist() for home in simulation.workers.cohort.store.homes.values()]

    shared, separate = homes(Initialisation.SHARED), homes(Initialisation.SEPARATE)
    assert shared[0] == shared[1] == shared[2]
    assert len({tuple(weights) for weights in separate}) == 3


@pytest.mark.parametrize(
    ("course", "said"),
    [
        ({"rounds": 0}, "rounds must be at least 1, found: 0"),
        ({"participation": 0.0}, "participation must be above 0 and at most 1, found: 0.0"),
        ({"participation": 1.1}, "participation must be above 0 and at most 1, found: 1.1"),
        ({"participation": float("nan")}, "participation"),
        ({"jobs": 0}, "at least 1, found: 0"),
        ({"stop_at_accuracy": 97.0}, "at least 0 and at most 1, found: 97.0"),
        ({"judge": HeldOutRecords.VALIDATION}, "no client has a validation record"),
        ({"codec": "f31"}, "unknown codec: f31"),
    ],
)
def test_an_impossible_course_is_refused_before_it_starts(
    course: dict[str, Any], said: str, simulate: Simulate
) -> None:
    with pytest.raises(InputError, match=said):
        simulate(**course)


def test_statistics_of_untrained_bodies_need_bodies_that_start_equal(simulate: Simulate) -> None:
    with pytest.raises(InputError, match="only if all bodies start equal"):
        simulate("fedlog", told={"first_head": "statistics"})
    with pytest.raises(InputError, match="only if all bodies start equal"):
        simulate("fedlog-c", initialisation=Initialisation.SEPARATE)


def test_nothing_draws_from_global_randomness(simulate: Simulate) -> None:
    before = torch.random.get_rng_state()
    list(simulate().rounds())
    assert torch.equal(before, torch.random.get_rng_state())
