"""Every mistake a user can make on the command line: one clear line, a hint, exit code 2, nothing left behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fedlog.cli.main import COMMANDS, main, make_parser


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLOG_DATA", str(tmp_path / "no data"))


def _refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The message and the hint of a refused command."""
    try:
        code: object = main(arguments)
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr()
    assert code == 2, said.err
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 2, said.err
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")
    assert lines[1] != "hint: None"
    return lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ")


MISTAKES = [
    # what was typed, what is said, what is hinted at
    ("--method fedlgo", "unknown method: fedlgo", "did you mean fedlog?"),
    ("--method fed_avg", "unknown method: fed_avg", "did you mean fedavg?"),
    ("--method nowhere:thing", "method nowhere:thing cannot be imported", "PYTHONPATH"),
    ("--method :x", "method :x cannot be imported", "PYTHONPATH"),
    ("--method fedlog.errors:RunError", "method fedlog.errors:RunError must take a `plan`", "ModelPlan"),
    ("--data :f", "data set :f cannot be imported", "package.module:function"),
    ("--set nu=-1", "must not be negative, found: -1", ""),
    ("--set head_norm=nan", "option head_norm of fedlog cannot be 'nan'", "float"),
    ("--method json:loads", "method json:loads must take a `plan`", "ModelPlan"),
    ("--threads 0", "threads must be at least 1, found: 0", ""),
    ("--data nowhere:f", "data set nowhere:f cannot be imported", "PYTHONPATH"),
    ("--data mnits", "unknown data set: mnits", "did you mean mnist?"),
    ("--data zebra", "unknown data set: zebra", "digits"),
    ("--data mnist", "missing file", "fedlog data fetch mnist"),
    ("--body ccn", "unknown body: ccn", "did you mean cnn?"),
    ("--body mlp:x", "body mlp:x: layer widths must be whole numbers above 0, found: x", "mlp:64,64"),
    ("--body cnn", "body cnn cannot take records of shape (2,)", "mlp"),
    ("--body mlp:4 --body mlp:5", "of client client-0", "all need the same number of features"),
    ("--method fedavg --body mlp:4 --body mlp:8,4", "method fedavg needs the same body", "fedlog"),
    ("--set epoch=2", "method fedlog has no option epoch", "did you mean epochs?"),
    ("--set epochs", "--set needs NAME=VALUE, found: epochs", "--set alpha=0.01"),
    ("--set epochs=2.5", "option epochs of fedlog cannot be '2.5'", "int"),
    ("--set epochs=none", "option epochs of fedlog cannot be 'none'", "int"),
    ("--set epochs=inf", "option epochs of fedlog cannot be 'inf'", "int"),
    ("--set epochs=0", "the number of epochs must be at least 1, found: 0", ""),
    ("--set learning_rate=-1", "the learning rate must be positive, found: -1.0", ""),
    ("--set first_head=rnd", "option first_head of fedlog cannot be 'rnd'", "random"),
    ("--method fedlog-c --set margin=none --set beta=1", "fedlog-c diverges unless alpha is above", "beta below"),
    ("--clients 0", "clients must be at least 1", ""),
    ("--clients 99999", "99999", ""),
    ("--partition shards --classes-per-client 3", "classes per client must be 1 to 2, found: 3", ""),
    ("--partition user", "cannot be divided by the partition: user", "ordered"),
    ("--classes-per-client 2", "--classes-per-client needs the shards partition", ""),
    ("--train-records 0", "training records must be at least 1", ""),
    ("--validation-fraction 1.5", "validation fraction must be at least 0 and below 1", ""),
    ("--judge validation", "no client has a validation record", "--validation-fraction"),
    ("--rounds 0", "rounds must be at least 1, found: 0", ""),
    ("--rounds two", "invalid int value: 'two'", "--rounds takes a whole number"),
    ("--batch-size 0", "batch size must be at least 1, found: 0", ""),
    ("--participation 0", "participation must be above 0 and at most 1, found: 0.0", ""),
    ("--stop-at-accuracy 97", "at least 0 and at most 1, found: 97.0", "0.97"),
    ("--jobs 0", "at least 1", ""),
    ("--device fpu", "device fpu cannot be used: PyTorch has no such device here", "cpu"),
    ("--device meta", "device meta cannot be used: its tensors hold no numbers", "cpu"),
    ("--device mkldnn", "device mkldnn cannot be used: PyTorch has no such device here", "cpu"),
    ("--profile --seeds 2", "expected --profile or --seeds, found both", "leave --profile out"),
    ("--profile --dry-run", "expected --profile or --dry-run, found both", "leave --profile out"),
    ("--device cpu:0", "device cpu:0 cannot be used: the CPU is given without a number", "--device cpu"),
    ("--device hpu", "device hpu cannot be used", "cpu"),
    ("--method os:path", "method os:path to be a function or a class, found: module", "function"),
    ("--codec f31", "unknown codec: f31", "f32"),
    ("--backend bloc", "invalid choice: 'bloc'", "did you mean block?"),
    ("--metod fedlog", "unknown option: --metod", "did you mean --method?"),
    ("--client 3", "unknown option: --client", "did you mean --clients?"),
    ("--zzz", "unknown option: --zzz", "fedlog run --help"),
    ("--out /proc/nowhere", "cannot write to /proc/nowhere", "--out"),
    ("--resume nowhere", "not a run folder: nowhere", "fedlog run"),
    ("missing.toml", "cannot read the configuration missing.toml", "path"),
]


@pytest.mark.parametrize(("typed", "said", "hinted"), MISTAKES, ids=[typed for typed, _, _ in MISTAKES])
def test_a_mistake_is_one_line_with_a_hint_and_leaves_nothing_behind(
    typed: str, said: str, hinted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [] if "--data" in typed or "--resume" in typed else ["--data", "circle"]
    message, hint = _refused(["run", *data, *typed.split()], capsys)
    assert said in message
    assert hinted in hint
    assert list(tmp_path.iterdir()) == []


CONFIGS = [
    ('method = "fedlog', "not valid TOML", "texts in quotes"),
    ("rounds = ", "not valid TOML", ""),
    ('rounds = "three"', "rounds must be of type int, found: 'three'", ""),
    ("rounds = 2.5", "rounds must be of type int, found: 2.5", ""),
    ("rounds = true", "rounds must be of type int, found: True", ""),
    ("participation = 'all'", "participation must be of type float, found: 'all'", ""),
    ("body = 7", "body must be a name or a list of names, found: 7", ""),
    ("body = ['mlp:4', 4]", "body must be a name or a list of names", ""),
    ("options = 3", "options must be a table", ""),
    ("[options]\nepoch = 3", "method fedlog has no option epoch", "did you mean epochs?"),
    ("[options]\nepochs = true", "option epochs of fedlog cannot be True", "int"),
    ("[options]\nlearning_rate = true", "option learning_rate of fedlog cannot be True", "float"),
    ("roundz = 3", "unknown setting: roundz", "did you mean rounds?"),
    ("judge = 'jury'", "unknown judge: jury", "test"),
    ("backend = 'gpu'", "unknown backend: gpu", "auto"),
]


@pytest.mark.parametrize(("text", "said", "hinted"), CONFIGS, ids=[text for text, _, _ in CONFIGS])
def test_half_a_configuration_is_refused_with_the_place(
    text: str, said: str, hinted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text(text)
    message, hint = _refused(["run", "c.toml", "--data", "circle"], capsys)
    assert said in message
    assert hinted in hint
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_a_configuration_that_is_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe\x00")
    assert "c.toml: not UTF-8 text" in _refused(["run", "c.toml"], capsys)[0]
    assert "Is a directory" in _refused(["run", str(tmp_path)], capsys)[0]


@pytest.mark.parametrize(
    ("typed", "said", "hinted"),
    [
        ([], "COMMAND", "fedlog --help"),
        (["rnu"], "invalid choice: 'rnu'", "did you mean run?"),
        (["report", "nowhere"], "not a run folder: nowhere", "`fedlog run`"),
        (["report"], "DIR", "fedlog report --help"),
    ],
)
def test_other_commands_refuse_in_the_same_way(
    typed: list[str], said: str, hinted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message, hint = _refused(typed, capsys)
    assert said in message
    assert hinted in hint


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    message, _ = _refused(["run", "--data", "circle", "--out", "mine"], capsys)
    assert "not empty and not a run folder" in message
    (tmp_path / "file").write_text("")
    assert "cannot write" in _refused(["run", "--data", "circle", "--out", "file/x"], capsys)[0]


def test_the_help_of_every_command_is_the_one_it_gives_itself() -> None:
    """The summaries stand in `main`, so that listing the commands imports none of them."""
    for name, summary in COMMANDS.items():
        actions = make_parser([name])._subparsers._group_actions  # type: ignore[union-attr]
        said = {pseudo.dest: pseudo.help for action in actions for pseudo in action._choices_actions}  # type: ignore[attr-defined]
        assert said[name] == summary
