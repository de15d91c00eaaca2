"""What a site's process caches between messages changes no upload, and changed files are read again."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path
from types import FrameType

import pytest
from three_sites import SCHEMA, fill_site

import fedlog
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.frame import Frame, FrameKind, SendableError, make_run_tag
from fedlog.flower.protocol.greeting import encode_hello, make_versions
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.engine_server import create_engine_server
from fedlog.flower.site import answer, client_app
from fedlog.flower.site.answer import answer_request, load_context
from fedlog.flower.site.guard import run_worker
from fedlog.flower.site.run_state import RunState
from fedlog.privacy.accounting import UnboundedLoss
from fedlog.privacy.release_log import FILE_NAME, read_log

PLAN = Plan("trial", rounds=4, options={"epochs": 2, "learning_rate": 0.01}, seed=4)
HELLO = Frame(FrameKind.HELLO, make_run_tag("trial"), 0, 0, encode_hello(make_versions(SCHEMA.digest), PLAN))
ROOT = str(Path(fedlog.__file__).parent)


def work(number: int) -> Frame:
    """The request of one round, under the first head."""
    return Frame(
        FrameKind.WORK,
        make_run_tag("trial"),
        number,
        0,
        create_engine_server(PLAN, SCHEMA, 8).encode_and_count_broadcast(0, 1),
    )


def forget_contexts() -> None:
    """Drop the contexts that this process keeps between messages, as its end would."""
    answer._kept.clear()


def greeted_site(path: Path) -> SiteFolder:
    folder = fill_site(SiteFolder(path), "east", "mlp:16,8")
    answer_request(HELLO, folder)
    return folder


def test_a_kept_context_gives_the_uploads_of_a_new_one_bit_for_bit(tmp_path: Path) -> None:
    kept, anew = greeted_site(tmp_path / "kept"), greeted_site(tmp_path / "anew")
    forget_contexts()
    uploads = [answer_request(work(number), kept).payload for number in (1, 2, 3)]
    assert load_context(kept, RunState.of_run(kept, make_run_tag("trial"))) is load_context(
        kept, RunState.of_run(kept, make_run_tag("trial"))
    )
    for number, upload in zip((1, 2, 3), uploads, strict=True):
        forget_contexts()
        assert answer_request(work(number), anew).payload == upload


def test_a_message_that_failed_halfway_leaves_nothing_in_the_next_one(tmp_path: Path) -> None:
    kept, anew = greeted_site(tmp_path / "kept"), greeted_site(tmp_path / "anew")
    for folder in (kept, anew):
        answer_request(work(1), folder)

    def fail(path: Path) -> None:
        raise OSError("disk full")

    cohort = load_context(kept, RunState.of_run(kept, make_run_tag("trial"))).cohort
    cohort.save = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="disk full"):
        answer_request(work(2), kept)
    del cohort.save  # type: ignore[method-assign]
    found = answer_request(work(2), kept).payload
    forget_contexts()
    assert found == answer_request(work(2), anew).payload


def test_a_changed_table_is_read_again_even_with_its_old_size_and_time(tmp_path: Path) -> None:
    kept, anew = greeted_site(tmp_path / "kept"), greeted_site(tmp_path / "anew")
    for folder in (kept, anew):
        answer_request(work(1), folder)
        table = folder.path / "data.csv"
        before = table.stat()
        head, *rows = table.read_text().splitlines()
        table.write_text("\n".join([head, *reversed(rows)]) + "\n")
        os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert table.stat().st_size == before.st_size
    found = answer_request(work(2), kept).payload
    answer_request(work(3), kept)
    # Once, after the change: other rows are held out now, and the body has seen them.
    (warning,) = [event for event in read_events(kept.event_log) if event["event"] == "warning"]
    assert "the data or --hold-out have changed since the last round" in warning["reason"]
    forget_contexts()
    assert found == answer_request(work(2), anew).payload


@pytest.mark.parametrize("change", ["limit", "body", "schema"])
def test_a_changed_decision_holds_for_the_next_message(tmp_path: Path, change: str) -> None:
    folder = greeted_site(tmp_path / "east")
    answer_request(work(1), folder)
    before = load_context(folder, RunState.of_run(folder, make_run_tag("trial")))
    if change == "limit":
        with folder.config_file.open("a") as file:
            file.write('privacy = "local:1:1e-6"\n')
        with pytest.raises(SendableError, match="private runs only"):
            answer_request(work(2), folder)
        return
    if change == "body":
        folder.store_data_and_body(None, "mlp:24,8")
    else:
        folder.schema_file.write_text(folder.schema_file.read_text() + "\n# reviewed\n")
    after = load_context(folder, RunState.of_run(folder, make_run_tag("trial")))
    assert after is not before


def test_a_plain_run_is_in_the_ledger_from_its_first_upload_on_and_once(tmp_path: Path) -> None:
    folder = greeted_site(tmp_path / "east")
    for number in (1, 2):
        answer_request(work(number), folder)
        assert [type(event) for event in read_log(folder.state / FILE_NAME).events] == [UnboundedLoss]


def test_a_replaced_file_of_the_body_makes_a_new_context(tmp_path: Path) -> None:
    folder, weights = greeted_site(tmp_path / "east"), tmp_path / "body.safetensors"
    weights.write_bytes(b"one")
    folder.store_data_and_body(None, f"frozen:{weights}")
    state = RunState.of_run(folder, make_run_tag("trial"))
    before = load_context(folder, state)
    assert load_context(folder, state) is before
    weights.write_bytes(b"two")
    assert load_context(folder, state) is not before


def test_data_that_a_function_makes_are_never_kept(tmp_path: Path) -> None:
    folder = greeted_site(tmp_path / "east")
    folder.store_data_and_body("three_sites:no_such_file", None)
    state = RunState.of_run(folder, make_run_tag("trial"))
    assert load_context(folder, state) is not load_context(folder, state)


def test_one_message_reads_no_table_and_builds_no_method(tmp_path: Path) -> None:
    folder = greeted_site(tmp_path / "east")
    answer_request(work(1), folder)
    files: set[str] = set()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        files.add(frame.f_code.co_filename)

    request = work(2)
    sys.setprofile(watch)
    try:
        answer_request(request, folder)
    finally:
        sys.setprofile(None)
    ours = {str(Path(path).relative_to(ROOT)) for path in files if path.startswith(ROOT)}
    assert not ours & {
        "data/tables.py",
        "data/split.py",
        "algorithms/registry.py",
        "models/catalog.py",
    }  # no file is read, nothing is built
    flower = {path for path in ours if path.startswith("flower/")}
    assert len(flower) <= 4, sorted(flower)  # not the ledger of what left: a plain run is in it since its first upload
    # How a body is trained is the engine's to divide; around it a message passes through few files.
    around = {path for path in ours if not path.startswith(("engine/training/", "algorithms/", "core/"))}
    assert len(around) <= 9, "\n".join(sorted(around))
    assert len(ours) <= 18, "\n".join(sorted(ours))


def test_a_worker_answers_as_the_process_itself_would_and_its_end_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = greeted_site(tmp_path / "here"), greeted_site(tmp_path / "there")
    socket, secret = str(tmp_path / "socket" / "frames"), b"secret"
    (tmp_path / "socket").mkdir()
    process = multiprocessing.get_context("spawn").Process(target=run_worker, args=(socket, secret), daemon=True)
    process.start()
    while not Path(socket).exists():
        time.sleep(0.05)
    monkeypatch.setattr(client_app, "_worker", (socket, secret))
    replies = [client_app.answer_in_worker(work(number), there) for number in (1, 2)]
    assert replies == [answer_request(work(number), here) for number in (1, 2)]
    assert [event["event"] for event in read_events(there.event_log)].count("worked") == 2
    monkeypatch.setattr(client_app, "_worker", (socket, b"a stranger's"))
    replies = [client_app.answer_in_worker(work(3), there)]  # not let in, so this process does the work itself
    assert replies == [answer_request(work(3), here)]
    monkeypatch.setattr(client_app, "_worker", (socket, secret))
    process.kill()
    process.join()
    assert client_app.answer_in_worker(work(4), there) == answer_request(work(4), here)


def test_a_worker_that_ends_in_the_middle_is_a_refusal_and_no_second_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multiprocessing.connection import Listener
    from threading import Thread

    folder = greeted_site(tmp_path / "east")
    with Listener(str(tmp_path / "frames"), family="AF_UNIX", authkey=b"secret") as listener:
        thread = Thread(target=lambda: listener.accept().close())
        thread.start()
        monkeypatch.setattr(client_app, "_worker", (str(tmp_path / "frames"), b"secret"))
        reply = client_app.answer_in_worker(work(1), folder)
        thread.join()
    assert reply.kind is FrameKind.REFUSAL
    assert RunState.of_run(folder, make_run_tag("trial")).list_steps() == []
