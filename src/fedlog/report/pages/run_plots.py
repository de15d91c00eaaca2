"""The plots of a run's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedlog.experiments.run import records
from fedlog.experiments.run.execute import RECORDS
from fedlog.report.pages.run_facts import ClientFacts, RunFacts, find_least_accurate_tenth
from fedlog.report.parts.axes import Axis, make_linear_axis
from fedlog.report.parts.curves import make_curve, make_curve_plots
from fedlog.report.parts.plots import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Bar, BarChart, BarPart, Plot, Point, Series
from fedlog.report.parts.render import format_percent, format_points
from fedlog.report.parts.style import COLOURS, find_numbered_style, find_style
from fedlog.wire.bits_text import describe_bits

LARGEST_MARKER, SMALLEST_MARKER = 4.6, 2.4
GEOMETRY_HEIGHT = 420.0
CALIBRATION_NAMES = {"temperature": "softmax with temperature", "laplace": "Laplace"}
MOST_NAMES, MOST_LETTERS = 6, 30  # clients are named under a figure if their names fit, also on a phone
LEAST_SIZE_RATIO = 1.3  # accuracy by size is drawn if the largest client has 1.3 times the records of the smallest


def make_accuracy_plots(facts: RunFacts) -> list[Plot]:
    """Make plots of accuracy by round and by bits, for the run and its baselines; [] before the first round ends."""
    if not facts.rounds:
        return []
    method = facts.spec.method
    curves = [make_curve(method, find_style(method), facts.rounds, facts.bits_opening)]
    for other, baseline in facts.baselines.items():
        lines = records.read_rounds(Path(baseline.run_dir) / RECORDS)
        curves.append(make_curve(other, find_style(other), lines, sum(baseline.bits_opening.values())))
    return make_curve_plots(curves, facts.spec.stop_at_accuracy, facts.measure)


def make_clients_plot(clients: Sequence[ClientFacts], method: str, measure: str, who: str = "client") -> Plot | None:
    """Plot each client's accuracy in the run and by training alone, sorted; the lowest tenth of clients is shaded.

    None if no client has an accuracy.
    """
    judged = [client for client in clients if client.accuracy is not None]
    if not judged:
        return None
    style, alone = find_style(method), find_style("local")
    size = _choose_marker_size(len(judged))
    shares = [100 * share for client in judged for share in (client.accuracy, client.alone) if share is not None]
    own, without = list[Point](), list[Point]()
    for at, client in enumerate(judged, 1):
        accuracy, alone_accuracy = 100 * (client.accuracy or 0), None if client.alone is None else 100 * client.alone
        # With an accuracy alone, a line joins the two: an interval from one to the other.
        ends = (None, None) if alone_accuracy is None else (alone_accuracy, accuracy)
        own.append(Point(at, accuracy, _describe_client(client), *ends))
        if alone_accuracy is not None:
            without.append(Point(at, alone_accuracy, f"{client.name} alone: {format_percent(client.alone)}"))
    series = [Series(method, style, tuple(own), joined=False, size=size)]
    if without and method != "local":
        series.insert(0, Series("local", alone, tuple(without), joined=False, hollow=True, size=size * 0.85))
    worst = find_least_accurate_tenth(judged)
    return Plot(
        name="clients",
        title=f"{measure[0].upper()}{measure[1:]} of each {who} (%)",
        alt_text=(
            f"{len(judged)} {who}s, from {format_percent(judged[0].accuracy)} ({judged[0].name}) to "
            f"{format_percent(judged[-1].accuracy)} ({judged[-1].name}). "
            f"Median {format_percent(judged[len(judged) // 2].accuracy)}. "
            f"Lowest{' tenth' if len(judged) >= 10 else ''}: {', '.join(client.name for client in worst)}."
        ),
        x=_make_client_axis([client.name for client in judged], who),
        y=make_linear_axis("%", shares),
        series=tuple(series),
        shaded=(0.5, len(worst) + 0.5),
    )


def make_training_records_plot(facts: RunFacts) -> Plot | None:
    """Plot each client's accuracy by its number of training records; None if these are unknown or about equal."""
    known = [
        (c, sum(c.description.training.values())) for c in facts.clients if c.description and c.accuracy is not None
    ]
    sizes = [size for _, size in known]
    if not known or max(sizes) < LEAST_SIZE_RATIO * max(min(sizes), 1):
        return None
    style = find_style(facts.spec.method)
    marks = tuple(Point(size, 100 * (client.accuracy or 0), _describe_client(client)) for client, size in known)
    smallest, largest = min(known, key=lambda each: each[1]), max(known, key=lambda each: each[1])
    return Plot(
        name="sizes",
        title=f"{facts.measure[0].upper()}{facts.measure[1:]} by training records (%)",
        alt_text=(
            f"The client with fewest records, {smallest[0].name} with {smallest[1]}, has "
            f"{format_percent(smallest[0].accuracy)}; the one with most, {largest[0].name} with {largest[1]}, has "
            f"{format_percent(largest[0].accuracy)}."
        ),
        x=make_linear_axis("training records of the client", sizes, whole_numbers=True),
        y=make_linear_axis("%", [mark.y for mark in marks]),
        series=(Series(facts.spec.method, style, marks, joined=False, size=_choose_marker_size(len(known))),),
    )


def _choose_marker_size(count: int) -> float:
    """Return the marker size for a plot with `count` markers: the more markers, the smaller."""
    return max(SMALLEST_MARKER, min(LARGEST_MARKER, 260 / count))


def _describe_client(client: ClientFacts) -> str:
    """Return the text that a plot shows for a client: name, accuracy, gain over training alone, training records."""
    said = [f"{client.name}: {format_percent(client.accuracy)}"]
    if client.gain is not None:
        said.append(f"{format_points(client.gain)} points over {format_percent(client.alone)} alone")
    if client.description is not None:
        said.append(f"{sum(client.description.training.values())} training records")
    return ", ".join(said)


def _make_client_axis(names: Sequence[str], who: str) -> Axis:
    """Make an axis with one position for each client, labelled by name if the names fit, else by number."""
    count = len(names)
    if count <= MOST_NAMES and sum(len(name) for name in names) <= MOST_LETTERS:
        return Axis(f"{who}s, lowest first", 0.5, count + 0.5, tuple((float(at), n) for at, n in enumerate(names, 1)))
    step = max(1, round(count / 5 / 5) * 5 if count > 25 else round(count / 10) or 1)
    marks = [1, *(at for at in range(step, count + 1, step) if at > step / 2 and at > 1)]
    return Axis(f"{who}s, lowest first", 0.5, count + 0.5, tuple((float(at), str(at)) for at in marks))


def make_bits_bar_chart(
    bits_by_kind: Mapping[tuple[str, str], int], rounds: int, who: str = "client"
) -> BarChart | None:
    """Make a bar chart of the run's bits by direction and kind of message; None if nothing was sent."""
    kinds = list(dict.fromkeys(kind for _, kind in bits_by_kind))
    if not sum(bits_by_kind.values()):
        return None
    bars = []
    for way, label in (("up", f"up, from the {who}s"), ("down", f"down, to the {who}s")):
        parts = tuple(
            BarPart(
                kind, bits_by_kind[way, kind], describe_bits(bits_by_kind[way, kind]), find_numbered_style(at, kind)
            )
            for at, kind in enumerate(kinds)
            if bits_by_kind.get((way, kind))
        )
        bars.append(Bar(label, describe_bits(sum(part.amount for part in parts)), parts))
    said = [f"{bar.label}: {', '.join(f'{p.label} {p.text}' for p in bar.parts) or 'nothing'}" for bar in bars]
    return BarChart(
        name="bits",
        title="Bits by direction and kind",
        alt_text=". ".join(said) + ".",
        bars=tuple(bars),
        note=(
            f"Encoded messages of all {who}s in {rounds} round{'s' if rounds != 1 else ''}, framing included: "
            f"{sum(bits_by_kind.values()):,} bits in all."
        ),
    )


def make_time_bar_chart(parts: Sequence[tuple[str, float, float]]) -> BarChart | None:
    """Make a bar chart of the time that each part of a round took; None if `parts` is empty: the run was not profiled.

    `parts` has the name, the seconds and the share of the time of each part.
    """
    if not parts:
        return None
    drawn = tuple(
        BarPart(name, seconds, f"{seconds:.3g} s, {100 * share:.1f} %", find_numbered_style(at, name))
        for at, (name, seconds, share) in enumerate(parts)
        if seconds > 0
    )
    total = sum(part.amount for part in drawn)
    return BarChart(
        name="time",
        title="Where the time of a round went",
        alt_text=", ".join(f"{part.label} {part.text}" for part in drawn) + ".",
        bars=(Bar("a round, on average", f"{total:.3g} s", drawn),),
    )


def make_calibration_plot(facts: RunFacts) -> Plot | None:
    """Make a reliability diagram (accuracy by predicted probability); None if calibration was not measured."""
    found = facts.calibration
    if found is None or not found.ways:
        return None
    series, said = [], []
    for at, (name, way) in enumerate(found.ways.items()):
        style = find_numbered_style(at, CALIBRATION_NAMES.get(name, name))
        marks = tuple(
            Point(
                100 * each.confidence,
                100 * each.accuracy,
                f"{style.label}: {format_percent(each.confidence)} sure, {format_percent(each.accuracy)} right, "
                f"{each.records} records",
            )
            for each in way.reliability
        )
        series.append(Series(name, style, marks))
        said.append(
            f"{style.label}: calibration error {format_percent(way.calibration_error)}, log loss {way.log_loss:.3g}."
        )
    return Plot(
        name="calibration",
        title="How often right, by how sure (%)",
        alt_text=f"On {next(iter(found.ways.values())).records} test records. {' '.join(said)}",
        x=make_linear_axis("how sure the model says it is (%)", [0, 100]),
        y=make_linear_axis("%", [0, 100]),
        series=tuple(series),
        diagonal=True,
        fixed_y_axis=True,
    )


def make_class_means_plot(facts: RunFacts) -> Plot | None:
    """Plot the clients' class means and the common head, in the plane in which the means differ most.

    None if the run recorded no class means.
    """
    found = facts.geometry
    if found is None:
        return None
    classes = sorted({mean.label for mean in found.means} | {row.label for row in found.head}, key=_make_sort_key)
    styles = {label: find_numbered_style(at, label) for at, label in enumerate(classes)}
    series = []
    for number, label in enumerate(classes):
        means = tuple(
            Point(mean.x, mean.y, f"class {label} at {mean.client}") for mean in found.means if mean.label == label
        )
        rows = tuple(
            Point(row.x, row.y, f"class {label}: its row of the head", label=label)
            for row in found.head
            if row.label == label
        )
        arrows = Series(f"class-{label}", styles[label], rows, joined=False, arrows=True)
        # With more classes than colours, a colour is used again with hollow marks.
        hollow = number // len(COLOURS) % 2 == 1
        series.append(Series(f"class-{label}", styles[label], means, joined=False, size=3.6, hollow=hollow))
        series += [arrows] if rows else []
    x, y = _make_equal_axes([(each.x, each.y) for each in (*found.means, *found.head)], GEOMETRY_HEIGHT)
    clients = len({mean.client for mean in found.means})
    return Plot(
        name="geometry",
        title="Class means of the clients, and the common head" if found.head else "Class means of the clients",
        alt_text=(
            f"The plane in which the class means of {clients} clients differ most; it holds "
            f"{100 * found.shown:.0f} % of their variance. Marks of one class are one class at different clients"
            + (
                f"; arrows are the rows of the head for the {len(found.head)} classes."
                if found.head
                else "; there is no common head."
            )
        ),
        x=x,
        y=y,
        series=tuple(series),
        height=GEOMETRY_HEIGHT,
        axes_through_origin=True,
    )


def _make_equal_axes(places: Sequence[tuple[float, float]], height: float) -> tuple[Axis, Axis]:
    """Make an x and a y axis that cover these points and the origin, with the same scale in a plot of this height."""
    sides = (WIDTH - LEFT - RIGHT, height - TOP - BOTTOM)
    ends = [(min(0.0, *values), max(0.0, *values)) for values in zip(*places, strict=True)]
    per_pixel = 1.12 * max((high - low) / side for (low, high), side in zip(ends, sides, strict=True)) or 1.0
    halves = [per_pixel * side / 2 for side in sides]
    centres = [(low + high) / 2 for low, high in ends]
    found = [Axis("", centre - half, centre + half, ()) for centre, half in zip(centres, halves, strict=True)]
    return found[0], found[1]


def _make_sort_key(label: str) -> tuple[float, str]:
    """Return a sort key for a class name: numbers come first, in numerical order, then other names."""
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label
