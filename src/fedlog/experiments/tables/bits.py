"""Define experiments on the cost of messages: the bits that each codec needs, and partial participation.

Their results are in `docs/bits.md`. `rows` and `+zstd` in a codec's name change no value: a run with `rows+q8` or
`q8+zstd` has the same models as a run with `q8`. So long runs are made with only one of these codecs, and short runs
measure the bits of a round for every codec.
"""

from __future__ import annotations

from dataclasses import replace

from fedlog.experiments.tables.cells import Experiment, ExperimentKind, TableRow
from fedlog.experiments.tables.paper import LABELS, TABLE_1
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import BroadcastForm, HeadRows
from fedlog.wire.codec import CODECS

SEEDS = (0, 1, 2)
ROUNDS = {"mnist": 30, "cifar10": 40, "cifar100": 60}
LOSSLESS_CODECS = ("f32", "rows")  # runs with these codecs have the same models
SHORT_ROUNDS = 2  # rounds of a short run: round 1 may send more, round 2 costs what all later rounds cost

# The ways of sending: codecs, and what broadcasts and uploads leave out. The first is the paper's.
WAYS_OF_SENDING: dict[str, RunSpec] = {
    "f32": RunSpec(),
    "rows+f16": RunSpec(codec="rows+f16"),
    "rows+q8": RunSpec(codec="rows+q8"),
    "rows+q4": RunSpec(codec="rows+q4"),
    "q8-up-q4-differences": RunSpec(codec="rows+q8", codec_down="q4", down=BroadcastForm.DIFFERENCES),
    "q4-differences": RunSpec(codec="rows+q4+zstd", codec_down="q4+zstd", down=BroadcastForm.DIFFERENCES),
    "closed-world": RunSpec(codec="rows+q8", down=BroadcastForm.DIFFERENCES, world=HeadRows.CLOSED),
    "skip-0.05": RunSpec(codec="rows+q8", codec_down="q4", down=BroadcastForm.DIFFERENCES, skip_below=0.05),
    "skip-0.2": RunSpec(codec="rows+q8", codec_down="q4", down=BroadcastForm.DIFFERENCES, skip_below=0.2),
}
OTHER_METHODS = ("fedproto", "lg-fedavg-1", "fedavg")
WAYS_OF_OTHER_METHODS = ("f32", "rows+q8", "q8-up-q4-differences")
SHARES = (0.1, 0.3)  # shares of the clients that take part in a round
# What the server keeps of earlier rounds: FedLog's option `carry`, or None for every client's last statistics.
SERVER_KEEPS = {"memory": None, "carry-0.5": 0.5, "carry-0.9": 0.9, "neither": 0.0}


def _make_row(method: str, way_of_sending: str, spec: RunSpec) -> TableRow:
    return TableRow(f"{method}-{way_of_sending}", f"{LABELS[method]}, {way_of_sending}", replace(spec, method=method))


def _make_bits_to_threshold_experiment(data: str, seeds: tuple[int, ...]) -> Experiment:
    """Make an experiment on the bits to reach the paper's accuracy threshold, for each of the `WAYS_OF_SENDING`."""
    ways = {way: replace(spec, data=data, rounds=ROUNDS[data]) for way, spec in WAYS_OF_SENDING.items()}
    rows = [_make_row(method, way, ways[way]) for way in WAYS_OF_SENDING for method in ("fedlog", "fedlog-c")]
    if data == "mnist":
        rows += [_make_row(method, way, ways[way]) for way in WAYS_OF_OTHER_METHODS for method in OTHER_METHODS]
    title = f"Bits to {TABLE_1[data].threshold} % on {data}, by way of sending"
    return Experiment(
        f"bits-{data}", title, ExperimentKind.CURVES, tuple(rows), seeds, threshold=TABLE_1[data].threshold
    )


def _make_codec_experiment(data: str, codecs: tuple[str, ...], methods: tuple[str, ...]) -> Experiment:
    """Make an experiment with two rounds of each codec, to count bits and to check which codecs are lossless."""
    ways = {name: RunSpec(data=data, rounds=SHORT_ROUNDS, codec=name) for name in codecs}
    rows = [_make_row(method, name, spec) for name, spec in ways.items() for method in methods]
    return Experiment(
        f"bits-codecs-{data}", f"Bits of a round by codec on {data}", ExperimentKind.CURVES, tuple(rows), (0,)
    )


def _make_participation_experiment() -> Experiment:
    """Make an experiment in which clients skip rounds, with a row for each of the `SHARES` and `SERVER_KEEPS`."""
    rows = []
    for share in SHARES:
        for name, carry in SERVER_KEEPS.items():
            options = {} if carry is None else {"carry": carry}
            spec = RunSpec(method="fedlog", data="mnist", rounds=30, participation=share, options=options)
            rows.append(TableRow(f"{name}-of-{share:g}", f"{share:.0%} take part, {name}", spec))
    return Experiment(
        "bits-participation-mnist",
        "Partial participation and what the server keeps",
        ExperimentKind.CURVES,
        tuple(rows),
        SEEDS,
    )


BITS = (
    _make_bits_to_threshold_experiment("mnist", SEEDS),
    _make_bits_to_threshold_experiment("cifar10", SEEDS),
    _make_bits_to_threshold_experiment("cifar100", (0,)),
    _make_codec_experiment("mnist", tuple(CODECS), ("fedlog", "fedlog-c", *OTHER_METHODS)),
    _make_codec_experiment("cifar10", LOSSLESS_CODECS, ("fedlog", "fedlog-c")),
    _make_codec_experiment("cifar100", LOSSLESS_CODECS, ("fedlog", "fedlog-c")),
    _make_participation_experiment(),
)
