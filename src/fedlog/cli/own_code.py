"""`--allow-code`: let a loaded file name functions that are imported."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


class AllowCode(argparse.Action):
    """Adds a function to those that loaded files may name."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        """Allow the function that the option names."""
        from fedlog.models.own_code import allow_code

        allow_code([str(values)])


def add_allow_code(parser: argparse.ArgumentParser) -> None:
    """Add `--allow-code`."""
    parser.add_argument(
        "--allow-code",
        action=AllowCode,
        default=argparse.SUPPRESS,
        metavar="package.module:name",
        help="let a model folder or a `frozen:` file name this function as its body; repeatable",
    )
