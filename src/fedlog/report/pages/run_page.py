"""The page of one run: the result in a sentence, then its curves, clients, bits, class means, privacy and settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlog.experiments.run.records import compute_mean_seconds_by_part
from fedlog.files.durable import write_file
from fedlog.report.pages import page_top, run_plots
from fedlog.report.pages.run_facts import RunFacts, read_run
from fedlog.report.parts.render import PAGE, format_percent, render_page
from fedlog.report.parts.style import find_style
from fedlog.settings.differences import SettingDifference, describe_value, find_differences, format_repeat_command
from fedlog.settings.spec import convert_spec_to_json
from fedlog.wire.bits_text import describe_bits


def write_run_page(folder: Path) -> Path:
    """Write the page of the run in the folder, and return its path."""
    path = folder / PAGE
    write_file(path, render_run(read_run(folder)))
    return path


def render_run(facts: RunFacts, records_version: str | None = None) -> str:
    """Return the HTML of a run's page; `records_version` is given if `fedlog watch` serves the page."""
    differences = find_differences(facts.spec)
    clients_plot = run_plots.make_clients_plot(facts.clients, facts.spec.method, facts.measure)
    return render_page(
        "run.html.j2",
        facts=facts,
        title=f"{find_style(facts.spec.method).label} on {facts.spec.data}",
        headline=make_headline(facts),
        tiles=_list_tiles(facts),
        notes=_list_notes(facts),
        curves=run_plots.make_accuracy_plots(facts),
        client_plots=[plot for plot in (clients_plot, run_plots.make_training_records_plot(facts)) if plot],
        bits_bars=run_plots.make_bits_bar_chart(facts.bits_by_kind, len(facts.rounds)),
        geometry_plot=run_plots.make_class_means_plot(facts),
        calibration_plot=run_plots.make_calibration_plot(facts),
        privacy=_describe_privacy(facts),
        style=find_style(facts.spec.method),
        has={
            "alone": any(client.alone is not None for client in facts.clients),
            "descriptions": bool(facts.descriptions),
            "classes": bool(facts.descriptions) and facts.mean_rmse is None,
            "bodies": len({description.body for description in facts.descriptions.values()}) > 1,
            "calibration": any(client.calibration_error is not None for client in facts.clients),
        },
        time_bars=run_plots.make_time_bar_chart(compute_mean_seconds_by_part(facts.rounds)),
        differences=differences,
        other_settings=_list_other_settings(facts, differences),
        command=format_repeat_command(facts.spec),
        records_version=records_version,
    )


def make_headline(facts: RunFacts) -> dict[str, Any]:
    """Return the texts of the headline by name: the accuracy, the bits, and the results of other methods."""
    others = []
    for method, summary in facts.baselines.items():
        bits = summary.bits_up + summary.bits_down
        cost = f" with {describe_bits(bits)}" if bits else ""
        rounds = "" if summary.rounds == (len(facts.rounds) or summary.rounds) else f" after {summary.rounds} rounds"
        others.append(f"{find_style(method).label} {format_percent(summary.accuracy_mean_over_clients)}{cost}{rounds}")
    return {
        "reached": page_top.describe_result(facts.accuracy, facts.mean_rmse),
        "sent": describe_bits(facts.bits) if facts.bits else "",
        "others": ", ".join(others),
    }


def _list_tiles(facts: RunFacts) -> list[page_top.Tile]:
    """List the tiles with the main numbers at the top of the page; empty before the first round ends."""
    if not facts.rounds:
        return []
    rounds = len(facts.rounds)
    of = "" if facts.summary is not None else f" of {facts.spec.rounds}"
    found = [page_top.Tile(facts.measure, format_percent(facts.accuracy), f"mean over clients, round {rounds}{of}")]
    if facts.mean_rmse is not None:
        found.append(page_top.Tile("root mean squared error", f"{facts.mean_rmse:.3g}", "mean over clients"))
    if facts.summary is not None and facts.summary.accuracy_after_closing is not None:
        after = facts.summary.accuracy_after_closing
        found.append(
            page_top.Tile("after the closing phase", format_percent(after), "each client's last local training")
        )
    if facts.summary is not None and facts.summary.accuracy_at_chosen_rounds is not None:
        chosen = facts.summary.accuracy_at_chosen_rounds
        found.append(
            page_top.Tile("at chosen rounds", format_percent(chosen), "each client's best on its validation records")
        )
    found += page_top.make_gain_tiles([client.gain for client in facts.clients if client.gain is not None], "client")
    worst = facts.lowest_clients
    if worst:
        found.append(page_top.Tile("lowest client", format_percent(worst[0].accuracy), worst[0].name))
    ups = sum(line.bits_up for line in facts.rounds)
    found.append(page_top.make_bits_tile(facts.bits, "client", f"{describe_bits(ups)} up in rounds"))
    if facts.summary is not None and facts.summary.privacy is not None:
        found.append(page_top.make_privacy_tile(facts.summary.privacy.get("epsilon"), facts.summary.privacy["budget"]))
    return [*found, page_top.make_time_tile(sum(line.seconds for line in facts.rounds), rounds)]


def _describe_privacy(facts: RunFacts) -> dict[str, Any] | None:
    """Return the privacy budget and the privacy spent, for the run's page; None for a run without privacy."""
    if facts.summary is None or facts.summary.privacy is None:
        return None
    found = facts.summary.privacy
    caveats = [*found["caveats"], f"Note: {found['accuracies']}."]
    return page_top.make_privacy_section(
        found["budget"], found, ("caveats", "accuracies", "rounds_with_old_head"), caveats
    )


def _list_notes(facts: RunFacts) -> list[str]:
    """List notes and warnings that are shown below the headline."""
    found = []
    if facts.summary is None and facts.rounds:
        found.append(f"Not finished: round {len(facts.rounds)} of {facts.spec.rounds}.")
    if facts.summary is not None:
        best = facts.summary
        if best.best_round != best.rounds and best.best_accuracy > best.accuracy_mean_over_clients:
            found.append(
                f"Best round: {best.best_round}, {format_percent(best.best_accuracy, 2)}. It is chosen on these very "
                "records, so the last round is the headline."
            )
        if best.regression is not None:
            found.append(
                "This run predicts a number: what the page calls accuracy is the share of rows inside their "
                f"{format_percent(best.regression['interval_level'], 0)} intervals. Root mean squared error, mean over "
                f"clients: {best.regression['rmse_mean_over_clients']:.4g}."
            )
        if best.uploads_refused:
            found.append(f"Uploads that could not be used: {best.uploads_refused} (records.jsonl names them).")
    # Training alone does not predict numbers.
    if facts.rounds and not facts.baselines and facts.spec.method != "local" and facts.mean_rmse is None:
        found.append(
            "Training alone was not run on these records. To see it here, run the command at the end with "
            "--method local and an --out beside this run's folder, and then fedlog report on this folder."
        )
    return found


def _list_other_settings(facts: RunFacts, differences: Sequence[SettingDifference]) -> list[tuple[str, str]]:
    """List (name, value) of each setting that has a value and is not in `differences`, the changed settings."""
    changed = {each.name for each in differences}
    values = convert_spec_to_json(facts.spec)
    values |= values.pop("options")
    return [
        (name, describe_value(value))
        for name, value in values.items()
        if name not in changed and value is not None and value != [] and name not in ("data", "method")
    ]
