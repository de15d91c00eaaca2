"""A comparison as tables, as JSON values, as CSV and LaTeX, and as one page."""

from __future__ import annotations

import base64
import csv
import html
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedlog.experiments.compare.advice import Advice, describe_bits
from fedlog.experiments.compare.estimates import Estimate
from fedlog.experiments.compare.findings import BESIDE_ACCURACY, Findings, SiteFigures, VariantFigures
from fedlog.files.durable import write_file
from fedlog.report.comparison_plot import draw_comparison
from fedlog.report.tables import TextTable

BESIDE_NAMES = dict(zip(BESIDE_ACCURACY, ("balanced", "macro-F1", "AUROC", "calibration error"), strict=True))
INTERVALS = "Intervals are of 95 %, over rows, seeds and splits."
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }}
 table {{ border-collapse: collapse; }} td, th {{ padding: .25rem .75rem; border-bottom: 1px solid #ddd; }}
 td + td {{ text-align: right; font-variant-numeric: tabular-nums; }} .table {{ overflow-x: auto; }}
 .advice {{ font-size: 1.2rem; border-left: .3rem solid #444; padding-left: 1rem; }} img {{ max-width: 100%; }}
</style></head><body>
{sections}
</body></html>
"""


def methods_table(findings: Findings) -> TextTable:
    """One row a variant: accuracy on test rows, the gain over training alone, what it sends and how long it takes."""
    beside = BESIDE_ACCURACY if findings.unbalanced else ()
    columns = (
        "method",
        "accuracy, validation %",
        "test %",
        "gain, validation",
        "gain, test",
        *(BESIDE_NAMES[name] for name in beside),
        "bits a site and round",
        "bits in all",
        "seconds",
    )
    rows = tuple(
        (
            figures.label,
            _percent(figures.validation_accuracy),
            _percent(figures.accuracy),
            _points(figures.gain),
            _points(figures.gain_on_test),
            *(_percent(figures.beside[name]) for name in beside),
            describe_bits(figures.bits_a_site_and_round) if figures.bits else "none",
            describe_bits(figures.bits) if figures.bits else "none",
            f"{figures.seconds:.1f}",
        )
        for figures in findings.figures.values()
    )
    seeds = max(figures.repetitions for figures in findings.figures.values())
    return TextTable(columns, rows, f"{findings.data}: {len(findings.sites)} sites, {seeds} repetitions", (INTERVALS,))


def sites_table(findings: Findings) -> TextTable:
    """One row a site: its rows, its accuracy alone, and what each variant gains there on validation rows."""
    others = [figures for figures in findings.figures.values() if figures.label != findings.alone]
    alone = None if findings.alone is None else findings.figures[findings.alone]
    training = next(iter(findings.runs.values())).scores.training
    rows = []
    for site in findings.sites:
        held = next(iter(findings.figures.values())).sites[site]
        counts = f"{sum(training[site])} / {held.validation_rows} / {held.test_rows}"
        own = "" if alone is None else _percent(alone.sites[site].accuracy)
        rows.append((site, counts, own, *(_points(figures.sites[site].gain) for figures in others)))
    columns = ("site", "rows", "alone, test %", *(figures.label for figures in others))
    notes = (
        "Rows: for training in one run / judged for validation, in turn / for test. Gains over training alone are in "
        "points, on validation rows.",
    )
    return TextTable(columns, tuple(rows), "By site", notes)


def as_values(findings: Findings, advice: Advice, notes: Sequence[str]) -> dict[str, Any]:
    """The whole comparison as JSON values; shares, not per cent."""
    told = asdict(advice)
    told["kind"] = advice.kind.value
    return {
        "data": findings.data,
        "advice": told,
        "methods": [asdict(figures) for figures in findings.figures.values()],
        "warnings": list(findings.warnings),
        "notes": list(notes),
        "failed": dict(findings.failed),
    }


def flat_rows(findings: Findings) -> list[dict[str, Any]]:
    """One row for each variant over all sites, and one for each of its sites: for spreadsheets."""
    rows = []
    for figures in findings.figures.values():
        beside = {name: None if value is None else value.value for name, value in figures.beside.items()}
        rows.append({"method": figures.label, "site": "all", **_flat(figures), **beside, "bits": figures.bits})
        rows += [{"method": figures.label, "site": site, **_flat(own)} for site, own in figures.sites.items()]
    return rows


def _flat(figures: VariantFigures | SiteFigures) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    named = {"accuracy": figures.accuracy, "gain": figures.gain, "gain_on_test": figures.gain_on_test}
    for name, value in named.items():
        found[name] = None if value is None else value.value
        found[f"{name}_low"] = None if value is None else value.low
        found[f"{name}_high"] = None if value is None else value.high
    return found


def as_csv(findings: Findings) -> str:
    """The flat rows as CSV."""
    rows, written = flat_rows(findings), io.StringIO()
    writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def as_latex(table: TextTable) -> str:
    """The table in LaTeX, with booktabs' rules."""
    lines = [f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", "\\toprule"]
    lines += [" & ".join(_latex(cell) for cell in table.columns) + " \\\\", "\\midrule"]
    lines += [" & ".join(_latex(cell) for cell in row) + " \\\\" for row in table.rows]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _latex(text: str) -> str:
    for character in "\\&%$#_{}":
        text = text.replace(character, "\\textbackslash " if character == "\\" else f"\\{character}")
    return text.replace("±", "$\\pm$")


def as_text(table: TextTable) -> str:
    """The table for a terminal."""
    lines = [table.columns, *table.rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(table.columns))]
    aligned = [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([table.title, *aligned, *table.notes])


def write_comparison_page(path: Path, found: Sequence[tuple[Findings, Advice, Sequence[str]]]) -> Path:
    """Write one page: for each comparison its advice, its tables and its picture."""
    sections = "".join(comparison_section(*each) for each in found)
    title = html.escape(", ".join(findings.data for findings, _, _ in found))
    write_file(path, PAGE.format(title=title, sections=sections))
    return path


def comparison_section(findings: Findings, advice: Advice, notes: Sequence[str]) -> str:
    """One comparison in HTML: advice, tables, notes and picture."""
    remarks = "".join(f"<li>{html.escape(note)}</li>" for note in (*findings.warnings, *notes))
    return (
        f"<h1>{html.escape(findings.data)}</h1><p class='advice'>{html.escape(advice.sentence)}</p>"
        f"<p>{html.escape(advice.confirmation)}</p>{methods_table(findings).html()}{sites_table(findings).html()}"
        f"<ul>{remarks}</ul><p><img alt='accuracy against bits, all sites and each site' "
        f"src='data:image/svg+xml;base64,{_picture(findings)}'></p>"
    )


def _picture(findings: Findings) -> str:
    from matplotlib import rc_context

    written = io.BytesIO()
    # No date and no random names: the same records give the same page.
    with rc_context({"svg.hashsalt": "fedlog"}):
        draw_comparison(findings).savefig(written, format="svg", metadata={"Date": None})
    return base64.b64encode(written.getvalue()).decode()


def _percent(found: Estimate | None) -> str:
    if found is None:
        return "no rows"
    return f"{100 * found.value:.1f}" + ("" if found.half_width is None else f" ± {100 * found.half_width:.1f}")


def _points(found: Estimate | None) -> str:
    if found is None:
        return ""
    return f"{100 * found.value:+.1f}" + ("" if found.half_width is None else f" ± {100 * found.half_width:.1f}")
