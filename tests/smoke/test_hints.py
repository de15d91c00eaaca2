"""Mistakes of users, on the command line and in Python: the message names each, and the hint says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fedlog
from fedlog.cli.main import main
from fedlog.files.flag_rewriting import rewrite_flags_as_arguments

Federation = fedlog.Federation
ROWS = np.random.default_rng(0).normal(size=(40, 3))
LABELS = np.arange(40) % 2


def table(rows: int, columns: int = 3, classes: int = 2) -> pl.DataFrame:
    labels = np.arange(rows) % classes
    values = np.random.default_rng(columns).normal(size=(rows, columns)) + labels[:, None]
    named = {f"x{at}": values[:, at] for at in range(columns)}
    return pl.DataFrame({**named, "outcome": [f"c{label}" for label in labels]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good sites, and with several kinds of bad ones."""
    folder = tmp_path_factory.mktemp("mistakes")
    sites: dict[str, dict[str, pl.DataFrame]] = {
        "good": {"north": table(40), "south": table(40)},
        "differ": {"north": table(40), "south": table(40, columns=4)},
        "tiny": {"north": table(40), "south": table(2)},
        "one-class": {"north": table(40, classes=1), "south": table(40, classes=1)},
        "no-rows": {"north": table(40), "south": table(40).head(0)},
        "with-notes": {"north": table(40)},
        "mixed": {"north": table(40)},
    }
    for name, tables in sites.items():
        (folder / name).mkdir()
        for site, rows in tables.items():
            rows.write_csv(folder / name / f"{site}.csv")
    (folder / "with-notes" / "notes.txt").write_text("x")
    np.savez(folder / "mixed" / "south.npz", inputs=ROWS, labels=LABELS)
    (folder / "empty-file").mkdir()
    (folder / "empty-file" / "north.csv").write_text("")
    table(60).with_columns(pl.Series("hospital", ["a", "b"] * 30)).write_csv(folder / "all.csv")
    (folder / "encoder.onnx").write_bytes(b"")
    (folder / "bad.toml").write_text("rounds = \n")
    (folder / "typo.toml").write_text("ruonds = 3\n")
    return folder


# What is typed, and what the hint must say.
COMMANDS = [
    ("run --data sites:nowhere --label outcome", "no such file or folder"),
    ("run --data sites:goood --label outcome", "did you mean good?"),
    ("run --data sites:good --label outcom", "did you mean outcome?"),
    ("run --data sites:good --label x0", "is it the right label column?"),
    ("run --data sites:no-rows --label outcome", "fill the file, or leave the site out"),
    ("run --data sites:empty-file --label outcome", "fill the file, or leave the site out"),
    ("run --data sites:differ --label outcome", "fedlog federate schema FILE"),
    ("run --data sites:mixed --label outcome", "only tables, only .npz files, or only folders of images"),
    ("run --data sites:tiny --label outcome", "at least 3 rows of some class"),
    ("run --data sites:one-class --label outcome", "is it the right label column?"),
    ("run --data sites:with-notes --label outcome", "move it elsewhere, or convert it"),
    ("run --data sites:all.csv --label outcome", "--site-column COLUMN"),
    ("run --data sites:all.csv --label outcome --site-column hospitel", "did you mean hospital?"),
    ("run --data sites:good --label outcome --site-column hospital", "leave out --site-column"),
    ("run --data sites:good --label outcome --clients 3", "leave out --clients"),
    ("run --data sites:good --label outcome --schema nowhere.toml", "drafts one"),
    ("run --data sites:good --label outcome --schema typo.toml", "drafts one"),
    ("run --data digtis", "did you mean digits?"),
    ("run --data nowhere:function", "PYTHONPATH"),
    ("run --data mnist --data-dir good", "fedlog data fetch mnist"),
    ("run --label outcome", "leave out --label"),
    ("run --method fedlogg", "did you mean fedlog?"),
    ("run --body mpl:64", "did you mean mlp:64?"),
    ("run --body mlp:a", "mlp:64,64"),
    ("run --body north=mlp:8", "--body CLIENT=NAME for each of client-0"),
    ("run --codec f33", "one of f32"),
    ("run --rounds x", "--rounds takes a whole number"),
    ("run --participation x", "--participation takes a number"),
    ("run --set epohcs=3", "did you mean epochs?"),
    ("run --set epochs=0", "--set epochs=1"),
    ("run --set learning_rate=-1", "--set learning_rate=0.001"),
    ("run --partition dirichlet --classes-per-client 2", "leave out --classes-per-client"),
    ("run --dirichlet-alpha 0.5", "--partition dirichlet"),
    ("run --clients 0", "--clients 10"),
    ("run --clients 100000", "fewer clients"),
    ("run --roudns 3", "did you mean --rounds?"),
    ("run --out good", "choose another --out"),
    ("run nowhere.toml", "is the path right?"),
    ("run bad.toml", "texts in quotes"),
    ("run typo.toml", "did you mean rounds?"),
    ("run --resume nowhere", "give a folder that `fedlog run` has written"),
    ("run --seeds x", "--seeds 5"),
    ("run --seeds 0,0", "--seeds 5"),
    ("run --privacy record", "--epsilon 1 --delta 1e-5"),
    ("run --epsilon 1", "--privacy record"),
    ("run --body-file nowhere.safetensors", "no such file or folder"),
    ("run --data sites:good --label outcome --method fed-lda --body onnx:encodr.onnx", "did you mean encoder.onnx?"),
    ("run --judge validation", "--validation-fraction 0.2"),
    ("run --validation-fraction 1.5", "--validation-fraction 0.2"),
    ("compare --data sites:goood --label outcome", "did you mean good?"),
    ("compare --data sites:good,good/nowhere.csv --label outcome", "did you mean north.csv?"),
    ("compare --data sites:good --label outcome --methods fedlog,fedagv", "did you mean fedavg?"),
    ("compare --data sites:good --label outcome --codecs f32,f33", "one of f32"),
    ("compare --data sites:good --label outcome --bodies mlp:4 mpl:4", "did you mean mlp:4?"),
    ("compare --data sites:good --label outcome --body west=mlp:4", "for each of north, south"),
    ("compare --data sites:good --label outcome --recipe long", "long:rounds=30"),
    ("compare --data sites:good --label outcome --recipe long:ruonds=3", "did you mean rounds?"),
    ("compare --data sites:good --label outcome --seeds 1,1", "--seeds 5"),
    ("compare --data sites:good --label outcome --executor spark", "dask://host:port"),
    ("compare --data sites:good --label outcome --jobs 0", "--jobs 1"),
    ("compare --data sites:good --label outcome --worth -5", "--worth 1"),
    ("compare --method fedlog", "did you mean --methods?"),
    ("report nowhere", ""),
    ("report good", ""),
    ("predict nowhere --data good/north.csv", "RUN/models/CLIENT"),
    ("data fetch mnits", "did you mean mnist?"),
    ("reproduce table-mnits", "did you mean table-mnist?"),
    ("reproduce table-mnist --methods fedlogg", "did you mean fedlog?"),
    ("reproduce table-mnist --seeds x", ""),
    ("compair", "did you mean compare?"),
]


@pytest.mark.parametrize(("typed", "expected"), COMMANDS, ids=[typed for typed, _ in COMMANDS])
def test_a_mistyped_command_is_told_what_to_do(
    typed: str, expected: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    try:
        code = main(typed.split())
    except SystemExit as ended:
        code = int(str(ended.code))
    said = capsys.readouterr().err
    assert code == 2, said
    error, hint = re.match(r"error: (.*)\nhint: (.*)", said, re.DOTALL).groups()  # type: ignore[union-attr]
    assert expected in hint, f"{error}\nhint: {hint}"
    assert "--help" not in hint, f"the hint says nothing of this mistake: {error}"


FRAME = pl.DataFrame({"a": ROWS[:, 0]})
CALLS: dict[str, tuple[Callable[[Federation], Any], str]] = {
    "a list of sites": (lambda _: Federation.from_arrays([(ROWS, LABELS)]), '{"north": (X, y)'),  # type: ignore[arg-type]
    "no sites": (lambda _: Federation.from_arrays({}), '{"north": (X, y)'),
    "no labels": (lambda _: Federation.from_arrays({"n": ROWS}), "(X, y)"),  # type: ignore[dict-item]
    "too few labels": (lambda _: Federation.from_arrays({"n": (ROWS, LABELS[:9])}), "one label for each row"),
    "labels that are no classes": (lambda _: Federation.from_arrays({"n": (ROWS, LABELS + 0.5)}), "y.astype(int)"),
    "texts in an array": (lambda _: Federation.from_arrays({"n": (ROWS.astype(str), LABELS)}), "data frame"),
    "one column as a vector": (lambda _: Federation.from_arrays({"n": (ROWS[:, 0], LABELS)}), "X[:, None]"),
    "other columns": (lambda _: Federation.from_arrays({"n": (ROWS, LABELS), "s": (ROWS[:, :2], LABELS)}), "columns"),
    "an empty client": (lambda _: Federation.from_arrays({"n": (ROWS, LABELS), "s": (ROWS[:0], LABELS[:0])}), "leave"),
    "two rows": (lambda _: Federation.from_arrays({"n": (ROWS, LABELS), "s": (ROWS[:2], LABELS[:2])}), "at least 3"),
    "infinity": (lambda _: Federation.from_arrays({"n": (ROWS / 0.0, LABELS)}), "a missing value may be left empty"),
    "shares above 1": (lambda _: Federation.from_arrays({"n": (ROWS, LABELS)}, test=1.5), "0.2"),
    "tests of another site": (
        lambda _: Federation.from_arrays({"n": (ROWS, LABELS)}, test={"m": (ROWS, LABELS)}),
        "same sites as in train",
    ),
    "frames and arrays": (lambda _: Federation.from_arrays({"n": (ROWS, LABELS), "s": (FRAME, LABELS)}), "data frames"),
    "a negative split": (
        lambda _: Federation.from_arrays({"n": (ROWS, LABELS)}, split_seed=-1),
        "a deployment uses 0",
    ),
    "a missing folder": (lambda _: Federation.from_csv("nowhere"), "no such file or folder"),
    "a mistyped label": (lambda _: Federation.from_csv("good", label="outcom"), "did you mean outcome?"),
    "one table": (lambda _: Federation.from_csv("all.csv", label="outcome"), 'site_column="COLUMN"'),
    "a site column too many": (
        lambda _: Federation.from_csv("good", "outcome", site_column="x"),
        "leave out site_column",
    ),
    "an unknown data set": (lambda _: Federation.named("digtis"), "did you mean digits?"),
    "no clients": (lambda _: Federation.named("digits", clients=0), "clients=10"),
    "a label of digits": (lambda _: Federation.named("digits", label="x"), "leave out label"),
    "arrays in place of a federation": (lambda _: fedlog.run({"n": (ROWS, LABELS)}), "Federation.from_arrays"),  # type: ignore[arg-type]
    "an unknown method": (lambda f: fedlog.run(f, "fedlogg"), "did you mean fedlog?"),
    "an unknown setting": (lambda f: fedlog.run(f, ruonds=3), "did you mean rounds?"),
    "a setting of other data": (lambda f: fedlog.run(f, clients=3), "leave out clients"),
    "an unknown body": (lambda f: fedlog.run(f, body="mpl:3"), "did you mean mlp:3?"),
    "a body that is none": (lambda f: fedlog.run(f, body=3), 'body="mlp:64,64"'),  # type: ignore[arg-type]
    "a body of nobody": (lambda f: fedlog.run(f, body={"west": "mlp:4"}), 'body={"CLIENT": "NAME"}'),
    "a body of another shape": (lambda f: fedlog.run(f, body=torch.nn.Linear(5, 3)), 'body="mlp:64,64"'),
    "an unknown codec": (lambda f: fedlog.run(f, codec="f33"), "one of f32"),
    "no epochs": (lambda f: fedlog.run(f, epochs=0), "epochs=1"),
    "no budget": (lambda f: fedlog.run(f, privacy="client"), "epsilon=1, delta=1e-5"),
    "a budget without privacy": (lambda f: fedlog.run(f, epsilon=1.0), 'privacy="record", or privacy="client"'),
    "a full folder": (lambda f: fedlog.run(f, out="good"), "choose another out"),
    "a function as a callback": (lambda f: fedlog.run(f, callbacks=[print]), "derives from fedlog.Callback"),  # type: ignore[list-item]
    "separate starts": (lambda f: fedlog.run(f, "fedavg", initialisation="separate"), "these methods accept it"),
    "no seeds": (lambda f: fedlog.compare(f, seeds=0), "seeds=5"),
    "unknown codecs": (lambda f: fedlog.compare(f, codecs=["f32", "f33"]), "one of f32"),
    "an unknown recipe's setting": (lambda f: fedlog.compare(f, recipes={"long": {"ruonds": 3}}), "rounds?"),
    "points for a share": (lambda f: fedlog.compare(f, worth=1), "worth=0.01"),
    "callbacks with processes": (
        lambda _: fedlog.compare("digits", seeds=1, rounds=1, callbacks=[fedlog.Callback()], jobs=2),
        "use jobs=1",
    ),
    "a folder without a run": (lambda _: fedlog.load("good"), "fedlog.run(out=...)"),
}


@pytest.mark.parametrize("mistake", CALLS)
def test_a_mistaken_call_is_told_what_to_do_in_python(
    mistake: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    call, expected = CALLS[mistake]
    federation = Federation.from_arrays({"north": (ROWS, LABELS), "south": (ROWS, LABELS)})
    with np.errstate(divide="ignore"), pytest.raises(fedlog.FedlogError) as raised:
        call(federation)
    assert raised.value.hint is not None, str(raised.value)
    assert expected in raised.value.hint
    flags = re.findall(r"--[a-z]", re.sub(r"`[^`]*`", "", str(raised.value)))
    assert not flags, f"flags in Python: {raised.value}"


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ("--epsilon 1 --delta 1e-5", "epsilon=1, delta=1e-5"),
        ("--validation-fraction 0.2 holds some out", "validation_fraction=0.2 holds some out"),
        ("leave out --clients, or --partition dirichlet", 'leave out clients, or partition="dirichlet"'),
        ("use at most 15 clients, or --partition person", 'use at most 15 clients, or partition="person"'),
        ("for FedLog, --set first_head=random", "for FedLog, first_head=random"),
        ("--body CLIENT=NAME for each of a, b", 'body={"CLIENT": "NAME"} for each of a, b'),
        ("go on with `fedlog run --resume runs/a`", "go on with `fedlog run --resume runs/a`"),
        ("fedlog run --resume runs/a", "fedlog run --resume runs/a"),
        ("--privacy record needs a budget", 'privacy="record" needs a budget'),
        ("--resume takes the settings", "resume takes the settings"),
    ],
)
def test_flags_become_arguments(flags: str, arguments: str) -> None:
    assert rewrite_flags_as_arguments(flags) == arguments
