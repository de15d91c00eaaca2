"""`fedlog run`: its output, the folder it writes, and settings from flags and files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console
from safetensors.torch import load_file

from fedlog.api.progress import Progress
from fedlog.cli.main import main
from fedlog.experiments.run.callbacks import RunStart
from fedlog.experiments.run.execute import read_spec
from fedlog.experiments.run.prepare import make_simulation
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec

# From Python 3.12 on, forking a process that has threads is worth a warning; our workers use none of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SHORT = ["run", "--data", "circle", "--rounds", "2", "--set", "epochs=1", "--jobs", "1"]
PROMISED = {
    "method",
    "data",
    "rounds",
    "accuracy_mean_over_clients",
    "accuracy_per_client",
    "bits_up",
    "bits_down",
    "seconds",
    "run_dir",
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    assert main([*SHORT, *arguments]) == 0
    said = capsys.readouterr()
    return said.out, said.err


def _json(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_run("--json", "--quiet", *arguments, capsys=capsys)[0])
    return found


def test_json_is_one_object_on_stdout_and_agrees_with_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = _run("--json", "--out", "r", capsys=capsys)
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found.keys() >= PROMISED
    assert "round 2/2" in err
    lines = [json.loads(line) for line in Path("r/records.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert found["accuracy_mean_over_clients"] == lines[-1]["accuracy_mean_over_clients"]
    assert len(found["accuracy_per_client"]) == len(lines[-1]["correct_per_client"])
    opening = found["bits_opening"]
    assert opening == {"seed down": opening["seed down"]}
    assert found["bits_up"] == sum(line["bits_up"] for line in lines)
    assert found["bits_down"] == sum(line["bits_down"] for line in lines) + opening["seed down"]
    assert found["run_dir"] == "r"


def test_without_a_terminal_there_are_plain_lines_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = _run(
        "--out", "a folder with a rather long name, so that its line is longer than eighty columns", capsys=capsys
    )
    assert out.startswith("report: a folder")
    assert out.count("\n") == 1
    assert "\x1b" not in err
    assert re.search(r"^round 1/2  accuracy \d+\.\d\d %  [\d.]+ kb  about [\d.]+ s left$", err, re.MULTILINE)
    assert "accuracy, mean over clients (final round)" in err
    assert "run folder: a folder with a rather long name, so that its line is longer than eighty columns\n" in err


def _on_a_terminal() -> str:
    """The output of a run of two rounds on a terminal."""
    run = resolve(RunSpec(data="circle", rounds=2, options={"epochs": 1}))
    screen = StringIO()
    with Progress(Console(file=screen, force_terminal=True, width=100)) as progress, make_simulation(run) as simulation:
        progress.run_began(RunStart(run, simulation))
        for record in simulation.rounds():
            progress.round_ended(record)
    return screen.getvalue()


def test_on_a_terminal_there_is_a_live_line() -> None:
    shown = _on_a_terminal()
    for part in ("2/2", "accuracy", "kb", "\x1b["):
        assert part in shown


def test_a_terminal_that_cannot_draw_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert re.search(r"^round 2/2  accuracy", _on_a_terminal(), re.MULTILINE)


def test_a_closed_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["run", "--data", "circle", "--rounds", "1", "--quiet", "--out", "closed"]) == 0


def test_a_resumed_run_says_of_what_its_forecast_is(capsys: pytest.CaptureFixture[str]) -> None:
    _run("--quiet", "--out", "r", capsys=capsys)
    assert main(["run", "--resume", "r", "--dry-run"]) == 0
    assert capsys.readouterr().err == "this is the forecast of the whole run, of which 2 rounds are done\n"


def test_quiet_says_only_where_the_report_is(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = _run("--quiet", "--out", "q", capsys=capsys)
    assert (out, err) == ("report: q/report.html\n", "")


def test_the_run_folder_holds_everything_and_no_pickle(capsys: pytest.CaptureFixture[str]) -> None:
    _run("--quiet", "--out", "r", capsys=capsys)
    names = {str(path.relative_to("r")) for path in Path("r").rglob("*") if path.is_file()}
    assert names == {
        "config.json",
        "records.jsonl",
        "summary.json",
        "report.html",
        "server.safetensors",
        "clients.json",
        "geometry.json",
        "models/client-0.safetensors",
        "models/client-1.safetensors",
        "models/models.json",
        "models/schema.toml",
    }
    config = json.loads(Path("r/config.json").read_text())
    assert config["spec"]["options"]["epochs"] == 1
    assert config["spec"]["rounds"] == 2
    assert config["made_with"]["torch"]
    head = load_file("r/server.safetensors")["head"]
    model = load_file("r/models/client-0.safetensors")
    assert head.shape == model["head"].shape == (2, 3)
    # The client works on what crossed the wire: float32.
    assert (head.float() == model["head"]).all()


def test_the_report_is_html_with_both_curves(capsys: pytest.CaptureFixture[str]) -> None:
    _run("--quiet", "--out", "r", capsys=capsys)
    page = Path("r/report.html").read_text()
    reader = _Page()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert {"html", "title", "h1", "table", "svg", "pre"} <= reader.seen
    assert "FedLog on circle" in page
    drawn = re.findall(r"<svg viewBox.*?</svg>", page, re.DOTALL)
    named = [ElementTree.fromstring(each.replace(" data-plot", "")).get("aria-labelledby", "") for each in drawn]
    assert {"accuracy-by-round-title accuracy-by-round-words", "accuracy-by-bits-title accuracy-by-bits-words"} <= set(
        named
    )
    before = page
    assert main(["report", "r"]) == 0
    assert capsys.readouterr().out == "report: r/report.html\n"
    assert Path("r/report.html").read_text() == before


class _Page(HTMLParser):
    """A parser that lists the tags of a page, and those that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_flags_override_the_file_and_the_file_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.toml").write_text(
        'method = "local"\ndata = "circle"\nrounds = 3\nseed = 4\nbody = "mlp:4"\n'
        "[options]\nepochs = 1\nlearning_rate = 0.5\n"
    )
    assert (
        main(["run", "c.toml", "--rounds", "1", "--set", "learning-rate=0.25", "--json", "--quiet", "--out", "r"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["method"], found["rounds"], found["seed"]) == ("local", 1, 4)
    assert (found["bits_up"], found["bits_down"]) == (0, 0)
    spec = read_spec(Path("r"))
    assert spec.body == ("mlp:4",)
    assert spec.options == {"epochs": 1, "learning_rate": 0.25}


def test_text_and_numbers_mean_the_same_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    given = resolve(RunSpec(data="circle", rounds=2, options={"epochs": "1", "learning_rate": 1}))
    typed = resolve(RunSpec(data="circle", rounds=2, options={"epochs": 1, "learning_rate": "1.0"}))
    assert given.digest == typed.digest
    assert resolve(given.spec) == given
    assert given.digest != resolve(RunSpec(data="circle", rounds=2, options={"epochs": 2})).digest


def test_several_bodies_are_dealt_out_evenly(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--clients", "4", "--body", "mlp:4,2", "--body", "mlp:3,5,2", "--initialisation", "separate"]
    _json(*arguments, "--out", "r", capsys=capsys)
    sizes = sorted(len(load_file(path)) for path in Path("r/models").glob("*.safetensors"))
    assert sizes == [5, 5, 7, 7]


def test_the_same_command_twice_gives_the_same_records_and_a_finished_folder_is_not_run_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = _json("--out", "a", capsys=capsys), _json("--out", "b", capsys=capsys)
    clocks = ("seconds", "run_dir", "report")
    assert {k: v for k, v in first.items() if k not in clocks} == {k: v for k, v in second.items() if k not in clocks}
    assert _json("--out", "a", capsys=capsys) == first
    assert main(["run", "--resume", "a", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert main([*SHORT, "--seed", "1", "--set", "nu=0.5", "--out", "a"]) == 2
    said = capsys.readouterr().err
    assert "a holds a run with other settings; the new run has seed 1 instead of 0, nu 0.5 instead of " in said


def test_workers_may_have_several_threads_each() -> None:
    # A process of its own, and records enough that the threads are used: whoever waits for lost ones waits for ever.
    several = ["run", "--rounds", "1", "--set", "epochs=1", "--jobs", "2", "--threads", "2", "--quiet"]
    subprocess.run([sys.executable, "-m", "fedlog", *several], check=True, timeout=300, capture_output=True)


def test_runs_of_one_second_get_folders_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    dirs = {_json("--seed", str(seed), "--rounds", "1", capsys=capsys)["run_dir"] for seed in range(3)}
    assert len(dirs) == 3
    assert all(Path(name, "summary.json").exists() for name in dirs)


@pytest.mark.parametrize("method", ["fedlog", "fedlog-c", "local"])
def test_a_dry_run_foretells_the_bits_and_writes_nothing(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--method", method, "--clients", "5", "--participation", "0.4", "--rounds", "3"]
    assert main([*SHORT, *arguments, "--dry-run", "--json"]) == 0
    foretold = json.loads(capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []
    assert main([*SHORT, *arguments, "--dry-run"]) == 0
    assert "in all:" in capsys.readouterr().out
    found = _json(*arguments, capsys=capsys)
    assert foretold["bits_total"] == found["bits_up"] + found["bits_down"]
    assert (foretold["bits_total"] == 0) == (method == "local")


def test_a_dry_run_shows_how_far_the_features_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedlog.experiments.run import dry_run

    really_prepare = dry_run.make_simulation

    def prepare_as_with_an_encoder(run: Any, progress: Any) -> Any:
        progress(5, 5)
        return really_prepare(run, progress=progress)

    monkeypatch.setattr(dry_run, "make_simulation", prepare_as_with_an_encoder)
    assert main([*SHORT, "--dry-run"]) == 0
    assert capsys.readouterr().err == "features 5/5\n"


def test_a_dry_run_foretells_the_time_from_its_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedlog.experiments.run import dry_run

    class Clock:
        """A clock that moves by three seconds at every call."""

        now = 0.0

        def perf_counter(self) -> float:
            self.now += 3.0
            return self.now

    spec = RunSpec(data="circle", rounds=40, jobs=2, options={"epochs": 1})
    monkeypatch.setattr(dry_run, "time", Clock())
    assert dry_run.forecast_cost(spec).seconds == pytest.approx(40 * 3.0 / 2)


def test_a_dry_run_predicts_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--data", "digits", "--rounds", "1", "--jobs", "1", "--clients", "60", "--partition", "iid"]
    wide = [*arguments, "--body", "mlp:700,700", "--set", "epochs=1"]  # half a million parameters at each of 60 clients
    peaks = f"""
import resource, sys
from fedlog.cli.main import main
assert main({[*wide, "--quiet", "--out", str(tmp_path / "r")]!r}) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    used = int(
        subprocess.run([sys.executable, "-c", peaks], check=True, capture_output=True, text=True).stdout.split()[-1]
    )
    assert main([*wide, "--dry-run", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)["memory_bytes"]
    assert 0.6 < predicted / used < 1.6, f"{predicted / 2**20:.0f} MiB predicted, {used / 2**20:.0f} MiB used"


def test_a_dry_run_counts_the_clients_that_are_trained_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them needs five copies of its parameters; how many they are is the backend's choice."""
    from fedlog.engine.training.backends import Engine
    from fedlog.experiments.run import dry_run

    found = []
    for together in (1, 2):
        monkeypatch.setattr(Engine, "_choose_group_size", lambda *_, size=together: size)
        found.append(dry_run.forecast_cost(RunSpec(data="circle", rounds=1, jobs=1, options={"epochs": 1})))
    alone, both = found
    assert both.clients == 2
    assert both.memory_bytes - alone.memory_bytes == 5 * 4 * both.parameters_per_client


def test_a_run_stopped_by_its_target_and_killed_before_its_end_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedlog.experiments.run import execute as run

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run, "_finish_run", killed)
        assert main([*SHORT, "--stop-at-accuracy", "0", "--out", "r"]) == 130
    said = capsys.readouterr().err
    assert said.endswith("interrupted\nhint: to continue this run: fedlog run --resume r\n")
    assert main(["run", "--resume", "r", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 1


def test_two_runs_do_not_share_a_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from fedlog.experiments.run import execute as run

    monkeypatch.setattr(run, "SECONDS_TO_WAIT_FOR_LOCK", 0.2)
    Path("r").mkdir()
    with run.lock_run_folder(Path("r")):
        assert main([*SHORT, "--out", "r"]) == 2
    assert "r is in use by another run" in capsys.readouterr().err
    assert list(Path("r").iterdir()) == []
    assert _json("--out", "r", capsys=capsys)["rounds"] == 2


def test_a_full_disk_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from fedlog.experiments.run import records

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "append_round", full)
    assert main([*SHORT, "--quiet", "--out", "r"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: cannot write to r: No space left on device\nhint: ")


def test_a_body_of_ones_own_comes_from_the_python_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_bodies.py").write_text(
        "from torch import nn\n\n\ndef tiny() -> nn.Module:\n    return nn.Sequential(nn.Linear(2, 3), nn.Tanh())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = _json("--body", "my_bodies:tiny", "--out", "r", capsys=capsys)
    assert load_file("r/models/client-0.safetensors").keys() == {"0.weight", "0.bias", "head"}
    assert found["rounds"] == 2


def test_starting_imports_only_what_is_needed(tmp_path: Path) -> None:
    """`--help` does not import PyTorch; a run with the loop imports neither PyTorch's compiler nor scikit-learn."""
    run = [*SHORT, "--data", "digits", "--backend", "loop", "--out", str(tmp_path / "r"), "--quiet"]
    script = f"""
import sys
from fedlog.cli.main import main

def loaded(*names):
    return [name for name in names if name in sys.modules]

for arguments in (["--help"], ["run", "--help"], ["run", "--rouns", "3"]):
    try:
        main(arguments)
    except SystemExit:
        pass
print(loaded("torch", "numpy", "matplotlib"))
import fedlog.cli.run_work
print(loaded("matplotlib", "scipy.stats"))
print(main({run!r}))
print(loaded("torch._dynamo", "sympy", "sklearn", "scipy.stats", "scipy.optimize", "flwr", "polars", "pooch"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line in ("0", "1", "2") or line.startswith("[")][-4:] == [
        "[]",
        "[]",
        "0",
        "[]",
    ]
