"""How long Adam remembers, and what decays: against PyTorch's own, and between backends for any ages of clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn

from fedlog.algorithms.interface import Work
from fedlog.algorithms.registry import make_method
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.engine.clients import list_clients, make_model_plan
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Fit, Settings, Task
from fedlog.errors import InputError
from fedlog.experiments.tables.catalog import find_experiment
from fedlog.models.body import HEAD, draw_initial_head
from fedlog.models.catalog import make_body
from fedlog.settings.execution import BackendChoice
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import AdamMoments, Decay, Optimiser, RunSettings

MakeFederation = Callable[..., Federation]
EPOCHS, ROUNDS, RATE = 2, 3, 0.02
NAMES = ("1.weight", "1.bias", "3.weight", "3.bias", HEAD)


def _rates(decay: Decay) -> list[float]:
    """The learning rate of each round, by PyTorch's own schedulers."""
    followed = torch.optim.SGD([torch.zeros(1, requires_grad=True)], RATE)
    schedulers = {
        Decay.NONE: torch.optim.lr_scheduler.LambdaLR(followed, lambda at: 1.0),
        Decay.COSINE: torch.optim.lr_scheduler.CosineAnnealingLR(followed, ROUNDS),
    }
    rates = []
    for _ in range(ROUNDS):
        rates.append(followed.param_groups[0]["lr"])
        followed.step()
        schedulers[decay].step()
    return rates


def _optimiser(values: list[Tensor], weight_decay: float) -> torch.optim.Optimizer:
    """PyTorch's Adam as in the paper, or AdamW."""
    return torch.optim.AdamW(values, weight_decay=weight_decay) if weight_decay else torch.optim.Adam(values)


def _by_hand(start: dict[str, Tensor], inputs: Tensor, labels: Tensor, rule: Optimiser) -> list[Tensor]:
    """Training alone on whole batches, with PyTorch's optimiser made as often as asked for."""
    values = [start[name].double().clone().requires_grad_(True) for name in NAMES]
    optimiser = _optimiser(values, rule.weight_decay)
    for rate in _rates(rule.decay):
        if rule.moments is AdamMoments.ROUND:
            optimiser = _optimiser(values, rule.weight_decay)
        for _ in range(EPOCHS):
            if rule.moments is AdamMoments.EPOCH:
                optimiser = _optimiser(values, rule.weight_decay)
            optimiser.param_groups[0]["lr"] = rate
            w1, b1, w2, b2, head = values
            features = torch.relu(torch.relu(inputs @ w1.T + b1) @ w2.T + b2)
            scores = features @ head[:, 1:].T + head[:, 0]
            optimiser.zero_grad()
            nn.functional.cross_entropy(scores, labels).backward()
            optimiser.step()
    return [value.detach() for value in values]


@pytest.mark.parametrize("choice", [BackendChoice.LOOP, BackendChoice.BLOCK, BackendChoice.VMAP])
@pytest.mark.parametrize("moments", AdamMoments)
@pytest.mark.parametrize(("decay", "weight_decay"), [(Decay.NONE, 0.0), (Decay.COSINE, 0.0), (Decay.COSINE, 3.0)])
def test_a_run_is_that_of_an_optimiser_made_as_often_with_the_rates_of_a_scheduler(
    moments: AdamMoments, decay: Decay, weight_decay: float, choice: BackendChoice, make_federation: MakeFederation
) -> None:
    found = make_body("mlp:6,5", (4,))
    federation = make_federation([7, 5])
    plan = make_model_plan(federation, [found] * 2)
    rule = Optimiser(moments, decay, weight_decay)
    settings = Settings(batch_size=9, dtype=torch.float64, optimiser=rule)
    engine = Engine(settings, choice)
    algorithm = make_method("local", plan, {"epochs": EPOCHS, "learning_rate": RATE})
    simulation = Simulation(
        algorithm, federation, [found] * 2, plan, engine, RunSettings(rounds=ROUNDS, optimiser=rule)
    ).start()
    cohort = simulation.workers.cohort
    start = {index: dict(home) for index, home in cohort.store.homes.items()}
    list(simulation.rounds())
    for index, shard in enumerate(federation.shards):
        inputs = federation.train.inputs[shard.train].double()
        by_hand = _by_hand(start[index], inputs, federation.train.labels[shard.train], rule)
        home = cohort.store.homes[index]
        for name, value in zip(NAMES, by_hand, strict=True):
            torch.testing.assert_close(home[name].double(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("choice", [BackendChoice.BLOCK, BackendChoice.VMAP])
def test_clients_of_different_ages_train_together_as_alone(
    choice: BackendChoice, make_federation: MakeFederation
) -> None:
    """Batches of 3 from 5, 0, 1 and 8 records: after a round their optimisers have made 4, 0, 2 and 6 steps."""
    found = make_body("mlp:6,5", (4,))
    federation = make_federation([5, 0, 1, 8])
    algorithm = make_method(
        "local", make_model_plan(federation, [found] * 4), {"epochs": EPOCHS, "learning_rate": RATE}
    )
    start = {HEAD: draw_initial_head(found.width, federation.n_class, Key(1)), **found.make_initial_params(Key(1))}
    (exchange,) = algorithm.schedule.round
    clients = list_clients(federation, [found] * 4, algorithm)
    trained: list[list[Fit]] = []
    for one in (BackendChoice.LOOP, choice):
        settings = Settings(batch_size=3, dtype=torch.float64, optimiser=Optimiser(AdamMoments.RUN))
        (backend,) = Engine(settings, one).make_backends(federation, clients).values()
        work = Work({name: value.double() for name, value in start.items()})
        tasks = [Task(c, work, exchange.phases, Key(2).child(c.name)) for c in clients]
        fits = backend.train(tasks)
        again = [
            replace(t, work=Work(fit.params), moments=fit.moments, key=Key(3))
            for t, fit in zip(tasks, fits, strict=True)
        ]
        trained.append(backend.train(again))
    for steps, *fits in zip((8, 0, 4, 12), *trained, strict=True):
        alone, together = fits
        assert int(alone.moments["0/steps"]) == steps
        for mine, theirs in ((alone.params, together.params), (alone.moments, together.moments)):
            assert mine.keys() == theirs.keys()
            for name, value in mine.items():
                torch.testing.assert_close(theirs[name], value, rtol=1e-9, atol=1e-12)


def test_the_table_with_kept_moments_is_the_papers_but_for_them() -> None:
    kept, printed = find_experiment("table-mnist-moments"), find_experiment("table-mnist")
    for row in kept.rows:
        assert row.spec.moments == "run"
        assert replace(row, spec=replace(row.spec, moments=None)) == printed.find_row(row.name)
    assert kept.seeds == printed.seeds
    falling = find_experiment("table-mnist-moments-decay")
    for row in falling.rows:
        if row.name == "fedlog-c-weight-decay":
            continue
        like = kept.find_row(row.name)
        assert (row.spec.decay, set(row.spec.options)) == ("cosine", {"learning_rate"})
        assert replace(row, spec=replace(row.spec, decay=None, options=like.spec.options)) == like
    shrinking, plain = falling.find_row("fedlog-c-weight-decay").spec, falling.find_row("fedlog-c").spec
    assert {**plain.options, "beta": 0.003} == shrinking.options
    assert replace(shrinking, weight_decay=None, options=plain.options) == plain
    # A row of the grid that it was chosen by.
    assert (shrinking.weight_decay, shrinking.options) in [
        (row.spec.weight_decay, row.spec.options) for row in find_experiment("select-fedlog-c-once-more-mnist").rows
    ]


def test_the_details_change_one_thing_at_a_time() -> None:
    rows = {row.name: row.spec for row in find_experiment("details-mnist").rows}
    assert len(rows) == 18
    for name, spec in rows.items():
        plain = rows[f"{spec.method}-as-described"]
        changed = [f.name for f in fields(RunSpec) if getattr(spec, f.name) != getattr(plain, f.name)]
        assert spec.data == "mnist-selection"
        assert len(changed) == {"as-described": 0, "separate-starts": 2}.get(name.removeprefix(f"{spec.method}-"), 1)


def test_the_default_said_aloud_is_the_same_experiment() -> None:
    silent, said, kept = (resolve(RunSpec(data="digits", moments=m)).digest for m in (None, "epoch", "run"))
    assert silent == said != kept
    level, falling = (resolve(RunSpec(data="digits", decay=d)).digest for d in ("none", "cosine"))
    assert silent == level != falling
    plain, shrinking = (resolve(RunSpec(data="digits", weight_decay=w)).digest for w in (0.0, 0.5))
    assert silent == plain != shrinking


def test_dp_sgd_refuses_what_it_does_not_do() -> None:
    private = RunSpec(
        data="digits", privacy="record", epsilon=2.0, delta=1e-5, clip="l2:3", body_training="dp-sgd", weight_decay=0.0
    )
    resolve(private)
    with pytest.raises(InputError, match="cannot keep Adam's moments"):
        resolve(replace(private, moments="run"))
    with pytest.raises(InputError, match="no weight decay"):
        resolve(replace(private, weight_decay=0.5))


@pytest.mark.parametrize("weight_decay", [-0.1, float("nan"), float("inf")])
def test_a_weight_decay_is_a_number_from_0_on(weight_decay: float) -> None:
    with pytest.raises(InputError, match="weight decay"):
        Optimiser(weight_decay=weight_decay)
