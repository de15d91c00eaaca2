"""Callbacks that write runs into TensorBoard and MLflow, two packages that are optional extras."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run.callbacks import Callback, RunStart
from fedlog.experiments.run.records import Summary
from fedlog.settings.spec import convert_spec_to_json

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

MOST_CLIENTS = 100  # with more clients, single clients have no curve
FLUSH_SECONDS = 1  # TensorBoard can show a figure after this time
LONGEST_VALUE = 500  # characters that MLflow accepts for a setting


class _Tracker(Callback):
    """The base class of `TensorBoard` and `MLflow`: it writes each round's numbers, and closes its files at the end."""

    _write: Callable[[str, float, int], None]
    """(name, value, round)"""

    def __init__(self) -> None:
        self._clients: tuple[str, ...] = ()
        self._to_close = ExitStack()

    def _start_writing(self, start: RunStart, write: Callable[[str, float, int], None]) -> None:
        """Keep `write`, which writes (name, value, round), and write the rounds that a resumed run has already done."""
        self._clients, self._write = start.clients, write
        for record in start.done:
            self.round_ended(record)

    def round_ended(self, record: RoundRecord) -> None:
        """Write the accuracies, bits and seconds of the round.

        Args:
            record: the round's number, accuracies, bits and seconds.

        """
        for name, value in list_metrics(record, self._clients):
            self._write(name, value, record.round)

    def run_ended(self, summary: Summary, trained: bool) -> None:
        """Close the files or the connection.

        Args:
            summary: the results of the whole run.
            trained: False if an old result is returned and nothing was written.

        """
        self._to_close.close()


class TensorBoard(_Tracker):
    """Writes accuracies, bits and seconds of each round for `tensorboard --logdir FOLDER`.

    Needs `pip install 'fedlog[tensorboard]'`. Give it to `fedlog.run(callbacks=[...])`.

    Args:
        folder: the folder for TensorBoard's event files; use one for each run, so that TensorBoard can compare them.

    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self._folder = str(folder)

    def run_began(self, start: RunStart) -> None:
        """Open the folder; write the settings and, for a resumed run, its earlier rounds.

        Args:
            start: the run: its settings, its clients, and the rounds that were done before an interruption.

        """
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run replaces the rounds that an earlier process wrote.
        writer = SummaryWriter(self._folder, purge_step=1 if start.done else None, flush_secs=FLUSH_SECONDS)
        self._to_close.callback(writer.close)
        settings = json.dumps(convert_spec_to_json(start.run.spec), indent=1)
        writer.add_text("settings", f"```json\n{settings}\n```")
        self._start_writing(start, writer.add_scalar)


class MLflow(_Tracker):
    """Writes a run into MLflow: settings as parameters; accuracies, bits and seconds of each round as metrics.

    Needs `pip install 'fedlog[mlflow]'`. Give it to `fedlog.run(callbacks=[...])`. Without a server it writes files,
    and MLflow's own telemetry is switched off.

    Args:
        store: a folder, or an address that MLflow knows, such as `sqlite:///mlflow.db` or `http://host:5000`.
        experiment: the experiment that the run belongs to; it is made if there is none of that name.

    """

    def __init__(self, store: str | Path = "mlruns", experiment: str = "fedlog") -> None:
        super().__init__()
        self._store, self._experiment = str(store), experiment

    def run_began(self, start: RunStart) -> None:
        """Make a run in the store; write the settings and, for a resumed run, its earlier rounds.

        Args:
            start: the run: its settings, its clients, and the rounds that were done before an interruption.

        """
        client = open_mlflow(self._store)
        found = client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found is not None else client.create_experiment(self._experiment)
        run = client.create_run(experiment, run_name=f"{start.method} on {start.data}").info.run_id
        self._to_close.callback(client.set_terminated, run, "FINISHED")
        client.set_tag(run, "fedlog.digest", start.run.digest)
        spec = convert_spec_to_json(start.run.spec)
        options = spec.pop("options")
        for name, value in {**spec, **options}.items():
            if value is not None:
                client.log_param(run, name, str(value)[:LONGEST_VALUE])
        self._start_writing(start, lambda name, value, at: client.log_metric(run, name, value, step=at))


def list_metrics(record: RoundRecord, clients: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """Yield (name, value) of each number to write for a round; clients without test records are left out."""
    yield "accuracy/mean over clients", record.accuracy_mean_over_clients
    shares = {name: share for name, share in zip(clients, record.accuracy_per_client, strict=True) if share is not None}
    if shares:
        yield "accuracy/lowest client", min(shares.values())
    if len(clients) <= MOST_CLIENTS:
        yield from ((f"client/{name}", share) for name, share in shares.items())
    yield "bits/up", record.bits_up
    yield "bits/down", record.bits_down
    yield "seconds", record.seconds


def open_mlflow(store: str) -> MlflowClient:
    """Connect to MLflow; `store` is its address, or a folder for its files."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if "://" not in store:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the user asked for files
        store = Path(store).resolve().as_uri()
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=store)
