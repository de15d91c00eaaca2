"""Load federations by name: data sets without a download, users' data, and refusals."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlog.data.catalog import DEFAULTS, load_federation, resolve_data
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation, check_federation
from fedlog.data.public_data_sets import PUBLIC_DATA_SETS, find_data_folder
from fedlog.data.readers import HAR_SIGNALS
from fedlog.data.transforms import Transform
from fedlog.data.undivided_data import CIFAR100_NAMES
from fedlog.errors import InputError


def all_positions(parts: list[Tensor]) -> list[int]:
    return sorted(torch.cat(parts).tolist())


def test_digits_are_the_default_and_need_no_file(tmp_path: Path) -> None:
    federation = load_federation(DataSpec("digits", data_dir=tmp_path))
    assert (len(federation.train), len(federation.test)) == (1352, 445)
    assert federation.input_shape == (1, 8, 8)
    assert len(federation.shards) == 10
    assert float(federation.train.inputs.max()) == 1.0
    assert all_positions([shard.train for shard in federation.shards]) == list(range(1352))
    for shard in federation.shards:
        classes = set(federation.train.labels[shard.train].tolist())
        assert len(classes) <= 2
        assert set(federation.test.labels[shard.test].tolist()) == classes
    counts = torch.bincount(federation.test.labels)
    assert (int(counts.min()), int(counts.max())) == (43, 45)


def test_digits_split_does_not_depend_on_the_seed() -> None:
    first, second = (load_federation(DataSpec("digits", seed=seed)) for seed in (0, 1))
    assert torch.equal(first.test.inputs, second.test.inputs)
    assert any(not torch.equal(a.train, b.train) for a, b in zip(first.shards, second.shards, strict=True))


def test_the_circle_is_the_papers() -> None:
    federation = load_federation(DataSpec("circle", seed=4))
    points, labels = federation.train.inputs.double(), federation.train.labels
    assert points.shape == (80, 2)
    assert len(federation.test) == 1000
    assert -5 <= float(points.min()) < float(points.max()) <= 5
    assert labels.tolist() == [int(x * x + y * y > (26 / 7) ** 2) for x, y in points.tolist()]
    left, right = federation.shards
    assert len(left.train) == len(right.train) == 40
    assert points[left.train, 0].max() < points[right.train, 0].min()
    border = (points[left.train, 0].max() + points[right.train, 0].min()) / 2
    assert bool((federation.test.inputs[left.test, 0] <= border).all())
    # Area of the circle over that of the square: 0.433; three standard errors.
    assert abs(float((federation.test.labels == 0).double().mean()) - np.pi * (26 / 7) ** 2 / 100) < 0.047
    # Drawn apart: no training point is tested on.
    assert not set(map(tuple, federation.train.inputs.tolist())) & set(map(tuple, federation.test.inputs.tolist()))
    other = load_federation(DataSpec("circle", seed=5))
    assert not torch.equal(points, other.train.inputs.double())


def test_the_same_specification_gives_the_same_federation() -> None:
    spec = DataSpec("digits", partition="dirichlet", dirichlet_alpha=0.3, validation_fraction=0.1, seed=9)
    first, second = load_federation(spec), load_federation(spec)
    for mine, other in zip(first.shards, second.shards, strict=True):
        assert torch.equal(mine.train, other.train)
        assert torch.equal(mine.test, other.test)
        assert torch.equal(mine.validation, other.validation)
    assert all(len(shard.validation) for shard in first.shards)
    dealt = [part for shard in first.shards for part in (shard.train, shard.validation)]
    assert all_positions(dealt) == list(range(len(first.train)))


def har_data(folder: Path) -> Path:
    """A small folder in the layout of UCI HAR: 20 people in its training half, 10 others in its test half."""
    for split, rows, people in (("train", 60, range(1, 21)), ("test", 30, range(21, 31))):
        base = folder / "UCI HAR Dataset" / split
        (base / "Inertial Signals").mkdir(parents=True)
        for signal in HAR_SIGNALS:
            np.savetxt(base / "Inertial Signals" / f"{signal}_{split}.txt", np.ones((rows, 128)), fmt="%.1f")
        np.savetxt(base / f"y_{split}.txt", [row % 6 + 1 for row in range(rows)], fmt="%d")
        np.savetxt(base / f"subject_{split}.txt", [people[row % len(people)] for row in range(rows)], fmt="%d")
    return folder


def test_har_sites_test_on_people_nobody_trains_on(tmp_path: Path) -> None:
    federation = load_federation(DataSpec("har", data_dir=har_data(tmp_path), validation_fraction=0.25))
    assert len(federation.shards) == 6
    assert federation.input_shape == (9, 128)
    assert federation.train.users is not None
    assert federation.test.users is not None
    assert not set(federation.train.users.tolist()) & set(federation.test.users.tolist())
    for shard in federation.shards:
        people = [
            set(federation.train.users[shard.train].tolist()),
            set(federation.train.users[shard.validation].tolist()),
            set(federation.test.users[shard.test].tolist()),
        ]
        assert [len(group) for group in people] == [3, 1, 1]
        assert len(set.union(*people)) == 5
    assert all_positions([shard.test for shard in federation.shards]) == list(range(len(federation.test)))


def overlapping_windows(folder: Path, generator: np.random.Generator) -> Path:
    """UCI HAR's layout with 30 people, 2 activities, three recordings of 3 to 5 windows each, in a random order."""
    for split, people in (("train", range(1, 21)), ("test", range(21, 31))):
        rows: list[tuple[int, int, np.ndarray]] = []
        for person in people:
            for activity in (1, 2):
                for length in (3, 4, 5):
                    signals = generator.normal(size=(len(HAR_SIGNALS), 64 * (length + 1)))
                    rows += [(person, activity, signals[:, 64 * at : 64 * at + 128]) for at in range(length)]
        rows = [rows[at] for at in generator.permutation(len(rows))]
        base = folder / "UCI HAR Dataset" / split
        (base / "Inertial Signals").mkdir(parents=True)
        for channel, signal in enumerate(HAR_SIGNALS):
            np.savetxt(base / "Inertial Signals" / f"{signal}_{split}.txt", [row[2][channel] for row in rows])
        np.savetxt(base / f"y_{split}.txt", [row[1] for row in rows], fmt="%d")
        np.savetxt(base / f"subject_{split}.txt", [row[0] for row in rows], fmt="%d")
    return folder


def test_a_har_person_is_tested_on_whole_recordings_of_its_own(tmp_path: Path) -> None:
    folder = overlapping_windows(tmp_path, np.random.default_rng(0))
    spec = DataSpec("har", data_dir=folder, partition="person", validation_fraction=0.3)
    federation = load_federation(spec)
    records = federation.train
    assert [shard.name for shard in federation.shards] == [f"person-{number}" for number in range(1, 31)]
    assert all_positions(
        [part for shard in federation.shards for part in (shard.train, shard.validation, shard.test)]
    ) == list(range(len(records)))
    assert records.users is not None
    for number, shard in enumerate(federation.shards, start=1):
        seen: set[bytes] = set()
        for part in (shard.train, shard.validation, shard.test):
            assert set(records.users[part].tolist()) == {number}
            assert set(records.labels[part].tolist()) == {0, 1}
            windows = records.inputs[part].numpy()
            halves = {one.tobytes() for half in (windows[:, :, :64], windows[:, :, 64:]) for one in half}
            assert not seen & halves  # no sample stands on two sides of a split
            seen |= halves
    few = load_federation(replace(spec, clients=3))
    assert [shard.name for shard in few.shards] == ["person-1", "person-2", "person-3"]
    assert torch.equal(few.shards[2].test, federation.shards[2].test)
    other = load_federation(replace(spec, seed=1))
    assert any(not torch.equal(a.test, b.test) for a, b in zip(federation.shards, other.shards, strict=True))
    with pytest.raises(InputError, match="30 people, fewer than the clients asked for: 31"):
        load_federation(replace(spec, clients=31))


def test_har_by_label_keeps_the_official_halves(tmp_path: Path) -> None:
    spec = DataSpec("har", data_dir=har_data(tmp_path), partition="shards", clients=6, classes_per_client=2)
    federation = load_federation(spec)
    assert (len(federation.train), len(federation.test)) == (60, 30)


def test_as_many_har_sites_as_people_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found: 30") as failure:
        load_federation(DataSpec("har", data_dir=har_data(tmp_path), clients=30))
    assert failure.value.hint == "use at most 15 clients, or --partition person, which makes each person a client"


def test_a_users_own_function_gives_the_federation(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ModuleType("own_data")
    own.toy = lambda spec: load_federation(DataSpec("digits", seed=spec.seed))  # type: ignore[attr-defined]
    own.wrong = lambda spec: "nothing"  # type: ignore[attr-defined]
    own.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_data", own)
    federation = load_federation(DataSpec("own_data:toy", validation_fraction=0.2))
    assert all(len(shard.validation) for shard in federation.shards)
    for name, says in (
        ("own_data:wrong", "expected a function that returns a fedlog Federation, found: str"),
        ("own_data:number", "to be a function or a class, found: int"),
        ("own_data:missing", "cannot be imported"),
        ("no_such_module:toy", "cannot be imported"),
    ):
        with pytest.raises(InputError, match=says):
            load_federation(DataSpec(name))


def test_defaults_are_the_papers_and_resolving_twice_changes_nothing() -> None:
    found = {name: resolve_data(DataSpec(name)) for name in DEFAULTS}
    named = {"digits", "circle", "mnist", "mnist-selection", "cifar10", "cifar100", "har", "leaf"}
    assert set(found) == named | {"diabetes", "wine-alcohol", "wine", "breast-cancer"}
    settings = {name: (spec.clients, spec.classes_per_client, spec.train_records) for name, spec in found.items()}
    assert settings["mnist"] == (50, 2, 3000)
    assert settings["cifar10"] == (100, 2, None)
    assert settings["cifar100"] == (100, 10, None)
    assert all(resolve_data(spec) == spec for spec in found.values())
    assert resolve_data(DataSpec("mnist", partition="dirichlet")).dirichlet_alpha == 0.5
    assert len(set(CIFAR100_NAMES)) == 100
    assert list(CIFAR100_NAMES) == sorted(CIFAR100_NAMES)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (DataSpec("mnits"), "unknown data set: mnits"),
        (DataSpec("digits", partition="user"), "cannot be divided by the partition: user"),
        (DataSpec("digits", partition="iid", classes_per_client=2), "needs the shards partition"),
        (DataSpec("digits", dirichlet_alpha=0.5), "needs the dirichlet partition"),
        (DataSpec("digits", clients=7), "cannot be cut evenly"),
        (DataSpec("digits", clients=0), "clients must be at least 1"),
        (DataSpec("digits", classes_per_client=0), "must be 1 to 10"),
        (DataSpec("digits", train_records=5000), "1352 training records, fewer than asked for: 5000"),
        (DataSpec("digits", train_records=0), "training records must be at least 1"),
        (DataSpec("digits", validation_fraction=1.5), "must be at least 0 and below 1"),
        (DataSpec("har", train_records=100), "uses all records of each person"),
        (DataSpec("har", partition="person", clients=0), "clients must be at least 1"),
        (DataSpec("har", partition="person", clients=31), "30 people, fewer than the clients asked for: 31"),
        (DataSpec("circle", partition="dirichlet", dirichlet_alpha=-1.0), "must be positive"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(spec: DataSpec, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_federation(spec)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "har"])
def test_missing_and_corrupt_files_are_named_with_the_command_that_fetches_them(name: str, tmp_path: Path) -> None:
    first = tmp_path / PUBLIC_DATA_SETS[name].files[0].path
    with pytest.raises(InputError, match="missing file") as failure:
        load_federation(DataSpec(name, data_dir=tmp_path))
    assert str(first) in failure.value.message
    assert f"fedlog data fetch {name}" in str(failure.value.hint)
    assert "FEDLOG_DATA" in str(failure.value.hint)
    if PUBLIC_DATA_SETS[name].files[0].sha256 is not None:
        first.parent.mkdir(parents=True)
        first.write_bytes(b"not this")
        with pytest.raises(InputError, match="wrong sha256"):
            load_federation(DataSpec(name, data_dir=tmp_path))


def test_the_data_folder_is_the_one_given_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLOG_DATA", str(tmp_path / "variable"))
    assert find_data_folder(tmp_path / "given") == tmp_path / "given"
    assert find_data_folder() == tmp_path / "variable"
    monkeypatch.delenv("FEDLOG_DATA")
    assert find_data_folder().name == "fedlog"


def broken(federation: Federation, **changes: object) -> Federation:
    first = replace(federation.shards[0], **changes)
    return replace(federation, shards=(first, *federation.shards[1:]))


def test_a_federation_that_cannot_be_run_is_refused_by_client_and_record() -> None:
    good = load_federation(DataSpec("circle"))
    empty = torch.empty(0, dtype=torch.int64)
    infinite = good.train.inputs.clone()
    infinite[17, 1] = float("nan")
    cases = [
        (broken(good, train=empty), "client-0: a client needs at least one training record, found: none"),
        (broken(good, test=empty), "client-0: a client needs at least one test record, found: none"),
        (broken(good, train=torch.tensor([80])), "must be 0 to 79"),
        (broken(good, validation=good.shards[0].train[:1]), "must not be for both training and validation"),
        (broken(good, name="client-1"), "repeated: client-1"),
        (replace(good, n_class=1, class_names=("inside",)), "has label: 1"),
        (replace(good, train=replace(good.train, inputs=infinite)), "NaN or infinity in record: 17"),
        (replace(good, train=replace(good.train, labels=good.train.labels.int())), "must be int64"),
        (replace(good, input_shape=(3,)), r"must have shape \(80, 3\)"),
        (replace(good, shards=()), "needs at least one client, found: none"),
        (broken(good, name=7), "client 0 needs a name, a text that is not empty, found: 7"),
        (broken(good, name=""), "client 0 needs a name"),
        (
            replace(good, transform=Transform(flip=True)),
            r"crops and flips need images .* found: records of shape \(2,\)",
        ),
        (replace(good, transform=Transform(crop_padding=-1)), "crops and flips need images .* padding -1"),
        (replace(good, transform=Transform((0.5,) * 3, (0.5,) * 3)), "each of 2 channels, found: 3 and 3"),
        (replace(good, transform=Transform((0.5, 0.5))), "found: 2 and 0"),
        (replace(good, transform=Transform((0.5,), (0.0,))), "stds positive"),
        (replace(good, transform=Transform(0.5, 0.5)), "must be tuples of numbers, found: 0.5 and 0.5"),
    ]
    for federation, says in cases:
        with pytest.raises(InputError, match=says):
            check_federation(federation)


@pytest.mark.parametrize(("name", "sizes", "n_class"), [("wine", [77, 38, 19], 3), ("breast-cancer", None, 2)])
def test_tables_are_cut_into_unequal_sites_judged_on_the_same_rows(
    name: str, sizes: list[int] | None, n_class: int
) -> None:
    federation = load_federation(DataSpec(name, seed=4))
    found = [len(shard.train) for shard in federation.shards]
    if sizes is not None:
        assert found == sizes
    assert all(2 * small in (large - 1, large, large + 1) for large, small in pairwise(found))
    tests = [federation.test.at(shard.test) for shard in federation.shards]
    assert all(torch.equal(tests[0].inputs, other.inputs) for other in tests)
    assert all(torch.equal(tests[0].labels, other.labels) for other in tests)
    assert federation.n_class == n_class == len(set(tests[0].labels.tolist()))
    # The ranges stand for common knowledge: they hold the rows.
    assert float(federation.train.inputs.abs().max()) < 1.6
    other = load_federation(DataSpec(name, seed=5))
    assert not torch.equal(other.test.inputs, federation.test.inputs)


def test_fewer_test_records_are_the_first_ones() -> None:
    few, all_of_them = (load_federation(DataSpec("digits", test_records=number)) for number in (100, None))
    assert torch.equal(few.test.inputs, all_of_them.test.inputs[:100])
    assert sum(len(shard.test) for shard in few.shards) == 100
    with pytest.raises(InputError, match="test records, fewer than asked for: 9999"):
        load_federation(DataSpec("digits", test_records=9999))
    with pytest.raises(InputError, match="does not use test_records"):
        load_federation(DataSpec("wine", test_records=10))
