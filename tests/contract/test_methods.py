"""One contract for every registered method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from method_options import OPTIONS

from fedlog.algorithms.interface import Bodies, ModelPlan
from fedlog.algorithms.registry import METHODS, find_methods, freeze_bodies, make_method
from fedlog.errors import InputError
from fedlog.settings.training import Initialisation
from fedlog.testing.contract import Check, contract_checks
from fedlog.testing.trial import Trial, find_largest_difference
from fedlog.testing.trial import run_all_rounds as run
from fedlog.wire.codec import find_codec
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
    "fed-regression",
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


def test_the_contract_sees_all_twenty_six_methods() -> None:
    assert len(NAMES) == 26
    assert set(NAMES) == set(METHODS)


def test_the_facts_of_the_methods() -> None:
    adding = {"fedlog", "fedlog-c"} | ONE_EXCHANGE
    statistics = adding - {"fedcof", "fedpft"}  # class means and mixtures: the server sees each client's by itself
    assert set(find_methods(lambda method: method.bodies is Bodies.ANY)) == ANY_BODY
    deployed = (ANY_BODY - SILENT) | ONE_EXCHANGE
    assert set(find_methods(lambda method: method.may_federate)) == deployed
    assert set(find_methods(lambda method: method.can_remove_client)) == adding
    assert set(find_methods(lambda method: method.sums_last_uploads)) == adding
    assert set(find_methods(lambda method: method.sends_statistics)) == statistics
    assert set(find_methods(lambda method: method.sums_in_the_open)) == adding - statistics


@every_method
def test_only_methods_that_send_statistics_can_be_frozen(method: str, small: Any) -> None:
    simulation = small.simulation(method, small.federation([5, 8]))
    exchanges = simulation.algorithm.schedule.round
    sent = [simulation.server.templates[exchange.name] for exchange in exchanges]
    sends_statistics = all(message is not None and message.kind in (Kind.STATISTICS, Kind.MOMENTS) for message in sent)
    assert simulation.algorithm.sends_statistics == sends_statistics
    if not sends_statistics:
        with pytest.raises(InputError, match=f"method {method} cannot be used with frozen bodies"):
            freeze_bodies(simulation.algorithm)
        return
    frozen = freeze_bodies(simulation.algorithm)
    assert [(exchange.name, exchange.phases) for exchange in frozen.schedule.round] == [("statistics", ())]
    assert frozen.name == method


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
    same = found["c0"].keys() == expected["c0"].keys() and find_largest_difference(found, expected) < 1e-6
    assert same == (method in PLAIN_WITH_ONE_CLIENT)


@every_method
def test_partial_participation(method: str, small: Any) -> None:
    federation = small.federation([5, 8, 12, 6])
    simulation = small.simulation(method, federation, participation=0.5, rounds=3)
    one_client = method == "pooled"
    for record in simulation.rounds():
        assert record.participants == (1 if one_client else 2)
        chosen = simulation.draw_participants(record.round)
        up, down = payload_and_framing(method, simulation.plan)
        assert record.bits_up == 8 * up * len(chosen)
        # Where updates add up everyone hears them; otherwise the next participants do, and at last everyone.
        to_everyone = method == "cs-fl" or record.round == 3
        assert record.bits_down == 8 * down * (4 if to_everyone else 2)
    models = small.models(simulation)
    assert all(torch.isfinite(value).all() for model in models.values() for value in model.values())


def framed(*arrays: tuple[int, int]) -> int:
    """Bytes of a message with arrays of (bytes of entries, dimensions): an empty frame and each array's description."""
    frame = len(find_codec("f32").encode(Message(Kind.SEED, ())))
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
    if method == "fed-regression":  # 5 features and the number: 1 + 6 sums, a triangle of 6; heads of 5 features
        return framed((4 * 7, 2), (4 * 21, 2)), framed((4 * 6, 2), (4 * 30, 2), (4 * 2, 2))
    entries = 24 + 6 + 30 + 5 + 18
    assert plan.n_entries == entries
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
@pytest.mark.parametrize("check", contract_checks(), ids=lambda check: check.__name__)
def test_the_contract(method: str, check: Check) -> None:
    check(Trial(method, OPTIONS.get(method, {})))


@pytest.mark.parametrize("method", sorted(ONE_EXCHANGE - {"fed-regression"}))
@pytest.mark.parametrize("check", contract_checks(), ids=lambda check: check.__name__)
def test_the_contract_with_heads_of_ones_own(method: str, check: Check) -> None:
    check(Trial(method, {"personal": True}))


@pytest.mark.parametrize("method", sorted(ONE_EXCHANGE - {"fed-regression"}))
def test_clients_of_any_size_have_heads_of_their_own_to_choose_from(method: str, small: Any) -> None:
    sizes = [0, 1, 7, 23]
    simulation = small.simulation(method, small.federation(sizes, one_class=[2]), options={"personal": True})
    run(simulation)
    store = simulation.workers.cohort.store
    found = [
        simulation.algorithm.candidates(store.homes[index], store.get_received_params(index)) for index in range(4)
    ]
    assert min(map(len, found[1:])) > len(found[0]) >= 1  # without records there is nothing to solve
    for candidates in found:
        for _, model in candidates:
            assert model["head"].shape == (3, 6)
            assert all(bool(value.isfinite().all()) for value in model.values())


def test_a_regression_has_no_heads_of_ones_own() -> None:
    with pytest.raises(InputError, match="fed-regression solves one head for all clients"):
        make_method("fed-regression", ModelPlan(1, 3, (("head",),), 4), {"personal": True})


@every_method
def test_a_closing_phase_is_where_it_should_be(method: str, small: Any) -> None:
    closing = small.simulation(method, small.federation([5, 8])).algorithm.schedule.closing
    assert bool(closing) == (method in WITH_CLOSING)


@every_method
def test_a_method_with_one_body_for_all_says_so(method: str, small: Any) -> None:
    federation = small.federation([5, 8, 6])
    bodies = [small.body("mlp:6,5"), small.body("mlp:7,5"), small.body("mlp:5")]
    if method not in ANY_BODY:
        with pytest.raises(InputError, match=f"method {method} cannot be used with --initialisation separate"):
            small.simulation(method, federation, initialisation=Initialisation.SEPARATE)
        with pytest.raises(InputError, match=f"method {method} needs the same body"):
            small.simulation(method, federation, bodies)
    elif small.simulation(method, federation).algorithm.schedule.opening is not None:
        with pytest.raises(InputError, match="only if all bodies start equal"):
            small.simulation(method, federation, bodies)
