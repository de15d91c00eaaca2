"""`fedlog docs`: write the generated pages of the documentation, from the committed records and the commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from fedlog.cli.command import list_subcommands
from fedlog.cli.main import COMMANDS, make_parser
from fedlog.errors import InputError
from fedlog.files.durable import write_file
from fedlog.report.documents.bits_page import write_bits_page
from fedlog.report.documents.method_results import GAINS, write_method_results, write_methods_overview
from fedlog.report.documents.recipe_table import write_recipe_table
from fedlog.report.paper.reproduction import write_reproduction_pages
from fedlog.report.paper.when_to_choose import write_when_to_choose_table

PAGE_START = """# Command line

Every command and every flag, written by `fedlog docs` from the commands themselves. `fedlog COMMAND --help` prints the same. [Running](../running.md) says what the settings of a run mean, and [how to](../how-to/index.md) which commands a task takes.
"""  # noqa: E501


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog docs`."""
    parser.set_defaults(handler=write_documentation)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="the committed results (default: results)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs"), metavar="DIR", help="the folder of the documentation (default: docs)"
    )


def write_documentation(args: argparse.Namespace) -> None:
    """Write all generated pages, and print their paths."""
    if not args.results.is_dir():
        raise InputError(
            f"expected a folder with results, found no folder: {args.results}",
            hint="run this in the project's folder, or give --results",
        )
    written = write_reproduction_pages(args.results, args.out)
    written += write_bits_page(args.results, args.out / "bits.md")
    written += write_method_results(args.results, args.out)
    written += write_when_to_choose_table(args.results, args.out / GAINS)
    written += write_recipe_table(args.results, args.out / "running.md")
    commands = args.out / "reference" / "command-line.md"
    commands.parent.mkdir(parents=True, exist_ok=True)
    write_file(commands, format_command_page())
    for path in (*written, commands, *write_methods_overview(args.results, args.out)):
        print(f"wrote: {path}")


def format_command_page() -> str:
    """Return the page of all commands in Markdown: the list of commands, then the flags of each command."""
    rows = [f"| [`fedlog {name}`](#fedlog-{name}) | {summary} |" for name, summary in COMMANDS.items()]
    parts = [PAGE_START, "\n".join(["| command | what it does |", "|---|---|", *rows])]
    for name, command in list_subcommands(make_parser(COMMANDS)).items():
        parts += _format_sections(command, name, level=2)
    return "\n\n".join(parts) + "\n"


def _format_sections(command: argparse.ArgumentParser, name: str, level: int) -> Iterator[str]:
    """Yield the Markdown of a command: a heading, what the command does, a table of its flags, and its subcommands."""
    yield f"{'#' * level} `fedlog {name}`"
    text = (command.description or "").strip().rstrip(".").replace("%%", "%")
    yield f"{text[:1].upper()}{text[1:]}."
    for title, actions in _group_flags(command).items():
        if actions:
            table = "\n".join(["| flag | what it decides |", "|---|---|", *map(_format_flag_row, actions)])
            yield f"**{title}**\n\n{table}" if title else table
    for below, parser_below in list_subcommands(command).items():
        yield from _format_sections(parser_below, f"{name} {below}", level + 1)


def _group_flags(command: argparse.ArgumentParser) -> dict[str, list[argparse.Action]]:
    """Return a command's flags by the title of their group; flags without a group are under the empty title."""
    found: dict[str, list[argparse.Action]] = {}
    for group in command._action_groups:
        title = "" if group.title in (None, "options", "positional arguments") else str(group.title)
        for action in group._group_actions:
            shown = action.help != argparse.SUPPRESS and action.dest != "help"
            if shown and not isinstance(action, argparse._SubParsersAction):
                found.setdefault(title, []).append(action)
    return found


def _format_flag_row(action: argparse.Action) -> str:
    value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else "")
    if isinstance(value, tuple):
        value = " ".join(value)
    if not action.option_strings:
        names = f"`{value or action.dest}`"
    else:
        shown = value or ("" if action.nargs == 0 else action.dest.upper())
        names = ", ".join(f"`{option}{' ' + shown if shown else ''}`" for option in action.option_strings)
    text = (action.help or "") % vars(action)  # as argparse does
    return f"| {_escape_cell(names)} | {_escape_cell(text)} |"


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;") if "`" not in text else text.replace("|", "\\|")
