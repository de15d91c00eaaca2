"""What all commands share: adding a command and its flags to the parser, splitting lists, printing messages."""

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
    """Raised when the process receives SIGTERM, the signal with which a service manager stops a service."""


@contextmanager
def end_quietly_on_sigterm(last_words: str) -> Iterator[None]:
    """Print `last_words` and end the `with` block without an error if SIGTERM arrives; Ctrl-C still interrupts."""
    try:
        yield
    except StopRequestedError:
        say(last_words)


def add_command(
    commands: Subparsers, name: str, summary: str, handler: Handler, folder_help: str | None = None
) -> argparse.ArgumentParser:
    """Add a command and return its parser; `folder_help` is the help text of its argument DIR, if it has one."""
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(handler=handler)
    if folder_help is not None:
        parser.add_argument("folder", type=Path, metavar="DIR", help=folder_help)
    return parser


def list_subcommands(command: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a command's subcommands, by name."""
    groups = [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: below for group in groups for name, below in group.choices.items()}


def import_on_call(name: str) -> Handler:
    """Return a handler that imports the function `name` (as `module:function` in `fedlog.cli`) and calls it.

    The import happens when the command runs. So `--help` does not wait for PyTorch, and needs no optional packages.
    """

    def import_and_call(args: argparse.Namespace) -> int | None:
        module, _, function = name.partition(":")
        code: int | None = getattr(importlib.import_module(f"fedlog.cli.{module}"), function)(args)
        return code

    return import_and_call


def add_allow_code_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--allow-code NAME`: allow model files to use the function with this name as their body."""

    def allow_function(name: str) -> str:
        from fedlog.models.own_code import allow_code

        allow_code([name])
        return name

    text = "trust this function: a model folder or a `frozen:` file may name it as its body; can be repeated"
    parser.add_argument(
        "--allow-code", type=allow_function, default=argparse.SUPPRESS, metavar="package.module:name", help=text
    )


def split_list(option: str, text: str | None, example: str) -> tuple[str, ...]:
    """Split the value of an option, such as `a,b` of `--methods a,b`, without repeated names; () if `text` is None."""
    if text is None:
        return ()
    named = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not named:
        raise InputError(
            f"expected names after {option}, found none: {text!r}", hint=f"{option} {example}, or leave {option} out"
        )
    return named


def count_cores() -> int:
    """Return the number of cores that this process may use; the machine may have more."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def say(text: str) -> None:
    """Print a message on standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)
