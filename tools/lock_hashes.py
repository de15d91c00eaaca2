"""Write requirements-hashed.txt: every package of constraints.txt with its version and SHA-256.

    make lock

pip reports which files it would install on this platform from its configured index; nothing is installed. Another
platform, another Python or another build of torch has other files with other hashes, so the list must be made there
again.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HASHED = "requirements-hashed.txt"


def resolve(arguments: list[str]) -> list[dict[str, Any]]:
    """The packages that pip would install for these arguments, each with the address and the hash of its file."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), *arguments], check=True, cwd=ROOT)
        return list(json.loads(report.read_text())["install"])


def write_lines(found: list[dict[str, Any]]) -> list[str]:
    """One requirement with its hash for each package that comes as one file."""
    lines = []
    for package in found:
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name.lower()}=={version} --hash=sha256:{digest}")
    return sorted(lines)


def main() -> None:
    """Resolve and write the file."""
    # Every package is in there with its version, so that nothing is left to resolve.
    found = resolve(["--no-deps", "--requirement", "constraints.txt"])
    header = [
        "# Written by `make lock`; install with `make install-hashed`.",
        f"# For {platform.system()} {platform.machine()}, CPython {platform.python_version()}.",
        "# On another platform, or with an index that has another build of torch, run `make lock` first.",
    ]
    (ROOT / HASHED).write_text("\n".join([*header, *write_lines(found)]) + "\n")


if __name__ == "__main__":
    main()
