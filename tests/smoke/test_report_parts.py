"""The parts of a report: baselines beside a run, changed settings, and the command that repeats it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import fedlog
from fedlog.cli.main import main, parse_arguments
from fedlog.experiments.compare.findings import Findings
from fedlog.experiments.compare.finished_runs import label_runs
from fedlog.experiments.run.baselines import find_baselines
from fedlog.experiments.run.client_files import project_means, read_client_descriptions, read_geometry
from fedlog.experiments.run.execute import read_spec
from fedlog.report.compare.comparison_page import make_comparison_section
from fedlog.report.exported_tables import make_tables_of_folder
from fedlog.report.pages.run_facts import read_run
from fedlog.report.pages.run_page import make_headline, render_run
from fedlog.report.pages.runs_page import write_runs_page
from fedlog.report.parts.axes import make_bits_axis, make_linear_axis, make_rounds_axis
from fedlog.report.parts.curves import Curve, make_curve_plots
from fedlog.report.parts.plots import Plot, place_horizontal_lines
from fedlog.report.parts.style import find_style
from fedlog.settings.differences import find_differences, format_repeat_command
from fedlog.settings.flags import read_given_settings
from fedlog.settings.presets import apply_recipe
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import HeldOutRecords

if TYPE_CHECKING:
    from tests.conftest import MakeFederation

RESULTS = Path(__file__).parents[2] / "results"
SHORT: dict[str, Any] = {"rounds": 2, "epochs": 1, "body": "mlp:4", "progress": False}


@pytest.fixture(scope="module")
def runs(make_federation: MakeFederation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods beside each other, on three clients, one of which has one class only."""
    folder = tmp_path_factory.mktemp("runs")
    data = make_federation([12, 30, 40])
    for method in ("fedlog", "local"):
        fedlog.run(data, method, out=folder / method, **SHORT)
    fedlog.run(data, "local", out=folder / "another-seed", seed=1, **SHORT)
    return folder


def test_only_a_run_on_the_same_records_is_a_baseline(runs: Path) -> None:
    spec = read_spec(runs / "fedlog")
    assert {method: Path(found.run_dir).name for method, found in find_baselines(runs / "fedlog", spec).items()} == {
        "local": "local"
    }
    for change in ({"seed": 5}, {"data_sha256": "0" * 64}, {"body": ("mlp:8",)}, {"split_seed": 3}):
        assert find_baselines(runs / "fedlog", replace(spec, **change)) == {}, change  # type: ignore[arg-type]
    assert find_baselines(runs / "local", read_spec(runs / "local")) == {}


def test_an_unfinished_run_is_no_baseline(runs: Path, tmp_path: Path) -> None:
    for name in ("fedlog", "local"):
        shutil.copytree(runs / name, tmp_path / name)
    (tmp_path / "local" / "summary.json").unlink()
    assert find_baselines(tmp_path / "fedlog", read_spec(tmp_path / "fedlog")) == {}


def test_the_first_line_of_a_committed_run_names_its_baselines() -> None:
    found = make_headline(read_run(RESULTS / "table-mnist" / "fedlog" / "seed-0"))
    assert found == {
        "reached": "97.8 %",
        "sent": "165 Mb",
        "others": "training alone 97.5 %, FedAvg 90.7 % with 7.00 Gb",
    }


def test_of_many_clients_the_lowest_tenth_is_named() -> None:
    page = render_run(read_run(RESULTS / "table-mnist" / "fedlog" / "seed-0"))
    assert len(re.findall(r"<b>client-\d+</b>", page.split("Lowest tenth: ")[1].split("</p>")[0])) == 5  # of 50


def test_a_run_notes_its_clients_and_their_class_means(runs: Path, make_federation: MakeFederation) -> None:
    data = make_federation([12, 30, 40])
    clients = read_client_descriptions(runs / "fedlog")
    for shard, description in zip(data.shards, clients.values(), strict=True):
        labels = data.train.labels[shard.train].tolist()
        assert description.training == {str(at): labels.count(at) for at in range(3) if at in labels}
        assert (description.name, description.body, description.test) == (shard.name, "mlp:4", len(shard.test))
    geometry = read_geometry(runs / "fedlog")
    assert geometry is not None
    has = {(name, label) for name, description in clients.items() for label in description.training}
    assert {(mean.client, mean.label) for mean in geometry.means} == has
    assert [row.label for row in geometry.head] == ["0", "1", "2"]
    alone = read_geometry(runs / "local")
    assert alone is not None


def test_the_plane_is_that_of_the_largest_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=generator)).Q
    flat = torch.randn(12, 2, dtype=torch.float64, generator=generator) * torch.tensor([9.0, 4.0])
    points = torch.nn.functional.pad(flat, (0, 3)) @ turn.T + 7
    found = project_means([(f"c{at}", "a", point) for at, point in enumerate(points)], None, ["a"])
    assert found.shown == pytest.approx(1)
    drawn = torch.tensor([[mean.x, mean.y] for mean in found.means], dtype=torch.float64)
    # Distances in the plane are those between the means: nothing is lost and nothing is stretched.
    assert torch.allclose(torch.cdist(drawn, drawn), torch.cdist(points, points), rtol=1e-2, atol=1e-2)
    assert drawn.var(0)[0] >= drawn.var(0)[1]
    line = project_means([("c", "a", torch.tensor([1.0])), ("c", "b", torch.tensor([3.0]))], None, ["a", "b"])
    assert [(mean.x, mean.y) for mean in line.means] == [(-1, 0), (1, 0)]


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"data": "mnist", "method": "fedlog-c", "rounds": 7, "options": {"alpha": 0.5}},
    {"partition": "dirichlet", "dirichlet_alpha": 0.3, "clients": 4, "seed": 3},
    {"body": ("mlp:64", "mlp:32"), "initialisation": "separate", "codec": "rows+q8", "weight_decay": 0.1},
    {"privacy": "client", "epsilon": 2.0, "delta": 1e-5, "message_norm": 20.0, "trust": "central"},
    {"data": "cifar10", "method": "fed-heads", "body": ("pretrained:efficientnet-lite0:128",), "train_records": 900},
    {"stop_at_accuracy": 0.9, "participation": 0.5, "moments": "round", "decay": "none"},
)


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_command_on_the_page_repeats_the_run(settings: dict[str, Any]) -> None:
    spec = resolve(RunSpec(**settings)).spec
    words = shlex.split(format_repeat_command(spec))
    assert words[:2] == ["fedlog", "run"]
    named = read_given_settings(parse_arguments(words[1:]))
    again = apply_recipe(RunSpec(**named), named)
    assert resolve(again).digest == spec.digest
    given = set(settings) - {"data", "method", "options"} | set(settings.get("options", {}))
    assert given <= {each.name for each in find_differences(spec)}


def test_only_what_differs_is_told_and_the_rest_is_folded(runs: Path) -> None:
    found = {each.name: (each.value, each.default) for each in find_differences(read_spec(runs / "fedlog"))}
    assert found == {"body": (["mlp:4"], ["mlp:64,32"]), "rounds": (2, 10), "epochs": (1, 5)}
    assert find_differences(resolve(apply_recipe(RunSpec(), given=())).spec) == []
    page = render_run(read_run(runs / "fedlog"))
    told, _, folded = page.partition("<details><summary>All other settings")
    assert "<td>rounds</td><td>2</td><td>10</td>" in told
    assert "<dt>learning rate</dt>" in folded
    assert ">null<" not in page
    assert "fedlog.run(federation, &#39;fedlog&#39;, body=[&#39;mlp:4&#39;], rounds=2, epochs=1)" in page


def test_an_old_folder_has_a_shorter_page(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedlog", tmp_path / "old")
    for name in ("clients.json", "geometry.json"):
        (tmp_path / "old" / name).unlink()
    shutil.rmtree(tmp_path / "old" / "models")
    page = render_run(read_run(tmp_path / "old"))
    assert 'id="figure-clients"' in page
    assert 'id="figure-geometry"' not in page
    assert "training records</th>" not in page


def test_the_names_of_others_are_text_and_no_markup(make_federation: MakeFederation, tmp_path: Path) -> None:
    data = make_federation([12, 30])
    evil = "<script>alert('&')</script>"
    shards = (replace(data.shards[0], name=evil), data.shards[1])
    fedlog.run(replace(data, shards=shards), "fedlog", out=tmp_path / "run", **SHORT)
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;" in page
    assert page.count("<script>") == 1


def test_the_threshold_is_drawn_and_its_round_is_said() -> None:
    curve = Curve("fedlog", find_style("fedlog"), (0.5, 0.8, 0.95), (1e5, 2e5, 3e5))
    by_round, by_bits = make_curve_plots([curve], threshold=0.9)
    assert (
        [rule.label for rule in by_round.horizontal_lines]
        == [rule.label for rule in by_bits.horizontal_lines]
        == ["threshold 90.0 %"]
    )
    assert "passes the threshold of 90.0 % in round 3" in by_round.alt_text
    assert by_bits.x.log
    height = place_horizontal_lines(by_round)[0].y
    below, above = by_round.find_position(2, 80)[1], by_round.find_position(3, 95)[1]
    assert above < height < below


@pytest.mark.parametrize(
    ("accuracy", "lowest", "cut"),
    [
        ([0.60, 0.66, 0.65, 0.65, 0.685, 0.648, 0.63, 0.656, 0.656, 0.656], 60.0, False),  # nothing steep
        ([0.10, 0.20, 0.90, 0.91, 0.92, 0.88, 0.93, 0.93, 0.94, 0.94], 88.0, True),  # steep, and a dip later
        ([0.10], 10.0, False),
    ],
)
def test_only_steep_first_rounds_may_lie_below_the_axis(accuracy: list[float], lowest: float, cut: bool) -> None:
    curve = Curve("run", find_style("fedlog"), tuple(accuracy), tuple(1000.0 * at for at, _ in enumerate(accuracy, 1)))
    for plot in make_curve_plots([curve]):
        assert plot.y.low <= lowest
        assert (plot.y.low > 100 * min(accuracy)) == cut
        assert bool(plot.note) == cut


def test_axes_hold_their_values_and_have_round_marks() -> None:
    for values in ([0.0], [3.2, 3.2], [97.5, 98.4], [-0.3, 12.0], [12.0, 100.0], [-0.6, 0.4]):
        axis = make_linear_axis("", values)
        assert axis.low <= min(values) <= max(values) <= axis.high
        assert 2 <= len(axis.ticks) <= 8
        assert [float(text) for _, text in axis.ticks] == pytest.approx([value for value, _ in axis.ticks])
        assert [text for _, text in axis.ticks] == [str(float(t)) if "." in t else t for _, t in axis.ticks]
    for values, texts in (
        ([-75.0, 50.0], ["-75", "-50", "-25", "0", "25", "50"]),
        ([0.0, 12.4], ["0.0", "2.5", "5.0", "7.5", "10.0", "12.5"]),
        ([0.0, 1.2], ["0.00", "0.25", "0.50", "0.75", "1.00", "1.25"]),
    ):
        assert [text for _, text in make_linear_axis("", values).ticks] == texts
    for last in (1, 2, 7, 10, 30, 100, 150):
        axis = make_rounds_axis(last)
        assert axis.low <= 1 <= last <= axis.high
        assert len(axis.ticks) <= 12
    for bits in ([1.0], [300.0, 4e5], [1.6e6, 7e9], [2e6, 2.1e6]):
        axis = make_bits_axis("", bits)
        assert axis.low <= min(bits) <= max(bits) <= axis.high
        assert axis.find_position(axis.low) == 0
        assert axis.find_position(axis.high) == pytest.approx(1)


def test_every_point_is_inside_its_plot(runs: Path) -> None:
    page = render_run(read_run(runs / "fedlog"))
    plots = re.findall(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)" role="img"(.*?)</svg>', page, re.DOTALL)
    assert len(plots) >= 4
    for wide, high, inside in plots:
        for points in re.findall(r'data-points="([^"]+)"', inside):
            for x, y, text in json.loads(points.replace("&#34;", '"')):
                assert 0 <= x <= float(wide)
                assert 0 <= y <= float(high)
                assert text


def test_a_comparison_draws_the_rounds_by_bits_or_says_why_not(make_federation: MakeFederation, tmp_path: Path) -> None:
    data = make_federation([40, 40, 40], [10, 10, 10])
    short = {**SHORT, "rounds": 3, "validation_fraction": 0.3}
    found = fedlog.compare(data, ["fedlog"], 1, out=tmp_path / "runs", **short)

    def bits_plot(findings: Findings) -> Plot:
        return make_comparison_section(findings, found.advice, ()).plots[0]

    (rounds,) = (one for one in bits_plot(found.findings).series if one.key == "fedlog")
    run = found.runs["fedlog", 0]
    assert rounds.joined
    assert [point.x for point in rounds.points] == run.history["bits"].tolist()
    assert [point.y for point in rounds.points] == pytest.approx([100 * each for each in run.history["accuracy"]])
    assert [point.high is not None for point in rounds.points] == [False, False, True]  # the interval is at the end
    assert bits_plot(found.findings).note == ""
    exported = dict(make_tables_of_folder(tmp_path / "runs"))
    assert set(exported) == {"runs", "comparison-1-methods", "comparison-1-sites"}
    assert exported["comparison-1-methods"].rows[0][0] == "fedlog"
    assert [row[0] for row in exported["comparison-1-sites"].rows] == ["client-0", "client-1", "client-2"]

    on_validation = {
        key: replace(one, spec=replace(one.spec, judge=HeldOutRecords.VALIDATION))
        for key, one in found.findings.runs.items()
    }
    plot = bits_plot(replace(found.findings, runs=on_validation))
    assert [len(one.points) for one in plot.series] == [1]
    assert plot.note.startswith("Only the ends: the rounds were judged on validation rows")
    for path in (tmp_path / "runs").rglob("records.jsonl"):
        path.unlink()
    plot = bits_plot(found.findings)
    assert [len(one.points) for one in plot.series] == [1]
    assert plot.note == "Only the end of fedlog: the records of its rounds are no longer here."


def test_runs_that_differ_by_their_seed_are_one_curve(runs: Path, tmp_path: Path) -> None:
    """With one line for each seed, a comparison of six methods would show a legend of dozens of lines."""
    for name in ("fedlog", "local", "another-seed"):
        shutil.copytree(runs / name, tmp_path / name)
    page = write_runs_page(tmp_path).read_text()
    assert "local, mean of 2 seeds" in page
    assert "local, seed" not in page


def test_a_setting_that_is_not_set_is_no_part_of_a_label() -> None:
    plain, private = RunSpec(method="fedlog"), RunSpec(method="fedlog", epsilon=2.0)
    labels = label_runs({Path("a"): plain, Path("b"): private})
    assert labels == {Path("a"): "fedlog", Path("b"): "fedlog epsilon=2.0"}


def test_a_predicted_number_is_not_called_accuracy(tmp_path: Path) -> None:
    fedlog.run("diabetes", "fed-regression", out=tmp_path / "number", progress=False)
    everything = write_runs_page(tmp_path).read_text()
    assert "Test accuracy" not in everything
    assert re.search(r"Error \d+, \d+\.\d % inside their intervals", everything)
    page = (tmp_path / "number" / "report.html").read_text()
    assert "classes (records)" not in page
    assert "--method local" not in page  # training alone does not predict numbers


def test_names_of_close_horizontal_lines_do_not_cover_each_other() -> None:
    nothing = (0.0,) * 4
    curves = [
        Curve("fedlog", find_style("fedlog"), (0.94, 0.944, 0.954, 0.945), (1e5, 2e5, 4e5, 8e5)),
        Curve("local", find_style("local"), (0.9, 0.9, 0.9, 0.936), nothing),
        Curve("pooled", find_style("pooled"), (0.9, 0.9, 0.9, 0.944), nothing),
    ]
    by_bits = make_curve_plots(curves)[1]
    boxes = []
    for rule, drawn in zip(by_bits.horizontal_lines, place_horizontal_lines(by_bits), strict=True):
        wide = 6 * len(rule.label)
        left = drawn.name_x - wide if drawn.anchor == "end" else drawn.name_x
        top = drawn.y + 3 if drawn.below else drawn.y - 17
        boxes.append((left, left + wide, top, top + 14))
    (left, right, top, bottom), other = boxes
    assert right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
