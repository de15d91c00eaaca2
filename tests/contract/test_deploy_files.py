"""The files of `deploy/`: parsed, and every fedlog command in them read by fedlog's own parser.

No container engine and no logrotate is needed: nothing is built or run here. systemd's own checker runs where it is.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedlog.cli.main import parse_arguments

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


def read_dockerfile() -> list[tuple[str, str]]:
    """The instructions with their arguments, continued lines joined."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def read_compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def test_the_image_is_built_from_files_that_are_there_and_does_not_run_as_root() -> None:
    found = read_dockerfile()
    assert {name for name, _ in found} <= INSTRUCTIONS
    assert found[0][0] == "FROM"
    assert re.fullmatch(r"python:3\.\d+-[\w-]+", found[0][1])
    for name, rest in found:
        if name == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    users = [rest for name, rest in found if name == "USER"]
    assert users == ["fedlog"]
    installs = [rest for name, rest in found if "pip install" in rest]
    assert "torch==" in installs[0]
    assert all("-c constraints.txt" in rest for rest in installs)
    assert dict(found)["ENTRYPOINT"] == '["fedlog"]'


def test_the_compose_file_has_a_server_and_three_sites_with_commands_that_fedlog_reads() -> None:
    compose = read_compose()
    services = compose["services"]
    assert sorted(services) == ["east", "north", "server", "south"]
    for name, service in services.items():
        read = parse_arguments(service["command"])
        assert read.federate_command == ("server" if name == "server" else "site")
        assert read.metrics.startswith("127.0.0.1:")
        assert read.metrics.split(":")[1] in " ".join(service["healthcheck"]["test"])
        assert service["restart"] == "unless-stopped"
        assert service["build"]["dockerfile"] == "deploy/Dockerfile"
        named = {volume.split(":")[0] for volume in service["volumes"] if not volume.startswith(".")}
        assert named <= set(compose["volumes"])
        assert str(read.folder) in {volume.split(":")[1] for volume in service["volumes"]}
        assert ("ports" in service) == (name == "server")


def commands_in(unit: Path) -> list[list[str]]:
    lines = re.findall(r"^ExecStart=(.*)$", unit.read_text(), flags=re.M)
    return [shlex.split(line.replace("%i", "north").replace("${FEDLOG_METRICS}", "127.0.0.1:9465")) for line in lines]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_that_fedlog_reads(unit: Path) -> None:
    ((program, *arguments),) = commands_in(unit)
    assert program.endswith("/fedlog")
    read = parse_arguments(arguments)
    assert read.federate_command == ("server" if "server" in unit.name else "site")
    text = unit.read_text()
    for line in ("Restart=on-failure", "User=fedlog", "KillMode=mixed", "UMask=0077", "After=network-online.target"):
        assert line in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    program = shutil.which("true")
    copy.write_text(unit.read_text().replace("/opt/fedlog/bin/fedlog", str(program)))
    instance = copy.with_name(unit.name.replace("@.", "@north."))  # a template is checked by one of its instances
    instance.write_text(copy.read_text())
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(instance)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert unit.stem.split("@")[0] not in done.stderr, done.stderr


def test_rotation_covers_the_logs_and_never_the_record_of_what_left() -> None:
    text = "\n".join(line for line in (DEPLOY / "logrotate.conf").read_text().splitlines() if not line.startswith("#"))
    patterns, block = re.fullmatch(r"\s*([^{]+)\{(.*)\}\s*", text, flags=re.S).groups()  # type: ignore[union-attr]
    words = [line.split()[0] for line in block.strip().splitlines()]
    known = {
        "su",
        "weekly",
        "maxsize",
        "rotate",
        "compress",
        "delaycompress",
        "missingok",
        "notifempty",
        "copytruncate",
    }
    assert set(words) == known
    server, site = Path("/var/lib/fedlog/server"), Path("/var/lib/fedlog/north")

    def covered(path: Path) -> bool:
        return any(path.match(pattern) for pattern in patterns.split())

    assert covered(server / "logs" / "events.jsonl")
    assert covered(site / "logs" / "supernode.log")
    assert not covered(site / "state" / "privacy.jsonl")
    assert not covered(server / "runs" / "run-1" / "rounds.jsonl")
