"""A user's ONNX encoder on real processes, as in docs/pretrained.md: folders of images, one exchange, prediction."""

from __future__ import annotations

import csv
import io
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from fedlog.cli.main import main
from fedlog.core.heads.gaussian import solve_linear_discriminant
from fedlog.core.stats import Detail, Moments
from fedlog.data.schema import Schema
from fedlog.engine.protocol import checkpoint
from fedlog.flower.ops.demo import cut_patches, write_rosters
from fedlog.flower.ops.local_federation import LocalFederation, LocalSite
from fedlog.flower.protocol.plan import make_plan
from fedlog.flower.server.run_folder import RunFolder
from fedlog.flower.site.data import load_data
from fedlog.models.body import HEAD
from fedlog.settings.spec import RunSpec

pytest.importorskip("onnxruntime", reason="needs fedlog[onnx]")
pytest.importorskip("onnxscript", reason="needs fedlog[onnx]")
pytestmark = pytest.mark.slow

SITES = ("berlin", "oslo", "rome")
CLASSES = ("healthy", "ill")
SIDE = 32


def write_images(root: Path) -> None:
    """Patches of two photographs, 80 for each site, one folder a class."""
    patches, labels = cut_patches()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:240].tolist()
    for at, row in enumerate(order):
        folder = root / SITES[at % 3] / CLASSES[labels[row]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(patches[row]).save(folder / f"{row:04}.png")


def export_encoder(path: Path) -> None:
    """An encoder of someone's own, exported as the page says, its weights in a second file."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's exporter warns of its own parts
        torch.onnx.export(
            nn.Sequential(*layers).eval(),
            (torch.zeros(1, 3, SIDE, SIDE),),
            path,
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            external_data=True,
        )


def solve_pooled(federation: LocalFederation) -> torch.Tensor:
    """LDA of all sites' training images in one place."""
    pools = [load_data(folder, folder.read_config()).federation for folder in federation.sites.values()]
    parts = [pool.train.at(pool.shards[0].train) for pool in pools]
    features, labels = torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts])
    return solve_linear_discriminant(Moments.from_records(features, labels, len(CLASSES), Detail.SECOND))


def test_three_real_sites_with_an_encoder_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # names are relative to where a person stands, and the apps of a run stand elsewhere
    write_images(Path("images"))
    export_encoder(Path("encoder.onnx"))
    assert Path("encoder.onnx.data").exists()
    for each in (Path("rome"), Path("federation")):
        each.mkdir()
    for file in ("encoder.onnx", "encoder.onnx.data"):  # the same encoder at another place
        shutil.copyfile(file, Path("rome") / file)
    bodies = {name: "onnx:rome/encoder.onnx" if name == "rome" else "onnx:encoder.onnx" for name in SITES}
    schema = Schema("folder", CLASSES, input_shape=(3, SIDE, SIDE))
    sites = {name: LocalSite(Path("images") / name, bodies[name]) for name in SITES}
    federation = LocalFederation.create(tmp_path / "federation", schema, sites)
    write_rosters(federation)
    asked = {
        "plain": RunSpec(method="fed-lda"),
        "own": RunSpec(method="fed-heads", options={"personal": True}, aggregation="secure"),  # type: ignore[arg-type]
    }
    plans = [make_plan(spec, name, lambda: len(SITES)) for name, spec in asked.items()]
    plain, own = federation.run_plans(plans, print)

    assert [site["name"] for site in plain.report["sites"]] == list(SITES)
    assert len(own.report["sites"]) == len(SITES)
    state = checkpoint.read(RunFolder.of_run(federation.server, "plain").checkpoint, lambda _: None).values
    torch.testing.assert_close(state[HEAD], solve_pooled(federation), rtol=1e-3, atol=1e-3)
    capsys.readouterr()
    for run in asked:
        model = federation.sites["rome"].models / run
        assert main(["predict", str(model), "--data", "images/rome/ill"]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert len(rows) == len(list(Path("images/rome/ill").iterdir()))
        assert sum("ill" in row.values() for row in rows) > 0.7 * len(rows)
