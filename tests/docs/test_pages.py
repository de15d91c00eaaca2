"""Run the Python blocks and the commands of every page in order, each page in its own folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import polars as pl
import pytest
from left_out import LEFT_OUT, SLOW, is_slow, why_left_out
from page_blocks import PAGES, ROOT, Code, blocks, commands, spoken_commands
from PIL import Image
from sklearn.datasets import load_wine

import fedlog.engine.training.block.compile  # noqa: F401  registers the blocks before they are copied
from fedlog.cli.main import list_options, main, make_parser
from fedlog.engine.training.block.registry import BLOCKS

Follow = Callable[[str, bool], list[str]]


def write_materials(folder: Path) -> None:
    """Write the files that the pages assume: a reader's tables, images and settings."""
    X, y = load_wine(return_X_y=True)
    for name, label in (("sites", "outcome"), ("FOLDER", "COLUMN")):
        (folder / name).mkdir()
        for at, site in enumerate(("north", "east", "south")):
            columns = {f"x{column}": X[at::3, column] for column in range(6)}
            pl.DataFrame({**columns, label: y[at::3]}).write_csv(folder / name / f"{site}.csv")
    generator = np.random.default_rng(0)
    for site in ("berlin", "rome"):
        for label, (shade, grade) in enumerate((("healthy", 60), ("ill", 190))):
            (folder / "images" / site / shade).mkdir(parents=True)
            for at in range(6):
                pixels = generator.integers(grade - 40, grade + 40, (24, 24, 3)) + 10 * label
                Image.fromarray(pixels.astype("uint8")).save(folder / "images" / site / shade / f"{at}.png")
    for site in ("north", "south"):
        shutil.copy(folder / "sites" / f"{site}.csv", folder)
    everyone = [pl.read_csv(path).with_columns(hospital=pl.lit(path.stem)) for path in (folder / "sites").iterdir()]
    pl.concat(everyone).write_csv(folder / "all.csv")
    (folder / "my.toml").write_text('method = "fedlog-c"\ndata = "digits"\n')
    (folder / ".venv").symlink_to(sys.prefix)


def write_public_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of docs/worth-federating.md, by the script that made its records."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.public_tables import TABLES, write_table

    for name in TABLES:
        if name != "har-by-people":  # which has to be fetched
            write_table(name, Path())


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follow]:
    """A function that does what a page says; it returns the commands that it typed.

    Layers that a page registers are taken back after the test.
    """
    write_materials(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NO_COLOR", "1")
    before = set(sys.modules)

    def followed(page: str, in_a_shell: bool) -> list[str]:
        module, typed = ModuleType("page"), []
        if in_a_shell:
            write_public_tables(monkeypatch)
        monkeypatch.setitem(sys.modules, "page", module)  # where its classes are looked up
        for block in blocks(page):
            if isinstance(block, Code) and block.save_as is not None:
                Path(block.save_as).write_text(block.text)
            elif isinstance(block, Code):
                exec(compile(block.text, page, "exec"), vars(module))
            elif why_left_out(block.text) is None and (in_a_shell or not is_slow(block.text)):
                (type_into_a_shell if in_a_shell else type_here)(block.text)
                typed.append(block.text)
        return typed

    with mock.patch.dict(BLOCKS):
        yield followed
    for name in set(sys.modules) - before:  # modules of this page, which another may call the same
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


def type_into_a_shell(command: str) -> None:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def type_here(command: str) -> None:
    """The same in this process, where PyTorch is loaded already."""
    words = shlex.split(command)
    words = words[1:] if words[0] == "PYTHONPATH=." else words  # the folder is on the path already
    out = Path(words[-1] if ">" in words else os.devnull)
    words = words[: words.index(">")] if ">" in words else words
    assert words[0] in ("fedlog", ".venv/bin/fedlog"), command
    with out.open("w") as file, redirect_stdout(file):
        assert main([*words[1:], *(["--jobs", "1", "--quiet"] if words[1] == "run" else [])]) == 0, command


# What following a page must say, and leave behind.
SAYS = {"docs/api.md": ("unknown setting: roundz did you mean rounds?", "training diverged")}
LEAVES = {
    "README.md": "runs/mine/report.html",
    "docs/api.md": "wine.png",
    "docs/getting-started.md": "runs/first/report.html",
}
WITH_SOMETHING_TO_DO = [page for page in PAGES if any(True for _ in blocks(page))]


@pytest.mark.parametrize("page", WITH_SOMETHING_TO_DO)
def test_what_a_page_says_works(page: str, follow: Follow, capsys: pytest.CaptureFixture[str]) -> None:
    follow(page, False)
    said = capsys.readouterr().out
    for expected in SAYS.get(page, ()):
        assert expected in said
    assert Path(LEAVES.get(page, ".")).exists()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(is_slow(c) for at, c in commands() if at == page)])
def test_what_a_page_says_works_in_a_real_shell(page: str, follow: Follow) -> None:
    assert follow(page, True)


def test_the_list_of_what_is_left_out_is_as_short_as_it_can_be() -> None:
    found = [command for _, command in commands()]
    for start in (*LEFT_OUT, *SLOW):
        assert any(re.match(start, command) for command in found), f"no page has such a command any more: {start}"
    left_out = [command for command in found if why_left_out(command)]
    assert len(found) > 60
    assert len(left_out) < len(found) / 2, left_out


def read_by_the_parser(command: str) -> None:
    """Fail where the command line would refuse the command or one of its flags."""
    words = [word for word in shlex.split(command.partition(" > ")[0]) if word != "..."][1:]
    assert not make_parser(words).parse_known_args(words)[1], f"unknown flags: {command}"


@pytest.mark.parametrize(("page", "command"), [(p, c) for p, c in commands() if why_left_out(c) or is_slow(c)])
def test_what_is_not_run_by_default_is_a_valid_command(page: str, command: str) -> None:
    command = command.removeprefix(".venv/bin/")
    if command.startswith("fedlog "):
        read_by_the_parser(command)
    elif command.startswith("make "):
        target = command.split()[1]
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command


def test_commands_within_sentences_are_valid(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(spoken_commands())
    assert len(found) > 60
    for page, command in found:
        flags = re.findall(r"(--[a-z][a-z-]*)", command)
        words = command.split()
        top = make_parser(words[1:2])
        known = set(list_options(top)) | {"--help", "--version"}
        assert set(flags) <= known, f"{page}: {command}: unknown {set(flags) - known}"
        if re.fullmatch(r"[a-z]+", words[1]):
            assert words[1] in top._subparsers._group_actions[0].choices, f"{page}: {command}"


def test_no_command_hides_without_a_dollar_sign() -> None:
    """A command in an indented block would be read, and not be run."""
    hidden = re.compile(r"^ {4,}(\$ )?(PYTHONPATH=\S+ |\.venv/bin/)?(fedlog [a-z]+|make [a-z-]+)( |$)", re.MULTILINE)
    for page in PAGES:
        text = re.sub(r"^( *)```.*?^\1```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not hidden.search(text), f"{page}: {hidden.search(text)}"


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for _, c in commands() if re.match(r"fedlog run --data (mnist|cifar10) ", c)])
def test_commands_on_fetched_data_begin(command: str, follow: Follow) -> None:
    if not os.environ.get("FEDLOG_DATA"):
        pytest.skip("needs the data sets in FEDLOG_DATA")
    type_into_a_shell(command if "--dry-run" in command else f"{command} --dry-run")
