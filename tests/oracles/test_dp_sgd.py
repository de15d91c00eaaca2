"""Bodies trained by DP-SGD: gradients record by record, what one record can move, and one epsilon for everything."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlog.algorithms.fedlog import FedLog, FedLogC
from fedlog.algorithms.interface import Batch, Loss, Phase, Work, cross_entropy
from fedlog.audit.distinguisher import bound_mu_from_below
from fedlog.cli.main import main
from fedlog.core.clip import Clip, parse_clip
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import IDENTITY
from fedlog.engine.clients import list_clients, make_model_plan
from fedlog.engine.training import dp_sgd
from fedlog.engine.training.dp_sgd import DpSgdBackend
from fedlog.engine.training.loop import RecordBatch
from fedlog.engine.training.tasks import FeatureRequest, RecordPool, Settings, Task
from fedlog.errors import InputError, RunError
from fedlog.experiments.run.execute import execute
from fedlog.models.body import HEAD, Body, build_body, logits
from fedlog.privacy.accounting import (
    Event,
    NoiseKind,
    RandomSource,
    Release,
    TrainingRound,
    append_within_budget,
    compute_spending,
)
from fedlog.privacy.calibration import compute_epsilon
from fedlog.privacy.guarantee import Budget, Trust, Unit
from fedlog.privacy.mechanisms import DiscreteSampler, FloatSampler, add_noise, sum_clipped_moments
from fedlog.privacy.release_log import (
    FILE_NAME,
    format_event_line,
    parse_log,
    read_log,
    record_release,
    start_or_resume_log,
)
from fedlog.privacy.sgd import (
    SgdRoundPlan,
    SgdTraining,
    draw_poisson_sample,
    find_release_noise_with_training,
    find_training_noise,
)
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec

INPUTS, WIDTH, CLASSES = 5, 4, 3


@dataclass(frozen=True)
class NoNoise:
    """A sampler that adds nothing, so that what is left is what the noise has to hide."""

    kind: NoiseKind = field(default=NoiseKind.FLOAT, init=False)
    entropy: RandomSource = field(default=RandomSource.SEED, init=False)
    grid: None = field(default=None, init=False)

    def draw(self, shape: torch.Size, std: float) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64)


def _body(dropout: type[nn.Dropout | nn.AlphaDropout] = nn.Dropout) -> Body:
    def make() -> nn.Module:
        inner = [] if dropout is nn.Dropout else [dropout(0.3)]
        return nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh(), *inner, nn.Linear(6, WIDTH), dropout(0.5))

    return build_body("dropping", make, (INPUTS,), parse_clip("l2:2"))


def _task(records: Records, plan: SgdRoundPlan, body: Body | None = None) -> tuple[DpSgdBackend, Task]:
    every = torch.arange(len(records))
    shard = Shard("one", every, every[:1], every[:0])
    federation = Federation("dp", CLASSES, (INPUTS,), records, records, (shard,), IDENTITY, ("0", "1", "2"))
    body = body or _body()
    algorithm = FedLogC(make_model_plan(federation, [body]), epochs=1, learning_rate=0.1)
    (client,) = list_clients(federation, [body], algorithm)
    received = algorithm.receive(algorithm.broadcast(algorithm.begin(Key(1))), {})
    means = torch.randn(CLASSES, WIDTH, generator=Key(9).torch())
    constants = {"means": means, "present": torch.ones(CLASSES, dtype=torch.bool)}
    work = Work({**body.make_initial_params(Key(2)), HEAD: received[HEAD]}, constants)
    backend = DpSgdBackend(body, federation, Settings(batch_size=50), SgdTraining(plan, 1, lambda key: NoNoise()))
    return backend, Task(client, work, algorithm.schedule.round[0].phases, Key(3))


def _records(count: int, scale: float = 1.0) -> Records:
    generator = Key(count).torch()
    inputs = scale * torch.randn(count, INPUTS, generator=generator)
    return Records(inputs, torch.randint(CLASSES, (count,), generator=generator))


@dataclass(frozen=True)
class TiedToRecords:
    """Cross-entropy, and each record's mean feature times the parameters' squares: not the same for all records."""

    reads_params = True

    def __call__(self, batch: Batch, constants: Any, carry: Any) -> tuple[Tensor, Any]:
        entropy, carry = cross_entropy(batch, constants, carry)
        clients = batch.labels.shape[:-1]
        squares = sum(value.square().reshape(*clients, -1).sum(-1) for value in batch.params.values())
        return entropy + ((batch.features.mean(-1) + constants["means"].mean()) * batch.weights).sum(
            -1
        ) * squares, carry


@pytest.mark.parametrize("dropout", [nn.Dropout, nn.AlphaDropout])
@pytest.mark.parametrize("loss", [None, TiedToRecords()], ids=["fedlog-c", "a loss that reads the parameters"])
def test_each_records_gradient_is_that_of_the_record_alone(
    loss: Loss | None, dropout: type[nn.Dropout | nn.AlphaDropout]
) -> None:
    plan = SgdRoundPlan(1.0, 1e6, 1.0, 1)
    records = _records(5)
    body = _body(dropout)
    backend, task = _task(records, plan, body)
    backend.set_parameters(task.work.params)
    (phase,) = task.phases
    phase = phase if loss is None else replace(phase, loss=loss)
    rows = backend.compute_record_gradients(task, phase, torch.arange(5), Key(4))
    masks = backend.make_batch(task, torch.arange(5), Key(4)).masks
    names = [name for layer in body.layers for name in layer]
    for at in range(5):
        params = {name: value.clone().requires_grad_(True) for name, value in task.work.params.items()}
        own = {site: mask[at : at + 1] for site, mask in masks.items()}
        features = body.compute_features(params, records.inputs[at : at + 1], own)
        scores = logits(body.apply_last_dropout(features, own), params)
        batch = Batch(
            features, scores, records.labels[at : at + 1], torch.ones(1), phase.select_params_for_loss(params)
        )
        own_loss, _ = phase.loss(batch, task.work.constants, {})
        gradients = torch.autograd.grad(own_loss, [params[name] for name in names])
        expected = {name: gradient.reshape(-1) for name, gradient in zip(names, gradients, strict=True)}
        found = dict(
            zip(backend._values, torch.split(rows[at], [v.numel() for v in backend._values.values()]), strict=True)
        )
        for name in names:
            assert torch.allclose(found[name], expected[name], atol=1e-5), name


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 6), st.floats(1e-3, 1e6), st.floats(1e-3, 10.0), st.integers(0, 5))
def test_one_record_moves_the_sum_of_a_step_by_the_clip_at_most(
    count: int, scale: float, clip: float, left_out: int
) -> None:
    plan = SgdRoundPlan(1.0, clip, 1.0, 1)
    everyone, left_out = _records(count + 1, scale), left_out % (count + 1)
    kept = torch.tensor([at for at in range(count + 1) if at != left_out])
    others = Records(everyone.inputs[kept], everyone.labels[kept])
    with_record, task = _task(everyone, plan)
    without, task_without = _task(others, plan)
    drawn = with_record.make_batch(task, torch.arange(count + 1), Key(5).child("draws", 0)).masks
    plain = without.make_batch

    def coupled(task: Task, chosen: Tensor, key: Key) -> RecordBatch:
        # Dropout is as secret as the noise and alike for every record: what holds for each draw of it holds.
        return replace(plain(task, chosen, key), masks={site: mask[kept][chosen] for site, mask in drawn.items()})

    sums = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(without, "make_batch", coupled)
        for backend, own in ((with_record, task), (without, task_without)):
            backend.set_parameters(own.work.params)
            step = backend._compute_noisy_gradients(own, own.phases[0], Key(5))
            sums.append(torch.cat([part.reshape(-1) for part in step]).to(torch.float64) * 50)
    moved = sums[0] - sums[1]
    assert float(moved.norm()) <= clip * (1 + 1e-5)
    # It moves by its own gradient, clipped, and nobody else's changes.
    rows = with_record.compute_record_gradients(task, task.phases[0], torch.arange(count + 1), Key(5).child("draws", 0))
    clipped = plan.clip_gradients(rows)
    assert float((moved - clipped[left_out]).norm()) <= 1e-5 * clip
    assert float(clipped.norm(dim=1).max()) <= clip
    assert bool((clipped / plan.grid == (clipped / plan.grid).round()).all())


@pytest.mark.parametrize("source", ["system", "seed"])
def test_the_sample_dropout_and_crops_are_as_secret_as_the_noise(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gained by sampling is gained from nobody knowing the sample, that is: from no seed it could be had from.

    Dropout and crops go by a record's place in it: if they could be known, one record more would change the rest.
    """
    backend, task = _task(_records(60), SgdRoundPlan(1.0, 0.5, 0.5, 1))
    sampler = DiscreteSampler(0.5**10) if source == "system" else FloatSampler(Key(5))
    training = replace(backend._training, sampler=lambda key: sampler)
    monkeypatch.setattr(backend, "_training", training)
    backend.set_parameters(task.work.params)
    steps: list[list[tuple[list[int], Key]]] = []

    def noted(task: Task, phase: Phase, drawn: Tensor, key: Key) -> Tensor:
        steps[-1].append((drawn.tolist(), key))
        return gradients(task, phase, drawn, key)

    gradients = backend.compute_record_gradients
    monkeypatch.setattr(backend, "compute_record_gradients", noted)
    for _ in range(2):
        steps.append([])
        backend._compute_noisy_gradients(task, task.phases[0], Key(7))
    # How a gradient is rounded depends on the company it is computed in: with real noise it has none.
    assert all(len(drawn) == 1 for step in steps for drawn, _ in step) == (source == "system")
    samples, keys = [[at for drawn, _ in step for at in drawn] for step in steps], [step[0][1] for step in steps]
    assert (samples[0] == samples[1]) == (source == "seed")  # by chance: once in 2^60
    assert (keys[0] == keys[1]) == (source == "seed")
    masks = [backend.make_batch(task, torch.arange(6), key).masks for key in keys]
    assert all(torch.equal(a, masks[1][site]) for site, a in masks[0].items()) == (source == "seed")


def test_a_whole_step_on_neighbouring_data_moves_by_the_clip_at_most_over_a_divisor_that_no_record_moves() -> None:
    plan = SgdRoundPlan(1.0, 0.5, 1.0, 1)
    everyone = _records(9, 5.0)
    sums = []
    for count in (9, 8):
        backend, task = _task(Records(everyone.inputs[:count], everyone.labels[:count]), plan)
        backend.set_parameters(task.work.params)
        backend._body = replace(backend._body, dropout=())  # dropout is drawn record by record, in order
        sums.append(torch.cat([g.reshape(-1) for g in backend._compute_noisy_gradients(task, task.phases[0], Key(5))]))
    moved = float((sums[0] - sums[1]).norm())
    assert 0 < moved <= plan.clip / 50 * (1 + 1e-5)  # 50 is the batch size of the settings, whatever the records


def test_a_record_that_is_not_finite_counts_nothing() -> None:
    plan = SgdRoundPlan(1.0, 1.0, 1.0, 1)
    rows = torch.tensor([[1.0, math.nan], [math.inf, 0.0], [3.0, 4.0]])
    clipped = plan.clip_gradients(rows)
    assert clipped[:2].abs().sum() == 0
    assert clipped[2].tolist() == pytest.approx([0.6, 0.8], abs=1e-6)


def _events(rounds: int, steps: int, rate: float, noise: float, multiplier: float) -> list[Event]:
    found: list[Event] = []
    for number in range(1, rounds + 1):
        found.append(
            TrainingRound(
                number,
                "statistics",
                Trust.CENTRAL,
                NoiseKind.FLOAT,
                RandomSource.SEED,
                noise,
                2.0,
                rate,
                steps,
                100,
            )
        )
        found.append(
            Release(
                number,
                "statistics",
                Unit.RECORD,
                Trust.CENTRAL,
                NoiseKind.FLOAT,
                RandomSource.SEED,
                multiplier * 3.0,
                3.0,
                50,
            )
        )
    return found


@pytest.mark.parametrize(
    ("rounds", "steps", "rate", "noise", "multiplier"),
    [(3, 20, 0.1, 1.3, 1.4), (10, 5, 0.02, 0.8, 5.0), (1, 50, 0.5, 6.0, 2.0), (5, 10, 1.0, 10.0, 20.0)],
)
def test_one_epsilon_for_training_and_releases_against_two_other_accountants(
    rounds: int, steps: int, rate: float, noise: float, multiplier: float
) -> None:
    ours = compute_spending(_events(rounds, steps, rate, noise, multiplier), 1e-5).epsilons[-1]
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    theirs = []
    for accountant in (RdpAccountant(), PLDAccountant(value_discretization_interval=1e-3)):
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, rounds * steps))
        accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(multiplier), rounds))
        theirs.append(accountant.get_epsilon(1e-5))
    by_moments, tight = theirs
    assert ours == pytest.approx(by_moments, rel=0.03)
    assert tight <= ours  # an upper bound, and not a wild one
    assert ours <= 1.5 * tight


@settings(deadline=None, max_examples=15)
@given(st.floats(0.5, 20.0), st.floats(1e-8, 1e-3), st.integers(1, 5), st.integers(1, 40), st.floats(0.01, 1.0))
def test_a_plan_of_training_and_releases_fits_its_budget_and_not_one_round_more(
    epsilon: float, delta: float, rounds: int, steps: int, rate: float
) -> None:
    budget = Budget(epsilon, delta)
    noise = find_training_noise(budget, 0.5, rate, steps * rounds)
    plan = SgdRoundPlan(noise, 2.0, rate, steps)
    sigma = find_release_noise_with_training(budget, plan, rounds, rounds, 3.0, 0.0)
    log: tuple[Event, ...] = ()
    for event in _events(rounds, steps, rate, noise, sigma / 3.0):
        log = append_within_budget(log, event, budget)
    with pytest.raises(RunError, match="does not cover"):
        append_within_budget(log, log[-1], budget)


def test_too_little_noise_in_the_training_is_refused_with_what_it_would_cost() -> None:
    with pytest.raises(InputError, match="DP-SGD alone would spend the privacy budget"):
        find_release_noise_with_training(Budget(1.0, 1e-5), SgdRoundPlan(0.5, 1.0, 0.5, 50), 3, 3, 1.0, 0.0)


def test_a_training_goes_through_the_record_and_an_altered_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    start_or_resume_log(path, Budget(20.0, 1e-5))
    for event in _events(2, 10, 0.1, 2.0, 5.0):
        record_release(path, event)
    log = read_log(path)
    assert list(log.events) == _events(2, 10, 0.1, 2.0, 5.0)
    assert len(log.releases) == 2
    entry = json.loads(format_event_line(log.events[0]))
    for wrong in ({**entry, "steps": 0}, {**entry, "sample_rate": 1.5}, {**entry, "more": 1}):
        with pytest.raises(InputError):
            parse_log(path.read_text() + json.dumps(wrong) + "\n", "log")


@pytest.mark.parametrize("key", [Key(1), None])
def test_samples_have_the_rate_and_no_fixed_size(key: Key | None) -> None:
    sizes = [len(draw_poisson_sample(2000, 0.1, None if key is None else key.child(at))) for at in range(50)]
    assert len(set(sizes)) > 10
    assert sum(sizes) / 50 == pytest.approx(200, abs=12)
    assert len(draw_poisson_sample(7, 1.0, key)) == 7


SMALL = RunSpec(data="digits", clients=5, body=("mlp:8",), train_records=200, options={"epochs": 1}, rounds=2)
DP: dict[str, Any] = {
    "privacy": "record",
    "body_training": "dp-sgd",
    "epsilon": 8.0,
    "delta": 1e-5,
    "clip": "l2:3",
    "sample_rate": 0.25,
}


def _spec(**given: Any) -> RunSpec:
    return replace(SMALL, **{**DP, **given})


def test_a_run_trains_by_dp_sgd_and_spends_one_budget_on_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = execute(_spec(noise="discrete", method="fedlog-c"), tmp_path / "run")
    assert summary.privacy is not None
    assert summary.privacy["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert summary.privacy["training_steps"] == 8
    assert summary.privacy["releases"] == 3  # the opening exchange trains nothing and counts
    assert summary.privacy["caveats"] == []
    log = read_log(tmp_path / "run" / FILE_NAME)
    assert [type(event) for event in log.events] == [Release, TrainingRound, Release, TrainingRound, Release]
    assert main(["privacy", "spend", str(tmp_path / "run"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [entry["steps"] for entry in told["releases"]] == [None, 4, None, 4, None]
    assert told["guarantee"]["composition"] == "Rényi moments"
    with pytest.raises(RunError, match="does not cover"):
        record_release(tmp_path / "run" / FILE_NAME, log.events[1])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"privacy": "client", "message_norm": 5.0}, "dp-sgd needs --privacy record"),
        ({"privacy": None, "epsilon": None, "delta": None}, "dp-sgd needs --privacy record"),
        ({"calibration": "paper"}, "--calibration paper has no formula"),
        ({"sample_rate": 1.5}, "sample rate must be above 0 and at most 1, found: 1.5"),
        ({"sgd_noise": 0.1}, "DP-SGD alone would spend the privacy budget"),
        ({"method": "fedavg"}, "cannot be used with DP-SGD"),
        ({"body": ("mlp:8", "mlp:9,8")}, "needs one body for all clients"),
        ({"body_training": "frozen"}, "these settings need --body-training dp-sgd: sample_rate"),
    ],
)
def test_what_dp_sgd_cannot_do_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        execute(_spec(**given), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_batch_normalisation_is_refused_by_name() -> None:
    body = build_body("normal", lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), (4,))
    with pytest.raises(InputError, match="body normal cannot be trained by DP-SGD"):
        dp_sgd.check_body(body)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as refused:
        dp_sgd.require_opacus()
    assert "fedlog[dp-sgd]" in (refused.value.hint or "")


def test_settings_are_written_out_and_older_digests_stay() -> None:
    spec = resolve(_spec()).spec
    assert (spec.sgd_clip, spec.sample_rate) == (1.0, 0.25)
    assert resolve(replace(SMALL)).spec.sgd_clip is None


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "refuted"), [(5.0, False), (1e-3, True)])
def test_the_client_that_refutes_the_paper_does_not_refute_training_under_noise(noise: float, refuted: bool) -> None:
    """A balanced client whose body moves by a whole step of Adam as soon as one more record breaks the balance."""
    plan = SgdRoundPlan(noise, 1.0, 1.0, 2)
    clip = parse_clip("clamp:2")
    sigma = 6 * clip.sensitivity(1 + WIDTH)
    training = TrainingRound(1, "statistics", Trust.CENTRAL, NoiseKind.FLOAT, RandomSource.SEED, noise, 1.0, 1.0, 2, 24)
    released = Release(
        1,
        "statistics",
        Unit.RECORD,
        Trust.CENTRAL,
        NoiseKind.FLOAT,
        RandomSource.SEED,
        sigma,
        sigma / 6,
        2 * (1 + WIDTH),
    )
    # What is claimed is the noise of the first case, in both.
    claimed = compute_spending([replace(training, noise_multiplier=5.0), released], 1e-5).epsilons[-1]
    worlds = [_messages(64 + extra, plan, clip, sigma, 600) for extra in (1, 0)]
    # The attacker's direction comes from trials that are not judged.
    along = worlds[0][:200].mean(0) - worlds[1][:200].mean(0)
    present, absent = ((messages[200:] @ along).numpy() for messages in worlds)
    # Every record is in every step, so that steps and release together are a Gaussian release.
    found = compute_epsilon(bound_mu_from_below(present, absent, 0.999), 1e-5)
    assert (found > claimed) == refuted, (found, claimed)


def _messages(records: int, plan: SgdRoundPlan, clip: Clip, sigma: float, trials: int) -> Tensor:
    """(trials, entries): what leaves the balanced client, or the one with a record more, after as many trainings."""

    def make() -> nn.Module:
        layer = nn.Linear(INPUTS, WIDTH)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    labels = torch.arange(records) % 2
    data = Records(
        torch.ones(records, INPUTS), labels if records % 2 == 0 else torch.cat([labels[:-1], torch.zeros(1)]).long()
    )
    every = torch.arange(records)
    shard = Shard("one", every, every[:1], every[:0])
    federation = Federation("audit", 2, (INPUTS,), data, data, (shard,), IDENTITY, ("0", "1"))
    body = build_body("canary", make, (INPUTS,), clip)
    algorithm = FedLog(make_model_plan(federation, [body]), epochs=1, learning_rate=1.0)
    (client,) = list_clients(federation, [body], algorithm)
    received = algorithm.receive(algorithm.broadcast(algorithm.begin(Key(1))), {})
    work = Work({**body.make_initial_params(Key(2)), HEAD: received[HEAD]})
    settings = Settings(batch_size=records, dtype=torch.float64)
    backend = DpSgdBackend(body, federation, settings, SgdTraining(plan, 24, FloatSampler))
    phases = algorithm.schedule.round[0].phases
    messages = []
    for trial in range(trials):
        key = Key(7).child(records, trial)
        (fit,) = backend.train([Task(client, work, phases, key)])
        (features,) = backend.compute_features([FeatureRequest(client, fit.params, RecordPool.TRAIN, every)])
        sums = sum_clipped_moments(features, data.labels, 2, clip, 2.0**-20).statistics.sums
        messages.append(add_noise(sums, sigma, FloatSampler(key.child("release"))).reshape(-1))
    return torch.stack(messages)


def test_what_a_module_does_not_let_be_trained_gets_no_gradient_and_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def partly_fixed() -> Body:
        module = nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh(), nn.Linear(6, WIDTH))
        module[0].requires_grad_(False)
        return build_body("partly fixed", lambda: module, (INPUTS,), parse_clip("l2:2"))

    monkeypatch.setattr(f"{__name__}._body", partly_fixed)
    plan = SgdRoundPlan(1.0, 1.0, 1.0, 2)
    backend, task = _task(_records(20), plan)
    backend._training = SgdTraining(plan, 1, FloatSampler)
    (fit,) = backend.train([task])
    assert all(torch.equal(fit.params[name], task.work.params[name]) for name in ("0.weight", "0.bias"))
    assert not torch.equal(fit.params["2.weight"], task.work.params["2.weight"])


class _Centred(nn.Linear):
    """A layer in which the records of a batch affect each other, and none that Opacus knows."""

    def forward(self, inputs: Tensor) -> Tensor:
        found = super().forward(inputs)
        return found - found.mean(0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: _Centred(INPUTS, WIDTH), "the records of a batch affect each other"),
        (lambda: nn.Linear(INPUTS, WIDTH).requires_grad_(False), "has no parameter to train"),
    ],
)
def test_a_body_that_dp_sgd_cannot_train_is_refused(make: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(InputError, match=f"body mine .*{said}"):
        dp_sgd.check_body(build_body("mine", make, (INPUTS,)))
