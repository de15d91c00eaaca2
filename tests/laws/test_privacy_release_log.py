"""A release log is on disk as a whole, whatever happens while it is begun."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedlog.errors import InputError
from fedlog.privacy.guarantee import Budget
from fedlog.privacy.release_log import FILE_NAME, parse_log, start_or_resume_log

BUDGET = Budget(1.0, 1e-5)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_run_that_was_killed_as_it_began_its_record_can_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / FILE_NAME
    with monkeypatch.context() as broken:

        def killed(*given: object) -> None:
            raise SystemExit

        broken.setattr(os, call, killed)
        with pytest.raises(SystemExit):
            start_or_resume_log(path, BUDGET)
    assert not path.exists()
    log = start_or_resume_log(path, BUDGET)
    assert (log.budget, log.events) == (BUDGET, ())


def test_a_new_record_is_in_its_folder_on_disk_before_anything_may_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, forced = tmp_path / FILE_NAME, []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        forced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    start_or_resume_log(path, BUDGET)
    assert forced == [(False, False), (True, True)]


@pytest.mark.parametrize("text", ["", '{"event": "bud'])
def test_a_record_without_a_budget_is_never_to_be_deleted(text: str) -> None:
    with pytest.raises(InputError, match="expected a budget in line 1") as found:
        parse_log(text, "run")
    assert "from a copy" in str(found.value.hint)
    assert "delete" not in str(found.value)
