"""The benchmark of rounds counts the processor time of real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BURN = "import time\nwhile time.process_time() < 0.4: pass\nprint('done', flush=True)\ninput()"
FORK = f"import os, sys\nif os.fork() == 0:\n  exec({BURN.replace('input()', '')!r})\n  os._exit(0)\nos.wait()\ninput()"


def test_processor_time_is_counted_by_kind_of_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    from benchmarks.processor_time import count_processor_time

    begun = time.time()
    with count_processor_time() as counted:
        begun = time.time()
        burning = [
            subprocess.Popen([sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for code, name in ((BURN, "flower-superlink"), (FORK, "multiprocessing.forkserver"))
        ]
        for process in burning:
            assert process.stdout is not None
            assert process.stdout.readline() == b"done\n"
        time.sleep(0.2)  # the fork has ended and was waited for
    spent = counted.between(begun, time.time())
    for process in burning:
        process.communicate(b"\n")
    for kind in ("SuperLink", "tasks of the sites"):
        assert 0.3 < spent[kind] < 3.0
    assert counted.between(begun, begun) == {}
