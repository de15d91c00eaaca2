"""The Flower ServerApp: it conducts one run, with the settings of the app, over Flower's messages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlog.data.schema import load_schema
from fedlog.errors import FedlogError, InputError
from fedlog.files.durable import is_disk_full_error
from fedlog.flower.folders.roster import read_roster
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.protocol.plan import Plan, make_plan, read_plan_settings
from fedlog.flower.server.database import erase_deleted_rows
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules
from fedlog.settings.training import REFUSED_SHARE

FOLDER_VARIABLE = "FEDLOG_FEDERATION"
app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Conduct a run with the settings of `[tool.flwr.app.config]` and `flwr run --run-config`."""
    torch.set_num_threads(1)
    folder = ServerFolder(Path(os.environ[FOLDER_VARIABLE]))
    name = str(context.run_config.get("name"))
    try:
        plan, terms = read_settings(context.run_config, folder)
        try:
            Run(grid, folder, load_schema(folder.schema_file), plan, terms).conduct()
        finally:
            if plan.promise is not None and (reason := erase_deleted_rows(folder.database)) is not None:
                folder.log("not packed", run=name, reason=reason)
    except OSError as error:
        if is_disk_full_error(error):
            reason = f"the disk of the server is full: {error.filename or folder.path}"
            with suppress(OSError):
                hint = f"make room; then the same command with --name {name} continues the run"
                folder.log("failed", run=name, reason=reason, hint=hint)
        raise
    except FedlogError as error:
        folder.log("failed", run=name, reason=error.message, hint=error.hint)
        raise


def read_settings(settings: Mapping[str, Any], folder: ServerFolder) -> tuple[Plan, RoundRules]:
    """The plan and the rules from the settings of the app; InputError names a setting that cannot be used."""
    spec = read_plan_settings(settings)
    plan = make_plan(spec, str(settings.get("name")), lambda: len(read_roster(folder.path)))
    share = REFUSED_SHARE if spec.refused_share is None else spec.refused_share
    try:
        # 0 means a deadline computed from the last rounds: a setting of a Flower app cannot be None.
        deadline = float(settings["deadline-seconds"]) or None
        return plan, RoundRules(int(settings["minimum-sites"]), deadline, share)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the app's settings: a number is missing or wrong: {error}", hint="use `fedlog federate run`"
        ) from None
