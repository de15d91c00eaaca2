"""The compiled AdamW against PyTorch's: the same bits, whatever the sizes, ages and missing gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlog.engine.training.block import adam, library
from fedlog.engine.training.block.adam import FlatAdam, is_compiled_step_exact, step_compiled, step_fused
from fedlog.engine.training.tasks import make_adam_arguments
from fedlog.settings.training import Optimiser


def test_the_compiled_step_is_used_where_the_processor_has_avx_512() -> None:
    """Elsewhere PyTorch takes the step; here it would only be slower."""
    if library.name_instruction_set() != "AVX-512" or torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("needs AVX-512")
    assert is_compiled_step_exact()


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple),
    ages=st.lists(st.integers(0, 5000), min_size=1, max_size=3),
    missing=st.integers(-1, 3),
    decay=st.sampled_from([0.0, 0.01]),
    seed=st.integers(0, 2**31),
)
def test_the_compiled_step_gives_pytorchs_bits(
    sizes: tuple[int, ...], ages: list[int], missing: int, decay: float, seed: int
) -> None:
    """Clients at different ages, parameters whose ends fall anywhere in a vector, a parameter without a gradient."""
    if not is_compiled_step_exact():
        pytest.skip("PyTorch takes the step here")
    generator = torch.Generator().manual_seed(seed)
    arguments = make_adam_arguments(Optimiser(weight_decay=decay), 0.003)
    clients, size = len(ages), sum(sizes)
    rows, first = torch.randn(2, clients, size, generator=generator)
    ours = [rows, first, torch.rand(clients, size, generator=generator)]
    theirs = [each.clone() for each in ours]
    steps = torch.tensor(ages, dtype=torch.float32) + 1
    parts = [torch.randn(clients, one, generator=generator) * 10.0 ** (-at) for at, one in enumerate(sizes)]
    flat = torch.cat([torch.zeros_like(one) if at == missing else one for at, one in enumerate(parts)], dim=1)
    step_fused(arguments, flat, *theirs, steps)
    gradients = [None if at == missing else one for at, one in enumerate(parts)]
    assert step_compiled(arguments, sizes, gradients, *ours, steps)
    for own, other in zip(ours, theirs, strict=True):
        assert torch.equal(own, other)


def test_a_prefix_of_clients_moves_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """By both ways: with the compiled pass and without it, to the same bits."""
    found = []
    for exact in {is_compiled_step_exact(), False}:
        monkeypatch.setattr(adam, "is_compiled_step_exact", lambda exact=exact: exact)
        stacked = {"a": torch.arange(12.0).view(3, 2, 2), "b": torch.ones(3, 5)}
        flat = FlatAdam(stacked, 0.1, Optimiser())
        flat.step(2, [torch.ones(2, 2, 2), None])
        flat.step(1, [torch.full((1, 2, 2), 2.0), torch.ones(1, 5)])
        values = flat.get_parameters()
        assert torch.equal(values["a"][2], stacked["a"][2])
        assert torch.equal(values["b"][2], stacked["b"][2])
        assert not torch.equal(values["a"][:2], stacked["a"][:2])
        assert [int(flat.get_moments(client)[2]) for client in range(3)] == [2, 1, 0]
        found.append(torch.cat([values["a"].flatten(1), values["b"]], dim=1))
    assert all(torch.equal(found[0], other) for other in found)
