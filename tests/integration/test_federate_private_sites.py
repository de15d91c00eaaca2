"""In private runs over Flower, one row of a site affects no other row's statistics."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image
from safetensors.torch import save_file
from three_sites import BODIES, SCHEMA, InProcess, events_named, fill_site, make_server, quick_clock

from fedlog.core.keys import Key
from fedlog.data.rows import BadRowPolicy
from fedlog.data.schema import Schema, dump_schema, parse_schema
from fedlog.data.site import RowPreparation, load_site
from fedlog.data.split import HeldOutShares
from fedlog.errors import InputError
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.ops.event_text import describe_site_event
from fedlog.flower.protocol.frame import Frame, FrameKind, make_run_tag
from fedlog.flower.protocol.greeting import SiteProfile
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.flower.site.answer import answer_request
from fedlog.flower.site.context import SiteContext
from fedlog.flower.site.data import check_site, load_data, refuse_body_that_mixes_records
from fedlog.flower.site.run_state import RunState
from fedlog.models.body import HEAD
from fedlog.models.catalog import make_body
from fedlog.models.model_folder import load_model
from fedlog.privacy.release_log import FILE_NAME, read_log
from fedlog.settings.promise import Promise

LOCAL = Promise("client", "local", 20.0, 1e-5, message_norm=20.0)
RECORD = Promise("record", "central", 20.0, 1e-5, clip="l2:3")
FOR_TRAINING, HELD_OUT = "0.0,2.0,p,label-one", "1.0,2.0,q,label-one"  # at site east, and at site north
PLAN = Plan("trial", rounds=2, options={"epochs": 1, "learning_rate": 0.01}, seed=4)


def plan(promise: Promise) -> Plan:
    return replace(PLAN, promise=promise)


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def equals(tmp_path: Path) -> InProcess:
    return InProcess({name: fill_site(SiteFolder(tmp_path / name), name, "mlp:8") for name in BODIES})


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    return make_server(ServerFolder(tmp_path / "server"))


def conduct(post: InProcess, server: ServerFolder, what: Plan) -> None:
    Run(post, server, SCHEMA, what, RoundRules(2, 20.0), quick_clock()).conduct()


def training_rows(folder: SiteFolder) -> Counter[tuple[bytes, int]]:
    site = load_data(folder, folder.read_config(), RowPreparation.ALONE)
    records = site.federation.train.at(site.shard.train)
    rows = zip(records.inputs.numpy(), records.labels.tolist(), strict=True)
    return Counter((row.tobytes(), label) for row, label in rows)


@pytest.mark.parametrize("group", [False, True])
def test_one_row_more_changes_the_training_rows_by_that_row_at_most(tmp_path: Path, group: bool) -> None:
    folder = fill_site(SiteFolder(tmp_path / "east"), "east", "mlp:8")
    path = Path(folder.read_config().data or "")
    header, *rows = path.read_text().splitlines()
    if group:
        folder.schema_file.write_text(dump_schema(replace(SCHEMA, group_column="person")))
        # Without one row there is a person fewer, and in the order of the names all others have another place.
        header, rows = f"{header},person", [f"{row},p{at // 2 if at > 1 else at}" for at, row in enumerate(rows)]
    path.write_text("\n".join([header, *rows]) + "\n")
    whole = training_rows(folder)
    assert 20 < sum(whole.values()) < 50
    for gone in range(0, 60, 4):
        path.write_text("\n".join([header, *rows[:gone], *rows[gone + 1 :]]) + "\n")
        fewer = training_rows(folder)
        assert not fewer - whole
        assert sum((whole - fewer).values()) <= 1


def test_where_records_are_protected_rows_are_not_held_out_by_time(equals: InProcess, server: ServerFolder) -> None:
    east = equals.sites["east"]
    path = Path(east.read_config().data or "")
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{header},day", *(f"{row},{at}" for at, row in enumerate(rows))]) + "\n")
    east.schema_file.write_text(dump_schema(replace(SCHEMA, time_column="day")))
    assert len(load_data(east, east.read_config()).shard.test) == 12
    with pytest.raises(InputError, match=r"cannot be used with rows held out by time \(column day\)"):
        load_data(east, east.read_config(), RowPreparation.ALONE)


def test_a_site_with_next_to_no_rows_answers_like_any_other(equals: InProcess, server: ServerFolder) -> None:
    """An error must not reveal whether a row is in training, validation or test."""
    sizes = set()
    for name, row in (("east", FOR_TRAINING), ("north", HELD_OUT)):
        path = Path(equals.sites[name].read_config().data or "")
        header = path.read_text().splitlines()[0]
        path.write_text(f"{header}\n{row}\n")
        sizes.add(
            len(load_data(equals.sites[name], equals.sites[name].read_config(), RowPreparation.ALONE).shard.train)
        )
    assert sizes == {0, 1}
    conduct(equals, server, plan(RECORD))
    assert [event["sites"] for event in events_named(server, "uploads")] == [sorted(BODIES)] * 2
    assert not events_named(server, "refused")
    report = RunFolder.of_run(server, "trial").read_report()
    assert report is not None
    assert [site["name"] for site in report["sites"]] == sorted(BODIES)
    told = [describe_site_event(event) for event in read_events(equals.sites["east"].event_log)]
    assert any("warning: there are no" in str(line) for line in told)
    assert any("accuracy of no rows" in str(line) for line in told)


def weights_at(path: Path, seed: int, **metadata: str) -> str:
    """The name of a body with weights in that file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(
        make_body("mlp:8", SCHEMA.shape).make_initial_params(Key(seed)), path, metadata={"body": "mlp:8", **metadata}
    )
    return f"frozen:{path}"


def test_bodies_from_files_must_hold_the_same_weights_at_every_site(
    equals: InProcess, server: ServerFolder, tmp_path: Path
) -> None:
    for name in ("east", "north", "south"):
        fill_site(equals.sites[name], name, weights_at(tmp_path / "w" / name / "w", 1))
    equals.sites["west"] = fill_site(
        SiteFolder(tmp_path / "west"), "west", weights_at(tmp_path / "w" / "west" / "w", 2)
    )
    conduct(equals, server, plan(RECORD))
    assert {event["site"] for event in events_named(server, "left out")} == {"west"}
    assert all(event["sites"] == sorted(BODIES) for event in events_named(server, "uploads"))
    # Under one name: other parameters are refused all the same, by the server and, in mid-run, by the site itself.
    first, other = (SiteProfile("package:body", 8, digest=64 * letter) for letter in "ab")
    assert first.as_required_body.describe_difference(first) is None
    assert "the same parameters of body package:body" in str(first.as_required_body.describe_difference(other))
    weights_at(tmp_path / "w" / "east" / "w", 3)
    again = Frame(FrameKind.WORK, make_run_tag("trial"), 2, 0, b"")
    with pytest.raises(InputError, match="found other parameters"):
        answer_request(again, equals.sites["east"])


def test_a_body_that_a_run_has_trained_is_refused_where_records_are_protected(
    equals: InProcess, server: ServerFolder, tmp_path: Path
) -> None:
    fill_site(equals.sites["east"], "east", weights_at(tmp_path / "w.safetensors", 1, method="fedlog"))
    conduct(equals, server, plan(RECORD))
    left = events_named(server, "left out")[0]
    assert left["site"] == "east"
    assert "never saw private data" in str(left["reason"])


@pytest.mark.parametrize("promise", [LOCAL, RECORD])
def test_bodies_that_need_more_than_one_record_are_refused_in_private_runs_before_any_work(
    equals: InProcess, server: ServerFolder, promise: Promise
) -> None:
    fill_site(equals.sites["east"], "east", "three_sites:normalised")
    conduct(equals, server, plan(promise))
    left = events_named(server, "left out")[0]
    assert left["site"] == "east"
    assert "no batch normalisation" in str(left["reason"])
    assert not (RunState.of_run(equals.sites["east"], make_run_tag("trial")).path).exists()
    conduct(equals, server, replace(plan(LOCAL), name="open", promise=None))
    assert events_named(server, "greeted")[-1]["sites"] == sorted(BODIES)
    refuse_body_that_mixes_records(make_body("cnn", (1, 28, 28)))  # dropout is no reason


def test_local_training_that_diverges_at_the_end_is_no_error_of_a_private_run(
    equals: InProcess, server: ServerFolder
) -> None:
    conduct(equals, server, replace(plan(LOCAL), options={"epochs": 1, "learning_rate": 1e38}))
    assert not events_named(server, "refused")
    report = RunFolder.of_run(server, "trial").read_report()
    assert report is not None
    assert len(report["sites"]) == 3


def test_where_records_are_protected_the_model_that_is_kept_never_saw_them(
    equals: InProcess, server: ServerFolder
) -> None:
    # Noise that drowns everything: training alone is the better model by far.
    conduct(equals, server, plan(replace(RECORD, trust="local", epsilon=0.05)))
    untrained = make_body("mlp:8@l2:3", SCHEMA.shape).make_initial_params(Key(PLAN.seed).child("initial", "body"))
    better = 0
    for folder in equals.sites.values():
        kept, beside = (load_model(folder.models / name) for name in ("trial", "trial.local-only"))
        assert set(untrained) < set(kept.params)
        assert all(torch.equal(kept.params[name], value) for name, value in untrained.items())
        assert not all(torch.equal(beside.params[name], value) for name, value in untrained.items())
        told, other = kept.provenance, beside.provenance
        assert (told["kept"], other["kept"]) == ("federated", "local-only")
        assert "protected by the run's promise (record privacy, epsilon 0.05" in str(told["privacy"])
        assert "not protected: trained on this site's records without noise" in str(other["privacy"])
        assert "validation_accuracy" not in told
        report = json.loads((folder.models / "trial" / "report.json").read_text())
        figures = [report[name]["validation"]["accuracy"] for name in ("federated", "local-only")]
        better += figures[0] < figures[1]
        (event,) = [event for event in read_events(folder.event_log) if event["event"] == "finished"]
        assert "kept the federated model, the protected one (not protected: " in str(describe_site_event(event))
    assert better > 0


OWN_HEAD, OWN_CLASSES, OWN_CHOICE = {"personal": True}, {"classes": "own"}, {"heads": "fedlog,ncm"}


@pytest.mark.parametrize(
    ("method", "options"),
    [("fed-ncm", OWN_HEAD), ("fedlog-once", OWN_HEAD), ("fed-ncm", OWN_CLASSES), ("fed-heads", OWN_CHOICE)],
    ids=["own nearest mean", "own head", "own classes", "own choice"],
)
def test_where_records_are_protected_no_row_of_the_site_makes_or_chooses_the_head_that_is_kept(
    equals: InProcess, server: ServerFolder, method: str, options: dict[str, object]
) -> None:
    """Such a head is solved, or chosen, from exact sums and rows: whoever gets the model would learn about them."""
    for name, classes in (("east", "one"), ("north", "two")):  # sites that differ as much as they can
        path = Path(equals.sites[name].read_config().data or "")
        header, *rows = path.read_text().splitlines()
        path.write_text("\n".join([header, *(row for row in rows if row.endswith(classes))]) + "\n")
    promise = replace(RECORD, trust="local", epsilon=50.0)
    conduct(equals, server, replace(plan(promise), method=method, options=options, rounds=1))
    heads, own = [], []
    for folder in equals.sites.values():
        kept = load_model(folder.models / "trial")
        assert "protected by the run's promise" in str(kept.provenance["privacy"])
        heads.append(kept.params[HEAD])
        if (folder.models / "trial.personal").exists():
            own.append(load_model(folder.models / "trial.personal"))
    assert all(torch.equal(head, heads[0]) for head in heads)
    assert own
    assert all(str(model.provenance["privacy"]).startswith("not protected: this site's records") for model in own)
    assert all(not torch.equal(model.params[HEAD], heads[0]) for model in own)


def test_where_sites_are_protected_a_model_says_that_its_body_is_not(equals: InProcess, server: ServerFolder) -> None:
    conduct(equals, server, plan(LOCAL))
    for folder in equals.sites.values():
        told = load_model(folder.models / "trial").provenance
        assert "not protected" in str(told["privacy"]) or "the body is not" in str(told["privacy"])
        assert not (folder.models / "trial.local-only").exists()


HEADER = "x1,x2,z,y\n"


@pytest.mark.parametrize("promise", [LOCAL, RECORD])
@pytest.mark.parametrize(
    "table",
    ["", HEADER, HEADER + "1,2,p,label-nine\n", HEADER + "one,2,p,label-one\n", "x1,z,y\n1,p,label-one\n"],
    ids=["empty file", "no rows", "unknown label", "no number", "no column"],
)
def test_a_private_run_does_not_hear_that_a_site_cannot_read_its_rows(
    equals: InProcess, server: ServerFolder, promise: Promise, table: str
) -> None:
    east = equals.sites["east"]
    (east.path / "data.csv").write_text(table)
    conduct(equals, server, plan(promise))
    assert not events_named(server, "refused")
    assert all("east" in event["sites"] for event in events_named(server, "uploads"))  # type: ignore[operator]
    assert "east" in events_named(server, "finished")[0]["sites"]  # type: ignore[operator]
    assert len(read_log(east.state / FILE_NAME).releases) == PLAN.rounds
    warned = [str(event["reason"]) for event in read_events(east.event_log) if event["event"] == "warning"]
    assert any(reason.startswith("this site sends the message of a site without rows: expected") for reason in warned)
    assert not events_named(server, "warning")


def test_a_run_that_protects_records_prepares_each_row_by_itself_and_no_other_run_does(tmp_path: Path) -> None:
    folder = fill_site(SiteFolder(tmp_path / "east"), "east", "mlp:8")
    record = Promise("record", "local", 8.0, 1e-5, clip="l2:3")
    for promise, alone in ((record, True), (None, False)):
        encoder = SiteContext(folder, folder.read_config(), Plan("trial", promise=promise)).data.encoder
        assert encoder is not None
        assert (set(encoder.mean) == {0.0}) is alone


def test_one_value_changes_no_other_row_by_changing_the_type_of_a_file(tmp_path: Path) -> None:
    pixels = Schema("y", ("a", "b"), input_shape=(1, 2, 2))
    rows = np.arange(40, dtype=np.uint8).reshape(10, 1, 2, 2)
    wide = np.concatenate([rows.astype(np.int64), np.full((1, 1, 2, 2), 256)])
    found = []
    for inputs in (rows, wide, wide.astype(np.float64)):
        path = tmp_path / "rows.npz"
        np.savez(path, inputs=inputs, labels=np.zeros(len(inputs), dtype=np.int64))
        site = load_site(str(path), pixels, "east", Key(1), HeldOutShares(1e-9, 1e-9), RowPreparation.ALONE)
        prepared = site.federation.transform.prepare(site.federation.train.inputs)
        found.append(prepared[:10])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    numbers = Schema("y", ("a", "b"), input_shape=(4,))
    np.savez(path, inputs=rows.reshape(10, 4), labels=np.zeros(10, dtype=np.int64))
    site = load_site(str(path), numbers, "east", Key(1), HeldOutShares(1e-9, 1e-9), RowPreparation.ALONE)
    assert site.federation.train.inputs.dtype == torch.float32


IMAGES = Schema("y", ("a", "b"), input_shape=(1, 2, 2))
FROM_0_TO_1 = parse_schema(
    dump_schema(IMAGES).replace("shape = [1, 2, 2]", "shape = [1, 2, 2]\nrange = [0, 1]"), "test"
)


def write_images(path: Path, inputs: np.ndarray) -> Path:
    np.savez(path, inputs=inputs, labels=np.arange(len(inputs)) % 2)
    return path


def fill_image_site(folder: SiteFolder, schema: Schema, inputs: np.ndarray) -> SiteFolder:
    folder.path.mkdir(exist_ok=True)
    folder.schema_file.write_text(dump_schema(schema))
    folder.write_config(
        SiteConfig(folder.path.name, "127.0.0.1:1", str(write_images(folder.path / "a.npz", inputs)), "mlp:8")
    )
    return folder


@pytest.mark.parametrize("brightest", [0.9, 1.9])
def test_the_schema_and_no_image_decides_whether_an_encoder_takes_the_range(tmp_path: Path, brightest: float) -> None:
    schema = replace(IMAGES, input_range=(0.0, 2.0))
    folder = fill_image_site(SiteFolder(tmp_path / "east"), schema, np.full((20, 1, 2, 2), brightest))
    config = replace(folder.read_config(), body="pretrained:efficientnet-lite0:32")
    with pytest.raises(InputError, match=r"found in the schema: range = \[0, 2\]"):
        load_data(folder, config, RowPreparation.ALONE)


@pytest.mark.parametrize(
    ("schema", "inputs", "told"),
    [
        (IMAGES, Key(5).numpy().random((60, 1, 2, 2)), "are not whole numbers from 0 to 255"),
        (IMAGES, Key(5).numpy().integers(0, 256, (60, 1, 2, 2)).astype(np.uint8), None),
        (IMAGES, Key(5).numpy().integers(0, 256, (60, 1, 2, 2)).astype(np.float64), None),
        (FROM_0_TO_1, Key(5).numpy().random((60, 1, 2, 2)), None),
        (FROM_0_TO_1, Key(5).numpy().integers(0, 256, (60, 1, 2, 2)).astype(np.uint8), "outside the schema's range"),
    ],
    ids=["0 to 1", "bytes", "whole numbers", "0 to 1, as agreed", "bytes, and 0 to 1 was agreed"],
)
def test_a_site_and_nobody_else_is_told_before_the_first_release_that_its_images_change(
    tmp_path: Path, schema: Schema, inputs: np.ndarray, told: str | None
) -> None:
    sites = {name: fill_image_site(SiteFolder(tmp_path / name), schema, inputs) for name in BODIES}
    server = ServerFolder(tmp_path / "server")
    server.path.mkdir()
    server.schema_file.write_text(dump_schema(schema))
    Run(InProcess(sites), server, schema, plan(RECORD), RoundRules(2, 20.0), quick_clock()).conduct()
    east = sites["east"]
    events = [event for event in read_events(east.event_log) if event["event"] in ("warning", "worked")]
    warned = [str(event["reason"]) for event in events if "numbers in the images" in str(event.get("reason"))]
    start = check_site(east, east.read_config())
    if told is None:
        assert not warned
        assert "\n" not in start
        return
    assert len(warned) == 1
    assert told in warned[0]
    assert "hint: " in warned[0]
    assert events[0]["event"] == "warning"
    assert start.splitlines()[1] == f"warning: {warned[0].splitlines()[0]}"
    assert "range" in start.splitlines()[2]
    assert "images" not in server.event_log.read_text()


def test_images_within_the_agreed_range_become_minus_1_to_1_each_value_by_itself(tmp_path: Path) -> None:
    rows = Key(5).numpy().random((10, 1, 2, 2))
    beyond = np.concatenate([rows, np.full((1, 1, 2, 2), 300.0)])
    for preparation in RowPreparation:
        shares = HeldOutShares(1e-9, 1e-9) if preparation is RowPreparation.ALONE else HeldOutShares()
        for inputs in (rows, beyond):
            path = write_images(tmp_path / "rows.npz", inputs)
            federation = load_site(str(path), FROM_0_TO_1, "east", Key(1), shares, preparation).federation
            raw = torch.cat([federation.train.inputs, federation.test.inputs]).flatten(1)
            seen = torch.cat(
                [federation.transform.prepare(part.inputs) for part in (federation.train, federation.test)]
            ).flatten(1)
            assert len(seen) == len(inputs)
            for row in rows.reshape(10, 4):
                expected = torch.tensor(2 * row - 1, dtype=torch.float32)
                assert torch.isclose(seen, expected, atol=1e-6).all(dim=1).sum() == 1
            assert seen.abs().max() <= 1
            assert raw.min() >= 0
            assert raw.max() <= 1  # as an encoder takes them


BAD_ROWS = ["1,2,p,label-nine", "one,2,p,label-one", "inf,2,p,label-one", "1,2,p,", "1,2"]


@pytest.mark.parametrize("bad", BAD_ROWS)
def test_a_row_that_cannot_be_used_moves_no_other_row_in_a_run_that_protects_records(
    equals: InProcess, server: ServerFolder, bad: str
) -> None:
    """Else it would take all others out of the message, which is more than the noise for one record hides."""
    east = equals.sites["east"]
    path = east.path / "data.csv"
    whole = training_rows(east)
    path.write_text(f"{path.read_text()}{bad}\n")
    site = SiteContext(east, east.read_config(), plan(RECORD)).data
    records = site.federation.train.at(site.shard.train)
    rows = zip(records.inputs.numpy(), records.labels.tolist(), strict=True)
    assert Counter((row.tobytes(), label) for row, label in rows) == whole
    conduct(equals, server, plan(RECORD))
    warned = [str(event["reason"]) for event in read_events(east.event_log) if event["event"] == "warning"]
    assert any(reason.startswith("rows that cannot be used are left out: 1 of 61; expected ") for reason in warned)
    assert not events_named(server, "warning")
    with pytest.raises(InputError, match="row 61 "):
        check_site(east, east.read_config())  # whoever starts the site is told to mend it


@pytest.mark.parametrize(
    "bad",
    [
        b"1,2,p,label-one,5",
        b'1,"2,p,label-one',
        b'1,2,p,label-o"ne',
        b'"1"1,2,p,label-one',
        b"1,2,\xff,label-one",
        b'"',
    ],
    ids=["too many fields", "open quotation", "quotation mark", "text after a quotation", "no UTF-8", "only a mark"],
)
def test_a_line_that_cannot_be_read_makes_no_other_line_unreadable_where_records_are_protected(
    tmp_path: Path, bad: bytes
) -> None:
    """Else one row would take all others out of the message; a quotation that never ends would swallow those below."""
    folder = fill_site(SiteFolder(tmp_path / "east"), "east", "mlp:8")
    path = folder.path / "data.csv"
    whole = training_rows(folder)
    lines = path.read_bytes().splitlines()
    assert b"r" in lines[3].split(b",")  # a category that the schema does not list
    lines[3] = lines[3].replace(b",r,", b',"r,""r""",')  # a row in which quotation marks are right
    path.write_bytes(b"\r\n".join([*lines[:30], bad, *lines[30:]]) + b"\r\n")
    site = SiteContext(folder, folder.read_config(), plan(RECORD)).data
    records = site.federation.train.at(site.shard.train)
    rows = zip(records.inputs.numpy(), records.labels.tolist(), strict=True)
    assert Counter((row.tobytes(), label) for row, label in rows) == whole
    assert site.left_out is not None
    assert site.left_out.startswith("rows that cannot be used are left out: 1 of 61; expected ")
    with pytest.raises(InputError):
        check_site(folder, folder.read_config())


def test_a_record_that_cannot_be_used_moves_no_other_one_in_arrays_and_images(tmp_path: Path) -> None:
    rows = Key(5).numpy().random((10, 1, 2, 2))
    labels = np.arange(10) % 2
    beyond = np.concatenate([rows, np.full((1, 1, 2, 2), np.nan), rows[:1]])
    folder = tmp_path / "images"
    for at, label in enumerate(labels):
        (folder / "ab"[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 * rows[at, 0]).astype(np.uint8)).save(folder / "ab"[label] / f"{at}.png")
    found = []
    for inputs, given in ((rows, labels), (beyond, [*labels, 0, 2])):
        np.savez(tmp_path / "rows.npz", inputs=inputs, labels=np.array(given))
        for source in (tmp_path / "rows.npz", folder):
            site = load_site(
                str(source),
                IMAGES,
                "east",
                Key(1),
                HeldOutShares(1e-9, 1e-9),
                RowPreparation.ALONE,
                BadRowPolicy.LEFT_OUT,
            )
            found.append(site)
        (folder / "a" / "broken.png").write_bytes(b"no image")
        (folder / "c").mkdir(exist_ok=True)
    arrays, images, fewer_arrays, fewer_images = found
    assert arrays.left_out is images.left_out is None
    assert fewer_arrays.left_out is not None
    assert fewer_arrays.left_out.startswith("rows that cannot be used are left out: 2 of 12; expected ")
    assert fewer_images.left_out is not None
    assert fewer_images.left_out.startswith(
        "folders whose names are no labels are left out: c; rows that cannot be used are left out: 1 of 11; expected "
    )
    for one, other in ((arrays, fewer_arrays), (images, fewer_images)):
        assert torch.equal(one.federation.train.inputs, other.federation.train.inputs)
        assert torch.equal(one.federation.train.labels, other.federation.train.labels)
