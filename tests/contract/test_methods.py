"""One contract for every registered method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from fedlog.algorithms.frozen import freeze_bodies
from fedlog.algorithms.registry import METHODS, methods_that
from fedlog.algorithms.shape import Bodies, ModelPlan, Work
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.engine.clients import clients_of
from fedlog.engine.simulate.simulator import RoundRecord, Simulation
from fedlog.engine.training.tasks import Look, Pool, Task
from fedlog.errors import InputError
from fedlog.models.body import HEAD, initial_head
from fedlog.settings.execution import BackendChoice
from fedlog.settings.training import Initialisation
from fedlog.testing.trial import dropping_body
from fedlog.wire.codec import codec
from fedlog.wire.message import Kind, Message

NAMES = (
    "fedlog",
    "fedlog-c",
    "local",
    "pooled",
    "fedavg",
    "lg-fedavg-1",
    "lg-fedavg-2",
    "fedper",
    "fedrep",
    "cs-fl",
    "fedbabu",
    "fedproto",
    "feddbe",
    "fedprox",
    "ditto",
    "fedlog-once",
    "fed-ncm",
    "fed-lda",
    "fed-nb",
    "fed-qda",
    "fed-ridge",
    "fedcof",
    "ccvr",
    "fedpft",
    "fed-heads",
)
every_method = pytest.mark.parametrize("method", NAMES)

# With one client these train a whole model on its records and average it with nothing; the others do something else.
PLAIN_WITH_ONE_CLIENT = {
    "local",
    "pooled",
    "fedavg",
    "lg-fedavg-1",
    "lg-fedavg-2",
    "fedper",
    "fedproto",
    "fedprox",
    "ditto",
}
ANY_BODY = {"fedlog", "fedlog-c", "fedproto", "lg-fedavg-1", "local"}
SILENT = {"local", "pooled"}
ONE_EXCHANGE = set(NAMES[15:])
WITH_CLOSING = {"fedrep", "fedbabu"}


def test_the_contract_sees_all_twenty_five_methods() -> None:
    assert len(NAMES) == 25
    assert set(NAMES) == set(METHODS)


def test_the_facts_of_the_methods() -> None:
    adding = {"fedlog", "fedlog-c"} | ONE_EXCHANGE
    statistics = adding - {"fedcof", "fedpft"}  # class means and mixtures: the server sees each client's by itself
    assert set(methods_that(lambda method: method.bodies is Bodies.ANY)) == ANY_BODY
    assert set(methods_that(lambda method: method.may_federate)) == (ANY_BODY - SILENT) | (statistics & ONE_EXCHANGE)
    assert set(methods_that(lambda method: method.may_leave)) == adding
    assert set(methods_that(lambda method: method.sums_last_uploads)) == adding
    assert set(methods_that(lambda method: method.sends_statistics)) == statistics


@every_method
def test_only_methods_that_send_statistics_can_be_frozen(method: str, small: Any) -> None:
    simulation = small.simulation(method, small.federation([5, 8]))
    exchanges = simulation.algorithm.schedule.round
    sent = [simulation.server.patterns[exchange.name] for exchange in exchanges]
    sends_statistics = all(message is not None and message.kind in (Kind.STATISTICS, Kind.MOMENTS) for message in sent)
    assert simulation.algorithm.sends_statistics == sends_statistics
    if not sends_statistics:
        with pytest.raises(InputError, match=f"method {method} has nothing left without training"):
            freeze_bodies(simulation.algorithm)
        return
    frozen = freeze_bodies(simulation.algorithm)
    assert [(exchange.name, exchange.phases) for exchange in frozen.schedule.round] == [("statistics", ())]
    assert frozen.name == method


def run(simulation: Simulation) -> list[dict[str, Any]]:
    """The records of all remaining rounds, without their times."""
    return [known(record) for record in simulation.rounds()]


def known(record: RoundRecord) -> dict[str, Any]:
    return {name: value for name, value in asdict(record).items() if name != "seconds"}


Models = dict[str, dict[str, torch.Tensor]]


def distance(one: Models, other: Models) -> float:
    """The largest difference of any entry of any client's model."""
    assert one.keys() == other.keys()
    return max(
        float((one[client][name].double() - other[client][name].double()).abs().max())
        for client in one
        for name in one[client]
    )


@every_method
def test_one_client_is_plain_local_training_where_it_should_be(method: str, small: Any) -> None:
    federation = small.federation([11])
    unheld = {"fedproto": {"regularisation": 0.0}, "fedprox": {"mu": 0.0}, "ditto": {"regularisation": 0.0}}
    options = unheld.get(method, {})
    # One batch an epoch, so that the order of the records decides nothing.
    ours = small.simulation(method, federation, batch_size=11, options=options)
    plain = small.simulation("local", federation, batch_size=11)
    run(ours), run(plain)
    expected = small.models(plain)
    found = small.models(ours)
    if method == "pooled":
        found = {"c0": found["pooled"]}
    same = found["c0"].keys() == expected["c0"].keys() and distance(found, expected) < 1e-6
    assert same == (method in PLAIN_WITH_ONE_CLIENT)


@every_method
def test_the_order_of_the_clients_decides_nothing(method: str, small: Any) -> None:
    federation = small.federation([4, 9, 13, 6])
    turned = replace(federation, shards=tuple(federation.shards[at] for at in (2, 0, 3, 1)))
    one, other = (small.simulation(method, f, participation=0.75) for f in (federation, turned))
    first, second = run(one), run(other)
    assert distance(small.models(one), small.models(other)) < 1e-5
    for a, b in zip(first, second, strict=True):
        assert (a["bits_up"], a["bits_down"], a["participants"]) == (b["bits_up"], b["bits_down"], b["participants"])
        assert sum(a["correct_per_client"]) == sum(b["correct_per_client"])


@every_method
def test_unequal_clients_without_data_with_one_record_and_with_one_class(method: str, small: Any) -> None:
    federation = small.federation([0, 1, 7, 23], one_class=[2])
    whole = small.simulation(method, federation)
    records = run(whole)
    assert [record["records_per_client"] for record in records] == [[6, 6, 6, 6]] * 2
    models = small.models(whole)
    assert all(torch.isfinite(value).all() for model in models.values() for value in model.values())
    # The client without data takes part and changes nothing for anyone.
    without = small.simulation(method, replace(federation, shards=federation.shards[1:]))
    run(without)
    left = small.models(without)
    assert distance({name: models[name] for name in left}, left) == 0


@every_method
def test_a_round_of_nobody_but_a_client_without_data_is_survived(method: str, small: Any) -> None:
    federation = small.federation([0, 0, 0, 8])
    for seed in range(3):
        simulation = small.simulation(method, federation, participation=0.25, seed=seed)
        if method != "pooled" and simulation.participants(1) != [3]:
            break
    else:
        assert method == "pooled"
    assert [record["participants"] for record in run(simulation)] == [1, 1]


@every_method
def test_partial_participation(method: str, small: Any) -> None:
    federation = small.federation([5, 8, 12, 6])
    simulation = small.simulation(method, federation, participation=0.5, rounds=3)
    one_client = method == "pooled"
    for record in simulation.rounds():
        assert record.participants == (1 if one_client else 2)
        chosen = simulation.participants(record.round)
        up, down = payload_and_framing(method, simulation.plan)
        assert record.bits_up == 8 * up * len(chosen)
        # Where updates add up everyone hears them; otherwise the next participants do, and at last everyone.
        to_everyone = method == "cs-fl" or record.round == 3
        assert record.bits_down == 8 * down * (4 if to_everyone else 2)
    models = small.models(simulation)
    assert all(torch.isfinite(value).all() for model in models.values() for value in model.values())


@every_method
def test_separate_starts_are_accepted_exactly_by_those_that_can(method: str, small: Any) -> None:
    federation = small.federation([5, 8, 6])
    separate = {"initialisation": Initialisation.SEPARATE}
    if method not in ANY_BODY:
        with pytest.raises(InputError, match=f"method {method} starts from one model for everyone"):
            small.simulation(method, federation, **separate)
        return
    options = {"first_head": "random"} if method == "fedlog-c" else None
    assert len(run(small.simulation(method, federation, options=options, **separate))) == 2


@every_method
def test_different_bodies_are_accepted_exactly_by_those_that_can(method: str, small: Any) -> None:
    federation = small.federation([5, 8, 6])
    bodies = [small.body("mlp:6,5"), small.body("mlp:7,5"), small.body("mlp:5")]
    if method not in ANY_BODY:
        with pytest.raises(InputError, match=f"method {method} needs the same body"):
            small.simulation(method, federation, bodies)
        return
    # An opening needs bodies that start equal: FedLog-C begins from a random head here.
    opens = small.simulation(method, federation).algorithm.schedule.opening is not None
    if opens:
        with pytest.raises(InputError, match="only if all bodies start equal"):
            small.simulation(method, federation, bodies)
    simulation = small.simulation(method, federation, bodies, options={"first_head": "random"} if opens else None)
    assert len(run(simulation)) == 2
    assert {len(model) for model in small.models(simulation).values()} == {3, 5}


@every_method
def test_a_resumed_run_repeats_the_uninterrupted_one_to_the_bit(method: str, small: Any) -> None:
    federation = small.federation([4, 9, 13, 6])

    def fresh() -> Simulation:
        made: Simulation = small.simulation(method, federation, participation=0.75, rounds=4)
        return made

    straight, before, after = fresh(), fresh(), fresh()
    expected = run(straight)
    rounds = before.rounds()
    found = [known(next(rounds)), known(next(rounds))]
    before.save(small.folder / "checkpoint")
    after.resume(small.folder / "checkpoint")
    found += run(after)
    assert found == expected
    assert distance(small.models(after), small.models(straight)) == 0
    assert after.server.ledger.as_rows() == straight.server.ledger.as_rows()


def framed(*arrays: tuple[int, int]) -> int:
    """Bytes of a message with arrays of (bytes of entries, dimensions): an empty frame and each array's description."""
    frame = len(codec("f32").encode(Message(Kind.SEED, ())))
    return frame + sum(entries + 2 + 4 * dimensions for entries, dimensions in arrays)


def payload_and_framing(method: str, plan: ModelPlan) -> tuple[int, int]:
    """The bytes of one client's uploads of a round, and of one copy of its broadcasts, from the method's formula.

    mlp:6,5 on 4 inputs and 3 classes: 4 x 6 + 6, 6 x 5 + 5, and a head of 3 x (1 + 5).
    """
    layers = ([(4 * 24, 2), (4 * 6, 1)], [(4 * 30, 2), (4 * 5, 1)], [(4 * 18, 2)])
    number = (8, 1)
    shared = {
        "fedavg": [0, 1, 2],
        "fedprox": [0, 1, 2],
        "ditto": [0, 1, 2],
        "lg-fedavg-1": [2],
        "lg-fedavg-2": [1, 2],
        "fedper": [0],
        "fedrep": [0],
        "fedbabu": [0, 1],
    }
    if method in shared:
        model = framed(*(array for at in shared[method] for array in layers[at]), number)
        return model, model
    entries = 24 + 6 + 30 + 5 + 18
    assert plan.entries == entries
    rows = round(0.3 * entries)
    measurements, signs = framed((4 * rows, 1), (16, 1)), framed((-(-entries // 8), 1), number)
    everything = [array for layer in layers for array in layer]
    head, sums, triangle, by_class = framed((72, 2)), (72, 2), (4 * 15, 2), (4 * 45, 2)
    return {
        "fedlog-once": (head, head),
        "fed-ncm": (head, head),
        "fed-lda": (framed(sums, triangle), head),
        "fed-ridge": (framed(sums, triangle), head),
        "fed-nb": (framed(sums, (4 * 15, 2)), framed(sums, (4 * 15, 2))),
        "fed-qda": (framed(sums, by_class), framed(sums, by_class)),
        "ccvr": (framed(sums, by_class), head),
        "fedcof": (framed((4 * 15, 2), (8 * 3, 1)), head),
        "fedpft": (framed((4 * 3, 1), (4 * 15, 2), (4 * 15, 2)), head),
        "fed-heads": (framed(sums, triangle), framed(*[(72, 2)] * 4)),
        "fedlog": (framed((4 * 18, 2)), framed((4 * 18, 2))),
        "fedlog-c": (framed((4 * 18, 2)), framed((4 * 18, 2))),
        "local": (0, 0),
        "pooled": (0, 0),
        "cs-fl": (measurements + signs, measurements + signs),
        "fedproto": (framed((4 * 15, 2), (8 * 3, 1)), framed((4 * 15, 2), (1, 1))),
        "feddbe": (framed(*everything, number), framed(*everything, (4 * 5, 1), number)),
    }[method]


@every_method
def test_bits_equal_the_methods_formula(method: str, small: Any) -> None:
    simulation = small.simulation(method, small.federation([5, 8, 6]))
    up, down = payload_and_framing(method, simulation.plan)
    for record in run(simulation):
        assert (record["bits_up"], record["bits_down"]) == (3 * 8 * up, 3 * 8 * down)
        assert sum(record["bits_by_kind"].values()) == record["bits_up"] + record["bits_down"]
    assert (up == 0) == (method in SILENT)


@every_method
def test_training_and_closing_never_see_test_records(
    method: str, small: Any, other_tests: Callable[[Federation], Federation]
) -> None:
    federation = small.federation([5, 8, 12])
    one, other = (small.simulation(method, f) for f in (federation, other_tests(federation)))
    run(one), run(other)
    assert distance(small.models(one, closing=True), small.models(other, closing=True)) == 0


@every_method
def test_closing_is_judged_apart_and_leaves_the_run_as_it_was(method: str, small: Any) -> None:
    simulation = small.simulation(method, small.federation([5, 8, 12]))
    run(simulation)
    before = small.models(simulation)
    once, again = simulation.close(), simulation.close()
    assert (once is not None) == (method in WITH_CLOSING)
    assert once == again
    assert distance(before, small.models(simulation)) == 0
    assert (distance(before, small.models(simulation, closing=True)) > 0) == (method in WITH_CLOSING)


def works(method: str, simulation: Simulation) -> list[tuple[list[Task], str]]:
    """The tasks of every exchange and of the closing, from a float64 model, for clients of very different sizes."""
    algorithm, plan = simulation.algorithm, simulation.plan
    clients = clients_of(simulation.federation, simulation.bodies, algorithm)
    key = Key(3)
    start = {HEAD: initial_head(plan.width, plan.n_class, key), **simulation.bodies[0].initial(key)}
    home = algorithm.join({name: value.to(torch.float64) for name, value in start.items()})
    heard = algorithm.hear(algorithm.broadcast(algorithm.begin(key)), {})
    if method != "cs-fl":  # its updates add up: the last one alone means nothing
        heard = algorithm.hear(algorithm.broadcast(simulation.server.state), heard)
    schedule = algorithm.schedule
    found = []
    for exchange in (*schedule.round, *([schedule.opening] if schedule.opening else [])):
        work = algorithm.open(exchange.name, home, heard)
        tasks = [Task(c, work, exchange.phases, key.child(c.name, exchange.name)) for c in clients]
        found.append((tasks, exchange.name))
    model = Work(algorithm.deploy(home, heard))
    found.append(([Task(c, model, schedule.closing, key.child(c.name)) for c in clients], "closing"))
    return found


@every_method
@pytest.mark.parametrize("choice", [choice for choice in BackendChoice if choice is not BackendChoice.LOOP])
def test_every_backend_agrees_with_the_loop(method: str, choice: BackendChoice, small: Any) -> None:
    federation = small.federation([0, 1, 7, 23], one_class=[2])
    bodies = [dropping_body(choice)] * 4
    # Two rounds first, so that losses meet real class means and global means.
    simulation = small.simulation(method, federation, bodies)
    run(simulation)
    engines = [small.simulation(method, federation, bodies, choice=c).engine for c in (BackendChoice.LOOP, choice)]
    clients = clients_of(federation, simulation.bodies, simulation.algorithm)
    loop, other = (next(iter(engine.backends(federation, clients).values())) for engine in engines)
    assert type(loop) is not type(other)
    for tasks, name in works(method, simulation):
        if not tasks[0].phases:
            continue
        for task, *fits in zip(tasks, loop.train(tasks), other.train(tasks), strict=True):
            a, b = (fit.params for fit in fits)
            moved = max(float((a[key] - task.work.params[key]).abs().max()) for key in a)
            gap = max(float((a[key] - b[key]).abs().max()) for key in a)
            assert gap < 1e-10, (name, task.client.name)
            assert (moved > 0) == (task.client.records > 0)
        looks = [Look(task.client, task.work.params, Pool.TRAIN, task.client.train) for task in tasks]
        for a, b in zip(loop.features(looks), other.features(looks), strict=True):
            assert a.shape == b.shape
            assert not len(a) or float((a - b).abs().max()) < 1e-10
