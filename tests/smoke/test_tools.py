"""The tools around a run: TensorBoard, MLflow, tables for spreadsheets and papers, completion, the doctor."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.datasets import load_wine

import fedlog
from fedlog.cli.completion import SHELLS, make_completion_script
from fedlog.cli.main import COMMANDS, main
from fedlog.report.parts.tables import TextTable

X, Y = load_wine(return_X_y=True)
SITES = {"north": (X[0::2], Y[0::2]), "south": (X[1::2], Y[1::2])}


@pytest.fixture
def federation() -> fedlog.Federation:
    return fedlog.Federation.from_arrays(SITES)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TensorBoard's own imports
def test_tensorboard_reads_what_the_callback_wrote(tmp_path: Path, federation: fedlog.Federation) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = fedlog.run(federation, rounds=3, epochs=1, callbacks=[fedlog.TensorBoard(tmp_path / "board")])
    read = EventAccumulator(str(tmp_path / "board"))
    read.Reload()
    events = read.Scalars("accuracy/mean over clients")
    assert [event.step for event in events] == [1, 2, 3]
    assert [event.value for event in events] == pytest.approx([r.accuracy_mean_over_clients for r in result.records])
    assert {"client/north", "client/south", "bits/up", "bits/down", "seconds"} <= set(read.Tags()["scalars"])
    assert read.Scalars("client/south")[-1].value == pytest.approx(result.per_client["south"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_every_round_of_a_resumed_run_once(tmp_path: Path, federation: fedlog.Federation) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = {"rounds": 3, "epochs": 1, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        fedlog.run(federation, callbacks=[fedlog.TensorBoard(tmp_path / "board"), Stop()], **settings)
    result = fedlog.run(federation, callbacks=[fedlog.TensorBoard(tmp_path / "board")], **settings)
    read = EventAccumulator(str(tmp_path / "board"))
    read.Reload()
    events = read.Scalars("accuracy/mean over clients")
    assert [event.step for event in events] == [1, 2, 3]
    assert [event.value for event in events] == pytest.approx([r.accuracy_mean_over_clients for r in result.records])


class Stop(fedlog.Callback):
    """Ends a run after its second round."""

    def round_ended(self, record: object) -> None:
        """Raise after round 2."""
        if getattr(record, "round") == 2:  # noqa: B009
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mlflow_has_the_settings_and_every_round_also_of_a_resumed_run(
    tmp_path: Path, federation: fedlog.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    store, settings = tmp_path / "mlruns", {"rounds": 3, "epochs": 1, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        fedlog.run(federation, callbacks=[fedlog.MLflow(store), Stop()], **settings)
    result = fedlog.run(federation, callbacks=[fedlog.MLflow(store)], **settings)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store.as_uri())
    experiment = client.get_experiment_by_name("fedlog")
    assert experiment is not None
    (finished,) = client.search_runs([experiment.experiment_id], "attributes.status = 'FINISHED'")
    history = client.get_metric_history(finished.info.run_id, "accuracy/mean over clients")
    assert [(each.step, each.value) for each in history] == [
        (record.round, pytest.approx(record.accuracy_mean_over_clients)) for record in result.records
    ]
    assert finished.data.params["method"] == "fedlog"
    assert finished.data.params["epochs"] == "1"
    assert finished.data.tags["fedlog.digest"] == result.summary.digest
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    # What is finished is returned as it is, and nothing more is written.
    fedlog.run(federation, callbacks=[fedlog.MLflow(store)], **settings)
    assert len(client.search_runs([experiment.experiment_id])) == 2


def test_tables_of_a_run_and_of_a_folder_of_runs_as_files(
    tmp_path: Path, federation: fedlog.Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    result = fedlog.run(federation, rounds=2, epochs=1, out=tmp_path / "runs" / "one")
    assert main(["report", str(tmp_path / "runs" / "one"), "--tables", str(tmp_path / "tables")]) == 0
    with (tmp_path / "tables" / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy, %"]) for row in rows] == pytest.approx(
        [100 * record.accuracy_mean_over_clients for record in result.records], abs=0.005
    )
    assert [int(row["bits up"]) for row in rows] == [record.bits_up for record in result.records]
    with (tmp_path / "tables" / "clients.csv").open() as file:
        assert {row["client"] for row in csv.DictReader(file)} == {"north", "south"}
    assert "\\begin{tabular}{lrrr}" in (tmp_path / "tables" / "clients.tex").read_text()
    assert main(["report", str(tmp_path / "runs"), "--tables", str(tmp_path / "all")]) == 0
    assert "one,fedlog,arrays,0,2," in (tmp_path / "all" / "runs.csv").read_text()


def test_latex_escapes_what_it_would_take_for_its_own() -> None:
    table = TextTable(("a_b", "100 %"), (("x & y", "1 ± 2"), ("\\n", "#{}$")), "title")
    text = table.to_latex()
    assert "a\\_b & 100 \\%" in text
    assert "x \\& y & 1 $\\pm$ 2" in text
    assert "\\textbackslash{}n & \\#\\{\\}\\$" in text
    assert table.to_csv().splitlines()[0] == "a_b,100 %"


def ask_bash(script: Path, *words: str) -> list[str]:
    """What bash offers when TAB is pressed after these words."""
    line = " ".join(words)
    asked = (
        f"source {script}; COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; "
        f"COMP_LINE='{line}'; COMP_POINT={len(line)}; _shtab_fedlog; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_flags_and_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    with pytest.raises(SystemExit) as end:
        main(["--install-completion"])
    assert end.value.code in (0, None)
    script = tmp_path / ".local" / "share" / "bash-completion" / "completions" / "fedlog"
    assert f"wrote: {script}" in capsys.readouterr().out
    assert ask_bash(script, "fedlog", "comp") == ["compare"]
    assert set(COMMANDS) <= set(ask_bash(script, "fedlog", ""))
    assert ask_bash(script, "fedlog", "run", "--round") == ["--rounds"]
    assert set(ask_bash(script, "fedlog", "run", "--decay", "")) == {"none", "cosine"}
    assert "join" in ask_bash(script, "fedlog", "federate", "")
    assert ask_bash(script, "fedlog", "federate", "join", "--serv") == ["--server"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str) -> None:
    written = make_completion_script(shell)
    assert "compare" in written
    assert "split-seed" in written


def test_a_shell_that_is_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--install-completion", "csh"]) == 2
    assert "expected one of the shells bash, zsh, fish, found: csh" in capsys.readouterr().err
    monkeypatch.delenv("SHELL", raising=False)
    assert main(["--install-completion"]) == 2


def test_the_doctor_looks_at_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDLOG_DATA", str(tmp_path))
    assert main(["doctor", "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    wanted = {"fedlog", "python", "torch", "compiler", "compiled blocks", "cores", "memory", "disk", "data folder"}
    assert wanted | {"federate", "browser", "onnx", "tensorboard"} <= set(found)
    assert str(tmp_path) in found["data folder"]["value"]
    assert "empty" in found["data folder"]["value"]
    assert "fedlog data fetch" in found["data folder"]["hint"]
    assert found["federate"]["value"].startswith("flwr 1.")
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert f"python           {sys.version.split()[0]}" in said
    assert "hint: data folder: " in said


def test_the_doctor_says_what_to_do_where_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "browser          none found" in said
    assert "compiler         none found" in said
    assert "hint: browser: " in said


def test_the_citation_file_is_whole() -> None:
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(cited)
    assert cited["version"] == fedlog.__version__
