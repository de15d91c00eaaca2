"""Write the folder of the Flower app: a project file with the run's settings, and two modules that import ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedlog import __version__
from fedlog.files.durable import write_file
from fedlog.files.toml import format_toml, quote_toml
from fedlog.flower.protocol.plan import Plan, SettingValue, format_plan_settings
from fedlog.flower.server.run_folder import RoundRules

PACKAGE = "fedlog_app"
PROJECT = f"""[project]
name = "fedlog-federation"
version = {quote_toml(__version__)}
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


def make_app_settings(plan: Plan, rules: RoundRules) -> dict[str, SettingValue]:
    """The plan and the rules as settings of the app; `flwr run --run-config` may change any of them."""
    usual = rules.refused_share == RoundRules.refused_share
    return {
        **format_plan_settings(plan),
        "refused-share": "" if usual else rules.refused_share,
        "minimum-sites": rules.minimum,
        "deadline-seconds": rules.deadline_seconds or 0.0,
    }


def write_app(folder: Path, settings: Mapping[str, SettingValue]) -> Path:
    """Write the app's folder for `flwr run`, and return it."""
    write_file(folder / "pyproject.toml", PROJECT + format_toml(settings))
    write_file(folder / PACKAGE / "__init__.py", "")
    for side, room in (("server", "server"), ("client", "site")):
        # Flower looks for an assignment to `app` in the module's text; an import alone is not enough.
        text = f"from fedlog.flower.{room} import {side}_app\n\napp = {side}_app.app\n"
        write_file(folder / PACKAGE / f"{side}.py", text)
    return folder
