"""`fedlog federate ...`: a real federation over Flower. This file has the commands of the server.

Nothing of Flower, polars or cryptography is imported before a command runs: `fedlog --help` must work without them.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fedlog.cli import federate_run, federate_site
from fedlog.cli.command import Subparsers, add_command, add_server_command, say
from fedlog.cli.federate_site import add_metrics
from fedlog.errors import InputError

if TYPE_CHECKING:
    from fedlog.flower.folders.server_folder import ServerFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog federate`."""
    commands = parser.add_subparsers(dest="federate_command", required=True, metavar="COMMAND")
    _add_server_commands(commands)
    federate_site.add_commands(commands)
    federate_run.add_commands(commands)


def _add_server_commands(commands: Subparsers) -> None:
    parser = add_command(commands, "schema", "draft a schema from one site's data, for people to review", _draft_schema)
    parser.add_argument("data", type=Path, help="a .csv, .tsv, .parquet or .npz file, or a folder of images by class")
    parser.add_argument("--label", help="the column to predict (default: guessed from its name)")
    parser.add_argument("--text", metavar="COLUMN", help="a column of free text, for --body text:wordllama")
    parser.add_argument("--number", action="store_true", help="the label is a number to predict, not a class")
    split = parser.add_mutually_exclusive_group()
    split.add_argument("--group", help="a column whose groups (people, devices) stay whole when rows are held out")
    split.add_argument("--time", help="a column by which the latest rows are held out")
    text = "make the server's folder: certificates, configuration, app"
    parser = add_command(commands, "init", text, _create_server, "the server's folder")
    parser.add_argument("--schema", type=Path, required=True, help="the reviewed schema file")
    parser.add_argument(
        "--host", action="append", required=True, help="a name or address the sites reach the server by; repeatable"
    )
    parser.add_argument("--port", type=int, default=8443, help="the one port to open in the firewall (default: 8443)")
    parser.add_argument("--listen", help="the address to listen on (default: all, or the loopback for a local host)")
    add_server_command(commands, "renew", "make a new server certificate under the same authority", _renew_certificate)
    parser = add_server_command(commands, "server", "run the server (SuperLink and gate) until Ctrl-C", _run_server)
    add_metrics(parser)
    parser = add_server_command(
        commands, "register", "let a site in: register its public key with the running server", _register_sites
    )
    parser.add_argument(
        "key", type=Path, help="the site's site.pub, a folder of NAME.pub files, or `-` for a line on standard input"
    )
    parser.add_argument("--name", help="the site's name, as it stands in reports (in a folder: the files' names)")
    parser = add_server_command(
        commands, "unregister", "lock a site out: take its key off the running server's list", _unregister_site
    )
    parser.add_argument("name", help="the site's name")
    parser = add_server_command(
        commands, "status", "show which sites are connected, and which lag or miss", _print_status
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _draft_schema(args: argparse.Namespace) -> None:
    from fedlog.data.schema_draft import DraftOptions, draft_schema

    sys.stdout.write(draft_schema(args.data, DraftOptions(args.label, args.group, args.time, args.text, args.number)))
    say("review the draft before it goes to the other sites; the comments at its top say what to look for")


def _create_server(args: argparse.Namespace) -> None:
    from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
    from fedlog.flower.ops.server import choose_listen_address, create_server

    hosts = tuple(args.host)
    folder = ServerFolder(args.folder)
    config = ServerConfig(hosts, args.listen or choose_listen_address(hosts), args.port)
    create_server(folder, config, args.schema, dt.datetime.now(dt.UTC))
    say(f"made {folder.path}; keep certificates/*.key secret, and back the folder up")
    say("give every site these two public files:")
    print(folder.certificates.authority)
    print(folder.schema_file)
    say(f"next: fedlog federate server {folder.path}")


def _renew_certificate(folder: ServerFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.folders.certificates import days_left, renew_server_certificate

    now = dt.datetime.now(dt.UTC)
    renew_server_certificate(folder.certificates, folder.read_config().hosts, now)
    say(f"valid for {days_left(folder.certificates, now):.0f} days; restart the server; the sites change nothing")


def _run_server(folder: ServerFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.ops.processes import StopRequestedError, stop_on_sigterm
    from fedlog.flower.ops.server import serve_federation

    try:
        with stop_on_sigterm():
            serve_federation(folder, say, args.metrics)
    except StopRequestedError:
        say("stopped")


def _register_sites(folder: ServerFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.ops.server import register, register_sites_in_folder

    if args.key.is_dir():
        if args.name is not None:
            raise InputError(
                f"--name {args.name} names one site, but {args.key} is a folder of keys: its file names are the names",
                hint="leave --name out",
            )
        register_sites_in_folder(folder, args.key, say)
        return
    if args.name is None:
        raise InputError("expected the site's name, found none", hint="--name NAME, or a folder of NAME.pub files")
    if str(args.key) != "-" and not args.key.is_file():
        raise InputError(f"expected a public key file, found none: {args.key}")
    text = sys.stdin.read() if str(args.key) == "-" else args.key.read_text()
    register(folder, args.name, text, say)


def _unregister_site(folder: ServerFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.ops.server import unregister

    unregister(folder, args.name, say)
    say(f"{args.name} is refused from now on; what it has sent stays in the head until `leave`")


def _print_status(folder: ServerFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.ops.server import read_site_statuses
    from fedlog.flower.ops.summaries import summarise_newest_run

    statuses, view = read_site_statuses(folder), summarise_newest_run(folder)
    parts = {} if view is None else view.sites
    if args.json:
        sites = [{**asdict(s), **(asdict(parts[s.name]) if s.name in parts else {})} for s in statuses]
        print(json.dumps({"sites": sites} | ({} if view is None else {"run": view.describe()})))
        return
    for status in statuses:
        part = parts[status.name].describe() if status.name in parts else ""
        print(f"{status.name:<32} {status.state:<12} {status.since:<28} {part}".rstrip())
    if view is not None:
        say(view.describe())
    if not statuses:
        say("no site is registered yet")
