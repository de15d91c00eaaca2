"""Write and read a run's records: one line of JSON for each round, and a summary at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
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
    """The outcome of a run. The accuracy is that of the final round, not of the round that is best on test records.

    `digest` identifies the settings. `bits_opening` are the bits of the opening (the exchange before round 1), by kind
    of message. `accuracy_after_closing` is the accuracy of models that the method has adapted at the very end.
    """

    method: str
    data: str
    seed: int
    digest: str
    rounds: int
    accuracy_mean_over_clients: float
    accuracy_per_client: list[float | None]  # None for a client without held-out records
    accuracy_after_closing: float | None  # for methods that adapt at the very end
    best_round: int
    best_accuracy: float
    bits_up: int
    bits_down: int
    seconds: float
    run_dir: str
    made_with: dict[str, str] = field(default_factory=dict)
    # Bits sent before round 1 (a seed, or the exchange for a first head): in `bits_up` and `bits_down`, in no round.
    bits_opening: dict[str, int] = field(default_factory=dict)
    privacy: dict[str, Any] | None = None  # the guarantee in full, for a private run
    uploads_refused: int = 0  # uploads that could not be used, if the run goes on without them
    clients: list[str] = field(default_factory=list)  # their names, in the order of `accuracy_per_client`
    # For a run that predicts a number: its errors. "Accuracy" is then the share inside the 90 % intervals.
    regression: dict[str, Any] | None = None
    # Test accuracy if each client uses its model of the round that is best on its validation records.
    accuracy_at_chosen_rounds: float | None = None

    @property
    def title(self) -> str:
        """The run in a few words: `fedlog on digits, 10 rounds, seed 0`."""
        return f"{self.method} on {self.data}, {self.rounds} round{'s' if self.rounds != 1 else ''}, seed {self.seed}"


# Left out of the files if they are empty, because few runs have them: profiled runs, runs that predict a number, runs
# evaluated on validation and test records, and runs in which a client exceeded the largest share.
OPTIONAL_SUMMARY_FIELDS = ("regression", "accuracy_at_chosen_rounds")
OPTIONAL_ROUND_FIELDS = ("seconds_by_part", "capped", "rmse_per_client", "validation_per_client")


def make_summary_json(summary: Summary) -> dict[str, Any]:
    """Return the summary as JSON values: `run_dir` is ".", and optional fields that are None are left out."""
    written = {**asdict(summary), "run_dir": "."}
    return {name: value for name, value in written.items() if value is not None or name not in OPTIONAL_SUMMARY_FIELDS}


def append_round(path: Path, record: RoundRecord) -> None:
    """Append the record of a round to the file as one line of JSON, and flush it to disk."""
    append_line(path, _format_json_line(record))


def _format_json_line(record: RoundRecord) -> str:
    """Return the record of a round as one line of JSON."""
    written = asdict(record)
    for name in OPTIONAL_ROUND_FIELDS:
        if not written[name]:
            del written[name]
    return json.dumps(written, separators=(",", ":"))


def read_rounds(path: Path) -> list[RoundRecord]:
    """Read the records of rounds from the file, without an incomplete last line; [] if there is no file."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(RoundRecord(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            break
    return records


def compute_accuracy_at_chosen_rounds(rounds: Sequence[RoundRecord]) -> float | None:
    """Compute the mean accuracy if each client uses its model of the round that is best on its validation records.

    Of equally good rounds the first is taken; a client without validation records uses the last round. None if the run
    was not evaluated on both validation and test records.
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
    """Return the index of the (first) highest accuracy; -1, which is the last round, if all accuracies are None."""
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    return accuracies.index(max(known)) if known else -1


def count_bits_so_far(rounds: Sequence[RoundRecord], opening: int) -> list[int]:
    """Sum the bits sent by the end of each round, up and down together; `opening` bits were sent before round 1."""
    return list(accumulate((record.bits_up + record.bits_down for record in rounds), initial=opening))[1:]


def compute_mean_seconds_by_part(rounds: Sequence[RoundRecord]) -> list[tuple[str, float, float]]:
    """Return (part, mean seconds, share of the time) for each part of a round, over the profiled rounds."""
    timed = [record.seconds_by_part for record in rounds if record.seconds_by_part]
    total = sum(sum(parts.values()) for parts in timed) or 1.0
    names = list(timed[0]) if timed else []
    sums = {name: sum(parts[name] for parts in timed) for name in names}
    return [(name, sums[name] / len(timed), sums[name] / total) for name in names]


def count_rounds(path: Path) -> int:
    """Count the rounds (complete lines) of the file; 0 if there is no file."""
    return path.read_text().count("\n") if path.exists() else 0


def delete_rounds_after(path: Path, round_number: int) -> list[RoundRecord]:
    """Delete the records after this round from the file, because those rounds will run again; return the others."""
    kept = [record for record in read_rounds(path) if record.round <= round_number]
    if len(kept) != round_number:
        raise InputError(
            f"{path} has {len(kept)} records, but the checkpoint needs {round_number}, one for each round",
            hint="restore the file, or start the run again in another folder",
        )
    write_file(path, "".join(_format_json_line(record) + "\n" for record in kept))
    return kept


def read_json_file_as(path: Path, kind: type[Value], what: str) -> Value | None:
    """Read a run's JSON file as an object of type `kind`; None if there is no file. `what` names it in errors."""
    if not path.exists():
        return None
    try:
        return msgspec.convert(parse_json(path.read_text()), kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise InputError(
            f"cannot read {what} of a run: {path} ({error})", hint="remove the file and run again"
        ) from None
