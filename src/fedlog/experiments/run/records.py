"""Records on disk: one JSON line a round, appended, and a summary at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.errors import InputError
from fedlog.files.durable import append_line, write_file
from fedlog.files.json_text import parse_json

Value = TypeVar("Value")


@dataclass(frozen=True)
class Summary:
    """The outcome of a run. The final round counts; the best one is only named, as test records chose it."""

    method: str
    data: str
    seed: int
    digest: str
    rounds: int
    accuracy_mean_over_clients: float
    accuracy_per_client: list[float | None]  # None: no records to judge it on
    accuracy_after_closing: float | None  # for methods that adapt at the very end
    best_round: int
    best_accuracy: float
    bits_up: int
    bits_down: int
    seconds: float
    run_dir: str
    made_with: dict[str, str] = field(default_factory=dict)
    # Part of `bits_up` and `bits_down` and of no round's record: a seed, or the exchange behind a first head.
    bits_opening: dict[str, int] = field(default_factory=dict)
    privacy: dict[str, Any] | None = None  # the guarantee in full, for a private run
    uploads_refused: int = 0  # that could not be used, where the run was told to do without them
    clients: list[str] = field(default_factory=list)  # their names, in the order of `accuracy_per_client`
    # Where a number is predicted: its error. "Accuracy" is then the share inside the 90 % intervals.
    regression: dict[str, Any] | None = None
    # Test accuracy where each client stops at the round that is best on its own validation records.
    accuracy_at_chosen_rounds: float | None = None

    @property
    def title(self) -> str:
        """The run in a few words: `fedlog on digits, 10 rounds, seed 0`."""
        return f"{self.method} on {self.data}, {self.rounds} round{'s' if self.rounds != 1 else ''}, seed {self.seed}"


# Left out where they are empty, since only some runs have them: those that are profiled, that predict a number, that
# are judged on both kinds of records, and those with a largest share that somebody exceeded.
OF_SOME_SUMMARIES = ("regression", "accuracy_at_chosen_rounds")
OF_SOME_RUNS = ("seconds_by_part", "capped", "rmse_per_client", "validation_per_client")


def as_written(summary: Summary) -> dict[str, Any]:
    """The summary as its file has it: without the folder's place, and without what the run does not have."""
    written = {**asdict(summary), "run_dir": "."}
    return {name: value for name, value in written.items() if value is not None or name not in OF_SOME_SUMMARIES}


def append(path: Path, record: RoundRecord) -> None:
    """Add one line and force it to disk."""
    append_line(path, _line(record))


def _line(record: RoundRecord) -> str:
    """The record as one line of JSON."""
    written = asdict(record)
    for name in OF_SOME_RUNS:
        if not written[name]:
            del written[name]
    return json.dumps(written, separators=(",", ":"))


def read(path: Path) -> list[RoundRecord]:
    """All whole lines; a line cut short by a kill is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(RoundRecord(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            break
    return records


def accuracy_at_chosen_rounds(rounds: Sequence[RoundRecord]) -> float | None:
    """The mean accuracy where each client uses its model of the round that is best on its own validation records.

    Of equally good rounds it takes the first; a client without validation records takes the last round. None where the
    run was not judged on both kinds of records.
    """
    if not rounds or not rounds[-1].validation_per_client:
        return None
    found = []
    for client in range(len(rounds[-1].validation_per_client)):
        chosen = _choose_round([record.validation_per_client[client] for record in rounds])
        accuracy = rounds[chosen].accuracy_per_client[client]
        if accuracy is not None:
            found.append(accuracy)
    return sum(found) / len(found)


def _choose_round(accuracies: Sequence[float | None]) -> int:
    """The position of the first best accuracy, or of the last one where there is none."""
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    return accuracies.index(max(known)) if known else -1


def mean_parts(rounds: Sequence[RoundRecord]) -> list[tuple[str, float, float]]:
    """Each part of a round with its mean seconds and its share, over the rounds that were timed."""
    timed = [record.seconds_by_part for record in rounds if record.seconds_by_part]
    total = sum(sum(parts.values()) for parts in timed) or 1.0
    names = list(timed[0]) if timed else []
    sums = {name: sum(parts[name] for parts in timed) for name in names}
    return [(name, sums[name] / len(timed), sums[name] / total) for name in names]


def count(path: Path) -> int:
    """How many whole lines there are; none without the file."""
    return path.read_text().count("\n") if path.exists() else 0


def keep_until(path: Path, round_number: int) -> list[RoundRecord]:
    """Cut the file after that round and return the records left; later rounds are run again."""
    kept = [record for record in read(path) if record.round <= round_number]
    if len(kept) != round_number:
        raise InputError(
            f"expected {round_number} records before the checkpoint, found {len(kept)}: {path}",
            hint="bring the file back, or start the run anew in another folder",
        )
    write_file(path, "".join(_line(record) + "\n" for record in kept))
    return kept


def read_as(path: Path, kind: type[Value], what: str) -> Value | None:
    """The content of a run's JSON file, as this type; None where there is no such file."""
    if not path.exists():
        return None
    try:
        return msgspec.convert(parse_json(path.read_text()), kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise InputError(f"not {what} of a run: {path} ({error})", hint="remove it and run again") from None
