"""Own data in the simulator: arrays, data frames, files and functions, encoded as at a site of a deployment."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine

from fedlog.core.keys import Key
from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation
from fedlog.data.schema import dump_schema
from fedlog.data.schema_draft import SCHEMA_FROM_ROWS, DraftOptions, draft_schema
from fedlog.data.site import load_site, make_split_key
from fedlog.errors import InputError

SITES = ("east", "north", "south")
Pairs = dict[str, tuple[Any, Any]]


def wine() -> Pairs:
    """Scikit-learn's wine table, dealt out to three sites row by row."""
    X, y = load_wine(return_X_y=True)
    return {name: (X[at::3], y[at::3]) for at, name in enumerate(SITES)}


def frame_of(X: Any, y: Any) -> pl.DataFrame:
    """A table with its labels, as `from_arrays` calls the columns of an array."""
    return pl.DataFrame({**{f"x{at}": X[:, at] for at in range(X.shape[1])}, "label": y})


def write_sites(folder: Path, pairs: Pairs, suffix: str = "csv") -> Path:
    """One table a site in this folder."""
    folder.mkdir(exist_ok=True)
    for name, (X, y) in pairs.items():
        frame = frame_of(X, y)
        frame.write_csv(folder / f"{name}.csv") if suffix == "csv" else frame.write_parquet(folder / f"{name}.parquet")
    return folder


FORMS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "tensors": lambda X, y: (torch.tensor(X), torch.tensor(y)),
    "pandas": lambda X, y: (pd.DataFrame(frame_of(X, y).drop("label").to_dict(as_series=False)), pd.Series(y)),
    "polars": lambda X, y: (frame_of(X, y).drop("label"), pl.Series(y)),
    "lists": lambda X, y: (X.tolist(), y.tolist()),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_records_in_any_form_are_the_same_federation(form: str) -> None:
    expected = Federation.from_arrays(wine())
    found = Federation.from_arrays({name: FORMS[form](*pair) for name, pair in wine().items()})
    assert found.content_digest() == expected.content_digest()
    assert found.labels == (0, 1, 2)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_are_read_as_arrays_are(tmp_path: Path, suffix: str) -> None:
    expected = Federation.from_arrays(wine())
    folder = write_sites(tmp_path / "sites", wine(), suffix)
    found = Federation.from_csv(folder, label="label")
    assert found.content_digest() == expected.content_digest()
    assert found.clients == SITES
    listed = Federation.from_csv(sorted(folder.iterdir(), reverse=True))  # the label is named as labels are
    assert found.notes == ()
    assert listed.notes == ("The label column was guessed: label.",)
    assert listed.content_digest() == expected.content_digest()
    assert load_federation(DataSpec(f"sites:{folder}")).content_digest() == expected.content_digest()


def test_a_simulated_site_holds_the_rows_that_a_deployed_one_holds(tmp_path: Path) -> None:
    folder = write_sites(tmp_path / "sites", wine())
    joined = Federation.from_csv(folder, label="label")
    assert joined.schema is not None
    for at, name in enumerate(SITES):
        alone = load_site(str(folder / f"{name}.csv"), joined.schema, name, make_split_key(name)).federation
        shard, own = joined.shards[at], alone.shards[0]
        assert torch.equal(joined.train.inputs[shard.train], alone.train.inputs[own.train])
        assert torch.equal(joined.train.labels[shard.validation], alone.train.labels[own.validation])
        assert torch.equal(joined.test.inputs[shard.test], alone.test.inputs[own.test])


def test_one_changed_number_changes_the_digest() -> None:
    pairs = wine()
    before = Federation.from_arrays(pairs).content_digest()
    pairs["north"][0][5, 3] += 1e-3
    assert Federation.from_arrays(pairs).content_digest() != before


def test_given_test_rows_are_judged_on_and_train_no_scaling() -> None:
    pairs = wine()
    tests = {name: (X[:5] + 1000, y[:5]) for name, (X, y) in pairs.items()}
    own = Federation.from_arrays(pairs, tests)
    assert [(len(s.train), len(s.validation), len(s.test)) for s in own.shards] == [(60, 0, 5), (59, 0, 5), (59, 0, 5)]
    east = own.train.inputs[own.shards[0].train][:, 0::2]
    assert float(east.mean(0).abs().max()) < 1e-5
    assert float(own.test.inputs[own.shards[0].test][:, 0::2].mean()) > 100
    common = Federation.from_arrays(pairs, (pairs["north"][0][:7], pairs["north"][1][:7]), validation=0.25)
    assert [len(shard.test) for shard in common.shards] == [7, 7, 7]
    assert [len(shard.validation) for shard in common.shards] == [14, 14, 14]
    share = Federation.from_arrays(pairs, 0.5, validation=0.1)
    assert [len(shard.test) for shard in share.shards] == [30, 30, 30]


def test_texts_gaps_groups_and_names_of_classes() -> None:
    generator = Key(1).numpy()
    sites = {}
    for name in ("a", "b"):
        frame = pd.DataFrame(
            {
                "age": [None if at == 3 else float(at % 17) + generator.random() for at in range(40)],
                "blood": pd.Categorical([("A", "B", "0")[at % 3] for at in range(40)]),
                "note": [f"{name} {at}" for at in range(40)],
            }
        )
        people = np.arange(40) // 4
        sites[name] = (frame, ["ill" if at % 3 else "well" for at in range(40)], people)
    federation = Federation.from_arrays(sites)
    assert federation.input_shape == (2 + 3 + 2,)
    assert federation.class_names == ("ill", "well")
    assert federation.labels == ()
    assert federation.notes == ("Left out: note (80 different texts: an identifier or free text).",)
    assert "note" in repr(federation)
    assert {len(shard.test) % 4 for shard in federation.shards} == {0}  # whole people
    numbers = {name: (X, y, groups) for name, (X, y, groups) in sites.items()}
    named = Federation.from_arrays(
        {name: (X, np.arange(40) % 3, groups) for name, (X, _, groups) in numbers.items()},
        class_names=("one", "two", "three", "four"),
    )
    assert (named.n_class, named.labels) == (4, (0, 1, 2, 3))


def test_row_numbers_of_each_site_and_texts_among_numbers_are_left_out(tmp_path: Path) -> None:
    folder, frames = tmp_path / "sites", {}
    folder.mkdir()
    for name, (X, y) in wine().items():
        numbers = np.arange(len(y))  # from 0 at every site, as pandas writes its index
        mass = pl.Series("mass", [f"{value:.3f}" for value in X[:, 0] + numbers]).scatter(7, "1,000.5")
        frame = frame_of(X, y).insert_column(0, pl.Series("", numbers)).insert_column(1, pl.Series("row_id", numbers))
        frames[name] = frame.with_columns(mass)
        frames[name].write_csv(folder / f"{name}.csv")
    notes = (
        "Left out:  (looks like an identifier).",
        "Left out: row_id (looks like an identifier).",
        "Left out: mass (a column of numbers, but 3 of its 178 values are not numbers).",
    )
    found = Federation.from_csv(folder, label="label")
    assert found.notes == notes
    assert found.content_digest() == Federation.from_arrays(wine()).content_digest()
    tables = {name: (frame.drop("label"), frame["label"]) for name, frame in frames.items()}
    assert Federation.from_arrays(tables).notes == notes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x;y;label\n1;2;a\n", "separated by commas, found semicolons in the header of .*east.csv"),
        ("x;y;label\n1,5;2,5;a\n", "separated by commas, found semicolons in the header of .*east.csv"),
        ("größe,y,label\n1,2,a\n".encode("latin-1"), "east.csv is not UTF-8 text: .* save it as CSV in UTF-8"),
        ("x,y,label\n1,2,ä\n".encode("latin-1"), "east.csv.* save it as CSV in UTF-8"),
        ("x,y,label\r1,2,a\r1,3,b\r", "carriage returns alone: .*east.csv.* line ends of Unix or Windows"),
        ("x,label,label\n1,a,a\n", "found more than once in .*east.csv: label"),
        ("x,y,label\n1,2,a\n1,2,a,4\n", "expected 3 fields in every row of .*east.csv.*: row 2 has 4 fields"),
    ],
)
def test_a_text_file_that_is_no_proper_table_is_refused(text: str | bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "east.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as error:
        Federation.from_csv([tmp_path / "east.csv"], label="label")
    assert re.search(said, f"{error.value.message} {error.value.hint}")


def test_images_are_scaled_by_each_site(tmp_path: Path) -> None:
    generator = Key(2).numpy()
    folder, arrays = tmp_path / "pictures", {}
    for name, brightness in (("dark", 60), ("light", 250)):
        pixels = generator.integers(0, brightness, (30, 6, 5)).astype(np.uint8)
        for at, image in enumerate(pixels):
            path = folder / name / ("cat" if at < 15 else "dog") / f"{at:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        arrays[name] = (pixels[:, None], ["cat"] * 15 + ["dog"] * 15)
    found = Federation.from_csv(folder)
    assert (found.input_shape, found.class_names) == ((1, 6, 5), ("cat", "dog"))
    assert found.content_digest() == Federation.from_arrays(arrays).content_digest()
    for shard in found.shards:
        assert abs(float(found.train.inputs[shard.train].mean())) < 1e-5
    assert found.encodings[0].transform.mean < found.encodings[1].transform.mean
    for name, (pixels, labels) in arrays.items():
        np.savez(tmp_path / f"{name}.npz", inputs=pixels, labels=np.array(labels))
    stored = Federation.from_csv(sorted(tmp_path.glob("*.npz")))
    assert stored.content_digest() == found.content_digest()


def test_a_schema_beside_the_files_is_used(tmp_path: Path) -> None:
    folder = write_sites(tmp_path / "sites", wine())
    drafted = Federation.from_csv(folder).schema
    assert drafted is not None
    (folder / "schema.toml").write_text(dump_schema(replace(drafted, features=drafted.features[:2])))
    assert Federation.from_csv(folder).input_shape == (4,)
    assert Federation.from_csv(folder, schema=drafted).input_shape == (26,)
    with pytest.raises(InputError, match="the label column in the schema is label, but label is: x1"):
        Federation.from_csv(folder, label="x1")


def test_record_privacy_prepares_each_row_alone(tmp_path: Path) -> None:
    folder = write_sites(tmp_path / "sites", wine())
    federation = load_federation(DataSpec(f"sites:{folder}", rows_alone=True))
    first = [row[0] for row in wine()["east"][0]]
    kept = federation.train.inputs[federation.shards[0].train][:, 0]
    assert set(kept.tolist()) < {float(np.float32(value)) for value in first}  # in their own units
    assert federation.rows_alone
    for same in (Federation.from_csv(folder, rows_alone=True), Federation.from_arrays(wine(), rows_alone=True)):
        assert same.content_digest() == federation.content_digest()
        # What was taken from all rows beside the statistics is named.
        assert same.notes[-1] == SCHEMA_FROM_ROWS
    drafted = federation.schema
    assert drafted is not None
    assert Federation.from_csv(folder, schema=drafted, rows_alone=True).notes == ()
    assert Federation.from_arrays(wine(), class_names=federation.class_names, rows_alone=True).notes == ()
    with pytest.raises(
        InputError, match="rows_alone chooses the test rows by a hash of each row, but test records were given"
    ):
        Federation.from_arrays(wine(), wine(), rows_alone=True)


def _spoil(folder: Path, how: str) -> None:
    if how == "another kind":
        (folder / "west.xlsx").write_text("")
    elif how == "twice":
        frame_of(*wine()["east"]).write_parquet(folder / "east.parquet")
    elif how == "columns":
        frame_of(*wine()["east"]).drop("x3").write_csv(folder / "west.csv")
    elif how == "mixed":
        np.savez(folder / "west.npz", inputs=np.zeros((3, 2)), labels=np.arange(3))
    else:
        for path in folder.iterdir():
            path.unlink()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("another kind", "found: west.xlsx"),
        ("twice", "found two for east: .*east.csv and .*east.parquet"),
        ("columns", "not in both east.csv and west.csv: x3"),
        ("mixed", "files of one kind"),
        ("none", "found none"),
    ],
)
def test_a_file_that_is_no_sites_is_never_passed_over(tmp_path: Path, how: str, said: str) -> None:
    folder = write_sites(tmp_path / "sites", wine())
    _spoil(folder, how)
    with pytest.raises(InputError, match=said):
        Federation.from_csv(folder)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "expected a dict with the records of each site by name, found: list"),
        ({"a": np.zeros((3, 2))}, r"site a: expected \(X, y\)"),
        ({"a": (np.zeros((3, 2)), [0, 1])}, "a label for each of 3 records"),
        ({"a": (np.zeros(3), [0, 1, 0])}, "an array of numbers with one record a row"),
        ({"a": (np.full((3, 2), "x"), [0, 1, 0])}, "a pandas or polars data frame for texts"),
        ({"a": (np.zeros((3, 2)), [0.5, 1, 0])}, "all whole numbers or all texts, found: float64"),
        ({"a": (np.zeros((3, 2)), [0, 1, 0]), "b": (np.zeros((3, 4)), [0, 1, 0])}, "records of one shape"),
        ({"a": (np.full((9, 2), np.inf), [0, 1, 0] * 3)}, "a finite number in column x0, row 1 of site a"),
        ({"a": (np.zeros((3, 2)), [0, 0, 0])}, "at least 2 label values"),
        ({}, "expected a dict with the records of each site by name, found: an empty one"),
        ({"a": (np.zeros((4, 2)), ["x", "y", None, "x"])}, "site a: expected a label for each .* none in row 3"),
        ({"a": (np.zeros((4, 2)), ["x", np.nan, "y", "x"])}, "site a: expected a label for each .* none in row 2"),
        ({"a": (np.zeros((3, 2)), pd.Series(["x", pd.NA, "y"], dtype="string"))}, "a label for each .* none in row 2"),
        ({"a": (np.zeros((3, 2)), pd.Series(["x", None, "y"], dtype="category"))}, "a label for each .* none in row 2"),
        ({"a": (np.zeros((3, 2)), pd.Series([1, None, 2], dtype="Int64"))}, "a label for each .* none in row 2"),
        ({"a": (np.zeros((3, 2)), ["x", 1, "y"])}, "labels that are all whole numbers or all texts, found both"),
        ({"a": (np.zeros((3, 2)), pd.DataFrame({"y": ["p", "q", "p"]}))}, r"a label for each .* found: \(3, 1\)"),
        ({"a": (np.zeros((3, 2)), [0, 1, 0], [1.0, np.nan, 2.0])}, "site a: expected a group .* none in row 2"),
        ({"a": (pd.DataFrame(np.zeros((3, 2)), columns=["p", "p"]), [0, 1, 0])}, "site a: .* more than once: p"),
    ],
)
def test_arrays_that_do_not_fit_are_named(given: Any, said: str) -> None:
    with pytest.raises(InputError) as error:
        Federation.from_arrays(given)
    assert re.search(said, f"{error.value.message} {error.value.hint}")


def test_labels_outside_the_named_classes_are_refused() -> None:
    pairs = {"a": (np.zeros((6, 2)), [0, 1, 2, 0, 1, 7])}
    with pytest.raises(InputError, match="site a: expected labels from 0 to 2, found in row 6: 7"):
        Federation.from_arrays(pairs, class_names=("x", "y", "z"))
    with pytest.raises(InputError, match="expected test records of the sites a, found those of: b"):
        Federation.from_arrays(pairs, {"b": pairs["a"]})


def test_settings_that_a_function_does_not_look_at_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own_functions")

    def fixed(spec: DataSpec) -> Federation:
        return Federation.from_arrays(wine(), wine())

    def divided(spec: DataSpec) -> Federation:
        pairs = dict(list(wine().items())[: spec.clients])
        return Federation.from_arrays(pairs, pairs)

    module.fixed, module.divided, module.split = fixed, divided, lambda spec: Federation.from_arrays(wine())
    monkeypatch.setitem(sys.modules, "own_functions", module)
    assert len(load_federation(DataSpec("own_functions:divided", clients=2)).shards) == 2
    assert len(load_federation(DataSpec("own_functions:fixed", validation_fraction=0.2)).shards[0].validation) > 0
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("fixed", {"clients": 2}, "does not use clients: its function does not read them"),
        ("divided", {"clients": 2, "partition": "iid", "dirichlet_alpha": 1.0}, "use partition, dirichlet_alpha"),
        ("split", {"validation_fraction": 0.1}, "it already has validation records"),
    ]
    for name, settings, said in refused:
        with pytest.raises(InputError, match=said):
            load_federation(DataSpec(f"own_functions:{name}", **settings))


@pytest.mark.parametrize("settings", [{"clients": 3}, {"validation_fraction": 0.1}, {"train_records": 10}])
def test_sites_come_divided(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = write_sites(tmp_path / "sites", wine())
    with pytest.raises(InputError, match=f"does not use {next(iter(settings))}: the files are the sites"):
        load_federation(DataSpec(f"sites:{folder}", **settings))
    with pytest.raises(InputError, match="does not use label: they are for sites:FOLDER"):
        load_federation(DataSpec("digits", label="y"))


def test_a_named_data_set_is_a_federation() -> None:
    assert Federation.named("digits", clients=5).clients == tuple(f"client-{at}" for at in range(5))
    with pytest.raises(InputError, match="data set digits: unknown settings: size"):
        Federation.named("digits", size=5)


def test_images_of_numbers_are_named_where_rows_are_prepared_alone_and_their_range_reaches_encoders(
    tmp_path: Path,
) -> None:
    for name in ("east", "west"):
        inputs = Key(4).child(name).numpy().random((40, 1, 3, 3))
        np.savez(tmp_path / f"{name}.npz", inputs=inputs, labels=np.arange(40) % 2)
    assert Federation.from_csv(tmp_path).notes == ()
    drafted, *notes = Federation.from_csv(tmp_path, rows_alone=True).notes
    assert drafted == SCHEMA_FROM_ROWS
    assert [note.split(": ")[0] for note in notes] == ["site east", "site west"]
    assert all("are not whole numbers from 0 to 255" in note for note in notes)
    draft = draft_schema(tmp_path / "east.npz", DraftOptions())
    assert "range = [0.0, 1.0]" in draft
    agreed = draft.replace("shape = [1, 3, 3]", "shape = [1, 3, 3]\nrange = [0.0, 1.0]")
    (tmp_path / "schema.toml").write_text(agreed)
    for alone in (False, True):
        federation = Federation.from_csv(tmp_path, rows_alone=alone)
        assert federation.notes == ()
        assert federation.train.inputs.min() < -0.9
        assert federation.raw_images is not None
        raw = federation.raw_images[0]
        assert raw.min() >= 0
        assert torch.allclose(2 * raw - 1, federation.train.inputs, atol=1e-6)
