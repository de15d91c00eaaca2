"""Write a deployment plan for `fedlog compare --write-plan`: the schema, each site's table, and the commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from fedlog.algorithms import registry
from fedlog.api.compare import Comparison
from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import SITES
from fedlog.data.federation import Federation
from fedlog.data.schema import dump_schema
from fedlog.data.sites import SiteSources
from fedlog.errors import InputError
from fedlog.experiments.compare.advice import AdviceKind
from fedlog.files.durable import write_file
from fedlog.settings.fields import find_setting_info
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec, list_deployed_settings

HOST = "SERVER.EXAMPLE.ORG"
REVIEW_NOTE = "Drafted by `fedlog compare` from the files of all sites. Review it before it goes to them."


def write_plan(folder: Path, found: Comparison, site_column: str | None) -> str:
    """Write the schema, the tables and the commands into the folder; return the commands as text."""
    if not found.data.startswith(SITES):
        raise InputError(
            f"--write-plan needs data from your own sites, found: {found.data}",
            hint=f"--data {SITES}FOLDER",
        )
    label = choose_deployable(found)
    spec = found.runs[label, min(seed for name, seed in found.runs if name == label)].spec
    federation = load_federation(resolve(spec).data)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "schema.toml", dump_schema(federation.describe_schema(), (REVIEW_NOTE,)))
    tables = _write_site_tables(folder, found.data.removeprefix(SITES), site_column)
    text = "\n".join([*_explain_choice(found, label), *list_commands(folder, spec, federation, tables)]) + "\n"
    write_file(folder / "commands.sh", text)
    return text


def choose_deployable(found: Comparison) -> str:
    """The advised label, if its method can be deployed; else the best label with a method that can."""
    deployable = registry.find_methods(lambda method: method.may_federate)
    labels = [label for label in found.findings.candidates if found.findings.find_method(label) in deployable]
    if not labels:
        raise InputError(
            "expected a compared method that can be deployed, found none", hint=f"--methods {','.join(deployable)}"
        )
    if found.advice.method in labels:
        return found.advice.method
    accuracies = {label: found.findings.figures[label].validation_accuracy for label in labels}
    return max(labels, key=lambda label: getattr(accuracies[label], "value", 0.0))


def _explain_choice(found: Comparison, label: str) -> list[str]:
    lines = [f"# {found.advice.sentence}"]
    if found.advice.kind is not AdviceKind.FEDERATE:
        lines.append(f"# These commands run {label}, the best that sites can run, all the same.")
    elif found.advice.method != label:
        lines.append(f"# {found.advice.method} runs in the simulator only; these commands run {label}.")
    return lines


def _write_site_tables(folder: Path, source: str, site_column: str | None) -> dict[str, Path]:
    """The file of each site's records; a single table is split into one file for each site, with its rows in order."""
    several = "," in source and not Path(source).exists()
    sources = SiteSources.find(source.split(",") if several else source, site_column)
    for name, frame in sources.frames.items():
        frame.write_csv(folder / f"{name}.csv")
    return sources.paths or {name: folder / f"{name}.csv" for name in sources.frames}


def list_commands(folder: Path, spec: RunSpec, federation: Federation, tables: Mapping[str, Path]) -> list[str]:
    """The commands for the server and for each site, with the settings of the compared run."""
    schema = shlex.quote(str(folder / "schema.toml"))
    lines = ["# At the server:", f"fedlog federate init server --schema {schema} --host {HOST}"]
    lines += ["fedlog federate server server", ""]
    for name in federation.clients:
        site, data = shlex.quote(name), shlex.quote(str(tables[name]))
        lines += [
            f"# At {name}, then at the server, then at {name} again:",
            f"fedlog federate join {site} --server {HOST} --ca ca.crt --schema {schema} --name {site}",
            f"fedlog federate register server {site}/site.pub --name {site}",
            f"fedlog federate site {site} --data {data} --body {shlex.quote(find_body(spec, name))}",
            "",
        ]
    return [*lines, "# At the server, once all sites are online:", write_run_command(spec)]


def find_body(spec: RunSpec, site: str) -> str:
    """The body of this site in the compared run."""
    own = dict(name.split("=", 1) for name in spec.body if "=" in name)
    common = [name for name in spec.body if "=" not in name]
    if len(common) > 1:
        raise InputError(
            f"expected one body, or SITE=NAME for each site, found: {', '.join(common)}",
            hint="--body SITE=NAME for each site",
        )
    return own.get(site) or common[0]


def write_run_command(spec: RunSpec) -> str:
    """The command `fedlog federate run` with the settings of the compared run."""
    always = ("method", "recipe", "rounds", "batch_size", "seed", "codec")
    words = ["fedlog federate run server"]
    for entry in list_deployed_settings():
        value = getattr(spec, entry.name)
        if find_setting_info(entry).flag and value is not None and (entry.name in always or value != entry.default):
            words.append(f"--{entry.name.replace('_', '-')} {shlex.quote(str(value))}")
    words += [f"--set {name}={value}" for name, value in spec.options.items() if value is not None]
    return " ".join(words)
