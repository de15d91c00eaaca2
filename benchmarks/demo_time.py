"""Compare the wall time of `fedlog federate demo --pretrained` with that of `fedlog federate demo`, in turns.

    python -m benchmarks.demo_time --pairs 2 --out benchmarks/records/demo-time.json

Each demo starts with a new folder and an empty cache of features, and ends when its processes have. Processor seconds
are those of all its processes. A pair is run one after the other, the second pair in the opposite order and so on, so
that other work on the machine falls on both.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedlog.engine.software import list_software_versions

COMMANDS = {"pretrained": ["federate", "demo", "--pretrained"], "plain": ["federate", "demo"]}


def measure(command: list[str]) -> dict[str, float]:
    """The wall-clock seconds of one demo, and the processor seconds of all its processes."""
    with tempfile.TemporaryDirectory(prefix="fedlog-demo-cache-") as cache:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        # Not captured: a pipe would stay open until the last of the demo's processes has ended.
        subprocess.run(
            [sys.executable, "-m", "fedlog", *command],
            check=True,
            stdout=sys.stderr,
            env={**os.environ, "FEDLOG_CACHE": cache},
        )
        wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": round(wall, 1), "processor_seconds": round(spent, 1)}


def main() -> None:
    """Run the pairs, print them and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    pairs: list[dict[str, Any]] = []
    for at in range(args.pairs):
        order = list(COMMANDS) if at % 2 == 0 else list(COMMANDS)[::-1]
        pairs.append({name: measure(COMMANDS[name]) for name in order})
        print(pairs[-1], flush=True)
    command = f"python -m benchmarks.demo_time --pairs {args.pairs} --out {args.out}"
    args.out.write_text(
        json.dumps({"command": command, "pairs": pairs, "made_with": list_software_versions()}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
