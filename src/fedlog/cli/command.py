"""Add commands and common flags to the parser, and print messages."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fedlog.errors import InputError

if TYPE_CHECKING:
    from fedlog.flower.folders.server_folder import ServerFolder
    from fedlog.flower.folders.site_folder import SiteFolder

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(
    commands: Subparsers,
    name: str,
    summary: str,
    handler: Callable[[argparse.Namespace], int | None],
    folder: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command and return its parser; the handler returns the exit code, or None for 0.

    `folder` is the help text of a first argument DIR, for commands that have one.
    """
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(handler=lambda args: handler(args) or 0)
    if folder is not None:
        parser.add_argument("folder", type=Path, metavar="DIR", help=folder)
    return parser


def add_server_command(
    commands: Subparsers, name: str, summary: str, handler: Callable[[ServerFolder, argparse.Namespace], None]
) -> argparse.ArgumentParser:
    """Add a command whose first argument is the folder of an existing server; the handler gets a `ServerFolder`."""

    def open_folder(args: argparse.Namespace) -> None:
        from fedlog.flower.folders.server_folder import ServerFolder  # needs the extra `federate`

        folder = ServerFolder(args.folder)
        folder.read_config()
        handler(folder, args)

    return add_command(commands, name, summary, open_folder, "the server's folder")


def add_site_command(
    commands: Subparsers, name: str, summary: str, handler: Callable[[SiteFolder, argparse.Namespace], None]
) -> argparse.ArgumentParser:
    """Add a command whose first argument is the folder of an existing site; the handler gets a `SiteFolder`."""

    def open_folder(args: argparse.Namespace) -> None:
        from fedlog.flower.folders.site_folder import SiteFolder  # needs the extra `federate`

        folder = SiteFolder(args.folder)
        folder.read_config()
        handler(folder, args)

    return add_command(commands, name, summary, open_folder, "the site's folder")


def add_allow_code(parser: argparse.ArgumentParser) -> None:
    """Add `--allow-code NAME`, which permits loaded files to use the function of this name."""

    def allow(name: str) -> str:
        from fedlog.models.own_code import allow_code

        allow_code([name])
        return name

    parser.add_argument(
        "--allow-code",
        type=allow,
        default=argparse.SUPPRESS,
        metavar="package.module:name",
        help="let a model folder or a `frozen:` file name this function as its body; repeatable",
    )


def split_list(option: str, text: str | None, example: str) -> tuple[str, ...]:
    """The names in an option such as `--methods a,b`, each once; an empty tuple if the option was left out."""
    if text is None:
        return ()
    named = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not named:
        raise InputError(f"{option} names nothing: {text!r}", hint=f"{option} {example}, or leave it out")
    return named


def count_cores() -> int:
    """The number of cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def say(text: str) -> None:
    """Print a message on standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)
