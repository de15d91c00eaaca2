"""Completion of commands and flags in bash, zsh and fish: `fedlog --install-completion`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import shtab

from fedlog.cli.command import list_subcommands
from fedlog.cli.main import COMMANDS, make_parser
from fedlog.errors import InputError
from fedlog.files.durable import write_file

SHELLS = ("bash", "zsh", "fish")
NEXT_STEPS = {
    "bash": "open a new shell (the package bash-completion reads that folder), or: source {path}",
    "zsh": "put this before compinit in ~/.zshrc, and open a new shell: fpath=({folder} $fpath)",
    "fish": "open a new shell",
}


def _mark_paths(command: argparse.ArgumentParser) -> None:
    """Mark the arguments that are paths, so that the shell completes names of files and folders."""
    for below in list_subcommands(command).values():
        _mark_paths(below)
    for action in command._actions:
        if action.type is Path:
            action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]


def make_completion_script(shell: str) -> str:
    """Return the script with which this shell completes the commands and flags of `fedlog`."""
    parser = make_parser(COMMANDS)
    _mark_paths(parser)
    return str(shtab.complete(parser, shell))


def install_completion(shell: str | None, home: Path, say: Callable[[str], None]) -> Path:
    """Write the completion script where the shell looks for it, print what to do next, and return the script's path."""
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise InputError(
            f"expected one of the shells {', '.join(SHELLS)}, found: {shell or 'none (SHELL is not set)'}",
            hint=f"fedlog --install-completion {'|'.join(SHELLS)}",
        )
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    path = {
        "bash": data / "bash-completion" / "completions" / "fedlog",
        "zsh": home / ".zfunc" / "_fedlog",
        "fish": config / "fish" / "completions" / "fedlog.fish",
    }[shell]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, make_completion_script(shell))
    say(f"wrote: {path}")
    say(f"next: {NEXT_STEPS[shell].format(path=path, folder=path.parent)}")
    return path
