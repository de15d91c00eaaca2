"""Without the extras: what needs none works, and what needs one says which."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedlog.cli.main import EXTRAS

ROOT = Path(__file__).parents[2]
# None in `sys.modules` makes an import fail as if the package were not there.
PLAIN = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(EXTRAS)!r}))
from fedlog.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def plain(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """How the command ends where no extra is installed."""
    return subprocess.run(
        [sys.executable, "-c", PLAIN, *command.split()], cwd=folder, capture_output=True, text=True, check=False
    )


def test_every_extra_is_known() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        part.split(">")[0].split("=")[0].replace("-", "_"): extra
        for extra, parts in told.items()
        for part in parts
        if extra not in ("dev", "docs") and not part.startswith("fedlog[")
    }
    named["mlflow"] = named.pop("mlflow_skinny")  # the name of its module
    assert named == EXTRAS


@pytest.mark.parametrize(
    "command",
    [
        "privacy calibrate --epsilon 1 --delta 1e-5 --releases 10 --privacy client --clip message:1",
        "run --data circle --rounds 1 --clients 2 --quiet --out here",
    ],
)
def test_what_needs_no_extra_works(tmp_path: Path, command: str) -> None:
    ended = plain(tmp_path, command)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        ("run --data digits --rounds 1 --aggregation secure --out here", "cryptography", "federate"),
        ("reproduce figure-synthetic --executor dask://127.0.0.1:1 --out here", "distributed", "dask"),
    ],
)
def test_what_needs_an_extra_says_which(tmp_path: Path, command: str, missing: str, extra: str) -> None:
    ended = plain(tmp_path, command)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-2:] == [
        f"error: this needs {missing}, which is not installed",
        f"hint: pip install 'fedlog[{extra}]', or '.[{extra}]' in a clone",
    ]
    assert "Traceback" not in ended.stderr
