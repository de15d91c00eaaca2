"""Time rounds of a committed run of a table (a cell): the code that made its record against today's code, in turns.

    python -m benchmarks.cell_time [--cell results/table-cifar100/fedlog/seed-0] [--rounds 3] [--repeats 2]

The record's commit is checked out and compiled in a temporary folder. Both run the first rounds of the cell with one
process, and both must reach the same accuracies in every turn. These are the record's on the processor of the record;
another one may round differently, so that is written down and not required.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.simulator import RECORDS, summarise_spread
from fedlog.engine.software import list_software_versions

ROOT = Path(__file__).resolve().parent.parent
BUILD = "from setuptools import setup; setup()"


def check_out(commit: str, folder: Path) -> None:
    """Write the sources of a commit into the folder and compile its C code."""
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(folder), commit], cwd=ROOT, check=True)
    build = [sys.executable, "-c", BUILD, "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=folder, check=True, stderr=subprocess.DEVNULL)


def run_rounds(tree: Path, spec: dict[str, Any], rounds: int, out: Path) -> list[dict[str, Any]]:
    """The records of the cell's first rounds, run by the sources in `tree`."""
    arguments = ["run", "--method", spec["method"], "--data", spec["data"], "--seed", str(spec["seed"])]
    arguments += ["--rounds", str(rounds), "--jobs", "1", "--quiet", "--out", str(out)]
    program = f"import sys; from fedlog.cli.main import main; sys.exit(main({arguments!r}))"
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    subprocess.run([sys.executable, "-c", program], cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    return read_rounds(out)[:rounds]


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's rounds."""
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def measure(cell: Path, rounds: int, repeats: int) -> dict[str, Any]:
    """The seconds of every round except the first, by the old and by today's code, in each turn, and their ratios."""
    config = json.loads((cell / "config.json").read_text())
    commit, spec = config["made_with"]["commit"], config["spec"]
    recorded = [each["accuracy_mean_over_clients"] for each in read_rounds(cell)[:rounds]]
    turns: dict[str, list[float]] = {"before": [], "today": []}
    reached: list[float] = []
    with tempfile.TemporaryDirectory(prefix="fedlog-cell-") as name:
        old = Path(name) / "before"
        check_out(commit, old)
        for repeat in range(repeats):
            for which, tree in (("before", old), ("today", ROOT)):
                found = run_rounds(tree, spec, rounds, Path(name) / f"{which}-{repeat}")
                accuracies = [each["accuracy_mean_over_clients"] for each in found]
                reached = reached or accuracies
                if accuracies != reached:
                    sys.exit(f"the two commits do not agree: {which} reaches {accuracies}, before it were {reached}")
                turns[which].append(statistics.median(each["seconds"] for each in found[1:]))
        subprocess.run(["git", "worktree", "remove", "--force", str(old)], cwd=ROOT, check=True)
    return {
        "cell": str(cell.resolve().relative_to(ROOT)),
        "commit_before": commit,
        "seconds_a_round": turns,
        "repeats_the_record": reached == recorded,
        "seconds_a_round_in_the_record": statistics.median(each["seconds"] for each in read_rounds(cell)),
        "times_faster": summarise_spread([old / new for old, new in zip(*turns.values(), strict=True)]),
        "load_of_the_machine": os.getloadavg()[0],
        "made_with": list_software_versions(),
    }


def main() -> None:
    """Measure, print and write `cell-<data>.json`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--cell", type=Path, default=ROOT / "results/table-cifar100/fedlog/seed-0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    found = measure(args.cell, args.rounds, args.repeats)
    found["command"] = f"python -m benchmarks.cell_time --rounds {args.rounds} --repeats {args.repeats}"
    name = json.loads((args.cell / "config.json").read_text())["spec"]["data"]
    (RECORDS / f"cell-{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    took = {which: statistics.median(each) for which, each in found["seconds_a_round"].items()}
    ratio = found["times_faster"]
    print(f"{took['before']:.2f} s a round before, {took['today']:.2f} s today: ", end="")
    print(f"{ratio['median']:.2f} times faster ({ratio['lowest']:.2f} to {ratio['highest']:.2f})")


if __name__ == "__main__":
    main()
