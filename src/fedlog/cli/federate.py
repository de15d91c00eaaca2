"""The options of `fedlog federate ...`: a real federation over Flower. The module `federate_work` does the work.

Flower, polars and cryptography are imported only when a command runs: `fedlog --help` must work without them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedlog.cli.command import Subparsers, add_allow_code_flag, add_command, import_on_call, say
from fedlog.settings.flags import add_flags
from fedlog.settings.spec import list_deployed_settings

SERVER, SITE = "the server's folder", "the site's folder"
JSON_HELP = "print one JSON object on stdout"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog federate`."""
    commands = parser.add_subparsers(dest="federate_command", required=True, metavar="COMMAND")
    _add_server_commands(commands)
    _add_site_commands(commands)
    _add_run_commands(commands)


def _add_federate_command(
    commands: Subparsers, name: str, summary: str, function: str, folder: str | None = None
) -> argparse.ArgumentParser:
    """Add a command of `fedlog federate` and return its parser; `function` is its handler's name in `federate_work`."""
    return add_command(commands, name, summary, import_on_call(f"federate_work:{function}"), folder)


def _add_server_commands(commands: Subparsers) -> None:
    parser = add_command(commands, "schema", "draft a schema from one site's data, for people to review", _draft_schema)
    parser.add_argument("data", type=Path, help="a .csv, .tsv, .parquet or .npz file, or a folder of images by class")
    parser.add_argument("--label", help="the column to predict (default: guessed from its name)")
    parser.add_argument("--text", metavar="COLUMN", help="a column of free text, for --body text:wordllama")
    parser.add_argument("--number", action="store_true", help="the label is a number to predict, not a class")
    split = parser.add_mutually_exclusive_group()
    split.add_argument(
        "--group", help="a column of people, devices, ...: rows with the same value are held out together"
    )
    split.add_argument("--time", help="a column of times: the latest rows are held out")
    text = "at the server: make its folder with certificates, configuration and app"
    parser = _add_federate_command(commands, "init", text, "create_server", SERVER)
    parser.add_argument("--schema", type=Path, required=True, help="the reviewed schema file")
    parser.add_argument(
        "--host",
        action="append",
        required=True,
        help="the host name or IP address that sites use for the server; can be repeated",
    )
    parser.add_argument("--port", type=int, default=8443, help="the one port to open in the firewall (default: 8443)")
    parser.add_argument(
        "--listen", help="the address to listen on (default: all, or 127.0.0.1 if --host is this machine)"
    )
    _add_federate_command(
        commands,
        "renew",
        "at the server: make a new certificate, signed by the same authority",
        "renew_certificate",
        SERVER,
    )
    parser = _add_federate_command(
        commands,
        "server",
        "run the server until Ctrl-C: Flower's SuperLink, and in front of it a gate that lets only sites through",
        "run_server",
        SERVER,
    )
    _add_metrics_flag(parser)
    parser = _add_federate_command(
        commands,
        "register",
        "at the running server: let a site in by registering its public key",
        "register_sites",
        SERVER,
    )
    parser.add_argument(
        "key", type=Path, help="the site's site.pub, a folder of NAME.pub files, or `-` for a line on standard input"
    )
    parser.add_argument("--name", help="the site's name in reports (for a folder of keys: the names of the files)")
    parser = _add_federate_command(
        commands,
        "unregister",
        "at the running server: lock a site out by unregistering its key",
        "unregister_site",
        SERVER,
    )
    parser.add_argument("name", help="the site's name")
    parser = _add_federate_command(
        commands, "status", "show which sites are connected, slow or missing", "print_status", SERVER
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def _add_site_commands(commands: Subparsers) -> None:
    text = "at a site: make its folder and key, and print the public key"
    parser = _add_federate_command(commands, "join", text, "create_site", SITE)
    parser.add_argument("--server", required=True, metavar="HOST[:PORT]", help="the address of the server")
    parser.add_argument("--name", help="the site's name (default: the folder's)")
    parser.add_argument("--ca", type=Path, help="the authority's certificate from the operator (default: DIR/ca.crt)")
    parser.add_argument("--schema", type=Path, help="the agreed schema file (default: DIR/schema.toml)")
    parser.add_argument(
        "--ledger",
        type=Path,
        metavar="FILE",
        help="if this site's rows took part before, from another folder: that folder's state/privacy.jsonl",
    )
    parser = _add_federate_command(
        commands, "site", "at a site: take part with this site's data until Ctrl-C", "run_site", SITE
    )
    parser.add_argument("--data", help="a table, a folder of images, an .npz file, or package.module:function")
    parser.add_argument("--body", help="this site's own body, e.g. mlp:64,64 (default: the last one, else mlp:64,64)")
    parser.add_argument(
        "--hold-out", metavar="V,T", help="shares of the rows for validation and test (default: 0.2,0.2)"
    )
    parser.add_argument(
        "--world",
        choices=("open", "closed"),
        help="closed: this site has only the classes of its training rows, and its model never predicts another one "
        "(used in runs with --world closed)",
    )
    text = (
        "the least privacy that this site accepts, over all its runs together: e.g. local:8:1e-5 or client:local:8:1e-5"
    )
    parser.add_argument("--require-privacy", metavar="[UNIT:]TRUST:EPSILON:DELTA", help=text)
    _add_metrics_flag(parser)
    add_allow_code_flag(parser)
    _add_caps_command(commands)
    _add_federate_command(
        commands, "rekey", "at a site: replace the keys, and keep everything else", "replace_keys", SITE
    )
    parser = _add_federate_command(
        commands,
        "ledger",
        "at a site: show its release log, which lists what has left it in all runs, or restore the log",
        "print_ledger",
        SITE,
    )
    change = parser.add_mutually_exclusive_group()
    change.add_argument(
        "--restore", type=Path, metavar="FILE", help="restore the log from a backup or an earlier folder"
    )
    change.add_argument(
        "--lost", action="store_true", help="state that the log is lost: there is no guarantee from here on"
    )
    change.add_argument(
        "--new-rows",
        action="store_true",
        help="state that the data have no row that took part before: begin a new log",
    )
    text = "for secure sums: print a site's entry for the list of all sites' keys, or write the list"
    parser = _add_federate_command(
        commands, "roster", text, "print_or_write_roster", "a site's folder, or the server's"
    )
    parser.add_argument(
        "entries",
        nargs="*",
        metavar="NAME=KEY",
        help="write the list from these entries of all sites; get each entry from the site itself",
    )


def _add_caps_command(commands: Subparsers) -> None:
    parser = _add_federate_command(
        commands, "caps", "at a site: show, set or remove the caps on what a server can ask of it", "change_caps", SITE
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="the most rounds in a run (default: 1000)")
    parser.add_argument("--epochs", type=int, metavar="N", help="the most epochs in a round (default: 100)")
    parser.add_argument(
        "--plain-runs", type=int, metavar="N", help="the most new runs without noise in 24 hours (default: 10)"
    )
    text = "secure: take part only in runs with a secure sum or local noise; private: only in runs with --privacy"
    parser.add_argument("--only", choices=("secure", "private"), help=text)
    text = (
        "remove a cap: rounds, epochs, plain-runs, only, or untrained (which refuses statistics of untrained features)"
    )
    parser.add_argument("--remove", action="append", default=[], metavar="NAME", help=text)


def _add_metrics_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--metrics`, for a server or a site."""
    text = "serve Prometheus metrics and a status page at this address (default HOST: 127.0.0.1, this machine only)"
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help=text)


def _add_run_commands(commands: Subparsers) -> None:
    parser = _add_federate_command(
        commands, "run", "at the server: train with the connected sites", "train_with_sites", SERVER
    )
    text = "a name for a new run (default: run-1, run-2, ...), or that of a run to continue; its settings are known"
    parser.add_argument("--name", help=text)
    text = "the fewest sites for a new head; with fewer, the old head stays (default: 2)"
    parser.add_argument("--minimum-sites", type=int, default=2, help=text)
    text = "seconds that the server waits for answers (default: 600, then four times the slowest of the last rounds)"
    parser.add_argument("--deadline", type=float, help=text)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_flags(parser, [entry.name for entry in list_deployed_settings()])
    parser = _add_federate_command(
        commands,
        "drop",
        "at the server: continue a run without a site, neither asking it nor waiting for it",
        "drop_site",
        SERVER,
    )
    parser.add_argument("name", metavar="SITE", help="the name of the site")
    parser.add_argument("--run", help="the run (default: the newest that is not finished)")
    parser.add_argument("--back", action="store_true", help="take the site back: ask it again from the next round on")
    parser = _add_federate_command(
        commands,
        "leave",
        "at the server: unregister a site, and remove its statistics from the head of a run",
        "remove_site",
        SERVER,
    )
    parser.add_argument("name", metavar="SITE", help="the name of the site that leaves")
    parser.add_argument("--run", help="the run (default: the newest)")
    parser = _add_federate_command(
        commands, "demo", "run a server and three sites on this machine, with real records", "run_demo"
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR", help="keep all files in DIR (default: delete them at the end)"
    )
    parser.add_argument("--rounds", type=int, help="number of rounds (default: 4)")
    text = "images and a frozen pretrained body: one exchange, epsilon 1, a secure sum (needs fedlog[pretrained])"
    parser.add_argument("--pretrained", action="store_true", help=text)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the division of the records and of the training (default: 0)"
    )
    parser.add_argument("--verbose", action="store_true", help="show every step, and the commands of Flower behind it")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def _draft_schema(args: argparse.Namespace) -> None:
    from fedlog.data.schema_draft import DraftOptions, draft_schema

    sys.stdout.write(draft_schema(args.data, DraftOptions(args.label, args.group, args.time, args.text, args.number)))
    say("review the draft before it goes to the other sites; the comments at its top say what to look for")
