"""The parts of every command: its place in a group of commands, and a way to talk to people."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Handler: TypeAlias = Callable[[argparse.Namespace], int]


def command(commands: Subparsers, name: str, summary: str, handler: Handler) -> argparse.ArgumentParser:
    """The parser of one more command, whose handler returns the exit code."""
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(handler=handler)
    return parser


def server_command(commands: Subparsers, name: str, summary: str, handler: Handler) -> argparse.ArgumentParser:
    """The parser of a command whose first argument is the server's folder."""
    parser = command(commands, name, summary, handler)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the server's folder")
    return parser


def site_command(commands: Subparsers, name: str, summary: str, handler: Handler) -> argparse.ArgumentParser:
    """The parser of a command whose first argument is a site's folder."""
    parser = command(commands, name, summary, handler)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the site's folder")
    return parser


def say(text: str) -> None:
    """Print a line for people on standard error: standard output is for results."""
    print(text, file=sys.stderr, flush=True)
