"""One exchange from end to end: `fedlog run` on features that are records already, private and not, chosen heads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedlog.cli.main import main
from fedlog.errors import InputError
from fedlog.experiments.run.prepare import make_simulation
from fedlog.models.catalog import make_body
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, object]:
    out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    common = ["run", "--data", "test_one_exchange:vectors", "--out", str(out), "--json", "--jobs", "1"]
    assert main([*common, *flags]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def vectors(spec: object) -> object:
    """Four clients with two of three classes each, 20 features."""
    import torch

    from fedlog.core.keys import Key
    from fedlog.data.federation import Federation, Records, Shard
    from fedlog.data.transforms import IDENTITY

    generator = Key(11).torch()
    centres = 1.5 * torch.randn(3, 20, generator=generator)
    labels = torch.tensor([[c % 3, (c + 1) % 3] * 60 for c in range(4)]).reshape(-1)
    inputs = centres[labels] + torch.randn(480, 20, generator=generator)
    shards = []
    for at in range(4):
        start = 120 * at
        train, validation = torch.arange(start, start + 60), torch.arange(start + 60, start + 80)
        shards.append(Shard(f"c{at}", train, torch.arange(start + 80, start + 120), validation))
    pool = Records(inputs, labels)
    return Federation("vectors", 3, (20,), pool, pool, tuple(shards), IDENTITY, ("a", "b", "c"))


def test_a_run_is_one_round_and_sites_choose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(tmp_path, capsys, "--method", "fed-heads", "--body", "identity", "--set", "classes=own", "--personal")
    assert found["rounds"] == 1
    assert float(str(found["accuracy_mean_over_clients"])) > 0.9


@pytest.mark.parametrize("method", ["fedcof", "ccvr", "fedpft"])
def test_sites_have_heads_of_their_own(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(tmp_path, capsys, "--method", method, "--body", "identity", "--set", "classes=own", "--personal")
    assert float(str(found["accuracy_mean_over_clients"])) > 0.9


def test_maps_change_the_body_and_what_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = run(tmp_path, capsys, "--method", "fed-lda", "--body", "identity")
    narrow = run(tmp_path, capsys, "--method", "fed-lda", "--body", "identity", "--project", "6")
    assert int(str(narrow["bits_up"])) < int(str(wide["bits_up"])) / 4
    assert narrow["digest"] != wide["digest"]


@pytest.mark.parametrize("trust", ["central", "local", "distributed"])
@pytest.mark.parametrize(("unit", "bound"), [("record", ("--clip", "l2:1")), ("client", ("--message-norm", "50"))])
def test_privacy_holds_for_second_moments_in_one_release(
    unit: str, bound: tuple[str, str], trust: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--privacy", unit, "--epsilon", "8", "--delta", "1e-5", "--trust", trust, *bound]
    found = run(tmp_path, capsys, "--method", "fed-lda", "--body", "identity+unit", *flags)
    promise = found["privacy"]
    assert isinstance(promise, dict)
    assert (promise["unit"], promise["releases"]) == (unit, 1)
    assert promise["epsilon"] == pytest.approx(8, rel=1e-3)


def test_what_cannot_be_is_refused() -> None:
    def prepared(**settings: object) -> None:
        name = "test_one_exchange:vectors"
        make_simulation(resolve(RunSpec(data=name, **{"method": "fed-lda", "body": ("identity",), **settings})))  # type: ignore[arg-type]

    with pytest.raises(InputError, match="cannot be used with secure sums"):
        prepared(method="fedcof", aggregation="secure")
    with pytest.raises(InputError, match="cannot be used with --privacy") as refused:
        prepared(method="fedpft", privacy="record", epsilon=1.0, delta=1e-5, clip="l2:1")
    assert "fed-ridge" in str(refused.value.hint)  # not only fedlog and fedlog-c can be private
    with pytest.raises(InputError, match="all clients need the same body"):
        prepared(body=("identity", "mlp:4"))
    with pytest.raises(InputError, match="expects feature vectors"):
        make_body("identity", (3, 8, 8))
