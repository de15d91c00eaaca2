"""The work of `fedlog compare`: run the comparison, print its tables and its advice, write its page.

With `--write-plan` it also writes the plan of a deployment: the schema, each site's table, and the commands.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedlog
from fedlog.algorithms import registry
from fedlog.api.compare import Comparison, compare_seeds
from fedlog.cli.command import count_cores, split_list
from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import SITES
from fedlog.data.federation import Federation
from fedlog.data.schema import dump_schema
from fedlog.data.sites import SiteSources
from fedlog.errors import InputError
from fedlog.experiments.compare.advice import AdviceKind
from fedlog.experiments.compare.variants import METHODS
from fedlog.files.durable import write_file
from fedlog.report.compare.comparison import (
    format_comparison_as_csv,
    format_table_as_text,
    make_comparison_json,
    make_methods_table,
    make_sites_table,
)
from fedlog.settings.fields import find_setting_info
from fedlog.settings.flags import read_given_settings
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec, list_deployed_settings
from fedlog.settings.training import Recipe

PAGE = "comparison.html"
HOST = "SERVER.EXAMPLE.ORG"
REVIEW_NOTE = "Drafted by `fedlog compare` from the files of all sites. Review it before it goes to them."


def compare_and_report(args: argparse.Namespace) -> int:
    """Run the comparison and print its results; return exit code 0 if all runs finished, 1 if some failed."""
    given = {name: value for name, value in read_given_settings(args).items() if name != "jobs"}
    data = given.pop("data", "digits")
    options = given.pop("options", {})
    if not 0 <= args.worth < 100:
        raise InputError(
            f"expected --worth in points, at least 0 and below 100, found: {args.worth:g}", hint="--worth 1"
        )
    out = args.out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-compare-{_make_folder_name(data)}"
    try:
        comparison = fedlog.compare(
            data,
            split_list("--methods", args.methods, "fedlog,fedavg") or METHODS,
            None if args.seeds is None else parse_seeds(args.seeds),
            codecs=split_list("--codecs", args.codecs, "f32,q8"),
            bodies=args.bodies,
            recipes=_parse_own_recipes([text for text in args.recipes if text not in list(Recipe)]),
            recipe=_find_named_recipe(args.recipes),
            body=given.pop("body", None),
            out=out,
            progress=not args.quiet,
            jobs=count_cores() if args.jobs is None else args.jobs,
            executor=args.executor,
            worth=args.worth / 100,
            quick=args.quick,
            **given,
            **options,
        )
    except KeyboardInterrupt:
        where = shlex.quote(str(out))
        raise KeyboardInterrupt(f"to continue this comparison, run the same command with --out {where}") from None
    page = comparison.write_page(out / PAGE)
    _write_exported_tables(args, comparison)
    _print_comparison(args, comparison, str(comparison), page=str(page), folder=str(out))
    if args.write_plan is not None:
        print(write_plan(args.write_plan, comparison, args.site_column), end="", file=sys.stderr if args.json else None)
    return 1 if comparison.findings.failed else 0


def run_seeds_and_report(args: argparse.Namespace, spec: RunSpec, out: Path) -> int:
    """Run one method with several seeds, for `fedlog run --seeds`; return exit code 0, or 1 if some runs failed."""
    if args.resume is not None:
        raise InputError(
            "expected --resume or --seeds, found both: one continues a single run, the other makes several",
            hint="leave --resume out: the same command with --seeds and --out continues by itself",
        )
    progress = False if args.quiet else None
    comparison = compare_seeds(spec, parse_seeds(args.seeds), out, args.jobs or count_cores(), progress)
    page = comparison.write_page(out / PAGE)
    _print_comparison(args, comparison, format_table_as_text(make_methods_table(comparison.findings)), page=str(page))
    return 1 if comparison.findings.failed else 0


def _write_exported_tables(args: argparse.Namespace, comparison: Comparison) -> None:
    """Write the tables to the files that `--csv` and `--latex` name."""
    if args.csv is not None:
        write_file(args.csv, format_comparison_as_csv(comparison.findings))
    if args.latex is not None:
        tables = (make_methods_table(comparison.findings), make_sites_table(comparison.findings))
        write_file(args.latex, "\n".join(table.to_latex() for table in tables))


def _print_comparison(args: argparse.Namespace, comparison: Comparison, text: str, **paths: str) -> None:
    """Print the text and the path of the HTML page; with --json, print the whole comparison and the paths as JSON."""
    if args.json:
        print(json.dumps({**make_comparison_json(comparison.findings, comparison.advice, comparison.notes), **paths}))
        return
    print(text)
    print(f"page: {paths['page']}", file=sys.stderr)


def parse_seeds(text: str) -> int | list[int]:
    """Parse the value of `--seeds`: a number of seeds such as `5`, or a list of seeds such as `0,1,7`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise InputError(f"--seeds must be whole numbers from 0 on, found: {text}", hint="--seeds 5, or --seeds 0,1,2")
    return int(parts[0]) if len(parts) == 1 and "," not in text else [int(part) for part in parts]


def _find_named_recipe(texts: Sequence[str]) -> Recipe | None:
    """Find the recipe `paper` or `tuned` among the values of `--recipe`; None if neither was given."""
    named = [Recipe(text) for text in texts if text in list(Recipe)]
    if len(named) > 1:
        raise InputError(
            f"expected only one of the recipes {', '.join(Recipe)}, found: {', '.join(named)}",
            hint=f"--recipe {named[0]}",
        )
    return named[0] if named else None


def _parse_own_recipes(texts: Sequence[str]) -> dict[str, dict[str, Any]] | None:
    """Read a user's own recipes, `NAME:KEY=VALUE,...`, as {name: settings}; None if there are none.

    An entry without name and settings is added, so that every method is also run without a recipe.
    """
    if not texts:
        return None
    recipes: dict[str, dict[str, Any]] = {"": {}}
    for text in texts:
        name, colon, settings = text.partition(":")
        pairs = [part.partition("=") for part in settings.split(",")]
        if not name or not colon or not all(key and equals for key, equals, _ in pairs):
            raise InputError(f"expected a recipe as NAME:KEY=VALUE,..., found: {text}", hint="--recipe long:rounds=30")
        recipes[name] = {key.strip().replace("-", "_"): _parse_recipe_value(value) for key, _, value in pairs}
    return recipes


def _parse_recipe_value(text: str) -> Any:
    """Read a VALUE of a recipe: as JSON if it is valid JSON, such as a number, true or null; else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def _make_folder_name(data: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", data).strip("-")[-60:]


def write_plan(folder: Path, comparison: Comparison, site_column: str | None) -> str:
    """Write what a deployment needs into the folder (schema, tables of the sites, commands); return the commands."""
    if not comparison.data.startswith(SITES):
        raise InputError(
            f"--write-plan needs data from your own sites, found: {comparison.data}",
            hint=f"--data {SITES}FOLDER",
        )
    label = choose_method_to_deploy(comparison)
    spec = comparison.runs[label, min(seed for name, seed in comparison.runs if name == label)].spec
    federation = load_federation(resolve(spec).data)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "schema.toml", dump_schema(federation.make_schema(), (REVIEW_NOTE,)))
    tables = _write_site_tables(folder, comparison.data.removeprefix(SITES), site_column)
    lines = [*_explain_method_to_deploy(comparison, label), *list_deployment_commands(folder, spec, federation, tables)]
    text = "\n".join(lines) + "\n"
    write_file(folder / "commands.sh", text)
    return text


def choose_method_to_deploy(comparison: Comparison) -> str:
    """Return the label of the method to deploy: the advised method or, if sites cannot run it, the best of the others.

    InputError if sites can run none of the compared methods.
    """
    deployable = registry.find_methods(lambda method: method.may_federate)
    labels = [
        label for label in comparison.findings.federated_labels if comparison.findings.find_method(label) in deployable
    ]
    if not labels:
        raise InputError(
            f"real sites can run none of the compared methods: {', '.join(comparison.methods)}",
            hint=f"add one of these to --methods: {', '.join(deployable)}",
        )
    if comparison.advice.method in labels:
        return comparison.advice.method
    accuracies = {label: comparison.findings.results[label].validation_accuracy for label in labels}
    return max(labels, key=lambda label: getattr(accuracies[label], "value", 0.0))


def _explain_method_to_deploy(comparison: Comparison, label: str) -> list[str]:
    lines = [f"# {comparison.advice.sentence}"]
    if comparison.advice.kind is not AdviceKind.FEDERATE:
        lines.append(f"# Even so, these commands run {label}, the best of the methods that can be deployed.")
    elif comparison.advice.method != label:
        lines.append(f"# {comparison.advice.method} runs in the simulator only; these commands run {label}.")
    return lines


def _write_site_tables(folder: Path, source: str, site_column: str | None) -> dict[str, Path]:
    """Return the path of each site's table, by site; if there is one table for all sites, split it into files first."""
    sources = SiteSources.find(source, site_column)
    for name, frame in sources.frames.items():
        frame.write_csv(folder / f"{name}.csv")
    return sources.paths or {name: folder / f"{name}.csv" for name in sources.frames}


def list_deployment_commands(
    folder: Path, spec: RunSpec, federation: Federation, tables: Mapping[str, Path]
) -> list[str]:
    """List the commands that the server and each site must run, with the settings of the compared run."""
    schema = shlex.quote(str(folder / "schema.toml"))
    lines = ["# At the server:", f"fedlog federate init server --schema {schema} --host {HOST}"]
    lines += ["fedlog federate server server", ""]
    for name in federation.clients:
        site, data = shlex.quote(name), shlex.quote(str(tables[name]))
        lines += [
            f"# At {name}, then at the server, then at {name} again:",
            f"fedlog federate join {site} --server {HOST} --ca ca.crt --schema {schema} --name {site}",
            f"fedlog federate register server {site}/site.pub --name {site}",
            f"fedlog federate site {site} --data {data} --body {shlex.quote(find_body_name(spec, name))}",
            "",
        ]
    return [*lines, "# At the server, once all sites are online:", make_federate_run_command(spec)]


def find_body_name(spec: RunSpec, site: str) -> str:
    """Return the name of the body (the network below the head) that this site had in the compared run."""
    own = dict(name.split("=", 1) for name in spec.body if "=" in name)
    common = [name for name in spec.body if "=" not in name]
    if len(common) > 1:
        raise InputError(
            f"expected one body for all sites, or SITE=NAME for each site, found several for all: {', '.join(common)}",
            hint="--body SITE=NAME for each site",
        )
    return own.get(site) or common[0]


def make_federate_run_command(spec: RunSpec) -> str:
    """Return the command `fedlog federate run ...` with the settings of the compared run."""
    always = ("method", "recipe", "rounds", "batch_size", "seed", "codec")
    words = ["fedlog federate run server"]
    for entry in list_deployed_settings():
        value = getattr(spec, entry.name)
        if find_setting_info(entry).flag and value is not None and (entry.name in always or value != entry.default):
            words.append(f"--{entry.name.replace('_', '-')} {shlex.quote(str(value))}")
    words += [f"--set {name}={value}" for name, value in spec.options.items() if value is not None]
    return " ".join(words)
