"""Private runs between real processes on the loopback: noise at the sites, and distributed noise under secure sums."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback_sites import Federation
from three_sites import BODIES

from fedlog.cli.main import main
from fedlog.flower.folders.keys import ROSTER
from fedlog.flower.protocol.frame import make_run_tag
from fedlog.flower.server.run_folder import RunFolder
from fedlog.flower.site.run_state import RunState
from fedlog.privacy.accounting import compute_spending
from fedlog.privacy.release_log import FILE_NAME, read_log
from fedlog.privacy.secagg.terms import Step

pytestmark = pytest.mark.slow
SETTINGS = ["--set", "epochs=1", "--minimum-sites", "3", "--deadline", "200", "--json"]
CLIENT = ["--privacy", "client", "--message-norm", "20", "--epsilon", "20", "--delta", "1e-5"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("private"))
    with made.stack:
        made.start_server()
        made.admit(*BODIES)
        yield made


def run(federation: Federation, capsys: pytest.CaptureFixture[str], *settings: str) -> dict[str, object]:
    assert main(["federate", "run", str(federation.server.path), *settings, *SETTINGS]) == 0
    report: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


def test_local_noise_between_processes(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    report = run(federation, capsys, "--name", "local", "--rounds", "1", "--trust", "local", *CLIENT)
    assert report["privacy"]["trusted"].startswith("no one")  # type: ignore[index]
    assert report["sites"] == [{"name": name, "body": body} for name, body in BODIES.items()]
    for folder in federation.sites.values():
        (release,) = read_log(RunState.of_run(folder, make_run_tag("local")).path / FILE_NAME).releases
        assert compute_spending([release], 1e-5).caveats == ()


def test_distributed_noise_under_secure_sums_between_processes(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = []
    for folder in federation.sites.values():
        assert main(["federate", "roster", str(folder.path)]) == 0
        entries.append(capsys.readouterr().out.strip())
    for path in (federation.server.path, *(folder.path for folder in federation.sites.values())):
        assert main(["federate", "roster", str(path), *entries]) == 0
        assert (Path(path) / ROSTER).exists()
    report = run(federation, capsys, "--name", "sum", "--rounds", "2", "--trust", "distributed", *CLIENT)
    assert report["privacy"]["mechanism"] == "distributed"  # type: ignore[index]
    assert [event["sites"] for event in federation.events("uploads", "sum")] == [sorted(BODIES)] * 2
    assert RunFolder.of_run(federation.server, "sum").read_uploads() == {}
    for folder in federation.sites.values():
        home = RunState.of_run(folder, make_run_tag("sum")).path
        assert len(list((home / "secure" / "used").iterdir())) == 2 * len(Step)
        assert not (home / "secure" / "sum").exists()
        assert len(read_log(home / FILE_NAME).releases) == 2
