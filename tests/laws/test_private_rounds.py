"""What a client sends after a whole round: its sensitivity, its noise, its limits, and the secure sum of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlog.algorithms.fedlog import NOISE, FedLog, FedLogC
from fedlog.algorithms.interface import Algorithm, Exchange, ModelPlan, Schedule, Work
from fedlog.algorithms.registry import freeze_bodies, make_method
from fedlog.core.clip import Clip, parse_clip
from fedlog.core.keys import Key
from fedlog.core.stats import Detail, Statistics
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import IDENTITY
from fedlog.engine.clients import list_clients, make_model_plan
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.protocol.server import Server
from fedlog.engine.simulate.secure_sums import SecureSums
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training import speed_trial
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import FeatureRequest, RecordPool, Settings, Task
from fedlog.errors import InputError, RunError
from fedlog.models.body import HEAD, Body, build_body
from fedlog.models.catalog import make_body
from fedlog.privacy.accounting import compute_spending
from fedlog.privacy.guarantee import Budget, Calibration, NoiseSetting, Trust, Unit
from fedlog.privacy.limits import UploadLimits
from fedlog.privacy.mechanisms import FloatSampler
from fedlog.privacy.protection import ContributionBound, Protection, make_protection
from fedlog.settings.execution import BackendChoice
from fedlog.settings.training import RunSettings
from fedlog.wire.codec import find_codec
from fedlog.wire.message import Contribution, Kind, Message, make_contribution

INPUTS, WIDTH, CLASSES = 3, 4, 2
WIRE = find_codec("f32")
MakeFederation = Callable[..., Federation]
Change = Callable[[FedLog], FedLog]


def _protection(unit: Unit, trust: Trust, *, clip: str = "clamp:2", releases: int = 1, **more: int) -> Protection:
    client = unit is Unit.CLIENT
    return make_protection(
        Budget(1.0, 1e-5),
        unit=unit,
        trust=trust,
        calibration=Calibration.PAPER if unit is Unit.PAPER else Calibration.EXACT,
        bound=ContributionBound(message_norm=5.0) if client else ContributionBound(parse_clip(clip)),
        releases=releases,
        statistics_shape=(more.get("n_class", CLASSES), 1 + WIDTH),
        clients=more.get("clients", 1),
        honest_survivors=more.get("honest", 1),
    )


PRECISE = Engine(Settings(dtype=torch.float64), BackendChoice.LOOP)


def _upload(guard: Protection, changed: Change, body: Body, data: Records, engine: Engine = PRECISE) -> Message:
    """The upload of one client after a whole round on these data."""
    every = torch.arange(len(data))
    shard = Shard("one", every, every[:1], every[:0])
    federation = Federation("law", CLASSES, body.input_shape, data, data, (shard,), IDENTITY, ("0", "1"))
    algorithm = changed(FedLog(make_model_plan(federation, [body]), epochs=1, learning_rate=1.0))
    engine = replace(engine, settings=replace(engine.settings, batch_size=max(1, len(data))))
    clients = list_clients(federation, [body], algorithm)
    cohort = Cohort(algorithm, federation, clients, engine, Key(3), protection=guard)
    cohort.receive_broadcast(WIRE.encode(algorithm.broadcast(algorithm.begin(Key(4)))))
    ((_, blob),) = cohort.make_encoded_uploads(1, algorithm.schedule.round[0], [0])
    assert blob is not None
    return WIRE.decode(blob)


def _exact(guard: Protection, changed: Change, body: Body, data: Records, engine: Engine = PRECISE) -> Tensor:
    """The upload of one client without noise, in units of the features."""
    bare = replace(guard, mechanism=replace(guard.mechanism, trust=Trust.CENTRAL, honest_survivors=1))
    return bare.convert_to_feature_units(make_contribution(_upload(bare, changed, body, data, engine))).arrays[0]


def _as_it_is(algorithm: FedLog) -> FedLog:
    return algorithm


def test_a_frozen_body_is_trained_in_no_part_of_the_schedule() -> None:
    class Trained(FedLog):
        @property
        def schedule(self) -> Schedule:
            (exchange,) = super().schedule.round
            return Schedule((exchange,), opening=replace(exchange, name="opening"), closing=exchange.phases)

    frozen = freeze_bodies(Trained(ModelPlan(CLASSES, WIDTH, ((HEAD,),), 0))).schedule
    assert frozen.opening is not None
    assert (frozen.opening.phases, frozen.round[0].phases, frozen.closing) == ((), (), ())


def _linear(clip: Clip | None, weight: float | None = None) -> Body:
    def make() -> nn.Module:
        layer = nn.Linear(INPUTS, WIDTH)
        if weight is not None:
            nn.init.constant_(layer.weight, weight)
            nn.init.zeros_(layer.bias)
        return layer

    return build_body("linear", make, (INPUTS,), clip)


_values = st.floats(-1e6, 1e6, width=32)
_record = st.tuples(st.lists(_values, min_size=INPUTS, max_size=INPUTS), st.integers(0, CLASSES - 1))
_some = st.lists(_record, min_size=1, max_size=6)


def _records(rows: list[tuple[list[float], int]]) -> Records:
    return Records(torch.tensor([x for x, _ in rows], dtype=torch.float32), torch.tensor([y for _, y in rows]))


@settings(deadline=None, max_examples=25)
@given(_some, _record, st.sampled_from(["clamp:0.5", "clamp:2", "l2:3"]), st.sampled_from([Trust.CENTRAL, Trust.LOCAL]))
def test_one_record_moves_a_frozen_clients_message_by_the_stated_sensitivity_at_most(
    rows: list[tuple[list[float], int]], extra: tuple[list[float], int], clip: str, trust: Trust
) -> None:
    guard = _protection(Unit.RECORD, trust, clip=clip)
    body = _linear(parse_clip(clip))
    with_it = _exact(guard, freeze_bodies, body, _records([*rows, extra]))
    without = _exact(guard, freeze_bodies, body, _records(rows))
    assert float((with_it - without).norm()) <= guard.mechanism.sensitivity


@pytest.mark.parametrize("choice", [BackendChoice.LOOP, BackendChoice.BLOCK, BackendChoice.VMAP])
@pytest.mark.parametrize("others", [1, 2, 3, 16, 63])
def test_nobody_elses_features_move_with_a_record_not_even_by_rounding(choice: BackendChoice, others: int) -> None:
    guard, body = _protection(Unit.RECORD, Trust.CENTRAL, clip="l2:3"), make_body(f"mlp:{WIDTH}@l2:3", (20,))
    generator = Key(others).torch()
    (weights,) = (
        value for value in body.make_initial_params(Key(3).child("initial", "body")).values() if value.ndim == 2
    )
    # Inputs of which nothing but rounding is left after the first layer: in single precision that is a great deal.
    invisible = torch.linalg.svd(weights.double()).Vh[WIDTH:]
    inputs = 1e9 * torch.randn(1 + others, len(invisible), dtype=torch.float64, generator=generator) @ invisible
    everyone = Records(inputs.float(), torch.randint(CLASSES, (1 + others,), generator=generator))
    engine = Engine(Settings(), choice)
    whole = _exact(guard, freeze_bodies, body, everyone, engine)
    for left_out in (0, others // 2, others):
        kept = torch.tensor([at for at in range(1 + others) if at != left_out])
        rest, alone = (Records(everyone.inputs[at], everyone.labels[at]) for at in (kept, torch.tensor([left_out])))
        without, own = (_exact(guard, freeze_bodies, body, records, engine) for records in (rest, alone))
        assert torch.equal(whole, without + own)


@settings(deadline=None, max_examples=25)
@given(_some, _some)
def test_a_trained_clients_message_never_exceeds_its_norm_and_two_of_its_data_sets_twice_that(
    rows: list[tuple[list[float], int]], others: list[tuple[list[float], int]]
) -> None:
    central, local = (_protection(Unit.CLIENT, trust) for trust in (Trust.CENTRAL, Trust.LOCAL))
    first, second = (_exact(central, _as_it_is, _linear(None), _records(each)) for each in (rows, others))
    assert float(first.norm()) <= central.mechanism.sensitivity
    assert float((first - second).norm()) <= local.mechanism.sensitivity


def _sums_of_clients(guard: Protection, body: Body, data: Records, parts: list[Tensor], engine: Engine) -> list[Tensor]:
    """The exact statistics of each client after its training."""
    shards = tuple(Shard(f"client {int(part[0])}", part, part[:1], part[:0]) for part in parts)
    federation = Federation("law", CLASSES, body.input_shape, data, data, shards, IDENTITY, ("0", "1"))
    bodies = [body] * len(parts)
    algorithm = FedLog(make_model_plan(federation, bodies), epochs=3, learning_rate=1.0)
    members = list_clients(federation, bodies, algorithm)
    cohort = Cohort(algorithm, federation, members, engine, Key(3), protection=guard)
    cohort.receive_broadcast(WIRE.encode(algorithm.broadcast(algorithm.begin(Key(4)))))
    uploads = dict(cohort.make_encoded_uploads(1, algorithm.schedule.round[0], range(len(parts))))
    blobs = [uploads[at] for at in range(len(parts))]
    return [
        guard.convert_to_feature_units(make_contribution(WIRE.decode(blob))).arrays[0]
        for blob in blobs
        if blob is not None
    ]


@pytest.mark.parametrize("choice", [BackendChoice.LOOP, BackendChoice.BLOCK, BackendChoice.VMAP, BackendChoice.AUTO])
def test_nobody_elses_training_moves_with_a_client_not_even_by_rounding(choice: BackendChoice) -> None:
    shape, clients = (1, 28, 28), 5
    body = make_body("cnn", shape)
    guard = make_protection(
        Budget(20.0, 1e-5), unit=Unit.CLIENT, trust=Trust.CENTRAL, calibration=Calibration.EXACT,
        bound=ContributionBound(message_norm=5.0), releases=1, statistics_shape=(CLASSES, 1 + body.width),
        clients=clients,
    )  # fmt: skip
    generator = Key(7).torch()
    sizes = [13, 11, 8, 5, 21]
    data = Records(10 * torch.randn(sum(sizes), *shape, generator=generator), torch.arange(sum(sizes)) % CLASSES)
    parts = list(torch.split(torch.arange(sum(sizes)), sizes))
    engine = Engine(Settings(batch_size=4), choice)
    everyone = _sums_of_clients(guard, body, data, parts, engine)
    for left_out in (0, 2, 4):
        rest = [part for at, part in enumerate(parts) if at != left_out]
        others = _sums_of_clients(guard, body, data, rest, engine)
        kept = [sums for at, sums in enumerate(everyone) if at != left_out]
        assert all(torch.equal(mine, again) for mine, again in zip(kept, others, strict=True))
        moved = torch.stack(everyone).sum(0) - torch.stack(others).sum(0)
        assert float(moved.norm()) <= guard.mechanism.sensitivity


@pytest.mark.parametrize("unit", [Unit.CLIENT, Unit.RECORD])
def test_no_trial_of_speed_decides_how_a_private_run_rounds(
    make_federation: MakeFederation, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed_trial, "measure_backends", lambda *_: pytest.fail("a private run was decided by a trial"))
    federation = make_federation([8, 6], n_class=CLASSES, input_shape=(INPUTS,))
    layers = nn.Sequential(nn.Linear(INPUTS, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, WIDTH))
    clip = None if unit is Unit.CLIENT else parse_clip("clamp:2")
    bodies = [build_body("several ways", lambda: layers, (INPUTS,), clip)] * 2
    plan = make_model_plan(federation, bodies)
    settings_of_run = RunSettings(rounds=1, batch_size=4)
    algorithm = FedLog(plan, epochs=1, learning_rate=1.0)
    with pytest.raises(pytest.fail.Exception):  # several backends can train it, so an open run tries them
        Simulation(algorithm, federation, bodies, plan, Engine(), settings_of_run)
    guard = _protection(unit, Trust.CENTRAL)
    Simulation(algorithm, federation, bodies, plan, Engine(), settings_of_run, protection=guard)


def test_one_record_moves_a_trained_body_far_beyond_what_mode_paper_claims() -> None:
    guard = _protection(Unit.PAPER, Trust.CENTRAL)
    body = _linear(parse_clip("clamp:2"), weight=0.0)
    balanced = [([1.0] * INPUTS, at % 2) for at in range(32)]
    with_it = _exact(guard, _as_it_is, body, _records([*balanced, ([1.0] * INPUTS, 0)]))
    without = _exact(guard, _as_it_is, body, _records(balanced))
    assert float((with_it - without).norm()) > 5 * guard.mechanism.sensitivity


@pytest.mark.parametrize("clip", ["clamp:0.3", "l2:0.5"])
def test_every_backend_trains_and_looks_behind_the_same_clip(make_federation: MakeFederation, clip: str) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, WIDTH), nn.ReLU(), nn.Dropout(0.5))

    federation = make_federation([7, 5])
    body = build_body("dropping", make, (4,), parse_clip(clip))
    algorithm = FedLog(make_model_plan(federation, [body] * 2), epochs=2, learning_rate=0.05)
    clients = list_clients(federation, [body] * 2, algorithm)
    received = algorithm.receive(algorithm.broadcast(algorithm.begin(Key(1))), {})
    start = {**body.make_initial_params(Key(2)), HEAD: received[HEAD]}
    phases = algorithm.schedule.round[0].phases
    found = []
    for choice in (BackendChoice.LOOP, BackendChoice.BLOCK, BackendChoice.VMAP):
        (backend,) = Engine(Settings(3, dtype=torch.float64), choice).make_backends(federation, clients).values()
        fits = backend.train([Task(c, Work(start), phases, Key(5).child(c.index)) for c in clients])
        trained = [fit.params for fit in fits]
        requests = [FeatureRequest(c, p, RecordPool.TRAIN, c.train) for c, p in zip(clients, trained, strict=True)]
        found.append([*(p["2.weight"] for p in trained), *backend.compute_features(requests)])
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    features = torch.cat(found[0][2:])
    assert bool((features < 0).any())  # the ReLU on the features is gone
    behind = features.abs().amax() if clip.startswith("clamp") else features.norm(dim=1).amax()
    assert float(behind) <= float(clip.partition(":")[2])
    assert not torch.allclose(found[0][0], start["2.weight"])


def test_a_bodys_name_carries_its_clip() -> None:
    assert make_body("mlp:5,4@l2:3", (INPUTS,)).clip == parse_clip("l2:3")
    for wrong in ("mlp:5,4@l2", "mlp:5,4@l3:1", "mlp:5,4@clamp:-1"):
        with pytest.raises(InputError, match="cl"):
            make_body(wrong, (INPUTS,))


def test_an_exact_message_travels_exactly_and_a_noisy_one_fills_every_row() -> None:
    data = _records([([0.3, -0.7, 0.1], 0)] * 3)
    central = _upload(_protection(Unit.RECORD, Trust.CENTRAL), freeze_bodies, _linear(parse_clip("clamp:2")), data)
    assert not central.arrays[0].is_floating_point()
    local = _protection(Unit.RECORD, Trust.LOCAL)
    (noisy,) = _upload(local, freeze_bodies, _linear(parse_clip("clamp:2")), data).arrays
    exact = _exact(local, freeze_bodies, _linear(parse_clip("clamp:2")), data)
    assert bool((noisy[1] != 0).all())  # class 1 has no record, and nobody can tell
    drawn = FloatSampler(Key(3).child("client", "one", "round", 1, "statistics", "noise"))
    torch.testing.assert_close(
        noisy.double() - exact, drawn.draw(exact.shape, local.mechanism.sigma), rtol=0, atol=1e-4
    )


def test_nothing_leaves_beside_the_statistics() -> None:
    guard = _protection(Unit.RECORD, Trust.LOCAL)
    sums = torch.zeros(CLASSES, 1 + WIDTH)
    for message in (Message(Kind.STATISTICS, (sums, torch.tensor([3]))), Message(Kind.PARAMETERS, (sums,))):
        with pytest.raises(InputError, match="can send only statistics"):
            guard.protect(message, Key(0))


def _simulation(
    federation: Federation,
    guard: Protection | None,
    secure: SecureSums | None = None,
    rounds: int = 1,
    participation: float = 1.0,
) -> Simulation:
    bodies = [make_body("mlp:5,4@clamp:2", federation.input_shape)] * len(federation.shards)
    plan = make_model_plan(federation, bodies)
    algorithm: Algorithm = freeze_bodies(FedLog(plan))
    engine = Engine(Settings(10), BackendChoice.LOOP)
    settings = RunSettings(rounds=rounds, seed=6, participation=participation)
    return Simulation(algorithm, federation, bodies, plan, engine, settings, guard, secure).start()


def test_the_server_adds_central_noise_once_to_the_sum(make_federation: MakeFederation) -> None:
    federation = make_federation([40, 50, 60])
    guard = _protection(Unit.RECORD, Trust.CENTRAL, n_class=3)
    private, plain = _simulation(federation, guard), _simulation(federation, None)
    list(private.rounds())
    list(plain.rounds())
    noise = private.server.state["statistics"] - plain.server.state["statistics"]
    drawn = FloatSampler(Key(6).child("server", "noise", "round", 1, "statistics")).draw(
        noise.shape, guard.mechanism.sigma
    )
    torch.testing.assert_close(noise, drawn, rtol=0, atol=1e-3)  # the plain run rounds its messages to float32
    assert float(private.server.state[NOISE]) == pytest.approx(guard.mechanism.sigma)


def test_a_run_cannot_make_more_releases_than_planned(make_federation: MakeFederation) -> None:
    simulation = _simulation(make_federation([40, 50]), _protection(Unit.RECORD, Trust.LOCAL, n_class=3), rounds=2)
    rounds = simulation.rounds()
    next(rounds)
    with pytest.raises(RunError, match="budget"):
        next(rounds)


def test_a_stored_contribution_is_released_in_every_round_and_counted_in_every_round(
    make_federation: MakeFederation,
) -> None:
    """A head that sums everyone's last statistics is a release of those who pause, and the budget pays for it."""
    guard = _protection(Unit.RECORD, Trust.CENTRAL, n_class=3, releases=3)
    simulation = _simulation(make_federation([40, 50, 60, 70, 30, 20]), guard, rounds=3, participation=0.34)
    sums = []
    take = simulation.server.apply_sum

    def spied(number: int, exchange: Exchange, summed: Contribution) -> None:
        sums.append((number, summed.clients))
        take(number, exchange, summed)

    simulation.server.apply_sum = spied  # type: ignore[method-assign]
    for number, _ in enumerate(simulation.rounds(), start=1):
        assert len(simulation.releases.events) == number
    assert sums[-1] == (3, len(simulation.server.memory or {}))
    assert sums[-1][1] > 2, "somebody who did not take part in the last round is in its head"


def test_distributed_shares_add_up_under_the_secure_sum(make_federation: MakeFederation) -> None:
    federation = make_federation([40, 50, 60, 70])
    guard = _protection(Unit.RECORD, Trust.DISTRIBUTED, n_class=3, clients=4, honest=3)
    private, plain = _simulation(federation, guard, SecureSums(guard, 3)), _simulation(federation, None)
    (record,) = private.rounds()
    list(plain.rounds())
    expected = sum(
        FloatSampler(Key(6).child("client", f"client-{at}", "round", 1, "statistics", "noise")).draw(
            torch.Size((3, 1 + WIDTH)), guard.mechanism.client_std
        )
        for at in range(4)
    )
    noise = private.server.state["statistics"] - plain.server.state["statistics"]
    torch.testing.assert_close(noise, expected, rtol=0, atol=1e-3)
    assert float(private.server.state[NOISE]) == pytest.approx(guard.mechanism.sigma * math.sqrt(4 / 2))
    assert record.observed["secure_sum_turns"] == 5
    steps = {kind for kind in record.bits_by_kind if kind.startswith("secure")}
    assert {"secure keys up", "secure masked up", "secure unmask up", "secure shares down"} <= steps
    assert "statistics up" not in record.bits_by_kind


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "cs-fl"])
def test_a_secure_sum_serves_methods_that_send_other_things(make_federation: MakeFederation, method: str) -> None:
    federation = make_federation([8, 9, 10])
    body = make_body("mlp:5,4", federation.input_shape)
    plan = make_model_plan(federation, [body] * 3)
    states = []
    for secure in (None, SecureSums()):
        algorithm = make_method(method, plan, {"epochs": 1})
        engine = Engine(Settings(10), BackendChoice.LOOP)
        simulation = Simulation(
            algorithm, federation, [body] * 3, plan, engine, RunSettings(rounds=1), secure=secure
        ).start()
        list(simulation.rounds())
        states.append(simulation.server.state)
    for name, value in states[0].items():
        torch.testing.assert_close(value.double(), states[1][name].double(), rtol=1e-4, atol=1e-4)


def test_a_count_that_drowns_in_noise_keeps_the_old_head() -> None:
    algorithm = FedLogC(ModelPlan(CLASSES, WIDTH, ((HEAD,),), 0))
    sums = torch.tensor([[50.0, 1, 2, 3, 4], [2.0, 5, 6, 7, 8]], dtype=torch.float64)
    start = algorithm.begin(Key(1))
    assert algorithm.step("statistics", start, Contribution((sums,), noise_std=40.0)) is start
    usable = algorithm.step("statistics", start, Contribution((sums,), noise_std=1.0))
    received = algorithm.receive(WIRE.decode(WIRE.encode(algorithm.broadcast(usable))), {})
    # 3 standard deviations of noise are more than the two records of class 1.
    assert received["present"].tolist() == [True, False]
    again = algorithm.step("statistics", usable, Contribution((-sums,), noise_std=1.0))
    assert again is usable
    without_noise = algorithm.step("statistics", start, Contribution((sums,)))
    assert NOISE not in without_noise
    assert len(algorithm.broadcast(without_noise).arrays) == 1


def _server(guard: Protection | None, limits: UploadLimits | None, share: float) -> tuple[Server, FedLog]:
    body = make_body("mlp:5,4", (INPUTS,))
    data = _records([([0.0] * INPUTS, 0)])
    every = torch.arange(1)
    shard = Shard("one", every, every, every[:0])
    federation = Federation("x", CLASSES, (INPUTS,), data, data, (shard,), IDENTITY, ("0", "1"))
    plan = make_model_plan(federation, [body])
    algorithm = freeze_bodies(FedLog(plan))
    initial = {**body.make_initial_params(Key(0)), HEAD: torch.zeros(CLASSES, 1 + WIDTH)}
    server = Server.create(algorithm, plan, initial, Key(0), guard)
    server.limits = server.limits or limits
    server.refused_share_allowed = share
    return server, algorithm


def _statistics(count: float, value: float) -> Tensor:
    return torch.tensor([[count, value, 0.0, 0.0, 0.0], [1.0, 0.5, 0.5, 0.0, 0.0]])


BAD = {
    "not finite": _statistics(2.0, math.nan),
    "infinite": _statistics(2.0, math.inf),
    "another shape": torch.zeros(CLASSES, WIDTH),
    "beyond the clip": _statistics(2.0, 4.5),
    "negative": _statistics(-2.0, 0.0),
}


@pytest.mark.parametrize("case", BAD)
def test_a_poisoned_upload_is_left_out_and_named(case: str) -> None:
    server, algorithm = _server(None, UploadLimits(parse_clip("clamp:2")), share=0.5)
    (exchange,) = algorithm.schedule.round
    good = WIRE.encode(Message(Kind.STATISTICS, (_statistics(2.0, 3.9),)))
    bad = WIRE.encode(Message(Kind.STATISTICS, (BAD[case],)))
    server.receive_uploads(1, exchange, [("honest", good), ("wicked", bad)])
    assert [refusal.client for _, refusal in server.refusals] == ["wicked"]
    torch.testing.assert_close(server.state["statistics"], _statistics(2.0, 3.9).double())
    with pytest.raises(RunError, match="2 of 3"):
        server.receive_uploads(2, exchange, [("honest", good), ("wicked", bad), ("worse", bad)])


def test_noise_is_no_poison_and_what_no_noise_explains_is() -> None:
    guard = _protection(Unit.CLIENT, Trust.LOCAL)
    server, algorithm = _server(guard, None, share=0.6)
    (exchange,) = algorithm.schedule.round
    sigma = guard.mechanism.sigma
    below, beyond = _statistics(-3 * sigma, 2 * sigma), _statistics(1.0, 100 * sigma)
    uploads = [("a", below), ("b", beyond)]
    server.receive_uploads(
        1, exchange, [(name, WIRE.encode(Message(Kind.STATISTICS, (sums,)))) for name, sums in uploads]
    )
    assert [refusal.client for _, refusal in server.refusals] == ["b"]
    assert "norm" in server.refusals[0][1].reason


def test_the_noise_of_many_entries_is_no_poison_either() -> None:
    # 10,000 draws of std 1 are 100 long, give or take one.
    noisy = torch.randn((100, 100), generator=Key(6).torch(), dtype=torch.float64)
    limits = UploadLimits(message_norm=5.0, noise_std=1.0)
    limits.check_statistics(noisy)
    with pytest.raises(InputError, match="the upload's L2 norm must be at most"):
        limits.check_statistics(1.2 * noisy)


def test_limits_hold_for_every_clipped_message() -> None:
    generator = Key(8).torch()
    for name in ("clamp:2", "l2:3"):
        clip = parse_clip(name)
        features = clip(10 * torch.randn(50, WIDTH, generator=generator))
        sums = Statistics.from_records(features, torch.arange(50) % CLASSES, CLASSES).sums
        UploadLimits(clip).check_statistics(sums.float())
        with pytest.raises(InputError, match="beyond the clip"):
            UploadLimits(clip).check_statistics(sums.float() * torch.tensor([0.1, 3, 3, 3, 3]))


def test_discrete_noise_leaves_on_the_grid() -> None:
    guard = make_protection(
        Budget(1.0, 1e-5),
        unit=Unit.RECORD,
        trust=Trust.DISTRIBUTED,
        calibration=Calibration.EXACT,
        bound=ContributionBound(parse_clip("l2:3")),
        releases=2,
        statistics_shape=(CLASSES, 1 + WIDTH),
        clients=5,
        honest_survivors=3,
        noise=NoiseSetting.DISCRETE,
    )
    message = Message(Kind.STATISTICS, (torch.ones(CLASSES, 1 + WIDTH, dtype=torch.float64),))
    first, second = (
        guard.convert_to_feature_units(make_contribution(guard.protect(message, Key(0)))).arrays[0] for _ in range(2)
    )
    assert not torch.equal(first, second)  # from the system's source, not from the key
    assert torch.equal(torch.trunc(first / guard.mechanism.grid) * guard.mechanism.grid, first)
    assert compute_spending([guard.make_release_event(1, "statistics")], 1e-5).caveats == ()


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(["clamp:2", "l2:3", "clamp:0.7", "norm"]), st.integers(1, 6), st.integers(0, 2**32))
def test_what_lies_on_a_coarse_grid_keeps_the_limits_and_what_lies_just_beyond_does_not(
    bound: str, records: int, seed: int
) -> None:
    unit = Unit.CLIENT if bound == "norm" else Unit.RECORD
    guard = _protection(unit, Trust.CENTRAL, clip="clamp:2" if bound == "norm" else bound, releases=1)
    guard = replace(guard, mechanism=replace(guard.mechanism, sigma=3e6))
    assert guard.mechanism.grid > 0.05
    features = 100 * torch.randn((records, WIDTH), generator=Key(seed).torch())
    found = guard.sum_moments(features, torch.zeros(records, dtype=torch.int64), CLASSES, Detail.MEANS).statistics
    sent = guard.protect(Message(Kind.STATISTICS, (found.sums,)), Key(seed))
    (sums,) = guard.convert_to_feature_units(make_contribution(sent)).arrays
    guard.limits.check_statistics(sums)
    if guard.bound.clip is not None:
        sums[0, 1:] = 1.0  # of any direction: the drawn records may cancel out
        sums[0, 1:] *= (records + 2e-5 * (records + 1)) / guard.bound.clip.compute_least_record_count(sums[:1, 1:])
    else:
        sums *= 5.001 / sums.norm()
    with pytest.raises(InputError, match="norm must be at most" if bound == "norm" else "beyond the clip"):
        guard.limits.check_statistics(sums)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["clamp:2", "l2:3"]), st.integers(1, 400), st.integers(0, 2**32))
def test_a_message_that_is_scaled_down_to_its_norm_keeps_the_clip_on_a_coarse_grid(
    clip: str, records: int, seed: int
) -> None:
    # Scaled counts lie between the steps of the grid and are cut off as features are: by up to a step of their own.
    guard = _protection(Unit.CLIENT, Trust.CENTRAL)
    guard = replace(
        guard,
        bound=ContributionBound(parse_clip(clip), 5.0),
        mechanism=replace(guard.mechanism, sigma=2e4 + seed % 1000),
    )
    labels = torch.randint(CLASSES, (records,), generator=Key(seed).torch())
    found = guard.sum_moments(torch.full((records, WIDTH), 100.0), labels, CLASSES, Detail.MEANS).statistics
    sent = guard.protect(Message(Kind.STATISTICS, (found.sums,)), Key(seed))
    (sums,) = guard.convert_to_feature_units(make_contribution(sent)).arrays
    guard.limits.check_statistics(sums)
    with pytest.raises(InputError, match=r"beyond the clip|norm must be at most"):
        guard.limits.check_statistics(sums * torch.tensor([1.0, *[1.2] * WIDTH]))


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
def test_statistics_that_are_no_numbers_are_beyond_every_limit(unit: Unit) -> None:
    guard = _protection(unit, Trust.CENTRAL, releases=1)
    sums = torch.zeros((CLASSES, 1 + WIDTH), dtype=torch.float64)
    guard.limits.check_statistics(sums)
    sums[0, 1] = torch.nan
    with pytest.raises(InputError, match="beyond the clip" if unit is Unit.RECORD else "norm must be at most"):
        guard.limits.check_statistics(sums)


def test_what_is_remembered_is_summed_by_name_whoever_came_first() -> None:
    # Added up in another order, these differ in their last bits.
    sent = {"a": 1234567.9, "b": 1e-10, "c": 1e-10, "d": 1e-10}
    found = []
    for order in ("abcd", "dcba", "bdac"):
        server, algorithm = _server(None, None, share=0.0)
        server.memory = {}
        (exchange,) = algorithm.schedule.round
        for number, client in enumerate(order, 1):
            sums = Message(Kind.STATISTICS, (_statistics(2.0, sent[client]),))
            server.receive_uploads(number, exchange, [(client, WIRE.encode(sums))])
        found.append(server.state["statistics"])
    assert len({sum(float(torch.tensor(sent[client])) for client in order) for order in ("abcd", "dcba", "bdac")}) > 1
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
