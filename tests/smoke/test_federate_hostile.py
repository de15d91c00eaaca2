"""Messages that are damaged, too long, of another kind, version or run, between real processes: refused and logged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback_sites import OPTIONS, Federation, started

from fedlog.core.keys import Key
from fedlog.data.schema import load_schema
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import CONNECTION
from fedlog.flower.ops.processes import (
    Command,
    find_free_port,
    find_program,
    make_flower_environment,
    run_command,
    start_program,
)
from fedlog.flower.ops.server import make_flwr_command, register_site
from fedlog.flower.ops.site import make_supernode_command
from fedlog.flower.protocol.frame import Frame, FrameKind, decode_frame, make_run_tag
from fedlog.flower.protocol.greeting import encode_hello, make_versions
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.run_folder import RoundRules
from fedlog.flower.server.server_app import make_app_settings, write_flower_app

pytestmark = pytest.mark.slow

SERVER = """
import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    folder = Path(str(context.run_config["name"]))
    (node,) = [node.node_id for node in grid.get_nodes() if node.name == "east"]
    frames = [bytes.fromhex(line) for line in json.loads((folder / "frames.json").read_text())]
    contents = [RecordDict({"fedlog": ConfigRecord({"frame": frame})}) for frame in frames]
    contents += [RecordDict(), RecordDict({"fedlog": ConfigRecord({"frame": "text"})})]
    sent = list(grid.push_messages([Message(content, node, MessageType.TRAIN) for content in contents]))
    replies, end = {}, time.monotonic() + 240
    while len(replies) < len(sent) and time.monotonic() < end:
        for reply in grid.pull_messages([one for one in sent if one not in replies]):
            told = "error" if reply.has_error() else reply.content["fedlog"]["frame"].hex()
            replies[reply.metadata.reply_to_message_id] = told
        time.sleep(0.5)
    (folder / "replies.json").write_text(json.dumps([replies.get(one) for one in sent]))
"""

# One kind of damage for each round; the greeting is answered properly, or nothing after it would be asked.
CLIENT = """
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedlog.flower.site.client_app import answer_with_frame
from fedlog.flower.folders.site_folder import SiteFolder

app = ClientApp()
DAMAGE = [
    lambda frame: frame[:-3],
    lambda frame: frame + bytes(100),
    lambda frame: frame[:5] + bytes([2]) + frame[6:],
    lambda frame: frame[:4] + bytes([9]) + frame[5:],
    lambda frame: frame[:6] + bytes(8) + frame[14:],
    lambda frame: frame[:23] + bytes(len(frame) - 23),
]


@app.train()
def train(message, context):
    question = message.content["fedlog"]["frame"]
    frame = answer_with_frame(message, SiteFolder(Path(str(context.node_config["folder"])))).encode()
    if question[5] != 1:
        frame = DAMAGE[(int.from_bytes(question[14:18], "little") - 1) % len(DAMAGE)](frame)
    return Message(RecordDict({"fedlog": ConfigRecord({"frame": frame})}), reply_to=message)
"""
EXPECTED = ["payload of", "payload of", "kind UPLOAD", "frame version 1", "with run tag", "magic number"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with started(tmp_path_factory.mktemp("federation"), "east", "north") as federation:
        yield federation


def run_app(federation: Federation, folder: Path, plan: Plan, code: dict[str, str]) -> None:
    """Run an app with other modules by a plain `flwr run`."""
    write_flower_app(folder, make_app_settings(plan, RoundRules(1, 60.0, refused_share=0.5)))
    for name, text in code.items():
        (folder / "fedlog_app" / f"{name}.py").write_text(text)
    run_command(make_flwr_command(federation.server, "run", str(folder), CONNECTION, "--stream"), timeout_seconds=500)


def damaged(federation: Federation) -> list[bytes]:
    """Frames that every site must refuse, then a valid greeting with random bytes flipped."""
    ours = make_versions(load_schema(federation.server.schema_file).digest)
    good = Frame(FrameKind.HELLO, make_run_tag("fuzz"), 0, 0, encode_hello(ours, Plan("fuzz", options=OPTIONS)))
    raw = good.encode()
    bad = [
        raw[:10],
        raw[:-1],
        raw + b"x",
        Frame(FrameKind.HELLO, make_run_tag("fuzz"), 0, 0, bytes(70_000)).encode(),
        raw[:4] + bytes([7]) + raw[5:],
        raw[:5] + bytes([99]) + raw[6:],
        Frame(FrameKind.UPLOAD, make_run_tag("fuzz"), 1, 0, b"").encode(),
        Frame(FrameKind.WORK, make_run_tag("a run nobody greeted"), 1, 0, b"").encode(),
    ]
    generator = Key(2).numpy()
    for _ in range(12):
        flipped = bytearray(raw)
        flipped[int(generator.integers(len(raw)))] ^= int(generator.integers(1, 256))
        bad.append(bytes(flipped))
    return bad


def test_a_site_refuses_and_logs_what_a_hostile_server_sends(federation: Federation, tmp_path: Path) -> None:
    frames = damaged(federation)
    (tmp_path / "frames.json").write_text(json.dumps([frame.hex() for frame in frames]))
    # The hostile app reads where its frames are from the place of the run's name.
    plan = Plan(str(tmp_path), options=OPTIONS)
    run_app(federation, tmp_path / "app", plan, {"server": SERVER})
    replies = [decode_frame(bytes.fromhex(reply)) for reply in json.loads((tmp_path / "replies.json").read_text())]
    certain = [*replies[:8], *replies[-2:]]
    assert len(replies) == len(frames) + 2
    assert {reply.kind for reply in certain} == {FrameKind.REFUSAL}
    assert {reply.kind for reply in replies} <= {FrameKind.REFUSAL, FrameKind.WELCOME}
    logged = [event["event"] for event in read_events(federation.sites["east"].event_log)]
    assert logged.count("refused") + logged.count("failed") >= len(certain)
    federation.run(Plan("after-noise", rounds=1, options=OPTIONS))  # the site still works
    assert federation.events("uploads", "after-noise")[0]["sites"] == ["east", "north"]


def test_the_server_refuses_and_logs_what_a_hostile_site_sends(federation: Federation, tmp_path: Path) -> None:
    folder = federation.sites["south"]
    register_site(federation.server, "south", folder.public_key.read_text(), print)
    # Flower's own SuperNode and not ours, which starts the guard: the code that comes with the run is what answers.
    _, _, _, *options = make_supernode_command(folder, folder.read_config(), find_free_port()).arguments
    command = Command(
        (find_program("flower-supernode"), *options), make_flower_environment(folder.flower_home.resolve())
    )
    running = start_program(command, tmp_path / "log")
    try:
        assert federation.wait_until_let_in(running)
        plan = Plan("hostile", rounds=len(EXPECTED), options=OPTIONS)
        run_app(federation, tmp_path / "app", plan, {"client": CLIENT})
    finally:
        running.stop()
    refused = [event for event in federation.events("refused", "hostile") if event["round"] <= plan.rounds]
    assert {event["site"] for event in refused} == {"south"}
    for number, reason in enumerate(EXPECTED, start=1):
        assert any(event["round"] == number and reason in event["reason"] for event in refused), (number, refused)
    assert [event["sites"] for event in federation.events("uploads", "hostile")] == [["east", "north"]] * plan.rounds
    assert federation.events("finished", "hostile")[0]["sites"] == ["east", "north"]
