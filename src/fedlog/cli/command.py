"""What commands are made of: a place among the commands of a group, and a way to talk to people."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def command(
    commands: Subparsers, name: str, summary: str, handler: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """The parser of one more command, whose handler returns the exit code."""
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(handler=handler)
    return parser


def say(text: str) -> None:
    """Print a line for people on standard error: standard output is for results."""
    print(text, file=sys.stderr, flush=True)
