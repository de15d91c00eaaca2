"""Bits counted on real runs against the formulas on paper, and the rule of who hears a broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedlog.algorithms.interface import Exchange
from fedlog.algorithms.registry import make_method
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.engine.clients import make_model_plan
from fedlog.engine.protocol.server import Server
from fedlog.engine.simulate.simulator import RoundRecord, Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.errors import RunError
from fedlog.models.body import HEAD, draw_initial_head
from fedlog.models.catalog import make_body
from fedlog.settings.training import RunSettings
from fedlog.wire.codec import Float32Codec
from fedlog.wire.ledger import Direction
from fedlog.wire.message import Kind, Message

MakeFederation = Callable[..., Federation]
Begin = Callable[..., tuple[Server, Exchange]]

CODEC = Float32Codec()


def _simulation(
    federation: Federation, name: str, method: str = "fedlog", course: RunSettings | None = None, **told: Any
) -> Simulation:
    bodies = [make_body(name, federation.input_shape)] * len(federation.shards)
    plan = make_model_plan(federation, bodies)
    algorithm = make_method(method, plan, {"epochs": 1, **told})
    return Simulation(
        algorithm, federation, bodies, plan, Engine(Settings(batch_size=10)), course or RunSettings(rounds=2)
    ).start()


def test_a_round_of_fedlog_on_mnist_costs_the_papers_count_and_at_most_two_per_cent_of_framing(
    make_federation: MakeFederation,
) -> None:
    """2 directions x 10 classes x 51 features x 32 bits x 50 clients = 1.632 Mb, the paper's dense float32 count."""
    federation = make_federation([2] * 50, tests=[1] * 50, n_class=10, input_shape=(1, 28, 28))
    simulation = _simulation(federation, "cnn")
    for record in simulation.rounds():
        assert record.bits_by_kind.keys() == {"statistics up", "head down"}
        for bits in (record.bits_up, record.bits_down):
            assert 1 <= bits / (10 * 51 * 32 * 50) < 1.02
        assert 1 <= (record.bits_up + record.bits_down) / 1_632_000 < 1.02
    opening = simulation.server.ledger.sum_bits_by_kind(0)
    assert opening.keys() == {"seed down"}
    assert sum(opening.values()) / 1_632_000 < 0.01


def test_a_round_of_fedavg_on_mnist_sends_the_whole_model_both_ways(make_federation: MakeFederation) -> None:
    federation = make_federation([2] * 3, n_class=10, input_shape=(1, 28, 28))
    record = next(iter(_simulation(federation, "cnn", "fedavg").rounds()))
    for bits in (record.bits_up, record.bits_down):
        assert 1 <= bits / (21_840 * 32 * 3) < 1.01


@pytest.mark.parametrize("method", ["local", "pooled"])
def test_without_an_exchange_no_bit_is_counted(method: str, make_federation: MakeFederation) -> None:
    simulation = _simulation(make_federation([4, 3]), "mlp:5", method)
    records = list(simulation.rounds())
    assert [record.bits_up + record.bits_down for record in records] == [0, 0]
    assert simulation.server.ledger.entries == {}


def _bits(message: Message) -> int:
    return 8 * len(CODEC.encode(message))


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_broadcast_goes_to_the_next_participants_and_the_last_one_to_everyone(
    rounds: int, make_federation: MakeFederation
) -> None:
    """Ten clients, three a round: a seed to all ten, three uploads, three copies down, ten after the last round."""
    federation = make_federation([3] * 10)
    simulation = _simulation(federation, "mlp:5", course=RunSettings(rounds=rounds, participation=0.3, seed=2))
    table = _bits(Message(Kind.HEAD, (torch.zeros(3, 6),)))
    records = list(simulation.rounds())
    assert [record.participants for record in records] == [3] * rounds
    assert [record.bits_up for record in records] == [3 * table] * rounds
    assert [record.bits_down for record in records] == [3 * table] * (rounds - 1) + [10 * table]
    assert simulation.server.ledger.sum_bits_by_kind(0) == {
        "seed down": 10 * _bits(Message(Kind.SEED, (torch.tensor([0]),)))
    }


def test_an_opening_exchange_is_counted_as_round_0(make_federation: MakeFederation) -> None:
    """FedLog-C's first head: a seed to all ten, statistics of all ten, and the sum to the three of round 1."""
    simulation = _simulation(make_federation([3] * 10), "mlp:5", "fedlog-c", RunSettings(rounds=2, participation=0.3))
    list(simulation.rounds())
    table, seed = (
        _bits(Message(k, (t,))) for k, t in ((Kind.STATISTICS, torch.zeros(3, 6)), (Kind.SEED, torch.tensor([0])))
    )
    assert simulation.server.ledger.sum_bits_by_kind(0) == {
        "seed down": 10 * seed,
        "statistics up": 10 * table,
        "statistics down": 3 * table,
    }


def test_who_takes_part_depends_on_the_seed_and_the_round_alone(make_federation: MakeFederation) -> None:
    federation = make_federation([3] * 10)
    one, again, other = (
        _simulation(federation, "mlp:5", course=RunSettings(rounds=5, participation=0.4, seed=s)) for s in (1, 1, 2)
    )
    drawn = [one.draw_participants(number) for number in range(1, 6)]
    assert drawn[::-1] == [again.draw_participants(number) for number in range(5, 0, -1)]
    assert drawn != [other.draw_participants(number) for number in range(1, 6)]
    assert all(len(set(part)) == 4 for part in drawn)
    assert len({client for part in drawn for client in part}) > 4


@pytest.mark.parametrize(("share", "expected"), [(0.001, 1), (0.24, 2), (0.26, 3), (1.0, 10)])
def test_a_share_of_the_clients_is_rounded_and_never_nobody(
    share: float, expected: int, make_federation: MakeFederation
) -> None:
    simulation = _simulation(make_federation([2] * 10), "mlp:5", course=RunSettings(rounds=1, participation=share))
    assert len(simulation.draw_participants(1)) == expected


def test_only_participants_train(make_federation: MakeFederation) -> None:
    simulation = _simulation(make_federation([5] * 6), "mlp:5", course=RunSettings(rounds=1, participation=0.5, seed=3))
    before = {client: home["1.weight"].clone() for client, home in simulation.workers.cohort.store.homes.items()}
    list(simulation.rounds())
    moved = [
        c for c, home in simulation.workers.cohort.store.homes.items() if not torch.equal(home["1.weight"], before[c])
    ]
    assert moved == simulation.draw_participants(1)


@pytest.fixture
def begin(make_federation: MakeFederation) -> Callable[..., tuple[Server, Exchange]]:
    """A server before its first round, for 3 classes and 4 features, and the exchange of its rounds."""

    def made(method: str = "fedlog") -> tuple[Server, Exchange]:
        found = make_body("mlp:4", (4,))
        plan = make_model_plan(make_federation([1]), [found])
        algorithm = make_method(method, plan, {})
        initial = {HEAD: draw_initial_head(4, 3, Key(0)), **found.make_initial_params(Key(0))}
        return Server.create(algorithm, plan, initial, Key(0)), algorithm.schedule.round[0]

    return made


def _good(value: float = 1.0) -> Message:
    return Message(Kind.STATISTICS, (torch.full((3, 5), value),))


def _spoiled(at: tuple[int, int], value: float) -> Message:
    (table,) = _good().arrays
    table[at] = value
    return Message(Kind.STATISTICS, (table,))


BAD = {
    "is not finite": _spoiled((1, 2), float("nan")),
    r"entry \[2, 4\]": _spoiled((2, 4), float("inf")),
    "class 1 of statistics has a negative count: -1": _spoiled((1, 0), -1.0),
    "class 2 of statistics has a count of 0": _spoiled((2, 0), 0.0),
    "is of kind head": Message(Kind.HEAD, _good().arrays),
    "has arrays of shape": Message(Kind.STATISTICS, (torch.ones(3, 6),)),
    "has whole numbers": Message(Kind.STATISTICS, (torch.ones(3, 5, dtype=torch.int64),)),
    "has truth values": Message(Kind.STATISTICS, (torch.ones(3, 5, dtype=torch.bool),)),
}


@pytest.mark.parametrize("said", BAD)
def test_an_upload_that_cannot_be_used_stops_the_run_and_names_the_client(said: str, begin: Begin) -> None:
    server, exchange = begin()
    sent = [("north", CODEC.encode(_good())), ("south", CODEC.encode(BAD[said]))]
    with pytest.raises(RunError, match=rf"round 4: 1 of 2 uploads.*south: .*{said}"):
        server.receive_uploads(4, exchange, sent)


def test_a_gaussian_with_a_negative_variance_is_refused(begin: Begin) -> None:
    server, exchange = begin("fedpft")
    records, means, variances = torch.ones(3), torch.ones(3, 4), torch.ones(3, 4)
    variances[2, 1] = -1e-3
    blob = CODEC.encode(Message(Kind.MIXTURES, (records, means, variances)))
    with pytest.raises(RunError, match="south: Gaussian 2 of mixtures has a negative variance"):
        server.receive_uploads(1, exchange, [("south", blob)])


@pytest.mark.parametrize(
    "blob", [b"", b"nonsense of some length", CODEC.encode(_good())[:-1]], ids=["nothing", "noise", "cut"]
)
def test_bytes_that_are_no_message_stop_the_run_and_name_the_client(blob: bytes, begin: Begin) -> None:
    server, exchange = begin()
    with pytest.raises(RunError, match="south"):
        server.receive_uploads(1, exchange, [("south", blob)])


def test_a_second_upload_of_one_client_is_refused(begin: Begin) -> None:
    server, exchange = begin()
    with pytest.raises(RunError, match="has already sent an upload in this exchange"):
        server.receive_uploads(1, exchange, [("north", CODEC.encode(_good())), ("north", CODEC.encode(_good(9)))])


def test_where_refusals_are_allowed_the_others_go_on_and_the_refusal_is_noted(begin: Begin) -> None:
    server, exchange = begin()
    server.refused_share_allowed = 0.5
    clean, _ = begin()
    server.receive_uploads(
        1, exchange, [("north", CODEC.encode(_good())), ("south", CODEC.encode(_spoiled((1, 1), float("nan"))))]
    )
    clean.receive_uploads(1, exchange, [("north", CODEC.encode(_good()))])
    assert torch.equal(server.state[HEAD], clean.state[HEAD])
    assert [(at, refusal.client) for at, refusal in server.refusals] == [(1, "south")]
    # What crossed has crossed, whether it could be used or not.
    assert server.ledger.sum_bits(Direction.UP) == 2 * _bits(_good())


def test_an_upload_in_an_exchange_that_has_none_is_refused(begin: Begin) -> None:
    server, exchange = begin("local")
    with pytest.raises(RunError, match="expected: none"):
        server.receive_uploads(1, exchange, [("north", CODEC.encode(_good()))])


def test_records_add_up_to_the_ledger(make_federation: MakeFederation) -> None:
    simulation = _simulation(make_federation([3] * 5), "mlp:5", "fedlog-c", RunSettings(rounds=3, participation=0.6))
    records: list[RoundRecord] = list(simulation.rounds())
    ledger = simulation.server.ledger
    for way, of_records in ((Direction.UP, "bits_up"), (Direction.DOWN, "bits_down")):
        opening = ledger.sum_bits(way, round_number=0)
        assert opening > 0
        assert ledger.sum_bits(way) == opening + sum(getattr(record, of_records) for record in records)
    assert all(sum(r.bits_by_kind.values()) == r.bits_up + r.bits_down for r in records)
