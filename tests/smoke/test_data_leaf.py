"""A small folder in LEAF's format, with images or with numbers, as a federation of its users."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedlog.cli.main import main
from fedlog.data.catalog import digest_leaf_data, load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.data.leaf import digest_leaf_folder, read_leaf
from fedlog.engine.simulate.simulator import RoundRecord, Simulation
from fedlog.errors import InputError, RunError
from fedlog.experiments.run.execute import execute
from fedlog.experiments.tables.inventory import list_statuses
from fedlog.settings.spec import RunSpec

SIZES = {"0042": 6, "0007": 9, "1234": 5}


def write_users(path: Path, user_data: dict[str, dict[str, list]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = [len(data["y"]) for data in user_data.values()]
    path.write_text(json.dumps({"users": list(user_data), "num_samples": sizes, "user_data": user_data}))


def celeba_folder(folder: Path) -> Path:
    """As LEAF leaves CelebA: two JSON files of users, and their images, one colour each."""
    images = folder / "data" / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    users: dict[str, dict[str, list]] = {}
    for number, (user, size) in enumerate(SIZES.items()):
        names = [f"{user}_{index}.png" for index in range(size)]
        for index, name in enumerate(names):
            Image.new("RGB", (20, 24), (number * 50, index, 200)).save(images / name)
        users[user] = {"x": names, "y": [index % 2 for index in range(size)]}
    write_users(folder / "data/all_data/all_data_0.json", {user: users[user] for user in ("0042", "0007")})
    write_users(folder / "data/all_data/all_data_1.json", {"1234": users["1234"]})
    return folder


def test_each_user_is_a_client_with_its_own_images(tmp_path: Path) -> None:
    federation = load_federation(DataSpec("leaf", data_dir=celeba_folder(tmp_path)))
    assert [shard.name for shard in federation.shards] == list(SIZES)
    assert federation.n_class == 2
    assert federation.input_shape == (3, 84, 84)
    assert federation.train.inputs.dtype == torch.uint8
    for number, shard in enumerate(federation.shards):
        assert len(shard.train) + len(shard.test) == list(SIZES.values())[number]
        assert len(shard.test) == round(0.2 * list(SIZES.values())[number])
        seen = set()
        for records, positions in ((federation.train, shard.train), (federation.test, shard.test)):
            pixels = records.inputs[positions][:, :, 40, 40]
            assert set(pixels[:, 0].tolist()) == {number * 50}
            # The green value is the image's number, and its parity the label.
            assert torch.equal(pixels[:, 1].long() % 2, records.labels[positions])
            seen |= set(pixels[:, 1].tolist())
            assert records.users is not None
            assert set(records.users[positions].tolist()) == {number}
        assert seen == set(range(list(SIZES.values())[number]))


def test_the_test_split_does_not_depend_on_the_seed(tmp_path: Path) -> None:
    folder = celeba_folder(tmp_path)
    first, second = (load_federation(DataSpec("leaf", data_dir=folder, seed=seed)) for seed in (0, 1))
    assert torch.equal(first.test.inputs, second.test.inputs)


def test_the_first_users_only(tmp_path: Path) -> None:
    federation = read_leaf(celeba_folder(tmp_path), users=2)
    assert [shard.name for shard in federation.shards] == ["0042", "0007"]
    assert federation.input_shape == (3, 84, 84)
    with pytest.raises(InputError, match="has 3 users, fewer than asked for: 4"):
        read_leaf(tmp_path, users=4)


def test_the_classes_are_those_of_the_whole_folder_whoever_takes_part(tmp_path: Path) -> None:
    users = {"a": [0, 2] * 3, "b": [0, 1] * 3, "c": [2, 1] * 3}
    write_users(
        tmp_path / "all_data" / "a.json",
        {name: {"x": [[float(at)] for at in range(6)], "y": labels} for name, labels in users.items()},
    )
    federation = read_leaf(tmp_path, users=1)
    assert [shard.name for shard in federation.shards] == ["a"]
    assert federation.n_class == 3
    both = {name: {"x": [[1.0], [2.0]], "y": labels} for name, labels in (("a", [0, 0]), ("b", [0, 1]))}
    for part in ("train", "test"):
        write_users(tmp_path / "own" / part / "a.json", both)
    assert read_leaf(tmp_path / "own", users=1).n_class == 2
    with pytest.raises(InputError, match="clients must be at least 1, found: -1"):
        load_federation(DataSpec("leaf", data_dir=tmp_path, clients=-1))


def test_validation_is_held_out_of_each_user(tmp_path: Path) -> None:
    federation = load_federation(DataSpec("leaf", data_dir=celeba_folder(tmp_path), validation_fraction=0.3))
    assert all(len(shard.validation) for shard in federation.shards)


def test_leafs_own_split_of_numbers_is_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part, size in (("train", 4), ("test", 2)):
        users = {name: {"x": rng.normal(size=(size, 5)).tolist(), "y": [0, 1] * (size // 2)} for name in ("a", "b")}
        write_users(tmp_path / part / f"{part}.json", users)
    federation = read_leaf(tmp_path)
    assert federation.input_shape == (5,)
    assert federation.train.inputs.dtype == torch.float32
    assert [len(shard.train) for shard in federation.shards] == [4, 4]
    assert [len(shard.test) for shard in federation.shards] == [2, 2]


def test_an_empty_folder_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no LEAF data") as failure:
        load_federation(DataSpec("leaf", data_dir=tmp_path))
    assert "preprocess.sh" in str(failure.value.hint)


@pytest.mark.parametrize(
    ("user_data", "says"),
    [
        ({"a": {"x": [[1.0]], "y": [0]}}, "user a needs at least 2 records"),
        ({"a": {"x": [[1.0], [2.0, 3.0]] * 3, "y": [0, 1] * 3}}, "numbers of the same shape"),
        ({"a": {"x": [[1.0], [2.0, 3.0]], "y": [0, 1]}}, "inputs must have shape"),
        ({"a": {"x": [[1.0], [2.0]], "y": [0, 5]}}, "labels must be 0, 1, 2"),
        ({"a": {"x": [[1.0], [2.0]], "y": [0]}}, "found 2 inputs and 1 labels"),
        ({"a": {"x": ["missing.jpg", "../other.jpg"], "y": [0, 1]}}, "missing image"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, user_data: dict, says: str) -> None:
    write_users(tmp_path / "all_data" / "a.json", user_data)
    with pytest.raises(InputError, match=says):
        read_leaf(tmp_path)


def test_a_file_that_is_not_leafs_is_named(tmp_path: Path) -> None:
    (tmp_path / "all_data").mkdir()
    (tmp_path / "all_data" / "a.json").write_text('{"users": ["a"]}')
    with pytest.raises(InputError, match=r"a\.json: not a LEAF file"):
        read_leaf(tmp_path)


def test_train_and_test_may_name_their_users_in_different_orders(tmp_path: Path) -> None:
    for part, names in (("train", "abc"), ("test", "cab")):
        users = {name: {"x": [[ord(name)], [ord(name)]], "y": [0, 1]} for name in names}
        write_users(tmp_path / part / "all.json", users)
    for asked, kept in ((None, "abc"), (2, "ab")):
        federation = read_leaf(tmp_path, users=asked)
        assert [shard.name for shard in federation.shards] == list(kept)
        for shard in federation.shards:
            assert set(federation.train.inputs[shard.train].flatten().tolist()) == {ord(shard.name)}
            assert set(federation.test.inputs[shard.test].flatten().tolist()) == {ord(shard.name)}


@pytest.mark.parametrize("users", [None, 2])
def test_users_without_test_records_are_named(tmp_path: Path, users: int | None) -> None:
    one = {"x": [[1.0], [2.0]], "y": [0, 1]}
    write_users(tmp_path / "train" / "all.json", {"a": one, "b": one})
    write_users(tmp_path / "test" / "all.json", {"a": one, "c": one})
    with pytest.raises(InputError, match="only in one of them: b"):
        read_leaf(tmp_path, users=users)


@pytest.mark.parametrize("inside", [".", "data"])
def test_the_list_of_experiments_and_the_reader_agree_on_what_a_leaf_folder_is(
    tmp_path: Path, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedlog.experiments.tables.inventory.estimate_seconds", lambda *_: 0.0)

    def missing() -> str | None:
        (entry,) = (e for e in list_statuses(tmp_path / "out", tmp_path, 1) if e.experiment.name == "figure-celeba")
        return entry.missing

    one = {"a": {"x": [[1.0], [2.0]], "y": [0, 1]}}
    write_users(tmp_path / inside / "train" / "all.json", one)
    (tmp_path / "data").mkdir(exist_ok=True)
    with pytest.raises(InputError, match="no LEAF data"):
        read_leaf(tmp_path)
    assert "no LEAF data" in (missing() or "")
    write_users(tmp_path / inside / "all_data" / "all.json", one)
    assert len(read_leaf(tmp_path).shards) == 1
    assert missing() is None


def numbers_folder(folder: Path, first: float) -> Path:
    """Two users with two classes of numbers each."""
    users = {name: {"x": [[first + at, 1.0] for at in range(8)], "y": [0, 1] * 4} for name in ("a", "b")}
    write_users(folder / "all_data" / "all.json", users)
    return folder


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_on_another_folder_is_another_run(
    tmp_path: Path, rounds: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = numbers_folder(tmp_path / "one", 0.0), numbers_folder(tmp_path / "other", 0.5)
    moved = numbers_folder(tmp_path / "moved", 0.0)
    spec = RunSpec(data="leaf", body=("mlp:4",), options={"epochs": 1}, rounds=2, data_dir=str(one))
    out = tmp_path / "out"
    monkeypatch.setattr(Simulation, "rounds", _stopping_after(rounds))
    if rounds == 1:
        with pytest.raises(RunError):
            execute(spec, out)
    else:
        execute(spec, out)
    with pytest.raises(
        InputError, match=rf"out holds a run with the same settings, but on other records than those of {other}"
    ):
        execute(replace(spec, data_dir=str(other)), out)
    assert main(["run", "--resume", str(out), "--data-dir", str(other)]) == 2
    assert "on other records" in capsys.readouterr().err
    monkeypatch.undo()
    assert execute(replace(spec, data_dir=str(moved)), out).rounds == 2


def _stopping_after(number: int) -> Callable[..., Iterator[RoundRecord]]:
    """`Simulation.rounds`, interrupted before the round after this one."""
    whole = Simulation.rounds

    def cut(self: Simulation, last: RoundRecord | None = None) -> Iterator[RoundRecord]:
        for record in whole(self, last):
            if record.round > number:
                raise RunError("stopped here")
            yield record

    return cut


def test_a_changed_image_is_another_data_set(tmp_path: Path) -> None:
    folder = celeba_folder(tmp_path)
    before = digest_leaf_folder(folder)
    image = folder / "data" / "raw" / "img_align_celeba" / "0042_0.png"
    content = image.read_bytes()
    Image.new("RGB", (20, 24), (1, 2, 3)).save(image)
    assert digest_leaf_folder(folder) != before
    image.write_bytes(content)
    assert digest_leaf_folder(folder) == before
    assert digest_leaf_data(DataSpec("leaf", data_dir=folder)) == before
    assert digest_leaf_data(DataSpec("mnist", data_dir=folder)) is None
