"""The checks of a method's contract; each check raises an AssertionError if the method breaks the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedlog.algorithms import registry
from fedlog.algorithms.interface import Audience, Bodies, TrainingRecords, Work
from fedlog.core.keys import Key
from fedlog.engine.clients import list_clients
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.tasks import FeatureRequest, RecordPool, Task
from fedlog.errors import InputError
from fedlog.models.body import HEAD, draw_initial_head
from fedlog.settings.execution import BackendChoice
from fedlog.settings.training import Initialisation
from fedlog.testing.trial import (
    N_CLASS,
    Models,
    Trial,
    convert_record_to_dict,
    find_largest_difference,
    make_dropout_body,
    make_small_body,
    make_small_federation,
    read_models,
    replace_test_records,
    run_all_rounds,
)

Check = Callable[[Trial], None]


class MethodBrokenError(AssertionError):
    """A method breaks the contract of all methods; the message names the check that failed, and says why."""


def check_method(method: str | registry.Factory, **options: Any) -> None:
    """Check that a method keeps the contract of this package's methods.

    Args:
        method: the method's class (or a function that makes an `Algorithm` from a `ModelPlan`), or its name.
        options: options of the method for these short runs: few epochs, and steps large enough to change a model.

    Returns:
        None if the method keeps the contract. The first check that fails raises `MethodBrokenError`.

    """
    trial = Trial(registry.find_method_name(method), options)
    for check in contract_checks():
        try:
            check(trial)
        except Exception as error:  # a broken method may raise anything
            reason = str(error) or type(error).__name__
            what = check.__name__.removeprefix("check_").replace("_", " ")
            raise MethodBrokenError(f"method {trial.method} breaks the contract ({what}): {reason}") from error


def contract_checks() -> tuple[Check, ...]:
    """Return the checks that `check_method` runs, in order; each check takes a `Trial`."""
    return (
        check_description,
        check_same_seed_repeats,
        check_learns,
        check_arguments_unchanged,
        check_order_of_clients,
        check_unequal_clients,
        check_round_without_data,
        check_partial_participation,
        check_separate_first_parameters,
        check_different_bodies,
        check_resume,
        check_bits_counted,
        check_test_records_unseen,
        check_closing_phase,
        check_backends_agree,
    )


def check_description(trial: Trial) -> None:
    """Check a method's name, the names of its exchanges in a round, and its advice to users."""
    algorithm = trial.make_method()
    assert isinstance(algorithm.name, str), f"its name must be a text, found: {algorithm.name!r}"
    assert algorithm.name, "its name must be a text that is not empty"
    assert algorithm.schedule.round, "its schedule has no exchange in a round"
    names = [exchange.name for exchange in algorithm.schedule.round]
    assert len(set(names)) == len(names), f"its exchanges must have different names, found: {names}"
    for line in algorithm.advice(10):
        assert isinstance(line, str), f"advice must be texts, found: {line!r}"


def check_same_seed_repeats(trial: Trial) -> None:
    """Check that the same seed gives exactly the same run, even if other random numbers were drawn before."""
    federation = make_small_federation([4, 9, 13])
    found = []
    for start in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(start)
            simulation = trial.make_simulation(federation)
            found.append((run_all_rounds(simulation), read_models(simulation)))
            again = find_largest_difference(found[-1][1], read_models(simulation))
            assert again == 0, "deploying the same state twice gives different models: does the method keep state?"
    (first, one), (second, other) = found
    assert first == second, "two runs with the same seed have different records: randomness must come from keys"
    assert find_largest_difference(one, other) == 0, "two runs with the same seed end with different models"


def check_learns(trial: Trial) -> None:
    """Check that models depend on the training records, and that their heads have a row for every class."""
    federation = make_small_federation([8, 9, 13])
    other = replace(federation, train=replace(federation.train, labels=(federation.train.labels + 1) % N_CLASS))
    simulations = [trial.make_simulation(each) for each in (federation, other)]
    for simulation in simulations:
        run_all_rounds(simulation)
    models, others = (read_models(simulation) for simulation in simulations)
    assert find_largest_difference(models, others) > 0, "the models do not depend on the labels of the training records"
    for client, model in models.items():
        assert HEAD in model, f"the deployed model of {client} has no head"
        shape = tuple(model[HEAD].shape)
        expected = (1 if trial.predicts_numbers else N_CLASS, 6)
        assert shape == expected, f"the head of {client} must have shape {expected}, found {shape}"


def check_arguments_unchanged(trial: Trial) -> None:
    """Check that `receive`, `start_exchange`, `step`, `broadcast` and `deploy` do not change their arguments."""
    simulation = trial.make_simulation(make_small_federation([4, 9]))
    run_all_rounds(simulation)
    algorithm, server = simulation.algorithm, simulation.server.state
    kept = _copy_values(server)
    message = algorithm.broadcast(algorithm.begin(Key(3)))
    received = algorithm.receive(message, {})
    if not _needs_all_broadcasts(simulation):  # if broadcasts add up, the last one is useless alone
        received = algorithm.receive(algorithm.broadcast(server), received)
    home = algorithm.join(_make_first_model(simulation))
    before_home, before_received = _copy_values(home), _copy_values(received)
    for exchange in algorithm.schedule.round:
        algorithm.start_exchange(exchange.name, home, received)
    algorithm.deploy(home, received)
    algorithm.receive(message, received)
    given = (("server's state", server, kept), ("home", home, before_home), ("received", received, before_received))
    for what, now, then in given:
        assert _have_equal_values(now, then), f"the method changes the {what} in place: return new values instead"


def check_order_of_clients(trial: Trial) -> None:
    """Check that models and bits do not depend on the order of the clients."""
    federation = make_small_federation([4, 9, 13, 6])
    turned = replace(federation, shards=tuple(federation.shards[at] for at in (2, 0, 3, 1)))
    one, other = (trial.make_simulation(each, participation=0.75) for each in (federation, turned))
    first, second = run_all_rounds(one), run_all_rounds(other)
    gap = find_largest_difference(read_models(one), read_models(other))
    assert gap < 1e-5, f"with the clients in another order, models differ by {gap:g}"
    for a, b in zip(first, second, strict=True):
        for figure in ("bits_up", "bits_down", "participants"):
            assert a[figure] == b[figure], f"with the clients in another order, {figure} differs"
        assert sum(a["correct_per_client"]) == sum(b["correct_per_client"])


def check_unequal_clients(trial: Trial) -> None:
    """Check that a run works if some clients have no record, one record or one class.

    A client without records must not affect the models of the other clients.
    """
    federation = make_small_federation([0, 1, 7, 23], one_class=[2])
    whole = trial.make_simulation(federation)
    records = run_all_rounds(whole)
    assert [record["records_per_client"] for record in records] == [[6, 6, 6, 6]] * 2
    assert not any(record["refused"] for record in records), f"an upload is unusable: {records[0]['refused']}"
    models = read_models(whole)
    _require_finite(models)
    without = trial.make_simulation(replace(federation, shards=federation.shards[1:]))
    run_all_rounds(without)
    left = read_models(without)
    gap = find_largest_difference({name: models[name] for name in left}, left)
    assert gap == 0, f"a client without records changes the others' models by {gap:g}: weight uploads by records"


def check_round_without_data(trial: Trial) -> None:
    """Check that a run goes on after a round in which only a client without data takes part."""
    federation = make_small_federation([0, 0, 0, 8])
    pooled = trial.make_method().training is TrainingRecords.POOLED
    for seed in range(3):
        simulation = trial.make_simulation(federation, participation=0.25, seed=seed)
        if pooled or simulation.draw_participants(1) != [3]:
            break
    assert [record["participants"] for record in run_all_rounds(simulation)] == [1, 1]
    _require_finite(read_models(simulation))


def check_partial_participation(trial: Trial) -> None:
    """Check that uploads have the same size whether all or half of the clients take part, and models stay finite."""
    federation = make_small_federation([5, 8, 12, 6])
    everyone, half = (trial.make_simulation(federation, participation=share, rounds=3) for share in (1.0, 0.5))
    sent = {record.bits_up / record.participants for simulation in (everyone, half) for record in simulation.rounds()}
    assert len(sent) == 1, f"uploads must have the same size in all rounds, found: {sorted(sent)} bits"
    _require_finite(read_models(half))


def check_separate_first_parameters(trial: Trial) -> None:
    """Check that clients may start from different parameters exactly if the method says that bodies may differ."""
    _check_accepted_if_bodies_may_differ(
        trial,
        "different first parameters",
        lambda options: trial.make_simulation(
            make_small_federation([5, 8, 6]), options=options, initialisation=Initialisation.SEPARATE
        ),
    )


def check_different_bodies(trial: Trial) -> None:
    """Check that clients may have different networks exactly if the method says that bodies may differ."""
    bodies = [make_small_body("mlp:6,5"), make_small_body("mlp:7,5"), make_small_body("mlp:5")]
    _check_accepted_if_bodies_may_differ(
        trial,
        "different bodies",
        lambda options: trial.make_simulation(make_small_federation([5, 8, 6]), bodies, options=options),
    )


def _check_accepted_if_bodies_may_differ(
    trial: Trial, what: str, make: Callable[[Mapping[str, Any] | None], Simulation]
) -> None:
    """Check that the simulation of `make` is refused if the method needs equal bodies, and runs otherwise."""
    algorithm = trial.make_method()
    if algorithm.bodies is Bodies.SAME:
        try:
            make(None)
        except InputError:
            return
        raise AssertionError(
            f"the method states that all clients need the same body, but it accepts {what}: "
            f"set `bodies` to Bodies.ANY if the method works with {what}"
        )
    if algorithm.schedule.opening is not None:
        try:
            make(None)
        except InputError:
            if "first_head" not in registry.list_options(trial.method):
                return
        else:
            raise AssertionError(
                f"the opening exchange sums uploads of untrained bodies, but the method accepts {what}: "
                "set `bodies` to Bodies.SAME, or leave out the opening exchange"
            )
    simulation = make({"first_head": "random"} if algorithm.schedule.opening is not None else None)
    assert len(run_all_rounds(simulation)) == 2
    _require_finite(read_models(simulation))


def check_resume(trial: Trial) -> None:
    """Check that a run resumed from a checkpoint gives exactly the same results as an uninterrupted run."""
    federation = make_small_federation([4, 9, 13, 6])
    straight, before, after = (trial.make_simulation(federation, participation=0.75, rounds=4) for _ in range(3))
    expected = run_all_rounds(straight)
    rounds = before.rounds()
    found = [convert_record_to_dict(next(rounds)), convert_record_to_dict(next(rounds))]
    with TemporaryDirectory() as folder:
        before.save(Path(folder) / "checkpoint")
        after.resume(Path(folder) / "checkpoint")
        found += run_all_rounds(after)
    assert found == expected, "a resumed run has different records: does the method keep state of its own?"
    assert find_largest_difference(read_models(after), read_models(straight)) == 0, (
        "a resumed run ends with different models"
    )
    assert after.server.ledger.as_rows() == straight.server.ledger.as_rows()


def check_bits_counted(trial: Trial) -> None:
    """Check that the bits of all kinds of messages add up to the total bits of a round."""
    for record in run_all_rounds(trial.make_simulation(make_small_federation([5, 8, 6]))):
        booked, sent = sum(record["bits_by_kind"].values()), record["bits_up"] + record["bits_down"]
        assert booked == sent, f"{sent} bits were sent, but {booked} were counted by kind of message"


def check_test_records_unseen(trial: Trial) -> None:
    """Check that neither the rounds nor the closing phase (training after the last round) use test records."""
    federation = make_small_federation([5, 8, 12])
    one, other = (trial.make_simulation(each) for each in (federation, replace_test_records(federation)))
    run_all_rounds(one), run_all_rounds(other)
    gap = find_largest_difference(read_models(one, closing=True), read_models(other, closing=True))
    assert gap == 0, f"the models depend on the test records: other test records change them by {gap:g}"


def check_closing_phase(trial: Trial) -> None:
    """Check that the closing phase (training after the last round) does not change the models that clients keep."""
    simulation = trial.make_simulation(make_small_federation([5, 8, 12]))
    has_closing = bool(simulation.algorithm.schedule.closing)
    run_all_rounds(simulation)
    before = read_models(simulation)
    once, again = simulation.evaluate_after_closing(), simulation.evaluate_after_closing()
    assert (once is not None) == has_closing
    assert once == again, "closing twice gives different results"
    assert find_largest_difference(before, read_models(simulation)) == 0, (
        "closing changes the models that the clients keep"
    )
    moved = find_largest_difference(before, read_models(simulation, closing=True)) > 0
    assert moved or not has_closing, "the closing phase does not change the models"
    assert has_closing or not moved, "the models change after the last round, and there is no closing phase"


def check_backends_agree(trial: Trial) -> None:
    """Check that every backend gives the same parameters as training clients one after another (the loop backend)."""
    federation = make_small_federation([0, 1, 7, 23], one_class=[2])
    stacked = [choice for choice in BackendChoice if choice not in (BackendChoice.LOOP, BackendChoice.MIXED)]
    for choices in (stacked, [BackendChoice.MIXED]):
        simulation = trial.make_simulation(federation, [make_dropout_body(choices[0])] * 4)
        if not _has_training(simulation):
            continue
        # Two rounds first, so that losses get real class means and global means.
        run_all_rounds(simulation)
        for choice in choices:
            check_backend(trial, simulation, choice)


def check_backend(trial: Trial, simulation: Simulation, choice: BackendChoice) -> None:
    """Check that a backend gives the same parameters and features as the loop backend (one client after another).

    Every phase of the method is checked, starting from the server's state after the rounds of `simulation`.
    """
    federation, bodies = simulation.federation, simulation.bodies
    engines = [trial.make_simulation(federation, bodies, choice=each).engine for each in (BackendChoice.LOOP, choice)]
    clients = list_clients(federation, bodies, simulation.algorithm)
    loop, other = (next(iter(engine.make_backends(federation, clients).values())) for engine in engines)
    assert type(loop) is not type(other)
    for tasks, name in make_training_tasks(simulation):
        if not tasks[0].phases:
            continue
        for task, *fits in zip(tasks, loop.train(tasks), other.train(tasks), strict=True):
            a, b = (fit.params for fit in fits)
            gap = max(float((a[key] - b[key]).abs().max()) for key in a)
            where = f"exchange {name}, client {task.client.name} with {task.client.records} records"
            assert gap < 1e-10, f"{where}: {choice} differs from the loop by {gap:g}; does the loss use the weights?"
            moved = max(float((a[key] - task.work.params[key]).abs().max()) for key in a)
            assert (moved > 0) == (task.client.records > 0), f"{where}: training changed the model by {moved:g}"
        requests = [
            FeatureRequest(task.client, task.work.params, RecordPool.TRAIN, task.client.train) for task in tasks
        ]
        for ours, theirs in zip(loop.compute_features(requests), other.compute_features(requests), strict=True):
            assert ours.shape == theirs.shape
            assert not len(ours) or float((ours - theirs).abs().max()) < 1e-10


def make_training_tasks(simulation: Simulation) -> Iterator[tuple[list[Task], str]]:
    """Yield all clients' tasks and the exchange's name for each exchange, then those of the closing phase."""
    algorithm = simulation.algorithm
    clients = list_clients(simulation.federation, simulation.bodies, algorithm)
    key = Key(3)
    start = _make_first_model(simulation)
    home = algorithm.join({name: value.to(torch.float64) for name, value in start.items()})
    received = algorithm.receive(algorithm.broadcast(algorithm.begin(key)), {})
    if not _needs_all_broadcasts(simulation):  # if broadcasts add up, the last one is useless alone
        received = algorithm.receive(algorithm.broadcast(simulation.server.state), received)
    schedule = algorithm.schedule
    for exchange in (*schedule.round, *([schedule.opening] if schedule.opening else [])):
        work = algorithm.start_exchange(exchange.name, home, received)
        yield [Task(c, work, exchange.phases, key.child(c.name, exchange.name)) for c in clients], exchange.name
    model = Work(algorithm.deploy(home, received))
    yield [Task(c, model, schedule.closing, key.child(c.name)) for c in clients], "closing"


def _has_training(simulation: Simulation) -> bool:
    """Whether clients train in any exchange of the method, or in its closing phase."""
    schedule = simulation.algorithm.schedule
    exchanges = (*schedule.round, *([schedule.opening] if schedule.opening else []))
    return bool(schedule.closing) or any(exchange.phases for exchange in exchanges)


def _make_first_model(simulation: Simulation) -> dict[str, torch.Tensor]:
    key, plan = Key(3), simulation.plan
    return {HEAD: draw_initial_head(plan.width, plan.n_class, key), **simulation.bodies[0].make_initial_params(key)}


def _needs_all_broadcasts(simulation: Simulation) -> bool:
    """Whether a client can use a broadcast only if it has received all earlier broadcasts."""
    return simulation.algorithm.schedule.audience is Audience.EVERYONE


def _copy_values(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in values.items()}


def _have_equal_values(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _require_finite(models: Models) -> None:
    for client, model in models.items():
        for name, value in model.items():
            assert bool(torch.isfinite(value).all()), f"parameter {name} in the model of {client} is not finite"
