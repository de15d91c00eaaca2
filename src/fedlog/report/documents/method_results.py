"""Write the results of methods into the documentation, from the committed records.

Each method has a table and a picture in its page under docs/methods; README.md and docs/what-it-gains.md have an
overview of the main methods.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from matplotlib.axes import Axes
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullFormatter

from fedlog.errors import InputError
from fedlog.files.durable import write_file
from fedlog.report.parts.matplotlib_figure import ShownFigure, convert_figure_to_svg
from fedlog.report.parts.style import find_style
from fedlog.report.parts.tables import TextTable, replace_marked_text
from fedlog.wire.bits_text import describe_bits

START, END = "<!-- results: written by `fedlog docs` -->", "<!-- end of results -->"
TITLE = re.compile(r"^# .*\(((?:`[^`]+`(?:, )?)+)\)$", re.MULTILINE)


@dataclass(frozen=True)
class ShownExperiment:
    """An experiment whose results are shown: the folder of its records, its title, and the page that explains it."""

    folder: str
    title: str
    page: str


INDEX = "methods/index.md"
SHOWN_EXPERIMENTS = (
    ShownExperiment("table-mnist", "MNIST, 50 clients with 2 classes each", "reproduction/table-mnist.md"),
    ShownExperiment("table-cifar10", "CIFAR-10, 100 clients with 2 classes each", "reproduction/table-cifar10.md"),
    ShownExperiment("table-cifar100", "CIFAR-100, 100 clients with 10 classes each", "reproduction/table-cifar100.md"),
    ShownExperiment("natural-sites", "UCI HAR, 6 sites with all classes", "reproduction/natural-sites.md"),
    ShownExperiment("natural-users", "UCI HAR, 30 people", "reproduction/natural-users.md"),
    ShownExperiment("one-exchange-cifar10", "CIFAR-10, frozen body, own classes", "pretrained.md"),
    ShownExperiment("one-exchange-cifar100", "CIFAR-100, frozen body, own classes", "pretrained.md"),
    ShownExperiment("methods-digits", "digits, 10 clients with 2 classes each", INDEX),
    ShownExperiment("methods-digits-frozen", "digits, frozen body, all 10 classes", INDEX),
)
PANELS = 3
OVERVIEW_METHODS = ("local", "fedavg", "fedproto", "fedlog", "fedlog-c")
OVERVIEW_EXPERIMENTS = (SHOWN_EXPERIMENTS[0], SHOWN_EXPERIMENTS[1], SHOWN_EXPERIMENTS[3])
GAINS = "what-it-gains.md"  # under docs/
OVERVIEW, OVERVIEW_END = "<!-- overview: written by `fedlog docs` -->", "<!-- end of overview -->"
REGRESSION_RECORD = ("fed-regression", "one-exchange-sites/regression-runs.json", "pretrained.md")


@dataclass(frozen=True)
class MethodResults:
    """The results of a method in an experiment: accuracy in per cent by seed, and the bits of all clients in a run."""

    by_seed: Mapping[int, float]
    bits: int

    @property
    def accuracies(self) -> tuple[float, ...]:
        """The accuracies in per cent, in the order of the seeds."""
        return tuple(self.by_seed.values())

    def __str__(self) -> str:
        spread = f" ± {stdev(self.accuracies):.1f}" if len(self.accuracies) > 1 else ""
        sent = describe_bits(self.bits) if self.bits else "nothing sent"
        seeds = f"{len(self.accuracies)} seed" + ("s" if len(self.accuracies) > 1 else "")
        return f"{mean(self.accuracies):.1f}{spread} % ({seeds}), {sent}"


def read_method_results(folder: Path) -> MethodResults:
    """Read the results of one method from the summaries of its runs in the folder."""
    runs: Sequence[dict[str, float]] = [
        json.loads(path.read_text()) for path in sorted(folder.glob("seed-*/summary.json"))
    ]
    if not runs:
        raise InputError(
            f"expected records of finished runs, found none in: {folder}",
            hint="run this in the project's folder, or give --results",
        )
    by_seed = {int(run["seed"]): 100 * run["accuracy_mean_over_clients"] for run in runs}
    return MethodResults(by_seed, int(runs[0]["bits_up"] + runs[0]["bits_down"]))


def write_method_results(results: Path, docs: Path) -> list[Path]:
    """Write the results and a picture for every method's page; return the paths of the files."""
    found = {each: _read_experiment(results / each.folder) for each in SHOWN_EXPERIMENTS}
    written: list[Path] = []
    for page in sorted((docs / "methods").glob("*.md")):
        text = page.read_text()
        title = TITLE.search(text)
        if title is None:  # the list of methods
            listed = [(each, found[each]) for each in SHOWN_EXPERIMENTS if each.page == INDEX]
            write_file(page, _insert_section(text, _format_tables_of_all_methods(listed)))
            written.append(page)
            continue
        methods = re.findall(r"`([^`]+)`", title[1])
        shown = [each for each in SHOWN_EXPERIMENTS if any(method in found[each] for method in methods)]
        picture = docs / "images" / "methods" / f"{page.stem}.svg"
        if shown:
            picture.parent.mkdir(parents=True, exist_ok=True)
            write_file(picture, _draw_method_picture([(each, found[each]) for each in shown[:PANELS]], methods))
            written.append(picture)
        regression = _format_regression_section(results) if REGRESSION_RECORD[0] in methods else None
        block = regression or _format_section([(each, found[each]) for each in shown], methods, page.stem)
        write_file(page, _insert_section(text, block))
        written.append(page)
    return written


def _read_experiment(folder: Path) -> dict[str, MethodResults]:
    """Read the results of every method that has a finished run in the folder, by the method's name."""
    runs = sorted({path.parents[1] for path in folder.glob("*/seed-*/summary.json")})
    return {path.name: read_method_results(path) for path in runs}


def _format_section(
    shown: Sequence[tuple[ShownExperiment, Mapping[str, MethodResults]]], methods: Sequence[str], stem: str
) -> str:
    """Return the table and the picture for the page of these methods, in Markdown.

    `shown` has the experiments with their results; `stem` is the file name of the picture without its suffix.
    """
    lines = ["## Results", ""]
    if not shown:
        return "\n".join([*lines, "No record of it on our tables."])
    lines += ["| setting | method | accuracy, bits of all clients | training alone |", "|---|---|---:|---:|"]
    for experiment, figures in shown:
        for method in methods:
            if method in figures:
                alone = str(figures["local"]).rpartition(",")[0] if "local" in figures else "no record"
                alone = alone if method != "local" else ""
                link = f"[{experiment.title}](../{experiment.page})"
                lines.append(f"| {link} | `{method}` | {figures[method]} | {alone} |")
    names = " and ".join(f"`{method}`" for method in methods)
    return "\n".join(
        [
            *lines,
            "",
            "After the last round, mean over clients ± standard deviation over seeds; the records are in `results/`.",
            "",
            f"![Accuracy against bits: {names.replace('`', '')} among all methods](../images/methods/{stem}.svg)",
        ]
    )


def _format_tables_of_all_methods(shown: Sequence[tuple[ShownExperiment, Mapping[str, MethodResults]]]) -> str:
    """Return a Markdown table for each experiment, with the results of all methods, the most accurate method first."""
    lines = ["## Every method on digits", ""]
    for experiment, figures in shown:
        ranked = sorted(figures.items(), key=lambda each: -mean(each[1].accuracies))
        table = TextTable(("method", "accuracy, bits"), tuple((f"`{method}`", str(cell)) for method, cell in ranked))
        lines += [f"`fedlog reproduce {experiment.folder}` ({experiment.title}):", "", table.to_markdown()]
    said = (
        "Each method with its defaults, none of them tuned here; the mean over clients after the last round ± standard "
        "deviation over seeds, and the bits of all clients. With two digits a client, training alone is hard to beat. "
        "In one exchange a client of two digits has to choose among all ten, which `--set classes=own` would spare it."
    )
    return "\n".join([*lines, said])


def _format_regression_section(results: Path) -> str | None:
    """Return the results of the method that predicts numbers, in Markdown; None if there are no records of it."""
    path = results / REGRESSION_RECORD[1]
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    lines = ["## Results", "", "| data | run | root mean squared error | inside 90 % intervals |"]
    lines.append("|---|---|---:|---:|")
    for table, runs in record["tables"].items():
        for name, row in runs.items():
            spread, inside = stdev(row["rmse_of_seeds"]), 100 * row["inside_90"]
            lines.append(
                f"| [`{table}`](../{REGRESSION_RECORD[2]}) | {name} | {row['rmse']:.3g} ± {spread:.2g} "
                f"| {inside:.1f} % |"
            )
    said = f"Mean ± standard deviation over {record['seeds']} seeds; made by `{record['command']}`."
    return "\n".join([*lines, "", said])


def _insert_section(text: str, block: str) -> str:
    """Put `block` between the marks START and END of a page's text; if there are none, append the marks and `block`."""
    before, start, rest = text.partition(START)
    after = rest.partition(END)[2] if start else "\n"
    return f"{before.rstrip()}\n\n{START}\n{block}\n{END}{after}"


def _draw_method_picture(
    panels: Sequence[tuple[ShownExperiment, Mapping[str, MethodResults]]], methods: Sequence[str]
) -> str:
    """Draw accuracy against bits for all methods, and return the SVG; the methods in `methods` are drawn larger."""
    figure = ShownFigure((3.7 * len(panels), 3.2))
    for axes, (experiment, figures) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, cell in figures.items():
            ours, value, look = name in methods, mean(cell.accuracies), find_style(name)
            alpha, weight = (1.0, "bold") if ours else (0.5, "normal")
            text = {"color": look.hex, "fontweight": weight, "textcoords": "offset points", "alpha": alpha}
            if cell.bits == 0:
                axes.axhline(value, linewidth=1.8 if ours else 1, alpha=alpha, **look.matplotlib_line)
                place = (0.02, value)
                axes.annotate(name, place, xytext=(0, 2), xycoords=("axes fraction", "data"), fontsize=7, **text)
                continue
            axes.plot([cell.bits / 1e6], [value], markersize=9 if ours else 5, alpha=alpha, **look.matplotlib_point)
            if ours or name == "fedavg":
                sent = [each.bits for each in figures.values() if each.bits]
                late = cell.bits**2 > min(sent) * max(sent)  # in the right half of a log axis
                side = {"xytext": (-4, -12), "ha": "right"} if late else {"xytext": (4, -12), "ha": "left"}
                axes.annotate(name, (cell.bits / 1e6, value), fontsize=8 if ours else 7, **side, **text)
        axes.margins(0.15)
        if any(cell.bits for cell in figures.values()):
            _set_bits_axis(axes)
        axes.set_title(experiment.title, fontsize=9)
        axes.set_xlabel("Mb, all clients, whole run")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("accuracy (%)")
    return convert_figure_to_svg(figure)


def _set_bits_axis(axes: Axes) -> None:
    """Make the x axis logarithmic, with more ticks if it is short; make it linear if all bits are about equal."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 5 * low:
        axes.set_xscale("linear")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        return
    few = high < 100 * low
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5) if few else range(2, 10)))
    axes.xaxis.set_minor_formatter(FormatStrFormatter("%g") if few else NullFormatter())


def write_methods_overview(results: Path, docs: Path) -> list[Path]:
    """Write the overview of the main methods: its picture, and its table in README.md and docs/what-it-gains.md."""
    picture, page, readme = docs / "images" / "overview.svg", docs / GAINS, docs.parent / "README.md"
    if not (page.exists() and readme.exists()):
        return []
    write_file(picture, _draw_overview(results))
    table = make_main_methods_table(results).to_markdown()
    replace_marked_text(readme, OVERVIEW, OVERVIEW_END, table)
    replace_marked_text(page, OVERVIEW, OVERVIEW_END, f"{table}\n{describe_paired_gains(results)}\n")
    return [picture, readme, page]


def _read_overview_results(results: Path, method: str) -> list[MethodResults]:
    """Read the results of the method in each experiment that the overview in README.md shows."""
    return [read_method_results(results / experiment.folder / method) for experiment in OVERVIEW_EXPERIMENTS]


def make_main_methods_table(results: Path) -> TextTable:
    """Make the table of README.md: one row for each main method, one column for each experiment."""
    rows = tuple(
        (find_style(method).label, *(str(cell) for cell in _read_overview_results(results, method)))
        for method in OVERVIEW_METHODS
    )
    return TextTable(("", *(experiment.title for experiment in OVERVIEW_EXPERIMENTS)), rows)


def describe_paired_gains(results: Path) -> str:
    """Return a sentence on FedLog's gain over training alone and over FedAvg, paired by seed."""
    parts = []
    for other in ("local", "fedavg"):
        pairs = zip(_read_overview_results(results, "fedlog"), _read_overview_results(results, other), strict=True)
        gains = [[a.by_seed[seed] - b.by_seed[seed] for seed in a.by_seed if seed in b.by_seed] for a, b in pairs]
        said = [f"{mean(each):+.1f}" + (f" ± {stdev(each):.1f}" if len(each) > 1 else "") for each in gains]
        parts.append(f"{find_style(other).label} {said[0]}, {said[1]} and {said[2]}")
    return (
        "Seed by seed, on the same division of the records, FedLog ends this many points above "
        f"{'; above '.join(parts)} (mean ± standard deviation, in the order of the columns)."
    )


def _draw_overview(results: Path) -> str:
    """Draw accuracy against bits in each experiment, and return the SVG; methods that send nothing are lines."""
    figure = ShownFigure((11, 3.6))
    panels = figure.subplots(1, len(OVERVIEW_EXPERIMENTS))
    for method in OVERVIEW_METHODS:
        style = find_style(method)
        for axes, cell in zip(panels, _read_overview_results(results, method), strict=True):
            if cell.bits == 0:
                axes.axhline(mean(cell.accuracies), label=style.label, **style.matplotlib_line)
                continue
            spread = stdev(cell.accuracies) if len(cell.accuracies) > 1 else 0.0
            axes.errorbar(
                [cell.bits / 1e6],
                [mean(cell.accuracies)],
                yerr=[spread],
                capsize=3,
                label=style.label,
                **style.matplotlib_point,
            )
    for axes, experiment in zip(panels, OVERVIEW_EXPERIMENTS, strict=True):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(experiment.title, fontsize=9)
        axes.set_xlabel("Mb, all clients, whole run")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("accuracy, mean over clients (%)")
    figure.axes[0].legend(fontsize=8)
    return convert_figure_to_svg(figure)
