"""`fedlog federate demo --pretrained` on real processes: one exchange, epsilon 1, a secure sum, the pooled heads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedlog.cli.main import main
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.ops.demo import BODY, CLASSES, RUN, SITES, cut_patches, make_pretrained_demo_plan
from fedlog.flower.server.run_folder import RunFolder
from fedlog.models.body import HEAD
from fedlog.models.model_folder import load_model
from fedlog.privacy.guarantee import Trust, Unit

pytest.importorskip("efficientnet_lite_pytorch", reason="needs fedlog[pretrained]")


def test_patches_do_not_overlap_and_the_plan_is_private() -> None:
    patches, labels = cut_patches()
    assert len({patch.tobytes() for patch in patches}) > 0.99 * len(patches)
    assert patches.shape == (884, 24, 24, 3)
    assert set(labels.tolist()) == {0, 1}
    plan = make_pretrained_demo_plan(0)
    assert plan.promise is not None
    assert (plan.promise.unit, plan.promise.trust, plan.promise.epsilon) == (Unit.RECORD, Trust.DISTRIBUTED, 1.0)
    assert plan.secure is not None
    assert plan.rounds == 1


@pytest.mark.slow
def test_three_sites_with_images_end_at_the_heads_of_all_images_in_one_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "demo"
    assert main(["federate", "demo", str(root), "--pretrained", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["rounds"] == 1
    assert report["privacy"]["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert report["privacy"]["mechanism"] == "distributed"
    assert [site["name"] for site in report["sites"]] == list(SITES)
    # 130 sums with noise: the root mean square of a standard normal's draws is within a fifth of 1.
    assert 0.8 < report["pooled"]["noise_found"] < 1.2
    assert abs(report["pooled"]["accuracy"] - report["pooled"]["accuracy_with_noise"]) < 0.08
    assert min(site["accuracy"] for site in report["sites"]) > 0.85
    # The server saw no site's upload, and every site has one of the same two heads.
    assert RunFolder.of_run(ServerFolder(root / "server"), RUN).read_uploads() == {}
    models = [load_model(root / name / "models" / RUN) for name in SITES]
    assert all(model.body.name.startswith(BODY) for model in models)
    heads = [model.params[HEAD] for model in models]
    assert len({head.numpy().tobytes() for head in heads}) <= 2
    found = models[0].predict(root / "images" / "north" / CLASSES[0])
    assert (found == CLASSES[0]).mean() > 0.8
    assert torch.isfinite(heads[0]).all()


def test_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federate", "demo", "--pretrained", "--rounds", "3"]) == 2
    assert "--pretrained always runs one round, found: --rounds 3" in capsys.readouterr().err
