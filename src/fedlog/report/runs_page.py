"""One page for a folder of runs: what their scores compare, and a row a run, with a link to the run's own page."""

from __future__ import annotations

import html
from pathlib import Path

from fedlog.experiments.compare.advice import advise
from fedlog.experiments.compare.reading import group_findings
from fedlog.experiments.run.execute import CONFIG, read_finished_summary, read_spec
from fedlog.files.durable import write_file
from fedlog.report.comparison import comparison_section
from fedlog.report.page import write_run_page

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }}
 div {{ overflow-x: auto; }} table {{ border-collapse: collapse; }}
 td, th {{ padding: .25rem .75rem; border-bottom: 1px solid #ddd; text-align: left; }}
 td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
</style></head><body>
{comparisons}<h1>{title}</h1>
<div><table>
<tr><th>run</th><th>method</th><th>data</th><th class="number">seed</th><th class="number">rounds</th>
<th class="number">accuracy, mean over clients</th><th class="number">Mb up and down</th></tr>
{rows}</table></div>
</body></html>
"""


def run_folders(folder: Path) -> list[Path]:
    """The run folders in this one, at any depth, in the order of their names."""
    return sorted(path.parent for path in folder.rglob(CONFIG)) if folder.is_dir() else []


def write_runs_page(folder: Path) -> Path:
    """Write the page of every finished run in the folder, and one page that lists all runs; return its path."""
    rows = "".join(_row(folder, run) for run in run_folders(folder))
    compared = [findings for findings in group_findings(folder) if len(findings.labels) > 1]
    comparisons = "".join(comparison_section(findings, advise(findings), ()) for findings in compared)
    path = folder / "report.html"
    title = html.escape(f"Runs in {folder.resolve().name}")
    write_file(path, PAGE.format(title=title, rows=rows, comparisons=comparisons))
    return path


def _row(folder: Path, run: Path) -> str:
    name, spec = html.escape(str(run.relative_to(folder))), read_spec(run)
    about = [html.escape(spec.method), html.escape(spec.data)]
    summary = read_finished_summary(run)
    if summary is None:
        return _cells([name, *about], [str(spec.seed), "", "not finished", ""])
    page = write_run_page(run).relative_to(folder)
    link = f'<a href="{html.escape(page.as_posix())}">{name}</a>'
    accuracy = f"{100 * summary.accuracy_mean_over_clients:.2f} %"
    bits = f"{(summary.bits_up + summary.bits_down) / 1e6:,.3f}"
    return _cells([link, *about], [str(spec.seed), str(summary.rounds), accuracy, bits])


def _cells(texts: list[str], numbers: list[str]) -> str:
    left = "".join(f"<td>{text}</td>" for text in texts)
    return f"<tr>{left}{''.join(f'<td class=number>{number}</td>' for number in numbers)}</tr>\n"
