"""The Flower ServerApp that conducts a run, and the folder of the Flower app that `flwr run` starts.

The folder has a project file with the settings of the run, and two modules: one imports the ServerApp of this file, the
other the ClientApp of the sites.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlog import __version__
from fedlog.data.schema import load_schema
from fedlog.errors import FedlogError, InputError
from fedlog.files.durable import is_disk_full_error, write_file
from fedlog.files.toml import format_toml, format_toml_value
from fedlog.flower.folders.keys import read_roster
from fedlog.flower.folders.server_folder import ServerFolder, erase_deleted_messages
from fedlog.flower.protocol.plan import Plan, SettingValue, format_plan_settings, make_plan, read_run_spec
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules
from fedlog.settings.training import REFUSED_SHARE

FOLDER_VARIABLE = "FEDLOG_FEDERATION"
PACKAGE = "fedlog_app"
PROJECT = f"""[project]
name = "fedlog-federation"
version = {format_toml_value(__version__)}
description = "A federation with fedlog; sites run the fedlog they installed, not this bundle"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedlog"

[tool.flwr.app.components]
serverapp = "{PACKAGE}.server:app"
clientapp = "{PACKAGE}.client:app"

[tool.flwr.app.config]
"""
app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Conduct a run; its settings come from `[tool.flwr.app.config]` and `flwr run --run-config`."""
    torch.set_num_threads(1)
    folder = ServerFolder(Path(os.environ[FOLDER_VARIABLE]))
    name = str(context.run_config.get("name"))
    try:
        plan, rules = read_settings(context.run_config, folder)
        try:
            Run(grid, folder, load_schema(folder.schema_file), plan, rules).conduct()
        finally:
            if plan.promise is not None and (reason := erase_deleted_messages(folder.database)) is not None:
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
    """Read the plan and the rules of its rounds from the Flower app's settings; raise InputError if one is invalid."""
    spec = read_run_spec(settings)
    plan = make_plan(spec, str(settings.get("name")), lambda: len(read_roster(folder.path)))
    share = REFUSED_SHARE if spec.refused_share is None else spec.refused_share
    try:
        # 0 means a deadline computed from the last rounds: a setting of a Flower app cannot be None.
        deadline = float(settings["deadline-seconds"]) or None
        return plan, RoundRules(int(settings["minimum-sites"]), deadline, share)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"expected minimum-sites and deadline-seconds as numbers in the app's settings, found: {error}",
            hint="use `fedlog federate run`",
        ) from None


def make_app_settings(plan: Plan, rules: RoundRules) -> dict[str, SettingValue]:
    """Return the plan and the rules of its rounds as settings of the Flower app, which `flwr run` can change."""
    usual = rules.refused_share == RoundRules.refused_share
    return {
        **format_plan_settings(plan),
        "refused-share": "" if usual else rules.refused_share,
        "minimum-sites": rules.minimum,
        "deadline-seconds": rules.deadline_seconds or 0.0,
    }


def write_flower_app(folder: Path, settings: Mapping[str, SettingValue]) -> Path:
    """Write the Flower app, which `flwr run` starts, into the folder, and return the folder."""
    write_file(folder / "pyproject.toml", PROJECT + format_toml(settings))
    write_file(folder / PACKAGE / "__init__.py", "")
    for side, room in (("server", "server"), ("client", "site")):
        # Flower looks for an assignment to `app` in the module's text; an import alone is not enough.
        text = f"from fedlog.flower.{room} import {side}_app\n\napp = {side}_app.app\n"
        write_file(folder / PACKAGE / f"{side}.py", text)
    return folder
