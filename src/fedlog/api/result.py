"""The result of a run: accuracies, bits, history and models, kept in memory or read from a folder."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.errors import InputError
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import (
    CONFIG,
    MODELS,
    RECORDS,
    SUMMARY,
    read_spec,
    read_summary_if_finished,
)
from fedlog.experiments.run.records import Summary
from fedlog.experiments.run.scores import PAGE_FILES
from fedlog.files.argument_types import check_argument_types
from fedlog.files.durable import write_file
from fedlog.files.flag_rewriting import rewrite_flags_in_errors
from fedlog.files.json_text import write_json
from fedlog.models.model import Model
from fedlog.models.model_folder import list_model_names, load_model, load_models, locate_client_model, save_run_models
from fedlog.settings.spec import RunSpec, convert_spec_to_json
from fedlog.wire.bits_text import describe_bits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN_FOLDER_HINT = "name a folder that `fedlog run`, fedlog.run(out=...) or result.save(...) wrote"


def make_data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Make a data frame of these rows, of pandas or, if pandas is not installed, of polars."""
    if find_spec("pandas") is not None:
        import pandas

        return pandas.DataFrame(list(rows))
    import polars

    return polars.DataFrame(list(rows))


class Models(Mapping[str, Model]):
    """The model of each client by name; a model is read from disk when it is first used."""

    def __init__(self, folder: Path, kept: Mapping[str, Model] | None = None) -> None:
        self._folder = folder
        self._read: dict[str, Model] = dict(kept or {})
        self._names = tuple(self._read) or list_model_names(folder)

    def __getitem__(self, name: str) -> Model:
        if name not in self._names:
            raise KeyError(f"no model of {name}; there are models of {', '.join(self._names) or 'no client'}")
        if name not in self._read:
            self._read[name] = load_model(locate_client_model(self._folder, name))
        return self._read[name]

    def read_all(self) -> Mapping[str, Model]:
        """Read all models at once; clients with the same body share one body object."""
        if not self._read:
            self._read = load_models(self._folder)
        return {name: self[name] for name in self._names}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"models of {', '.join(self._names) or 'nobody'}"


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The outcome of one run: accuracies and bits, the history of all rounds, and a model for each client."""

    spec: RunSpec
    summary: Summary
    records: tuple[RoundRecord, ...]
    clients: tuple[str, ...]
    models: Mapping[str, Model]
    made_with: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(
        default_factory=dict
    )  # for the page of the run: the text of each file in PAGE_FILES

    @classmethod
    def read(cls, folder: Path) -> Result:
        """Read a finished run.

        Args:
            folder: the folder of the run.

        Returns:
            The outcome; models are read when they are first used.

        """
        summary = read_summary_if_finished(folder)
        if summary is None:
            if not (folder / CONFIG).exists():
                raise InputError(f"expected the folder of a run, found no run in: {folder}", hint=RUN_FOLDER_HINT)
            raise InputError(
                f"expected a finished run, found an unfinished one: {folder}",
                hint=f"continue it with `fedlog run --resume {shlex.quote(str(folder))}`",
            )
        models = Models(folder / MODELS)
        clients = tuple(summary.clients) or tuple(f"client-{at}" for at in range(len(summary.accuracy_per_client)))
        made_with = json.loads((folder / CONFIG).read_text()).get("made_with", {})
        lines = tuple(records.read_rounds(folder / RECORDS))
        notes = {name: (folder / name).read_text() for name in PAGE_FILES if (folder / name).exists()}
        return cls(read_spec(folder), summary, lines, clients, models, made_with, notes)

    def keep_in_memory(self) -> Result:
        """Return a copy of this result with all models in memory, so that the folder is no longer needed."""
        kept = Models(Path(), self.models.read_all() if isinstance(self.models, Models) else self.models)
        return replace(self, models=kept)

    @property
    def accuracy(self) -> float:
        """The share of test records that are classified correctly after the last round, mean over clients."""
        return self.summary.accuracy_mean_over_clients

    @property
    def accuracy_after_closing(self) -> float | None:
        """The accuracy of `models` if the method (FedRep, FedBABU) ends with local training, else None.

        This training follows the last round, so `accuracy` is the accuracy before it.
        """
        return self.summary.accuracy_after_closing

    @property
    def per_client(self) -> dict[str, float | None]:
        """Each client's accuracy after the last round; None for a client without test records."""
        return dict(zip(self.clients, self.summary.accuracy_per_client, strict=True))

    @property
    def bits(self) -> int:
        """The bits that all clients sent and received together."""
        return self.summary.bits_up + self.summary.bits_down

    @property
    def bits_up(self) -> int:
        """The bits that all clients sent."""
        return self.summary.bits_up

    @property
    def bits_down(self) -> int:
        """The bits that all clients received."""
        return self.summary.bits_down

    @property
    def history(self) -> Any:
        """A data frame with one row for each round, of pandas or, if pandas is not installed, of polars.

        Columns: round, accuracy, bits (up and down, from the start to this round), seconds, participants.
        """
        spent = records.count_bits_so_far(self.records, sum(self.summary.bits_opening.values()))
        rows = [
            {
                "round": record.round,
                "accuracy": record.accuracy_mean_over_clients,
                "bits": bits,
                "seconds": record.seconds,
                "participants": record.participants,
            }
            for record, bits in zip(self.records, spent, strict=True)
        ]
        return make_data_frame(rows)

    def plot(self) -> Figure:
        """Draw the accuracy by round and by bits.

        Returns:
            A matplotlib figure, which notebooks show; `figure.savefig("run.png")` writes it.

        """
        from fedlog.report.parts.curves import draw_curves
        from fedlog.report.parts.style import find_style

        return draw_curves(self.records, sum(self.summary.bits_opening.values()), find_style(self.spec.method))

    def save(self, folder: str | Path) -> Path:
        """Write the run into a new or empty folder, as `fedlog.run(out=...)` and `fedlog run` do.

        Args:
            folder: the new folder; `fedlog.load`, `fedlog report` and `fedlog predict FOLDER/models/CLIENT` read it.

        Returns:
            The folder.

        """
        path = Path(folder)
        if path.exists() and any(path.iterdir()):
            raise InputError(f"expected a new or empty folder, found files in: {path}", hint="choose another folder")
        path.mkdir(parents=True, exist_ok=True)
        save_run_models(path / MODELS, dict(self.models))
        config = {
            "digest": self.spec.digest,
            "spec": convert_spec_to_json(self.spec),
            "made_with": dict(self.made_with),
        }
        write_json(path / CONFIG, config)
        for record in self.records:
            records.append_round(path / RECORDS, record)
        for name, text in self.notes.items():
            write_file(path / name, text)
        write_json(path / SUMMARY, records.make_summary_json(self.summary))
        return path

    def __repr__(self) -> str:
        summary = self.summary
        lines = [f"{summary.title}: accuracy {100 * self.accuracy:.2f} %, {describe_bits(self.bits)}"]
        width = max((len(name) for name in self.clients[:10]), default=0)
        for name, share in list(self.per_client.items())[:10]:
            lines.append(f"  {name:<{width}}  {_format_percent(share)}")
        lines += [f"  and {len(self.clients) - 10} more clients"] if len(self.clients) > 10 else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        figures = {
            "accuracy, mean over clients": _format_percent(self.accuracy),
            "bits up and down": describe_bits(self.bits),
            **{name: _format_percent(share) for name, share in list(self.per_client.items())[:10]},
        }
        cells = ((html.escape(key), html.escape(value)) for key, value in figures.items())
        rows = "".join(f"<tr><td>{key}</td><td>{value}</td></tr>" for key, value in cells)
        return f"<table><caption>{html.escape(self.summary.title)}</caption>{rows}</table>"


@rewrite_flags_in_errors()
@check_argument_types
def load(folder: str | Path) -> Result:
    """Read a finished run from its folder.

    Args:
        folder: a folder that `fedlog run`, `fedlog.run(out=...)` or `Result.save` wrote.

    Returns:
        The outcome, as `fedlog.run` returned it.

    """
    return Result.read(Path(folder))


def _format_percent(share: float | None) -> str:
    return "no test records" if share is None else f"{100 * share:.2f} %"
