"""The messages of commands that fail while they run."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import fedlog.report.pages.run_page
from fedlog.api.progress import Progress
from fedlog.cli.main import list_options, main, make_parser
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run.callbacks import RunStart
from fedlog.experiments.run.prepare import make_simulation
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec
from fedlog.wire.message import Kind, Message

SHORT = ["run", "--data", "circle", "--rounds", "2", "--set", "epochs=1", "--jobs", "1", "--out", "r"]
RUNAWAY = [*SHORT, "--method", "fedlog-c", "--set", "margin=none", "--set", "alpha=0.01", "--set", "beta=0.009"]
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _one_client_sends_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Cohort.make_encoded_uploads

    def poisoned(self: Cohort, *told: Any) -> list[tuple[int, bytes | None]]:
        nonsense = self._transport.upload_codec.encode(Message(Kind.STATISTICS, (torch.full((2, 3), torch.nan),)))
        return [(index, nonsense if index == 0 else sent) for index, sent in working(self, *told)]

    monkeypatch.setattr(Cohort, "make_encoded_uploads", poisoned)


@pytest.mark.usefixtures("_one_client_sends_nonsense")
@pytest.mark.parametrize("method", ["fedlog", "fedlog-c"])
def test_statistics_that_are_no_numbers_stop_a_run(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--method", method]) == 1
    said = capsys.readouterr().err
    assert "1 of 2 uploads cannot be used: client-0: " in said
    assert re.search(r"entry .* is not finite", said)
    assert "--refused-share" in said


@pytest.mark.usefixtures("_one_client_sends_nonsense")
def test_a_run_that_may_do_without_a_client_says_so_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--refused-share", "0.5", "--json", "--quiet"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["uploads_refused"] == 2
    assert "warning: round 1 goes on without client-0: " in told.err
    assert "warning: round 2 goes on without client-0: " in told.err
    assert "Uploads that could not be used" in Path("r/report.html").read_text()


def test_a_growing_spread_is_announced_and_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUNAWAY, "--quiet"]) == 0
    assert capsys.readouterr().err == (
        "  warning: above 100 the class means can grow without bound; lower beta, or set a margin\n"
    )
    lines = [json.loads(line) for line in Path("r/records.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert all(line["observed"]["spread_of_means"] > 0 for line in lines)
    assert main([*RUNAWAY, "--out", "loud"]) == 0
    assert "growth factor g = 19 a round, g^2 = 361" in capsys.readouterr().err


def test_a_dry_run_warns_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUNAWAY, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "growth factor g = 19 a round, g^2 = 361" in told
    assert "warning: above 100 the class means can grow without bound" in told


def test_a_finished_run_says_that_nothing_was_trained(capsys: pytest.CaptureFixture[str]) -> None:
    for expected in (False, True):
        assert main(SHORT) == 0
        assert ("r was finished before: nothing was trained" in capsys.readouterr().err) is expected


@pytest.mark.parametrize("left", [1, None])
def test_a_finished_run_that_lost_records_is_run_again(left: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--quiet", "--json"]) == 0
    first, path = json.loads(capsys.readouterr().out), Path("r/records.jsonl")
    if left is None:
        path.unlink()
    else:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:left]))
    assert main([*SHORT, "--json"]) == 0
    told = capsys.readouterr()
    assert "nothing was trained" not in told.err
    assert len(path.read_text().splitlines()) == 2
    again = json.loads(told.out)
    assert {**again, "seconds": 0} == {**first, "seconds": 0}


def test_a_client_without_records_to_be_judged_on_has_no_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    few = [
        *SHORT,
        "--partition",
        "dirichlet",
        "--clients",
        "8",
        "--judge",
        "validation",
        "--validation-fraction",
        "0.1",
    ]
    assert main([*few, "--quiet", "--json"]) == 0
    shares = json.loads(capsys.readouterr().out)["accuracy_per_client"]
    judged = json.loads(Path("r/records.jsonl").read_text().splitlines()[-1])["records_per_client"]
    assert [share is None for share in shares] == [records == 0 for records in judged]
    assert 0 in judged
    assert main(few) == 0
    assert "lowest client" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SHORT) == 0
    Path("r/report.html").unlink()
    Path("r/report.html").mkdir()
    capsys.readouterr()
    assert main(["report", "r"]) == 1
    message, hint = capsys.readouterr().err.splitlines()
    assert message.startswith("error: r/report.html")
    assert message.endswith("Is a directory")
    assert hint.startswith("hint: ")


def test_an_interrupted_report_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(folder: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(fedlog.report.pages.run_page, "write_run_page", interrupted)
    assert main([*SHORT, "--quiet"]) == 130
    assert capsys.readouterr().err == "interrupted\nhint: to continue this run: fedlog run --resume r\n"
    monkeypatch.undo()


def test_a_terminal_shows_the_time_left_however_long_a_round_takes() -> None:
    run = resolve(RunSpec(data="circle", rounds=5, options={"epochs": 1}))
    screen = StringIO()
    with Progress(Console(file=screen, force_terminal=True, width=120)) as progress:
        progress.run_began(RunStart(run, make_simulation(run)))
        for number in (1, 2):
            progress.round_ended(RoundRecord(number, 0.5, [], [], 1, 8, 8, {}, {}, {}, 200.0))
    assert "about 10 min left" in screen.getvalue()


@pytest.mark.parametrize(
    ("typed", "said", "hint"),
    [
        ("fetch mnsit", "no data set of this name can be downloaded: mnsit", "did you mean mnist?"),
        ("fetch digits", "digits needs no download: installs with scikit-learn", "fedlog run --data digits"),
        ("check leaf", "leaf needs no download: your own, by --data-dir", "fedlog run --data leaf"),
    ],
)
def test_data_that_is_not_downloaded_says_why(
    typed: str, said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *typed.split()]) == 2
    assert capsys.readouterr().err == f"error: {said}\nhint: {hint}\n"


def test_every_option_of_run_is_documented() -> None:
    text = "".join(page.read_text() for page in DOCS.rglob("*.md") if "reproduction" not in str(page))
    run = next(iter(make_parser(["run"])._subparsers._group_actions)).choices["run"]  # type: ignore[union-attr]
    options = [option for option in list_options(run) if option not in ("--help", "--mechanism")]
    assert "--device" in options
    assert [option for option in options if f"{option}`" not in text and f"{option} " not in text] == []
