"""How the commands of a group, such as `fedlog federate`, are added to it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def command(
    commands: Subparsers, name: str, summary: str, handler: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """The parser of one more command, whose handler returns the exit code."""
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(handler=handler)
    return parser
