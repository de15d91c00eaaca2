"""Tables, images, .npz files and functions as a site's data, and the messages for those that are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image

from fedlog.core.keys import Key
from fedlog.data.schema import Feature, FeatureKind, Schema, parse_schema
from fedlog.data.schema_draft import DraftOptions, draft_schema
from fedlog.data.site import load_site
from fedlog.data.tables import TableEncoder, fit_encoder, read_feature_columns, read_table
from fedlog.errors import InputError

SCHEMA = Schema(
    "outcome",
    ("no", "yes"),
    (Feature("age", FeatureKind.NUMERIC), Feature("ward", FeatureKind.CATEGORICAL, ("icu", "surgery"))),
)
ROWS = ("age,ward,outcome", "40,icu,no", "60,surgery,yes", ",icu,no", "50,dialysis,yes", "70,,no")


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_row_becomes_value_gap_and_categories(tmp_path: Path) -> None:
    table, _ = read_table(write(tmp_path / "a.csv", *ROWS), SCHEMA)
    # Training rows 0 and 1: median 50, mean 50, standard deviation 10.
    encoder = fit_encoder(SCHEMA, table.columns, np.array([0, 1]))
    expected = [  # age, gap, icu, surgery, other, missing
        [-1, 0, 1, 0, 0, 0],
        [1, 0, 0, 1, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [2, 0, 0, 0, 0, 1],
    ]
    assert encoder.encode(table.columns).tolist() == expected
    assert table.labels.tolist() == [0, 1, 0, 1, 0]


def test_new_rows_pass_through_the_stored_statistics(tmp_path: Path) -> None:
    table, _ = read_table(write(tmp_path / "a.csv", *ROWS), SCHEMA)
    encoder = fit_encoder(SCHEMA, table.columns, np.array([0, 1]))
    restored = TableEncoder.from_json(encoder.to_json(), SCHEMA)
    new = read_feature_columns(write(tmp_path / "new.csv", "ward,age", "icu,80"), SCHEMA)
    assert restored.encode(new).tolist() == [[3, 0, 1, 0, 0, 0]]
    other = Schema("outcome", ("no", "maybe"), SCHEMA.features)
    with pytest.raises(InputError, match="the model was saved with another schema"):
        TableEncoder.from_json(encoder.to_json(), other)
    stored = json.loads(encoder.to_json())
    stored["std"].append(1.0)
    with pytest.raises(InputError, match="the stored scaling is for 2 numeric columns, but the schema has 1"):
        TableEncoder.from_json(json.dumps(stored), SCHEMA)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("age,outcome", "40,no"), "no column: ward"),
        (("age,ward,outcome",), "no rows"),
        ((), "empty file"),
        ((*ROWS, "30,icu,perhaps"), "column outcome, row 6 of"),
        ((*ROWS, "30,icu,"), "row 6 of"),
        ((*ROWS, "old,icu,no"), "column age, row 6 of"),
        ((*ROWS, "inf,icu,no"), "a finite number"),
        ((*ROWS, "1,2,3,4,5"), "row 6 has 5 fields"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_its_place(tmp_path: Path, lines: tuple[str, ...], says: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError) as error:
        read_table(path, SCHEMA)
    assert says in str(error.value)
    assert "bad.csv" in str(error.value)


def site_table(n: int = 60) -> pl.DataFrame:
    generator = Key(5).numpy()
    return pl.DataFrame(
        {
            "age": [None if i % 11 == 0 else float(v) for i, v in enumerate(generator.normal(50, 12, n))],
            "ward": [("icu", "surgery", "dialysis")[i % 3] for i in range(n)],
            "patient": [f"p{i // 4}" for i in range(n)],
            "day": [f"2024-01-{1 + i // 3:02d}" for i in range(n)],
            "outcome": [("no", "yes")[int(v)] for v in generator.random(n) < 0.4],
        }
    )


def test_statistics_come_from_training_rows_only(tmp_path: Path) -> None:
    frame = site_table()
    frame.write_csv(tmp_path / "a.csv")
    site = load_site(str(tmp_path / "a.csv"), SCHEMA, "a", Key(1))
    train = site.federation.train.inputs[site.shard.train]
    assert train[:, 0].mean().abs() < 1e-6
    assert (train[:, 0].std(correction=0) - 1).abs() < 1e-6
    assert site.federation.train.inputs[:, 0].mean().abs() > 1e-4  # with the validation rows it is not centred
    assert site.federation.input_shape == SCHEMA.shape == (6,)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "tsv"])
def test_formats_give_the_same_records(tmp_path: Path, suffix: str) -> None:
    frame = site_table()
    frame.write_csv(tmp_path / "a.csv")
    frame.write_csv(tmp_path / "b.tsv", separator="\t")
    frame.write_parquet(tmp_path / "c.parquet")
    path = next(tmp_path.glob(f"*.{suffix}"))
    one, two = (load_site(str(p), SCHEMA, "s", Key(1)) for p in (tmp_path / "a.csv", path))
    assert torch.equal(one.federation.train.inputs, two.federation.train.inputs)
    assert torch.equal(one.federation.test.labels, two.federation.test.labels)


def test_whole_groups_are_held_out(tmp_path: Path) -> None:
    site_table().write_csv(tmp_path / "a.csv")
    schema = Schema("outcome", SCHEMA.label_values, SCHEMA.features, group_column="patient")
    federation = load_site(str(tmp_path / "a.csv"), schema, "a", Key(1)).federation
    shard = federation.shards[0]
    assert federation.train.users is not None
    assert federation.test.users is not None
    people = [federation.train.users[shard.train], federation.train.users[shard.validation], federation.test.users]
    sets = [set(part.tolist()) for part in people]
    assert sum(len(part) for part in sets) == len(sets[0] | sets[1] | sets[2]) == 15


def test_a_date_column_tests_on_the_latest_rows(tmp_path: Path) -> None:
    site_table().write_csv(tmp_path / "a.csv")
    schema = Schema("outcome", SCHEMA.label_values, SCHEMA.features, time_column="day")
    federation = load_site(str(tmp_path / "a.csv"), schema, "a", Key(1)).federation
    assert (len(federation.train), len(federation.test)) == (48, 12)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_time_that_is_no_number_is_refused_with_its_row(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    table = site_table()
    times = [float(at) for at in range(len(table))]
    times[7] = float("nan")
    told = table.with_columns(pl.Series("hours", times))
    told.write_csv(path) if ending == "csv" else told.write_parquet(path)
    schema = Schema("outcome", SCHEMA.label_values, SCHEMA.features, time_column="hours")
    with pytest.raises(InputError, match="expected a number or an ISO date or time in column hours, row 8 of"):
        load_site(str(path), schema, "a", Key(1))


def test_a_draft_can_be_used_and_asks_for_a_review(tmp_path: Path) -> None:
    path = tmp_path / "site.csv"
    site_table().write_csv(path)
    text = draft_schema(path, DraftOptions(group="patient"))
    assert "PLEASE REVIEW" in text.splitlines()[0]
    assert "guessed: outcome" in text
    schema = parse_schema(text, "draft")
    assert schema.group_column == "patient"
    assert [(f.column, f.kind.value) for f in schema.features] == [
        ("age", "numeric"),
        ("ward", "categorical"),
        ("day", "categorical"),
    ]
    assert len(load_site(str(path), schema, "a", Key(0)).federation.train) > 0


def test_npz_and_function_and_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Key(2).numpy()
    inputs = generator.integers(0, 256, (40, 1, 6, 5)).astype(np.uint8)
    labels = np.arange(40) % 2
    np.savez(tmp_path / "a.npz", inputs=inputs, labels=labels)
    schema = parse_schema(draft_schema(tmp_path / "a.npz", DraftOptions()), "draft")
    assert schema.input_shape == (1, 6, 5)
    stored = load_site(str(tmp_path / "a.npz"), schema, "a", Key(0)).federation
    assert stored.train.inputs.dtype == torch.uint8
    prepared = stored.transform.prepare(stored.train.inputs[stored.shards[0].train])
    assert prepared.mean().abs() < 1e-5

    (tmp_path / "mine.py").write_text(
        f"import numpy as np\ndef data():\n    a = np.load({str(tmp_path / 'a.npz')!r})\n"
        "    return a['inputs'], a['labels']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    called = load_site("mine:data", schema, "a", Key(0)).federation
    assert torch.equal(called.train.inputs, stored.train.inputs)
    sys.modules.pop("mine")

    for i, (pixels, label) in enumerate(zip(inputs, labels, strict=True)):
        (tmp_path / "pictures" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(tmp_path / "pictures" / str(label) / f"{i:03}.png")
    assert parse_schema(draft_schema(tmp_path / "pictures", DraftOptions()), "draft").input_shape == (1, 6, 5)
    seen = load_site(str(tmp_path / "pictures"), schema, "a", Key(0)).federation
    pixels = torch.cat([seen.train.inputs, seen.test.inputs])
    assert torch.equal(pixels.sum(), torch.from_numpy(inputs.astype(np.int64)).sum())


@pytest.mark.parametrize("source", ["nothing.xyz", "no.such.module:data", "nothing.npz", "os:sep"])
def test_a_source_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(InputError, match=r"expected|cannot be (imported|called)"):
        load_site(source, Schema("y", ("0", "1"), input_shape=(3,)), "a", Key(0))


def test_arrays_with_an_unknown_label_or_a_bad_value_are_refused_with_their_row(tmp_path: Path) -> None:
    schema = Schema("y", ("0", "1"), input_shape=(3,))
    inputs = np.zeros((6, 3), dtype=np.float32)
    np.savez(tmp_path / "a.npz", inputs=inputs, labels=np.array([0, 1, 0, 1, 2, 0]))
    with pytest.raises(InputError, match="row 5 of"):
        load_site(str(tmp_path / "a.npz"), schema, "a", Key(0))
    inputs[3, 1] = np.nan
    np.savez(tmp_path / "b.npz", inputs=inputs, labels=np.array([0, 1, 0, 1, 1, 0]))
    with pytest.raises(InputError, match="row 4"):
        load_site(str(tmp_path / "b.npz"), schema, "a", Key(0))
    np.savez(tmp_path / "c.npz", inputs=np.array([{"a": 1}], dtype=object), labels=np.array([0]))
    with pytest.raises(InputError, match="plain arrays"):
        load_site(str(tmp_path / "c.npz"), schema, "a", Key(0))
