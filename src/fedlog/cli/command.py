"""Add commands and common flags to the parser, and print messages."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from fedlog.errors import InputError

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Handler: TypeAlias = Callable[[argparse.Namespace], int | None]  # returns the exit code, or None for 0


class StopRequestedError(KeyboardInterrupt):
    """The process got SIGTERM, as a service manager sends it to stop a service."""


@contextmanager
def end_quietly_on_sigterm(last_words: str) -> Iterator[None]:
    """If SIGTERM arrives in the block, end the block, print `last_words` and go on; Ctrl-C still ends the program."""
    try:
        yield
    except StopRequestedError:
        say(last_words)


def add_command(
    commands: Subparsers, name: str, summary: str, handler: Handler, folder_help: str | None = None
) -> argparse.ArgumentParser:
    """Add a command and return its parser. With `folder_help` it takes a folder, DIR, which that text describes."""
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(handler=handler)
    if folder_help is not None:
        parser.add_argument("folder", type=Path, metavar="DIR", help=folder_help)
    return parser


def list_subcommands(command: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The subcommands of a command, by name."""
    groups = [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: below for group in groups for name, below in group.choices.items()}


def import_on_call(name: str) -> Handler:
    """Return a handler that imports `module:function` from `fedlog.cli` only when the command runs, and calls it.

    So `--help` does not wait for PyTorch, and works without the packages of the optional extras.
    """

    def import_and_call(args: argparse.Namespace) -> int | None:
        module, _, function = name.partition(":")
        code: int | None = getattr(importlib.import_module(f"fedlog.cli.{module}"), function)(args)
        return code

    return import_and_call


def add_allow_code_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--allow-code NAME`, which permits loaded files to use the function of this name."""

    def allow_function(name: str) -> str:
        from fedlog.models.own_code import allow_code

        allow_code([name])
        return name

    text = "trust this function: a model folder or a `frozen:` file may name it as its body; can be repeated"
    parser.add_argument(
        "--allow-code", type=allow_function, default=argparse.SUPPRESS, metavar="package.module:name", help=text
    )


def split_list(option: str, text: str | None, example: str) -> tuple[str, ...]:
    """Split the value of an option such as `--methods a,b` into names, each once; empty if the option was left out."""
    if text is None:
        return ()
    named = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not named:
        raise InputError(
            f"expected names after {option}, found none: {text!r}", hint=f"{option} {example}, or leave it out"
        )
    return named


def count_cores() -> int:
    """The number of cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def say(text: str) -> None:
    """Print a message on standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)
