"""`fedlog`: the commands, and the one place where errors become a line, a hint and an exit code."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import NoReturn

import fedlog
from fedlog.errors import FedlogError

COMMANDS = ("run", "reproduce", "report", "data", "privacy", "federate")
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors look like all our errors."""

    def error(self, message: str) -> NoReturn:
        """Print the message and a hint, and exit with 2."""
        hint = f"{self.prog} --help"
        if "invalid choice" in message:
            wrong = message.split("'")[1]
            close = get_close_matches(wrong, [part.strip(" ')") for part in message.split("from")[-1].split(",")], n=1)
            hint = f"did you mean {close[0]}?" if close else hint
        print(f"error: {message}\nhint: {hint}", file=sys.stderr)
        raise SystemExit(2)


def parser() -> Parser:
    """The whole command line."""
    top = Parser(prog="fedlog", description="Personalised federated classification by sufficient statistics.")
    top.add_argument("--version", action="version", version=f"fedlog {fedlog.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"fedlog.cli.{name}").add_parser(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 the run failed, 2 bad input, 130 interrupted."""
    args = parser().parse_args(arguments)
    handler: Callable[[argparse.Namespace], int] = args.handler
    try:
        return handler(args)
    except FedlogError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    sys.exit(main())
