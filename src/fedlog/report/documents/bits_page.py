"""Make the tables of `docs/bits.md` from the records under `results/` and `benchmarks/records/`.

They compare runs that send compressed messages with uncompressed runs: the bits, the final accuracy, and whether runs
with a tenth of the bits are about as accurate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedlog.experiments.tables.bits import BITS, OTHER_METHODS, ROUNDS, SERVER_KEEPS, SHARES, WAYS_OF_SENDING
from fedlog.experiments.tables.catalog import find_experiment
from fedlog.experiments.tables.finished_cells import Cost, FinishedRuns, RunResult, collect_runs
from fedlog.experiments.tables.paper import LABELS, TABLE_1, parse_printed_rows
from fedlog.experiments.tables.significance import Mean
from fedlog.files.json_text import read_json
from fedlog.report.parts.tables import NOT_RUN, TextTable, replace_marked_text
from fedlog.wire.bits_text import describe_bits
from fedlog.wire.codec import CODECS

METHODS = ("fedlog", "fedlog-c", *OTHER_METHODS)
CLIENTS = 50
START_MARK = "<!-- records of {} -->"
END_MARK = "<!-- end of records -->"
UNCOMPRESSED = "f32"
# The goal is judged by the first way of sending, or by the second for methods that were not run with the first.
GOAL_WAYS = ("q4-differences", "q8-up-q4-differences")
GOAL_SHARE = 0.1  # the goal: at most this share of the bits of `f32`
GOAL_LOSS = 0.3  # and at most this loss of accuracy, in points


def write_bits_page(results: Path, page: Path) -> list[Path]:
    """Replace the tables in the page (`docs/bits.md`), and return [page]; return [] if the page does not exist."""
    if not page.exists():
        return []
    for name, table in make_bits_tables(results).items():
        replace_marked_text(page, START_MARK.format(name), END_MARK, table.to_markdown())
    return [page]


def make_bits_tables(results: Path) -> dict[str, TextTable]:
    """Make all tables of `docs/bits.md`, by name; the page has a comment with this name where the table goes."""
    found = {each.name: collect_runs(each, results) for each in BITS}
    whole = {data: collect_runs(find_experiment(f"table-{data}"), results) for data in ROUNDS}
    tables = {"bits-aim": make_goal_table({data: found[f"bits-{data}"] for data in ROUNDS}, whole)}
    for data in ROUNDS:
        tables[f"bits-{data}"] = make_bits_and_accuracy_table(
            data, found[f"bits-{data}"], found[f"bits-codecs-{data}"], whole[data]
        )
    tables["bits-codecs-mnist"] = make_codec_table(found["bits-codecs-mnist"])
    tables["bits-participation-mnist"] = make_participation_table(found["bits-participation-mnist"])
    measured = results.parent / "benchmarks" / "records"
    tables["loopback-codecs"] = make_loopback_table(measured / "loopback-codecs.json")
    tables["message-entropy"] = make_entropy_table(measured / "message-entropy.json")
    return tables


def find_uncompressed_runs(
    data: str, method: str, finished: FinishedRuns, table_1: FinishedRuns
) -> dict[int, RunResult]:
    """Return the uncompressed run (codec `f32`) of each seed.

    For a seed without such a run, return the first rounds of the longer run that was made for the paper's Table 1.
    """
    seeds = finished.experiment.seeds
    longer = {run.seed: shorten_run(run, ROUNDS[data]) for run in table_1.runs.get(method, []) if run.seed in seeds}
    own = {run.seed: run for run in finished.runs.get(f"{method}-{UNCOMPRESSED}", [])}
    return dict(sorted({**longer, **own}.items()))


def shorten_run(run: RunResult, rounds: int) -> RunResult:
    """Return a copy of the run that ends after this many rounds."""
    kept = run.rounds[:rounds]
    up, down = run.bits_before_round_1
    summary = replace(
        run.summary,
        rounds=len(kept),
        accuracy_mean_over_clients=kept[-1].accuracy_mean_over_clients,
        bits_up=up + sum(record.bits_up for record in kept),
        bits_down=down + sum(record.bits_down for record in kept),
    )
    return RunResult(run.seed, summary, kept)


def compute_share_of_bits(
    costs: Mapping[int, Cost], uncompressed: Mapping[int, RunResult], threshold: float
) -> float | None:
    """Return the bits in `costs` as a share of the bits that uncompressed runs need to reach the accuracy `threshold`.

    Only seeds that both have are counted; None if there are none.
    """
    both = [seed for seed in costs if seed in uncompressed]
    full = sum(uncompressed[seed].compute_cost_to_reach(threshold).bits_both_ways for seed in both)
    return sum(costs[seed].bits_both_ways for seed in both) / full if full else None


def compare_final_accuracy(runs: Sequence[RunResult], uncompressed: Mapping[int, RunResult]) -> Mean | None:
    """Return the mean difference in final accuracy to uncompressed runs, in points.

    The mean is over all pairs of a client and a seed; None if there are fewer than two pairs.
    """
    found = [
        100 * (a - b)
        for run in runs
        if run.seed in uncompressed
        for a, b in zip(*(each.rounds[-1].accuracy_per_client for each in (run, uncompressed[run.seed])), strict=True)
        if a is not None and b is not None
    ]
    return Mean.from_values(found) if len(found) > 1 else None


def format_accuracy_difference(difference: Mean | None) -> str:
    """Format a mean difference in points with its 95 % interval, as `-0.12 (-0.30 to +0.06)`; blank for None."""
    if difference is None:
        return ""
    low, high = difference.interval
    return f"{difference.value:+.2f} ({low:+.2f} to {high:+.2f})"


def make_goal_table(finished: Mapping[str, FinishedRuns], table_1: Mapping[str, FinishedRuns]) -> TextTable:
    """Make a table of the bits to reach the accuracy threshold, in our runs and in the paper.

    The last column says which of two goals our runs meet: few bits, and little loss of accuracy (`judge_goals`).
    """
    rows = []
    for data in ROUNDS:
        runs_of, table = finished[data].runs, table_1[data]
        for method in ("fedlog", "fedlog-c", *(("fedproto", "lg-fedavg-1", "fedavg") if data == "mnist" else ())):
            way = next((way for way in GOAL_WAYS if runs_of.get(f"{method}-{way}")), GOAL_WAYS[0])
            uncompressed = find_uncompressed_runs(data, method, finished[data], table)
            rows.append(_make_goal_row(data, method, way, runs_of.get(f"{method}-{way}", []), uncompressed))
    notes = (
        "Bits: both directions, until the paper's threshold is reached. *: a seed never reached it.",
        f"Aim: at most {100 * GOAL_SHARE:g} % of the bits of `f32`, and at most {GOAL_LOSS:g} points of accuracy lost. "
        "The second half is reached if the 95 % interval of the difference excludes a larger loss.",
        "`bits only`, `accuracy only`: only this half was reached.",
    )
    return TextTable.from_rows(rows, notes=notes)


def _make_goal_row(
    data: str, method: str, way: str, runs: Sequence[RunResult], uncompressed: Mapping[int, RunResult]
) -> dict[str, str]:
    """Make the table row of one method; `way` is the way of sending: a codec, and what messages leave out."""
    part = TABLE_1[data]
    threshold = part.threshold / 100
    costs = {run.seed: run.compute_cost_to_reach(threshold) for run in runs}
    share, difference = (
        compute_share_of_bits(costs, uncompressed, threshold),
        compare_final_accuracy(runs, uncompressed),
    )
    return {
        "": f"{part.title}, {LABELS[method]}",
        "way of sending": way,
        "seeds": ", ".join(str(seed) for seed in costs),
        "bits": _format_mean_bits([cost.bits_both_ways for cost in costs.values()]) + _mark_missed_threshold(costs)
        if costs
        else NOT_RUN,
        "the paper": parse_printed_rows(part.printed)[method].cost_text,
        "of f32": _format_share(share),
        "final accuracy against f32": format_accuracy_difference(difference),
        "aim": judge_goals(share, None if difference is None else difference.interval[0]),
    }


def _format_mean_bits(bits: Sequence[int]) -> str:
    """Return the mean of these numbers of bits as text with a unit."""
    return describe_bits(float(np.mean(bits)))


def _mark_missed_threshold(costs: Mapping[int, Cost]) -> str:
    """Return an asterisk if a seed never reached the accuracy threshold, else an empty text."""
    return "" if all(cost.reached for cost in costs.values()) else " *"


def judge_goals(share: float | None, lowest: float | None) -> str:
    """Return which of two goals are met: `reached` (both), `bits only`, `accuracy only` or `missed`.

    Compared with uncompressed runs, a run should need at most the share GOAL_SHARE of the bits, and lose at most
    GOAL_LOSS points of accuracy. `share` is its share of the bits; `lowest` is the lower end of the interval of its
    difference in accuracy. Blank if one of the two is None.
    """
    if share is None or lowest is None:
        return ""
    few, harmless = share <= GOAL_SHARE, lowest >= -GOAL_LOSS
    if few and harmless:
        return "reached"
    return "bits only" if few else "accuracy only" if harmless else "missed"


def make_bits_and_accuracy_table(
    data: str, finished: FinishedRuns, short: FinishedRuns, table_1: FinishedRuns
) -> TextTable:
    """Make a table of the bits to reach the accuracy threshold and of the final accuracy.

    It has a row for each method and way of sending (a codec, and what messages leave out). `short` has runs of two
    rounds with lossless codecs.
    """
    threshold = TABLE_1[data].threshold / 100
    rows = []
    for method in METHODS:
        uncompressed = find_uncompressed_runs(data, method, finished, table_1)
        for way in WAYS_OF_SENDING:
            runs = finished.runs.get(f"{method}-{way}", [])
            if way == UNCOMPRESSED and (
                runs or any(finished.runs.get(f"{method}-{other}") for other in WAYS_OF_SENDING)
            ):
                rows.append(
                    _make_bits_and_accuracy_row(method, way, list(uncompressed.values()), uncompressed, threshold)
                )
                rows += _list_row_of_lossless_codec(method, uncompressed, short, threshold)
            elif runs:
                rows.append(_make_bits_and_accuracy_row(method, way, runs, uncompressed, threshold))
    notes = (
        f"Rounds: until {TABLE_1[data].threshold} % are reached, for each seed. *: a seed never reached it; then its "
        "best round counts.",
        "Up, down, both: the bits of all clients in these rounds, with the opening exchange, mean over seeds.",
        f"Final accuracy: after round {ROUNDS[data]}, in per cent.",
        "Of `f32`, against `f32`: over the seeds that both have. The difference is in points, and its 95 % interval is "
        "over pairs of a client and a seed.",
        f"`f32`: if a seed has no run of its own, the first {ROUNDS[data]} rounds of `table-{data}`.",
        "`rows`: changes no model, so its accuracy is that of `f32`, and its bits follow from a run of two rounds.",
    )
    return TextTable.from_rows(rows, notes=notes)


def _make_bits_and_accuracy_row(
    method: str, way: str, runs: Sequence[RunResult], uncompressed: Mapping[int, RunResult], threshold: float
) -> dict[str, str]:
    """Make the table row of one method; `way` is the way of sending: a codec, and what messages leave out."""
    costs = {run.seed: run.compute_cost_to_reach(threshold) for run in runs}
    difference = None if way == UNCOMPRESSED else compare_final_accuracy(runs, uncompressed)
    return {
        "way of sending": f"{LABELS[method]}, {way}",
        **_format_cost_cells(costs, uncompressed, threshold),
        "final accuracy": f"{100 * float(np.mean([run.summary.accuracy_mean_over_clients for run in runs])):.2f}",
        "against f32": format_accuracy_difference(difference),
    }


def _list_row_of_lossless_codec(
    method: str, uncompressed: Mapping[int, RunResult], short: FinishedRuns, threshold: float
) -> list[dict[str, str]]:
    """Return the table row for the lossless codec `rows`, in a list; an empty list if it was not run.

    This codec changes no model, so its accuracies are those of `f32`. Its bits are scaled up from runs of two rounds,
    because every later round costs as much as round 2.
    """
    costs = {}
    for run in short.runs.get(f"{method}-rows", []):
        if run.seed in uncompressed:
            reached = uncompressed[run.seed].compute_cost_to_reach(threshold)
            up, down = run.bits_before_round_1
            up += reached.round * run.rounds[-1].bits_up
            costs[run.seed] = replace(reached, bits_up=up, bits_down=down + reached.round * run.rounds[-1].bits_down)
    cells = _format_cost_cells(costs, uncompressed, threshold) if costs else {}
    named = {"way of sending": f"{LABELS[method]}, rows"}
    return [{**named, **cells, "final accuracy": "as f32", "against f32": "0"}] if costs else []


def _format_cost_cells(
    costs: Mapping[int, Cost], uncompressed: Mapping[int, RunResult], threshold: float
) -> dict[str, str]:
    """Format the table cells for seeds, rounds, bits up, bits down and bits both ways, also in per cent of `f32`."""
    return {
        "seeds": ", ".join(str(seed) for seed in costs),
        "rounds": ", ".join(str(cost.round) for cost in costs.values()) + _mark_missed_threshold(costs),
        "up": _format_mean_bits([cost.bits_up for cost in costs.values()]),
        "down": _format_mean_bits([cost.bits_down for cost in costs.values()]),
        "both": _format_mean_bits([cost.bits_both_ways for cost in costs.values()]),
        "of f32": _format_share(compute_share_of_bits(costs, uncompressed, threshold)),
    }


def make_codec_table(finished: FinishedRuns) -> TextTable:
    """Make a table of the bytes that a client sends and receives in round 2, by codec and method.

    `finished` has runs of two rounds: round 2 costs as much as every later round.
    """
    rows = []
    for name in CODECS:
        cells = []
        for method in METHODS:
            runs = finished.runs.get(f"{method}-{name}", [])
            last = runs[0].rounds[-1] if runs else None
            cells.append(
                ""
                if last is None
                else f"{_format_mean_bytes_per_client(last.bits_up)} + {_format_mean_bytes_per_client(last.bits_down)}"
            )
        if any(cells):
            rows.append((name, *cells))
    note = f"Bytes up and down for each of {CLIENTS} clients, on average, in round 2, framing included."
    return TextTable(("codec", *(LABELS[method] for method in METHODS)), tuple(rows), notes=(note,))


def _format_share(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _format_mean_bytes_per_client(bits_of_all_clients: int) -> str:
    return f"{bits_of_all_clients / 8 / CLIENTS:.0f}"


def make_participation_table(finished: FinishedRuns) -> TextTable:
    """Make a table of accuracies and bits of runs in which only a share of the clients takes part in each round.

    It has a row for each share and for each choice of what the server keeps of the clients that skip a round.
    """
    at = (5, 10, 20, 30)
    rows = []
    for share in SHARES:
        for kept in SERVER_KEEPS:
            runs = finished.runs.get(f"{kept}-of-{share:g}", [])
            if not runs:
                continue
            means = [np.mean([run.rounds[n - 1].accuracy_mean_over_clients for run in runs]) for n in at]
            by_round = [f"{100 * float(mean):.2f}" for mean in means]
            total = float(np.mean([run.summary.bits_up + run.summary.bits_down for run in runs]))
            reached = [run.compute_cost_to_reach(0.97) for run in runs]
            to = ", ".join(str(cost.round) if cost.reached else "never" for cost in reached)
            rows.append((f"{share:.0%} take part, {kept}", str(len(runs)), *by_round, to, describe_bits(total)))
    columns = ("", "seeds", *(f"round {n}" for n in at), "round of 97 %", "bits in 30 rounds")
    return TextTable(columns, tuple(rows), notes=("FedLog, f32, accuracy of all clients in per cent.",))


def make_loopback_table(path: Path) -> TextTable:
    """Make a table of the bytes of a message over Flower on one machine: its payload, and what the transport adds."""
    stored = read_json(path, {"ways": []})
    rows = (
        {
            "way of sending": found["way"].replace(":", ", "),
            "payload up": f"{found['payload_bytes_a_message_up']:.0f}",
            "payload down": f"{found['payload_bytes_a_message_down']:.0f}",
            "transport up": f"{found['transport_bytes_a_message_up']}",
            "transport down": f"{found['transport_bytes_a_message_down']}",
        }
        for found in stored["ways"]
    )
    return TextTable.from_rows(rows, notes=("Bytes a message, three sites, two rounds of FedLog, 10 classes.",))


def make_entropy_table(path: Path) -> TextTable:
    """Make a table of the bits sent for an array entry, by round and direction.

    Beside them is the entropy of the entry's code, which is the rounded number that is sent for the entry.
    """
    stored = read_json(path, {"rounds": []})
    rows = (
        {
            "message": f"{found['data']}, {LABELS[found['method']]}, round {found['round']} {found['direction']}",
            "entries a client": f"{found['entries_a_client']:g}",
            "bits an entry, sent": f"{found['bits_an_entry_sent']:.2f}",
            "entropy of its code": f"{found['bits_an_entry_entropy']:.2f}",
        }
        for found in stored["rounds"]
    )
    return TextTable.from_rows(rows, notes=("`rows+q4+zstd` up, differences in `q4+zstd` down, seed 0.",))
