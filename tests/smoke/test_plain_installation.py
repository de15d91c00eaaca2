"""Without the optional packages: commands that need none work, and those that need one name it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedlog.cli.main import EXTRA_OF

ROOT = Path(__file__).parents[2]
# None in `sys.modules` makes an import fail as if the package were not there.
PLAIN = f"""
import contextlib, io, json, sys
sys.modules.update(dict.fromkeys({sorted(EXTRA_OF)!r}))
from fedlog.cli.main import main
ended = {{}}
for command in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        ended[command] = main(command.split()), said.getvalue
print(json.dumps({{command: [code, said()] for command, (code, said) in ended.items()}}))
"""
WORKING = (
    "privacy calibrate --epsilon 1 --delta 1e-5 --releases 10 --privacy client --clip message:1",
    "run --data circle --rounds 1 --clients 2 --quiet --out here",
)
REFUSED = {
    "run --data digits --rounds 1 --aggregation secure --out there": ("cryptography", "federate"),
    "reproduce figure-synthetic --executor dask://127.0.0.1:1 --out there": ("distributed", "dask"),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The exit code and the standard error of each command, in one process without the optional packages."""
    command = [sys.executable, "-c", PLAIN, *WORKING, *REFUSED]
    folder = tmp_path_factory.mktemp("plain")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


def test_every_extra_is_known() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        part.split(">")[0].split("=")[0].replace("-", "_"): extra
        for extra, parts in told.items()
        for part in parts
        if extra not in ("dev", "docs") and not part.startswith("fedlog[")
    }
    named["mlflow"] = named.pop("mlflow_skinny")  # the name of its module
    assert named == EXTRA_OF


@pytest.mark.parametrize("command", WORKING)
def test_commands_that_need_no_extra_work(ended: dict[str, tuple[int, str]], command: str) -> None:
    code, said = ended[command]
    assert code == 0, said


@pytest.mark.parametrize("command", REFUSED)
def test_commands_that_need_an_extra_name_it(ended: dict[str, tuple[int, str]], command: str) -> None:
    code, said = ended[command]
    missing, extra = REFUSED[command]
    assert code == 2
    assert said.splitlines()[-2:] == [
        f"error: this needs {missing}, which is not installed",
        f"hint: pip install 'fedlog[{extra}]', or '.[{extra}]' in a clone",
    ]
    assert "Traceback" not in said
