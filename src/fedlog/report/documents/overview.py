"""The overview for README.md and docs/what-it-gains.md: a table and a picture of accuracies and bits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from fedlog.errors import InputError
from fedlog.files.durable import write_file
from fedlog.report.parts.matplotlib_figure import ShownFigure, write_svg
from fedlog.report.parts.style import METHODS as STYLES
from fedlog.report.parts.tables import replace_marked_text
from fedlog.wire.bits_text import describe_bits

METHODS = {name: STYLES[name].label for name in ("local", "fedavg", "fedproto", "fedlog", "fedlog-c")}
SETTINGS = {
    "table-mnist": "MNIST, 50 clients with 2 classes each",
    "table-cifar10": "CIFAR-10, 100 clients with 2 classes each",
    "natural-sites": "UCI HAR, 6 sites with all classes",
}
GAINS = "what-it-gains.md"  # under docs/
OVERVIEW, OVERVIEW_END = "<!-- overview: written by `fedlog docs` -->", "<!-- end of overview -->"


@dataclass(frozen=True)
class MethodFigures:
    """One method in one setting: its accuracy in per cent by seed, and the bits of all clients in a run."""

    by_seed: Mapping[int, float]
    bits: int

    @property
    def accuracies(self) -> tuple[float, ...]:
        """The accuracies, in the order of the seeds."""
        return tuple(self.by_seed.values())

    def __str__(self) -> str:
        spread = f" ± {stdev(self.accuracies):.1f}" if len(self.accuracies) > 1 else ""
        sent = describe_bits(self.bits) if self.bits else "nothing sent"
        seeds = f"{len(self.accuracies)} seed" + ("s" if len(self.accuracies) > 1 else "")
        return f"{mean(self.accuracies):.1f}{spread} % ({seeds}), {sent}"


def read_overview(results: Path) -> dict[str, dict[str, MethodFigures]]:
    """The figures of each method in each setting, after the last round."""
    return {setting: {method: read_figures(results / setting / method) for method in METHODS} for setting in SETTINGS}


def write_overview_table(results: Path) -> str:
    """The overview as Markdown: one row for each method, one column for each setting."""
    found = read_overview(results)
    lines = [f"| | {' | '.join(SETTINGS.values())} |", "|---|" + "---|" * len(SETTINGS)]
    for method, name in METHODS.items():
        lines.append(f"| {name} | {' | '.join(str(found[setting][method]) for setting in SETTINGS)} |")
    return "\n".join(lines)


def describe_paired_gains(results: Path) -> str:
    """Return a sentence on FedLog's gain over training alone and over FedAvg, paired by seed."""
    found = read_overview(results)
    parts = []
    for other in ("local", "fedavg"):
        gains = [_format_gain(found[setting]["fedlog"], found[setting][other]) for setting in SETTINGS]
        parts.append(f"{METHODS[other]} {gains[0]}, {gains[1]} and {gains[2]}")
    return (
        "Seed by seed, on the same division of the records, FedLog ends this many points above "
        f"{'; above '.join(parts)} (mean ± standard deviation, in the order of the columns)."
    )


def _format_gain(cell: MethodFigures, other: MethodFigures) -> str:
    gains = [cell.by_seed[seed] - other.by_seed[seed] for seed in cell.by_seed if seed in other.by_seed]
    return f"{mean(gains):+.1f}" + (f" ± {stdev(gains):.1f}" if len(gains) > 1 else "")


def write_overview(results: Path, docs: Path) -> list[Path]:
    """Write the overview into README.md and the page of gains, and its picture; do nothing without these pages."""
    picture, page, readme = docs / "images" / "overview.svg", docs / GAINS, docs.parent / "README.md"
    if not (page.exists() and readme.exists()):
        return []
    write_file(picture, draw_overview(results))
    table = f"{write_overview_table(results)}\n"
    replace_marked_text(readme, OVERVIEW, OVERVIEW_END, table)
    replace_marked_text(page, OVERVIEW, OVERVIEW_END, f"{table}\n{describe_paired_gains(results)}\n")
    return [picture, readme, page]


def draw_overview(results: Path) -> str:
    """A picture of accuracy against bits in each setting, as SVG; training alone, which sends nothing, is a line."""
    from matplotlib.ticker import NullFormatter

    found = read_overview(results)
    figure = ShownFigure((11, 3.6))
    for axes, (setting, title) in zip(figure.subplots(1, len(SETTINGS)), SETTINGS.items(), strict=True):
        for method, name in METHODS.items():
            cell = found[setting][method]
            if cell.bits == 0:
                axes.axhline(mean(cell.accuracies), label=name, **STYLES[method].matplotlib_line)
                continue
            spread = stdev(cell.accuracies) if len(cell.accuracies) > 1 else 0.0
            axes.errorbar(
                [cell.bits / 1e6],
                [mean(cell.accuracies)],
                yerr=[spread],
                capsize=3,
                label=name,
                **STYLES[method].matplotlib_point,
            )
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("Mb, all clients, whole run")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("accuracy, mean over clients (%)")
    figure.axes[0].legend(fontsize=8)
    return write_svg(figure)


def read_figures(folder: Path) -> MethodFigures:
    """The figures of one method, from the summaries of its seeds in the folder."""
    runs: Sequence[dict[str, float]] = [
        json.loads(path.read_text()) for path in sorted(folder.glob("seed-*/summary.json"))
    ]
    if not runs:
        raise InputError(f"no records in {folder}", hint="run this in the project's folder, or give --results")
    by_seed = {int(run["seed"]): 100 * run["accuracy_mean_over_clients"] for run in runs}
    return MethodFigures(by_seed, int(runs[0]["bits_up"] + runs[0]["bits_down"]))
