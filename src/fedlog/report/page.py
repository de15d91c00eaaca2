"""One page for one run: the accuracy and bits curves, the figures, the settings."""

from __future__ import annotations

import base64
import html
import io
import json
from pathlib import Path

from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import RECORDS, read_spec, read_summary
from fedlog.files.durable import write_file
from fedlog.report.curves import draw_curves
from fedlog.report.profile_bar import profile_bar
from fedlog.settings.spec import as_plain

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #222; }}
 table {{ border-collapse: collapse; }} td, th {{ padding: .25rem .75rem; border-bottom: 1px solid #ddd; }}
 td + td {{ text-align: right; font-variant-numeric: tabular-nums; }}
 img {{ max-width: 100%; }} pre {{ background: #f6f6f6; padding: 1rem; overflow: auto; }}
</style></head><body>
<h1>{title}</h1>
<table>{rows}</table>
<p><img alt="accuracy by round, and by bits" src="data:image/svg+xml;base64,{plot}"></p>
{profile}
<h2>Settings</h2><pre>{settings}</pre>
</body></html>
"""


def write_run_page(folder: Path) -> Path:
    """Write the page from the folder's records, and return its path."""
    summary = read_summary(folder)
    lines = records.read(folder / RECORDS)
    opening = sum(summary.bits_opening.values())
    best = f"{100 * summary.best_accuracy:.2f} % (round {summary.best_round})"
    figures = {
        "Accuracy, mean over clients, final round": f"{100 * summary.accuracy_mean_over_clients:.2f} %",
        "Best round (not a headline: chosen on these records)": best,
        "Bits up, all clients": f"{summary.bits_up:,}",
        "Bits down, all clients": f"{summary.bits_down:,}",
        "of which before round 1": f"{opening:,}",
        "Seconds in rounds": f"{summary.seconds:.1f}",
    }
    if summary.accuracy_after_closing is not None:
        figures["Accuracy after the closing local phase"] = f"{100 * summary.accuracy_after_closing:.2f} %"
    if summary.uploads_refused:
        figures["Uploads that could not be used (records.jsonl names them)"] = f"{summary.uploads_refused:,}"
    rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in figures.items())
    settings = json.dumps(as_plain(read_spec(folder)), indent=1)
    title = html.escape(f"{summary.method} on {summary.data}, seed {summary.seed}")
    page = PAGE.format(
        title=title,
        rows=rows,
        plot=_curves(lines, opening),
        profile=profile_bar(records.mean_parts(lines)),
        settings=html.escape(settings),
    )
    path = folder / "report.html"
    write_file(path, page)
    return path


def _curves(lines: list[RoundRecord], opening: int) -> str:
    """Accuracy by round and by bits, those before round 1 included, as base64 of an SVG."""
    from matplotlib import rc_context

    figure, written = draw_curves(lines, opening), io.BytesIO()
    # No date and no random names: the same records give the same page.
    with rc_context({"svg.hashsalt": "fedlog"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    return base64.b64encode(written.getvalue()).decode()
