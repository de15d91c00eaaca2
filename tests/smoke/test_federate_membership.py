"""Who belongs to a federation of real processes: late and double sites, another version, and a site that leaves."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from loopback_sites import OPTIONS, Federation, started, when

from fedlog.engine.protocol import checkpoint
from fedlog.errors import InputError
from fedlog.flower.folders.server_folder import CONNECTION
from fedlog.flower.ops.processes import find_program, run_command
from fedlog.flower.ops.server import make_flwr_command, register_site
from fedlog.flower.ops.site import run_site
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.run_folder import RunFolder
from fedlog.wire.codec import find_codec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with started(tmp_path_factory.mktemp("federation"), "east", "north") as federation:
        yield federation


def bring_in_south(federation: Federation) -> None:
    """Register and start the site, unless an earlier test has done it: each test can run by itself."""
    if "south" not in federation.server.read_registered_sites():
        federation.admit("south")
    elif federation.running["south"].exit_code is not None:
        federation.start_site("south")


def test_a_site_with_another_version_is_refused_by_name(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import fedlog\n\nfedlog.__version__ = '9.9.9'\n")
    register_site(federation.server, "south", federation.sites["south"].public_key.read_text(), print)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        federation.start_site("south")
    federation.run(Plan("versions", rounds=1, options=OPTIONS))
    federation.running["south"].stop()
    left_out = federation.events("left out", "versions")
    assert {event["site"] for event in left_out} == {"south"}
    assert "expected fedlog" in left_out[0]["reason"]
    assert federation.events("uploads", "versions")[0]["sites"] == ["east", "north"]


def test_a_site_joins_a_run_under_way(federation: Federation) -> None:
    if "south" not in federation.server.read_registered_sites():
        register_site(federation.server, "south", federation.sites["south"].public_key.read_text(), print)
    plan = Plan("late", rounds=6, options=OPTIONS)
    after_round_one = lambda: len(federation.events("round", plan.name)) >= 1  # noqa: E731
    with when(after_round_one, lambda: federation.start_site("south")):
        report = federation.run(plan)
    uploads = [event["sites"] for event in federation.events("uploads", plan.name)]
    assert uploads[0] == ["east", "north"]
    assert uploads[-1] == ["east", "north", "south"]
    assert [site["name"] for site in report["sites"]] == ["east", "north", "south"]
    assert federation.site_events("south", "worked", plan.name)[0]["own_state_of_round"] is None


def test_a_site_listed_twice_counts_once(federation: Federation, tmp_path: Path) -> None:
    bring_in_south(federation)
    second = federation.make_site(tmp_path / "east", "east")
    arguments = ("supernode", "register", str(second.public_key), CONNECTION, "--name", "east")
    run_command(make_flwr_command(federation.server, *arguments))
    with run_site(second, print) as running:
        federation.wait_until_let_in(running)
        federation.run(Plan("twice", rounds=1, options=OPTIONS), minimum=3)
    assert federation.events("uploads", "twice")[0]["sites"] == ["east", "north", "south"]
    assert (second.models / "twice").exists()  # the newest process is the one that counts
    assert not (federation.sites["east"].models / "twice").exists()


def test_leaving_takes_the_statistics_out_and_locks_the_site_out(federation: Federation) -> None:
    bring_in_south(federation)
    plan = Plan("leaving", rounds=1, options=OPTIONS)
    federation.run(plan, minimum=3)
    home = RunFolder.of_run(federation.server, plan.name)
    parts = {site: find_codec("f32").decode(blob).arrays[0].double() for site, blob in home.read_uploads().items()}
    command = [find_program("fedlog"), "federate", "leave", str(federation.server.path), "south"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the head of leaving is now that of east, north" in done.stderr
    assert "not undone: bodies that were trained under earlier heads" in done.stderr
    left = checkpoint.read(home.checkpoint, lambda _: None).values["statistics"]
    torch.testing.assert_close(left, parts["east"] + parts["north"])
    assert "south" not in federation.server.read_registered_sites()
    with pytest.raises(InputError, match="expected a new key for south, found one that was registered before"):
        register_site(federation.server, "south", federation.sites["south"].public_key.read_text(), print)
    report = federation.run(plan)
    assert [site["name"] for site in report["sites"]] == ["east", "north"]
