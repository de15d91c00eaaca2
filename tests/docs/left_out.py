"""Which commands of the pages the tests do not run, and why; and which take longer than a default test may.

Whatever is left out or slow is still read by the command's own parser, so that a flag that does not exist is found.
"""

from __future__ import annotations

import re

# The beginning of a command -> why no test types it.
LEFT_OUT = {
    r"git clone|python3 -m venv|\S+/pip install|\. fedlog-venv": "installs: tests/packaging installs the wheel instead",
    r"\.venv/bin/pre-commit install": "changes the repository's own hooks",
    r"make ": "a target of the Makefile: CI's own steps; that there is such a target is tested",
    r"fedlog watch ": "goes on until Ctrl-C; tests/smoke/test_watch.py watches a run and presses it",
    r"fedlog data (fetch|check)": "downloads, or looks at what was; tests/smoke/test_data_fetch.py has a server",
    r"fedlog federate (init|join|server|site|run|roster|register|status|drop) ": (
        "takes several machines; tests/smoke/test_federate_*.py types the same at real processes on one"
    ),
    r"fedlog predict (north|berlin)/models/run-1|fedlog privacy spend SERVER": (
        "reads what such a federation leaves behind"
    ),
    r"docker ": "needs a container engine; tests/contract/test_deploy_files.py reads the files",
    r"fedlog run --data (mnist|cifar10) ": "needs a data set that has to be fetched; with one, --dry-run is tried",
    r"fedlog compare --data sites:har-by-people.csv": "needs a data set that has to be fetched",
    r"fedlog run --data sites:images --method fed-lda --body onnx:encoder.onnx": (
        "needs an encoder of the reader's own; tests/oracles/test_encoders.py makes one"
    ),
}

# Minutes, or more than a few seconds each: `make test-slow` types them into a real shell.
SLOW = (
    r"(\.venv/bin/)?fedlog compare",
    r"fedlog federate demo",
    r"fedlog privacy audit",
    r"fedlog run --data digits --privacy (client|paper|record --body-training dp-sgd)",
    r"fedlog run --data sites:(images|sites) --method fed-heads",
    r"fedlog run (my.toml|--method|--body|--out runs/digits|--resume runs/digits)",
    r"PYTHONPATH=\. python -c",
    r"fedlog reproduce figure-synthetic",
)


def why_left_out(command: str) -> str | None:
    """The reason why a command is not typed; None for one that is."""
    return next((reason for start, reason in LEFT_OUT.items() if re.match(start, command)), None)


def is_slow(command: str) -> bool:
    """Whether a command waits for `make test-slow`."""
    return any(re.match(start, command) for start in SLOW)
