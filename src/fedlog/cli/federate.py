"""`fedlog federate ...`: a real federation over Flower, from a schema to a running server and its sites."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from dataclasses import replace
from pathlib import Path

from fedlog.cli import federate_caps, federate_ledger, federate_privacy, federate_run
from fedlog.cli.command import Subparsers, command, say, server_command, site_command
from fedlog.cli.own_code import add_allow_code

# Nothing of Flower, polars or cryptography is imported here: without the extra, `fedlog --help` must work.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog federate`."""
    commands = parser.add_subparsers(dest="federate_command", required=True, metavar="COMMAND")
    _add_server_commands(commands)
    _add_site_commands(commands)
    federate_run.add_commands(commands)
    federate_privacy.add_roster(commands)
    federate_ledger.add_commands(commands)
    federate_caps.add_commands(commands)


def _add_server_commands(commands: Subparsers) -> None:
    parser = command(commands, "schema", "draft a schema from one site's data, for people to review", _schema)
    parser.add_argument("data", type=Path, help="a .csv, .tsv, .parquet or .npz file, or a folder of images by class")
    parser.add_argument("--label", help="the column to predict (default: guessed from its name)")
    parser.add_argument("--text", metavar="COLUMN", help="a column of free text, for --body text:wordllama")
    parser.add_argument("--number", action="store_true", help="the label is a number to predict, not a class")
    split = parser.add_mutually_exclusive_group()
    split.add_argument("--group", help="a column whose groups (people, devices) stay whole when rows are held out")
    split.add_argument("--time", help="a column by which the latest rows are held out")
    parser = server_command(commands, "init", "make the server's folder: certificates, configuration, app", _init)
    parser.add_argument("--schema", type=Path, required=True, help="the reviewed schema file")
    parser.add_argument(
        "--host", action="append", required=True, help="a name or address the sites reach the server by; repeatable"
    )
    parser.add_argument("--port", type=int, default=8443, help="the one port to open in the firewall (default: 8443)")
    parser.add_argument("--listen", help="the address to listen on (default: all, or the loopback for a local host)")
    server_command(commands, "renew", "make a new server certificate under the same authority", _renew)
    parser = server_command(commands, "server", "run the server (SuperLink and gate) until Ctrl-C", _server)
    _add_metrics(parser)
    parser = server_command(
        commands, "register", "let a site in: register its public key with the running server", _register
    )
    parser.add_argument(
        "key", type=Path, help="the site's site.pub, a folder of NAME.pub files, or `-` for a line on standard input"
    )
    parser.add_argument("--name", help="the site's name, as it stands in reports (in a folder: the files' names)")
    parser = server_command(
        commands, "unregister", "lock a site out: take its key off the running server's list", _unregister
    )
    parser.add_argument("name", help="the site's name")
    parser = server_command(commands, "status", "show which sites are connected, and which lag or miss", _status)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _add_site_commands(commands: Subparsers) -> None:
    parser = site_command(commands, "join", "at a site: make its key and folder, print the public key", _join)
    parser.add_argument("--server", required=True, metavar="HOST[:PORT]", help="the address of the server")
    parser.add_argument("--name", help="the site's name (default: the folder's)")
    parser.add_argument("--ca", type=Path, help="the authority's certificate from the operator (default: DIR/ca.crt)")
    parser.add_argument("--schema", type=Path, help="the agreed schema file (default: DIR/schema.toml)")
    parser.add_argument(
        "--ledger", type=Path, metavar="FILE", help="rows that took part from another folder: its state/privacy.jsonl"
    )
    parser = site_command(commands, "site", "at a site: take part with this site's data until Ctrl-C", _site)
    parser.add_argument("--data", help="a table, a folder of images, an .npz file, or package.module:function")
    parser.add_argument("--body", help="this site's own body, e.g. mlp:64,64 (default: mlp:64,64, or the one before)")
    parser.add_argument(
        "--hold-out", metavar="V,T", help="shares of the rows for validation and test (default: 0.2,0.2)"
    )
    parser.add_argument(
        "--world",
        choices=("open", "closed"),
        help="closed: this site meets no other classes than those in its training rows, and never predicts one "
        "(used in runs with --world closed)",
    )
    parser.add_argument(
        "--require-privacy",
        metavar="[U:]T:E:D",
        help="noise and budget for all runs together, e.g. local:8:1e-5, or client:local:8:1e-5 for that unit only",
    )
    _add_metrics(parser)
    add_allow_code(parser)


def _schema(args: argparse.Namespace) -> int:
    from fedlog.data.draft import DraftOptions, draft_schema

    sys.stdout.write(draft_schema(args.data, DraftOptions(args.label, args.group, args.time, args.text, args.number)))
    say("review the draft before it goes to the other sites; the comments at its top say what to look for")
    return 0


def _init(args: argparse.Namespace) -> int:
    from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
    from fedlog.flower.ops.server import create_server, default_listen

    hosts = tuple(args.host)
    folder = ServerFolder(args.folder)
    config = ServerConfig(hosts, args.listen or default_listen(hosts), args.port)
    create_server(folder, config, args.schema, dt.datetime.now(dt.UTC))
    say(f"made {folder.path}; keep certificates/*.key secret, and back the folder up")
    say("give every site these two public files:")
    print(folder.certificates.authority)
    print(folder.schema_file)
    say(f"next: fedlog federate server {folder.path}")
    return 0


def _renew(args: argparse.Namespace) -> int:
    from fedlog.flower.folders.certificates import days_left, renew_server_certificate
    from fedlog.flower.folders.server_folder import ServerFolder

    folder, now = ServerFolder(args.folder), dt.datetime.now(dt.UTC)
    renew_server_certificate(folder.certificates, folder.read_config().hosts, now)
    say(f"valid for {days_left(folder.certificates, now):.0f} days; restart the server; the sites change nothing")
    return 0


def _server(args: argparse.Namespace) -> int:
    from fedlog.flower.folders.server_folder import ServerFolder
    from fedlog.flower.ops.processes import StopRequestedError, stop_on_sigterm
    from fedlog.flower.ops.server import serve

    try:
        with stop_on_sigterm():
            serve(ServerFolder(args.folder), say, args.metrics)
    except StopRequestedError:
        say("stopped")
    return 0


def _register(args: argparse.Namespace) -> int:
    from fedlog.errors import InputError
    from fedlog.flower.folders.server_folder import ServerFolder
    from fedlog.flower.ops.server import register, register_folder

    folder = ServerFolder(args.folder)
    folder.read_config()
    if args.key.is_dir():
        if args.name is not None:
            raise InputError("a folder of keys has the sites' names in its file names, found --name beside it")
        register_folder(folder, args.key, say)
        return 0
    if args.name is None:
        raise InputError("expected the site's name, found none", hint="--name NAME, or a folder of NAME.pub files")
    if str(args.key) != "-" and not args.key.is_file():
        raise InputError(f"expected a public key file, found none: {args.key}")
    text = sys.stdin.read() if str(args.key) == "-" else args.key.read_text()
    register(folder, args.name, text, say)
    return 0


def _unregister(args: argparse.Namespace) -> int:
    from fedlog.flower.folders.server_folder import ServerFolder
    from fedlog.flower.ops.server import unregister

    unregister(ServerFolder(args.folder), args.name, say)
    say(f"{args.name} is refused from now on; what it has sent stays in the head until `leave`")
    return 0


def _status(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from fedlog.flower.folders.server_folder import ServerFolder
    from fedlog.flower.ops.overview import view_newest_run
    from fedlog.flower.ops.server import site_statuses

    folder = ServerFolder(args.folder)
    folder.read_config()
    statuses, view = site_statuses(folder), view_newest_run(folder)
    parts = {} if view is None else view.sites
    if args.json:
        told = [{**asdict(s), **(asdict(parts[s.name]) if s.name in parts else {})} for s in statuses]
        print(json.dumps({"sites": told} | ({} if view is None else {"run": view.describe()})))
        return 0
    for status in statuses:
        part = parts[status.name].describe() if status.name in parts else ""
        print(f"{status.name:<32} {status.state:<12} {status.since:<28} {part}".rstrip())
    if view is not None:
        say(view.describe())
    if not statuses:
        say("no site is registered yet")
    return 0


def _join(args: argparse.Namespace) -> int:
    from fedlog.flower.folders.keys import fingerprint
    from fedlog.flower.folders.layout import parse_server_address
    from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
    from fedlog.flower.ops.site import create_site

    folder = SiteFolder(args.folder)
    config = SiteConfig(args.name or args.folder.resolve().name, parse_server_address(args.server))
    line = create_site(folder, config, args.ca or folder.authority, args.schema or folder.schema_file, args.ledger)
    print(line)
    say(f"fingerprint {fingerprint(line)}: read it to the operator when you send the line above ({folder.public_key})")
    say(f"the private key stays in {folder.private_key}; nobody else ever needs it")
    return 0


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve Prometheus metrics and a status page there (HOST: the loopback unless you give another)",
    )


def _site(args: argparse.Namespace) -> int:
    from fedlog.flower.folders.site_folder import SiteFolder
    from fedlog.flower.ops.processes import StopRequestedError, stop_on_sigterm
    from fedlog.flower.ops.site_service import serve_site
    from fedlog.flower.protocol.promise import Limit
    from fedlog.flower.site.budget import check_record, describe_spending
    from fedlog.flower.site.data import check_site

    folder = SiteFolder(args.folder)
    folder.read_config()
    check_record(folder)
    config = folder.propose(args.data, args.body, args.hold_out, args.world)
    if args.require_privacy is not None:
        Limit.read(args.require_privacy)
        config = replace(config, privacy=args.require_privacy)
    say(check_site(folder, config))
    folder.write_config(config)  # only now: a choice that failed is not made again at the next start
    if said := describe_spending(folder):
        say(said)
    try:
        with stop_on_sigterm():
            serve_site(folder, say, args.metrics)
    except StopRequestedError:
        say("stopped")
    return 0
