"""`fedlog docs`: the generated pages of the documentation, from the committed records."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedlog.cli.command_page import write_command_page
from fedlog.errors import InputError
from fedlog.report.documents.bits_page import write_bits_page
from fedlog.report.documents.method_results import write_method_results
from fedlog.report.documents.overview import write_overview
from fedlog.report.documents.recipe_table import write_recipe_table
from fedlog.report.results.conditions import write_when_to_choose
from fedlog.report.results.reproduction import write_markdown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog docs`."""
    parser.set_defaults(handler=docs_command)
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument("--out", type=Path, default=Path("docs"), metavar="DIR", help="default: docs")


def docs_command(args: argparse.Namespace) -> int:
    """Write the pages and print their names; return exit code 0."""
    if not args.results.is_dir():
        raise InputError(
            f"no results folder: {args.results}", hint="run this in the project's folder, or give --results"
        )
    pages = write_markdown(args.results, args.out)
    bits = write_bits_page(args.results, args.out / "bits.md")
    methods = write_method_results(args.results, args.out)
    chosen = write_when_to_choose(args.results, args.out.parent / "README.md")
    recipes = write_recipe_table(args.out / "running.md")
    commands = write_command_page(args.out / "reference" / "command-line.md")
    for path in (*pages, *bits, *methods, *chosen, *recipes, *commands, *write_overview(args.results, args.out)):
        print(f"wrote: {path}")
    return 0
