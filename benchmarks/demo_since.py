"""Compare wall and processor time of `fedlog federate demo` today with those of an earlier commit, in turns.

    python -m benchmarks.demo_since e9d2a03 --pairs 2 --out results/federation/demo-since.json

The earlier source is checked out beside this one and run with the same installed packages. A pair is run one after the
other, the second pair in the opposite order and so on, so that other work on the machine falls on both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.demo_time import COMMANDS, measure
from fedlog.engine.software import list_software_versions

ROOT = Path(__file__).parents[1]


def run_git(*arguments: str) -> str:
    """The output of a git command in this repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Run the pairs, print them and write the record after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("since", metavar="COMMIT", help="the earlier commit")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    made, command = list_software_versions(), f"python -m benchmarks.demo_since {' '.join(sys.argv[1:])}"
    with tempfile.TemporaryDirectory(prefix="fedlog-earlier-") as name:
        earlier = Path(name) / "source"
        run_git("worktree", "add", "--detach", str(earlier), args.since)
        sources = {"now": ROOT / "src", "earlier": earlier / "src"}
        pairs: list[dict[str, Any]] = []
        try:
            for at in range(args.pairs):
                pair: dict[str, Any] = {}
                for which in list(sources) if at % 2 == 0 else list(sources)[::-1]:
                    os.environ["PYTHONPATH"] = str(sources[which])
                    load = round(os.getloadavg()[0], 1)
                    pair[which] = {**measure(COMMANDS["plain"]), "load_average": load}
                pairs.append(pair)
                print(json.dumps(pair), flush=True)
                record = {
                    "command": command,
                    "earlier": run_git("rev-parse", args.since),
                    "pairs": pairs,
                    "made_with": made,
                }
                args.out.write_text(json.dumps(record, indent=1) + "\n")
        finally:
            run_git("worktree", "remove", "--force", str(earlier))


if __name__ == "__main__":
    main()
