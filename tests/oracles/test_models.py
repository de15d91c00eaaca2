"""Bodies against published counts, against PyTorch's own layers, and against what must not become a body."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedlog.algorithms.registry import METHODS, find_method_rounds, make_method
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.data.transforms import Transform
from fedlog.engine.clients import list_clients, make_model_plan
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings, draw_epoch
from fedlog.errors import InputError, RunError
from fedlog.models.body import FEATURES, Body, build_body, draw_initial_head, load_weights, logits
from fedlog.models.catalog import make_body
from fedlog.models.masked_dropout import MaskedAlphaDropout, MaskedDropout, apply_alpha_dropout
from fedlog.settings.execution import BackendChoice
from fedlog.settings.training import Optimiser, RunSettings

MakeFederation = Callable[..., Federation]

SHAPES = {
    "cnn": (1, 28, 28),
    "cnn-small": (3, 32, 32),
    "signal-cnn": (9, 128),
    "mobilenet-v2": (3, 32, 32),
    "mlp:7,5": (2, 3),
    "mlp-signed:6,2": (2,),
}


def _parameters(found: Body) -> int:
    return sum(value.numel() for value in found.training_module.parameters())


CIFAR_CONVOLUTIONS = (3 * 25 * 6 + 6) + (6 * 25 * 16 + 16)


@pytest.mark.parametrize(
    ("name", "shape", "n_class", "published"),
    [
        ("mobilenet-v2", (3, 32, 32), 1000, 3_504_872),  # the count stated with the published ImageNet weights
        ("cnn", (1, 28, 28), 10, 21_840),  # the paper's MNIST network
        ("cnn-plain", (1, 28, 28), 10, 21_840),
        ("cnn", (3, 32, 32), 10, CIFAR_CONVOLUTIONS + (400 * 120 + 120) + (120 * 100 + 100) + 10 * 101),
    ],
)
def test_the_parameter_count_is_the_published_one(
    name: str, shape: tuple[int, ...], n_class: int, published: int
) -> None:
    found = make_body(name, shape)
    assert _parameters(found) + draw_initial_head(found.width, n_class, Key(0)).numel() == published


def test_the_small_network_of_the_flexible_experiment_lacks_only_the_second_last_layer() -> None:
    large, small = make_body("cnn", (3, 32, 32)), make_body("cnn-small", (3, 32, 32))
    assert large.width == small.width == 100
    assert [len(b.layers) for b in (large, small)] == [4, 3]
    assert _parameters(small) == CIFAR_CONVOLUTIONS + (400 * 100 + 100)


@pytest.mark.parametrize(
    ("name", "shape", "sites"),
    [
        ("cnn", (1, 28, 28), [(0.5, (20,)), (0.5, (50,))]),  # channels of the second convolution, then features
        ("cnn", (3, 32, 32), [(0.5, (100,))]),
        ("cnn-plain", (1, 28, 28), []),
        ("cnn-plain", (3, 32, 32), []),
        ("cnn-small", (3, 32, 32), [(0.5, (100,))]),
        ("mobilenet-v2", (3, 32, 32), [(0.2, (1280,))]),
        ("mlp:7,5", (4,), []),
    ],
)
def test_dropout_is_where_it_belongs(
    name: str, shape: tuple[int, ...], sites: list[tuple[float, tuple[int, ...]]]
) -> None:
    assert [(site.p, site.shape) for site in make_body(name, shape).dropout] == sites


@pytest.mark.parametrize("name", SHAPES)
def test_evaluation_is_the_plain_module_in_eval_mode(name: str) -> None:
    found = make_body(name, SHAPES[name])
    params = found.make_initial_params(Key(1))
    plain = found.make().eval()
    plain.load_state_dict(params, strict=False)
    inputs = torch.randn(3, *SHAPES[name], generator=Key(2).torch())
    with torch.no_grad():
        torch.testing.assert_close(found.compute_features(params, inputs, None), plain(inputs), rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "mobilenet-v2"])
def test_training_with_the_masks_of_ones_is_evaluation(name: str) -> None:
    found = make_body(name, SHAPES[name])
    params = found.make_initial_params(Key(1))
    inputs = torch.randn(3, *SHAPES[name], generator=Key(2).torch())
    ones = {site.name: torch.ones(3, *site.shape) for site in found.dropout}
    torch.testing.assert_close(
        found.compute_features(params, inputs, ones), found.compute_features(params, inputs, None)
    )


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Dropout(0.3), (6,)), (nn.Dropout(0.3), (3, 4)), (nn.Dropout2d(0.3), (5, 2, 2))]
)
def test_masks_have_the_distribution_of_pytorchs_dropout(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """The joint law of the surviving entries: values {0, 1 / 0.7}, the rate, which entries die together."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = layer

        def forward(self, inputs: Tensor) -> Tensor:
            found: Tensor = self.drop(inputs).flatten(1)
            return found

    records = 20_000
    found = build_body("plain", Plain, shape)
    masks = draw_epoch(Key(3), records, found, Transform(), torch.float32).masks
    ours = found.compute_features({}, torch.ones(records, *shape), masks)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        theirs = Plain().train()(torch.ones(records, *shape))
    assert ours.unique().tolist() == theirs.unique().tolist()
    moments = [value.T @ value / records for value in (ours, theirs)]  # E[x_i x_j]: 1 / 0.7 together, 1 apart
    torch.testing.assert_close(moments[0], moments[1], rtol=0, atol=0.06)
    assert float(ours.mean()) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("kind", [MaskedDropout, MaskedAlphaDropout])
def test_masked_dropout_without_a_mask_is_the_identity(kind: type[MaskedDropout | MaskedAlphaDropout]) -> None:
    inputs = torch.randn(2, 3)
    assert torch.equal(kind(0.9, per_channel=False)(inputs), inputs)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9])
@pytest.mark.parametrize(
    ("layer", "shape", "of_a_mask"),
    [
        (nn.AlphaDropout, (6,), (6,)),
        (nn.AlphaDropout, (3, 4), (3, 4)),
        (nn.FeatureAlphaDropout, (5,), (5,)),
        (nn.FeatureAlphaDropout, (5, 2, 2), (5,)),
    ],
)
def test_alpha_dropout_with_pytorchs_mask_is_pytorchs_alpha_dropout(
    layer: type[nn.AlphaDropout | nn.FeatureAlphaDropout], shape: tuple[int, ...], of_a_mask: tuple[int, ...], p: float
) -> None:
    inputs = torch.randn(40, *shape, dtype=torch.float64, generator=Key(1).torch())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = layer(p).train()(inputs)
        torch.manual_seed(7)
        mask = torch.empty(40, *of_a_mask, dtype=torch.float64).bernoulli_(1 - p) / (1 - p)
    found = build_body("alpha", lambda: nn.Sequential(nn.Identity(), layer(p), nn.Flatten()), shape)
    assert [(site.p, site.shape, site.is_alpha) for site in found.dropout] == [(p, of_a_mask, True)]
    outputs = found.compute_features({}, inputs, {"1": mask})
    torch.testing.assert_close(outputs, expected.flatten(1), rtol=0, atol=1e-12)
    if shape == of_a_mask:
        torch.testing.assert_close(apply_alpha_dropout(inputs, mask, p), expected, rtol=0, atol=1e-12)


def test_alpha_dropout_keeps_mean_0_and_variance_1() -> None:
    inputs = torch.randn(200_000, dtype=torch.float64, generator=Key(2).torch())
    kept = (torch.rand(len(inputs), generator=Key(3).torch()) >= 0.3).double()
    outputs = apply_alpha_dropout(inputs, kept, 0.3)
    assert float(outputs.mean()) == pytest.approx(0, abs=0.01)
    assert float(outputs.var()) == pytest.approx(1, abs=0.02)


def test_initialisation_follows_the_key_and_leaves_global_randomness_alone() -> None:
    found = make_body("cnn", (1, 28, 28))
    before = torch.random.get_rng_state()
    first, again, other = (found.make_initial_params(Key(seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_the_head_is_a_linear_layer_with_its_bias_in_column_0() -> None:
    head = draw_initial_head(5, 3, Key(0))
    features = torch.randn(4, 5, generator=Key(1).torch())
    expected = nn.functional.linear(features, head[:, 1:], head[:, 0])
    torch.testing.assert_close(logits(features, {"head": head}), expected)
    shifted = logits(features, {"head": head, "shift": torch.arange(5.0)})
    torch.testing.assert_close(shifted, nn.functional.linear(features + torch.arange(5.0), head[:, 1:], head[:, 0]))


class Residual(nn.Module):
    """A user's module: no Sequential, a shared layer, a constant buffer, dropout in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 3)
        self.drop_inner, self.drop_outer = nn.Dropout(0.2), nn.Dropout(0.4)
        self.register_buffer("places", torch.arange(4))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.drop_inner(torch.tanh(self.inner(inputs)) + self.inner(inputs[:, self.places]))
        found: Tensor = self.drop_outer(torch.relu(self.outer(hidden)))
        return found


class Normalised(nn.Sequential):
    """A body with running statistics; no bias before them, whose gradient of zero Adam would blow up to noise."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def _run(
    make: MakeFederation, bodies: list[Body], method: str = "fedlog", rounds: int = 2, **given: object
) -> Simulation:
    federation = make([11, 8, 6][: len(bodies)])
    plan = make_model_plan(federation, bodies)
    algorithm = make_method(method, plan, {"epochs": 1, **given})
    simulation = Simulation(
        algorithm, federation, bodies, plan, Engine(Settings(batch_size=3)), RunSettings(rounds=rounds)
    ).start()
    for _ in simulation.rounds():
        pass
    return simulation


def test_any_module_can_be_a_body(make_federation: MakeFederation) -> None:
    found = build_body("mine:Residual", Residual, (4,))
    assert [(site.name, site.p) for site in found.dropout] == [("drop_inner", 0.2), ("drop_outer", 0.4)]
    assert found.layers == (("inner.weight", "inner.bias"), ("outer.weight", "outer.bias"))
    simulation = _run(make_federation, [found] * 3)
    trained, initial = (
        simulation.workers.cohort.store.homes[0],
        found.make_initial_params(Key(0).child("initial", "body")),
    )
    assert all(not torch.equal(trained[name], initial[name]) for name in initial)


def test_clients_may_have_different_bodies_of_one_width(make_federation: MakeFederation) -> None:
    bodies = [
        build_body("mine:Residual", Residual, (4,)),
        make_body("mlp:8,3", (4,)),
        build_body("mine:Normalised", Normalised, (4,)),
    ]
    simulation = _run(make_federation, bodies)
    assert [sorted(home) for home in simulation.workers.cohort.store.homes.values()] == [
        sorted(name for layer in b.layers for name in layer) for b in bodies
    ]
    with pytest.raises(InputError, match="method fedavg needs the same body"):
        _run(make_federation, bodies, method="fedavg")


def test_a_body_of_another_width_is_refused_by_name(make_federation: MakeFederation) -> None:
    bodies = [make_body("mlp:3", (4,)), make_body("mlp:8,5", (4,))]
    with pytest.raises(
        InputError, match=r"client client-1: body mlp:8,5 has 5 features.*mlp:3 of client client-0 has 3"
    ):
        make_model_plan(make_federation([3, 3]), bodies)


def test_running_statistics_move_and_stay_with_their_client(make_federation: MakeFederation) -> None:
    """Two clients see different data, so their running means differ; both have left the initial zero behind."""
    found = build_body("mine:Normalised", Normalised, (4,))
    assert found.buffers == {"1.running_mean", "1.running_var"}
    homes = _run(make_federation, [found] * 3).workers.cohort.store.homes
    means = [homes[client]["1.running_mean"] for client in range(3)]
    assert all(bool(mean.any()) for mean in means)
    assert not torch.equal(means[0], means[1])


def test_running_statistics_are_those_of_pytorch(make_federation: MakeFederation) -> None:
    """One client, one epoch, against a plain module trained on the very same batches by PyTorch's own Adam."""
    found = build_body("mine:Normalised", Normalised, (4,))
    federation = make_federation([12])
    plan = make_model_plan(federation, [found])
    algorithm = make_method("local", plan, {"epochs": 2, "learning_rate": 0.01})
    (client,) = list_clients(federation, [found], algorithm)
    engine = Engine(Settings(batch_size=5))
    simulation = Simulation(algorithm, federation, [found], plan, engine, RunSettings(rounds=1, seed=4)).start()
    list(simulation.rounds())
    home = simulation.workers.cohort.store.homes[0]

    head = nn.Linear(3, 3)
    first = draw_initial_head(3, 3, Key(4).child("initial", "head"))
    module = Normalised()
    module.load_state_dict(found.make_initial_params(Key(4).child("initial", "body")), strict=False)
    head.load_state_dict({"weight": first[:, 1:], "bias": first[:, 0]})
    module.train()
    for epoch in range(2):
        key = Key(4).child("client", "client-0", "round", 1, "average", "phase", 0, "epoch", epoch)
        order = draw_epoch(key, 12, found, federation.transform, torch.float32).order
        adam = torch.optim.Adam([*module.parameters(), *head.parameters()], lr=0.01)
        for part in torch.split(client.train[order], 5):
            adam.zero_grad()
            scores = head(module(federation.train.inputs[part]))
            nn.functional.cross_entropy(scores, federation.train.labels[part]).backward()
            adam.step()
    for name, value in module.state_dict().items():
        if name in home:
            torch.testing.assert_close(home[name], value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(home["head"][:, 1:], head.weight.detach(), rtol=1e-5, atol=1e-6)


def _partly_fixed() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    module[0].requires_grad_(False)
    return module


@pytest.mark.parametrize("method", [m for m in METHODS if m != "cs-fl" and not find_method_rounds(m)])  # which train
@pytest.mark.parametrize("choice", [BackendChoice.LOOP, BackendChoice.BLOCK, BackendChoice.VMAP])
def test_what_a_module_does_not_let_be_trained_stays(
    choice: BackendChoice, method: str, make_federation: MakeFederation
) -> None:
    found = build_body("mine:partly_fixed", _partly_fixed, (4,))
    assert found.untrained_params == {"0.weight", "0.bias"}
    federation = make_federation([6, 5])
    plan = make_model_plan(federation, [found] * 2)
    engine = Engine(Settings(batch_size=3, optimiser=Optimiser(weight_decay=0.5)), choice)
    algorithm = make_method(method, plan, {"epochs": 1})
    simulation = Simulation(algorithm, federation, [found] * 2, plan, engine, RunSettings(rounds=2)).start()
    list(simulation.rounds())
    cohort, initial = simulation.workers.cohort, found.make_initial_params(Key(0).child("initial", "body"))
    for home in cohort.store.homes.values():
        model = algorithm.deploy(home, cohort.store.received_params)
        for name in found.untrained_params:
            torch.testing.assert_close(model[name], initial[name], rtol=1e-6, atol=1e-7)
        assert not torch.allclose(model["2.weight"], initial["2.weight"], rtol=1e-6, atol=1e-7)


def test_a_method_that_moves_everything_alike_refuses_what_must_not_move(make_federation: MakeFederation) -> None:
    found = build_body("mine:partly_fixed", _partly_fixed, (4,))
    with pytest.raises(InputError, match=r"method cs-fl changes .* body mine:partly_fixed has some .*: 0\.bias"):
        _run(make_federation, [found] * 3, method="cs-fl")


def test_a_body_that_lets_nothing_be_trained_is_used_as_it_is(make_federation: MakeFederation) -> None:
    found = build_body("mine:fixed", lambda: nn.Linear(4, 3).requires_grad_(False), (4,))
    home = _run(make_federation, [found] * 3).workers.cohort.store.homes[0]
    initial = found.make_initial_params(Key(0).child("initial", "body"))
    assert all(torch.equal(home[name], value) for name, value in initial.items())


def test_weights_in_fewer_bits_are_trained_in_single_precision(tmp_path: Path) -> None:
    found = make_body("mlp:5,3", (4,))
    halves = {name: value.half() for name, value in found.make_initial_params(Key(1)).items()}
    save_file(halves, tmp_path / "half.safetensors")
    weights = load_weights(found, tmp_path / "half.safetensors").make_initial_params(Key(2))
    assert all(weights[name].dtype == torch.float32 for name in halves)
    assert all(torch.equal(weights[name], value.float()) for name, value in halves.items())
    halves["1.bias"][2] = torch.nan
    save_file(halves, tmp_path / "half.safetensors")
    with pytest.raises(InputError, match=r"parameter 1\.bias of body mlp:5,3 has entries that are not finite"):
        load_weights(found, tmp_path / "half.safetensors")


def test_a_batch_too_small_for_normalisation_names_the_client(make_federation: MakeFederation) -> None:
    """Seven records in batches of three leave a batch of one."""
    bodies = [build_body("mine:Normalised", Normalised, (4,))] * 2
    federation = make_federation([6, 7])
    plan = make_model_plan(federation, bodies)
    engine = Engine(Settings(batch_size=3))
    simulation = Simulation(
        make_method("fedlog", plan, {"epochs": 1}), federation, bodies, plan, engine, RunSettings(rounds=1)
    ).start()
    with pytest.raises(RunError, match=r"client client-1: body mine:Normalised cannot train on a batch of 1"):
        list(simulation.rounds())


def _with(**layers: nn.Module | nn.Parameter) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module = nn.Sequential(nn.Linear(4, 3))
        for name, value in layers.items():
            setattr(module[0], name, value) if isinstance(value, nn.Parameter) else module.append(value)
        return module

    return make


class Head(nn.Module):
    """A body whose own parameter would be taken for the head."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.ones(4, 3)))
        self._name = name

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = inputs @ getattr(self, self._name)
        return found


class Reusing(nn.Module):
    """A body that passes one dropout layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.drop(self.drop(inputs))
        return found


class Needy(nn.Module):
    """A body with a constructor that needs an argument."""

    def __init__(self, size: int) -> None:
        super().__init__()


class FunctionalDropout(nn.Linear):
    """A body that calls the function `dropout` instead of having a layer."""

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(inputs), 0.5, self.training)


class Checkpointed(nn.Module):
    """A body that computes a part again in the backward pass."""

    def __init__(self, part: nn.Module, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.part, self.use_reentrant = nn.Linear(4, 6), part, use_reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.part, self.first(inputs), use_reentrant=self.use_reentrant)
        return found


class CheckpointedFirst(nn.Linear):
    """A body whose only layer is computed again: its inputs have no gradient."""

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = checkpoint(super().forward, inputs, use_reentrant=True)
        return found


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Checkpointed(nn.Linear(6, 3), use_reentrant=False),
        lambda: Checkpointed(nn.Linear(6, 3), use_reentrant=True),
        lambda: Checkpointed(nn.GELU(), use_reentrant=True),
        # The gradients of the first layer go through the frozen one.
        lambda: Checkpointed(nn.Linear(6, 3).requires_grad_(False), use_reentrant=False),
        lambda: CheckpointedFirst(4, 3),
    ],
)
def test_a_body_that_computes_layers_again_with_other_parameters_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(InputError, match=r"wrong gradients .* torch.utils.checkpoint"):
        build_body("mine", make, (4,))


def test_a_part_without_parameters_may_be_computed_again() -> None:
    found = build_body("mine", lambda: Checkpointed(nn.GELU(), use_reentrant=False), (4,))
    params = {name: value.requires_grad_() for name, value in found.make_initial_params(Key(1)).items()}
    records = torch.randn(5, 4)
    expected = nn.functional.gelu(records @ params["first.weight"].T + params["first.bias"])
    features = found.compute_features(params, records, {})
    of_expected, of_features = (
        torch.autograd.grad(values.square().sum(), list(params.values())) for values in (expected, features)
    )
    torch.testing.assert_close(of_features, of_expected)


def _make_script_module() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates torch.jit
        return torch.jit.trace(nn.Linear(4, 3), torch.zeros(2, 4))


def test_a_body_without_any_layer_gives_its_records_as_features() -> None:
    found = build_body("mine", nn.Sequential, (4,))
    assert found.width == 4
    assert found.n_entries == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Head("head"), "reserved name: head"),
        (lambda: Head("shift"), "reserved name: shift"),
        (Reusing, "more than once: drop"),
        (
            lambda: FunctionalDropout(4, 3),
            r"forward pass: function dropout\n.*use a layer .* such as nn.Dropout",
        ),
        (_with(a=nn.RReLU()), r"draws random numbers in its forward pass: layer 1 \(RReLU\), function rrelu\n"),
        (_with(a=nn.Dropout(1.0)), "dropout rate of layer"),
        (_with(a=nn.AlphaDropout(1.0)), "dropout rate of layer"),
        (_with(a=nn.BatchNorm1d(3, momentum=None)), "has momentum=None"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "lazy layer"),
        (lambda: nn.Sequential(_make_script_module()), "compiled by torch.jit"),
        (lambda: nn.Linear(4, 3).double(), "parameter weight must be float32, found: float64"),
        (lambda: nn.Linear(5, 3), r"cannot take records of shape \(4,\)"),
        (lambda: nn.Unflatten(1, (2, 2)), r"turn 2 records into .*, found: \(2, 2, 2\) of float32"),
        (lambda: nn.LSTM(4, 3), "turn 2 records into .*, found: tuple"),
        (Needy, "cannot be made: TypeError"),
        (lambda: 7, "must be an nn.Module, found: int"),
    ],
)
def test_what_cannot_be_a_body_is_refused_by_name(make: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(InputError, match=f"body mine.*{said}"):
        build_body("mine", make, (4,))


def test_a_dropout_layer_with_two_names_is_two_places() -> None:
    def make() -> nn.Module:
        drop = nn.Dropout(0.5)
        return nn.Sequential(nn.Linear(4, 3), drop, nn.Linear(3, 3), drop)

    assert [site.name for site in build_body("mine", make, (4,)).dropout] == ["1", FEATURES]


def test_a_dropout_layer_called_features_is_not_taken_for_the_one_before_the_head() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Dropout(0.5)
            self.out = nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            found: Tensor = self.out(self.features(inputs))
            return found

    found = build_body("mine", Named, (4,))
    params = found.make_initial_params(Key(0))
    (site,) = found.dropout
    dropped = found.compute_features(params, torch.ones(2, 4), {site.name: torch.zeros(2, 4)})
    torch.testing.assert_close(dropped, params["out.bias"].expand(2, 3))


def test_a_users_own_hooks_survive() -> None:
    """Older weight normalisation works through a hook before the forward pass."""

    def make() -> nn.Module:
        layer = nn.Linear(4, 3)
        layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
        return layer

    found = build_body("mine", make, (4,))
    params = found.make_initial_params(Key(0))
    inputs = torch.ones(1, 4)
    expected = nn.functional.linear(2 * inputs, params["weight"], params["bias"])
    torch.testing.assert_close(found.compute_features(params, inputs, None), expected)


@pytest.mark.parametrize(
    ("name", "shape", "hint"),
    [
        ("ccn", (1, 28, 28), "did you mean cnn"),
        ("mlp", (4,), "mlp:64,64"),
        ("mlp:8,0", (4,), "mlp:64,64"),
        ("mpl:8,8", (4,), "did you mean mlp:8,8"),
        ("cnn:8", (1, 28, 28), "just cnn"),
        ("cnn", (1, 8, 8), "--body mlp"),
        ("nowhere.at_all:body", (4,), "PYTHONPATH"),
        ("zebra", (4,), "one of cnn"),
        ("math:pi", (4,), ""),
    ],
)
def test_a_body_name_that_means_nothing_gets_a_hint(name: str, shape: tuple[int, ...], hint: str) -> None:
    with pytest.raises(InputError, match="body") as caught:
        make_body(name, shape)
    assert hint in str(caught.value.hint)
