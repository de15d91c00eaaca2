"""`fedlog run`: its options. What it does is in `running`, imported when it is really done."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Nothing; `run` is then among the commands."""
    run = subparsers.add_parser("run", help="train one method on one data set")
    run.set_defaults(handler=run_command)
    run.add_argument("config", nargs="?", type=Path, metavar="FILE.toml", help="settings; flags override them")
    run.add_argument("--method", help="fedlog, fedlog-c, local, pooled, fedavg, ... or package.module:name")
    run.add_argument(
        "--data", help="digits (default), circle, mnist, cifar10, cifar100, har, leaf, or package.module:name"
    )
    run.add_argument("--clients", type=int, metavar="N")
    run.add_argument("--classes-per-client", type=int, metavar="K")
    run.add_argument("--partition", choices=["shards", "dirichlet", "user", "person", "iid", "ordered"])
    run.add_argument("--dirichlet-alpha", type=float, metavar="A")
    run.add_argument("--train-records", type=int, metavar="N", help="the first N training records only")
    run.add_argument("--validation-fraction", type=float, metavar="F", help="of each client's training records")
    run.add_argument("--judge", choices=["test", "validation"], help="held-out records the accuracy is taken on")
    run.add_argument(
        "--body", action="append", metavar="NAME", help="cnn, mlp:64,64, ...; several are dealt out evenly"
    )
    run.add_argument("--initialisation", choices=["shared", "separate"], help="of the bodies")
    run.add_argument("--rounds", type=int, metavar="N")
    run.add_argument("--batch-size", type=int, metavar="N")
    run.add_argument(
        "--moments",
        choices=["epoch", "round", "run"],
        help="of Adam: made anew for each epoch (default) or round, or kept at home for the run",
    )
    run.add_argument(
        "--decay",
        choices=["none", "cosine"],
        help="of the learning rate: none (default), or along half a cosine to the last round",
    )
    run.add_argument("--weight-decay", type=float, metavar="W", help="of the parameters, as in AdamW (default: 0)")
    run.add_argument("--participation", type=float, metavar="F", help="share of the clients in each round")
    run.add_argument(
        "--refused-share",
        type=float,
        metavar="F",
        help="of a round's uploads that may be unusable (default: 0, or 0.5 with --privacy)",
    )
    run.add_argument("--seed", type=int, metavar="N")
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the method")
    run.add_argument("--stop-at-accuracy", type=float, metavar="F", help="for cost-to-threshold measurements only")
    run.add_argument(
        "--codec",
        metavar="NAME",
        help="how messages are written: f32 (default), rows, f16, q8, q4, rows+q8, rows+q8+zstd, ... (docs/wire.md)",
    )
    _add_privacy(run)
    run.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/<time>-<data>-<method>)")
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted run")
    run.add_argument("--data-dir", metavar="DIR", help="folder of the data sets (default: $FEDLOG_DATA, or the cache)")
    run.add_argument("--device", help="cpu (default), cuda, ...")
    run.add_argument("--backend", choices=["auto", "block", "vmap", "loop"])
    run.add_argument("--jobs", type=int, metavar="N", help="worker processes, one thread each (default: all cores)")
    run.add_argument("--threads", type=int, metavar="N", help="PyTorch threads in each process (default: 1)")
    run.add_argument("--dry-run", action="store_true", help="say what would be sent, the memory and the time, and stop")
    run.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    run.add_argument("--quiet", action="store_true", help="no progress; warnings are still said")


def _add_privacy(run: argparse.ArgumentParser) -> None:
    """Nothing; the settings of private runs are then among the options."""
    privacy = run.add_argument_group("privacy", "what is protected, how much, and against whom: see docs/privacy.md")
    privacy.add_argument("--privacy", choices=["record", "client", "paper"], help="unit; paper is no formal guarantee")
    privacy.add_argument("--epsilon", type=float, help="of the whole run")
    privacy.add_argument("--delta", type=float, help="of the whole run; 1e-5 or less for a real promise")
    privacy.add_argument(
        "--trust", "--mechanism", choices=["central", "local", "distributed"], help="who adds noise (default: central)"
    )
    privacy.add_argument("--calibration", choices=["exact", "paper"], help="how noise follows from the budget")
    privacy.add_argument("--noise", choices=["float", "discrete"], help="float (default) is for simulation only")
    privacy.add_argument("--clip", metavar="BOUND", help="of the features: clamp:B (each) or l2:R (each record)")
    privacy.add_argument("--message-norm", type=float, metavar="S", help="L2 norm of a client's whole message")
    privacy.add_argument("--body-training", choices=["frozen", "dp-sgd"], help="how record privacy has bodies")
    privacy.add_argument("--sgd-noise", type=float, metavar="Z", help="of DP-SGD (default: for half of epsilon)")
    privacy.add_argument("--sgd-clip", type=float, metavar="C", help="of each record's gradient (default: 1)")
    privacy.add_argument("--sample-rate", type=float, metavar="Q", help="of DP-SGD's samples (default: 0.1)")
    privacy.add_argument("--body-file", metavar="FILE", help="safetensors with the parameters every body starts from")
    privacy.add_argument("--aggregation", choices=["secure"], help="the server sees the sum of the uploads only")
    privacy.add_argument("--dropout-rate", type=float, metavar="P", help="of clients that vanish in a secure sum")
    privacy.add_argument("--honest", type=int, metavar="H", help="honest survivors that a secure sum needs")


def run_command(args: argparse.Namespace) -> int:
    """Exit code 0 after a finished run."""
    from fedlog.cli.running import run  # PyTorch takes a second: not for `--help` or a mistyped option

    return run(args)
