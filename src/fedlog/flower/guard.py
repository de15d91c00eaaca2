"""At a site, run the ClientApp that the site itself installed, never code that came with a run.

Flower sends every run as a bundle of Python files (FAB), and a SuperNode imports and runs what is in it. Whoever
operates the server could then read a site's data with three lines of code. So the folder of programs that a site puts
first on the PATH of its SuperNode starts this module in place of `flwr-clientapp`: it fetches the message and answers
it as Flower does, but takes the app from the installed package. Every other kind of task is refused.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedlog.errors import RunError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

FLOWER_VERSION = "1.41.0"
GUARDED = "flwr-clientapp"
REFUSED = ("flwr-agentapp", "flwr-serverapp", "flwr-simulation", "flwr-model", "flwr-connector")


def write_guard(folder: Path) -> Path:
    """The folder, after the programs that shadow Flower's task programs were written in it."""
    folder.mkdir(parents=True, exist_ok=True)
    python = shlex.quote(sys.executable)
    _write_program(folder / GUARDED, f'exec {python} -m fedlog.flower.guard "$@"')
    for name in REFUSED:
        _write_program(folder / name, f"echo 'refused: this site runs no {name} task' >&2; exit 1")
    return folder


def _write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def installed_app(*_: object) -> ClientApp:
    """The ClientApp of the installed package, whichever one the run asked for."""
    from fedlog.flower.client_app import app

    return app


def main() -> None:
    """`flwr-clientapp` as Flower has it, except for where the app comes from."""
    import flwr
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    if flwr.__version__ != FLOWER_VERSION:
        # The two names below are Flower's own business, and another version may keep them elsewhere.
        raise RunError(f"expected flwr {FLOWER_VERSION} at this site, found: {flwr.__version__}")
    for name in ("install_from_fab", "install_app_dependencies", "get_load_client_app_fn"):
        if not callable(getattr(run_clientapp, name, None)):
            raise RunError(f"expected the name {name} in flwr.supernode.runtime.run_clientapp, found none")
    run_clientapp.install_from_fab = _nothing
    run_clientapp.install_app_dependencies = _nothing
    run_clientapp.get_load_client_app_fn = _loader
    flwr_clientapp()


def _nothing(*_: object, **__: object) -> None:
    return None


def _loader(**_: object) -> Callable[..., ClientApp]:
    return installed_app


if __name__ == "__main__":
    main()
