"""Callbacks for tools that people watch runs in: TensorBoard and MLflow. Both packages are optional extras."""

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
from fedlog.settings.spec import as_plain

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

MOST_CLIENTS = 100  # that get a curve of their own
FLUSH_SECONDS = 1  # after which TensorBoard can show a figure
LONGEST_VALUE = 500  # what MLflow takes of a setting


class _Tracker(Callback):
    """The base of both trackers: each figure of a round goes to `_write`, and the end of the run closes `_ending`."""

    _write: Callable[[str, float, int], None]
    """(name, value, round)"""

    def __init__(self) -> None:
        self._clients: tuple[str, ...] = ()
        self._ending = ExitStack()

    def _begin(self, start: RunStart, write: Callable[[str, float, int], None]) -> None:
        """Write the rounds before an interruption; the later ones follow."""
        self._clients, self._write = start.clients, write
        for record in start.done:
            self.round_ended(record)

    def round_ended(self, record: RoundRecord) -> None:
        """Write the figures of the round.

        Args:
            record: the round's number, accuracies, bits and seconds.

        """
        for name, value in read_metrics(record, self._clients):
            self._write(name, value, record.round)

    def run_ended(self, summary: Summary, trained: bool) -> None:
        """Close what was opened when the run began.

        Args:
            summary: the figures of the whole run.
            trained: False where an old result is returned, and there was nothing to write.

        """
        self._ending.close()


class TensorBoard(_Tracker):
    """Writes a run as it goes on for `tensorboard --logdir FOLDER`: accuracies, bits and seconds by round.

    Needs `pip install 'fedlog[tensorboard]'`. Give it to `fedlog.run(callbacks=[...])`.

    Args:
        folder: where the events go; one folder a run lets TensorBoard compare them.

    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self._folder = str(folder)

    def run_began(self, start: RunStart) -> None:
        """Open the folder; write the settings and, if the run was interrupted, its earlier rounds.

        Args:
            start: what is run.

        """
        from torch.utils.tensorboard import SummaryWriter

        # A run that goes on replaces the rounds that an earlier process wrote.
        writer = SummaryWriter(self._folder, purge_step=1 if start.done else None, flush_secs=FLUSH_SECONDS)
        self._ending.callback(writer.close)
        settings = json.dumps(as_plain(start.run.spec), indent=1)
        writer.add_text("settings", f"```json\n{settings}\n```")
        self._begin(start, writer.add_scalar)


class MLflow(_Tracker):
    """Writes a run as it goes on into MLflow: settings as parameters, accuracies, bits and seconds as metrics.

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
        """Make a run in the store, and write the settings and the rounds before an interruption.

        Args:
            start: what is run.

        """
        client = open_mlflow(self._store)
        found = client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found is not None else client.create_experiment(self._experiment)
        run = client.create_run(experiment, run_name=f"{start.method} on {start.data}").info.run_id
        self._ending.callback(client.set_terminated, run, "FINISHED")
        client.set_tag(run, "fedlog.digest", start.run.digest)
        spec = as_plain(start.run.spec)
        options = spec.pop("options")
        for name, value in {**spec, **options}.items():
            if value is not None:
                client.log_param(run, name, str(value)[:LONGEST_VALUE])
        self._begin(start, lambda name, value, at: client.log_metric(run, name, value, step=at))


def read_metrics(record: RoundRecord, clients: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """The figures of a round by name; a client without records to judge it on has none."""
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
    """A client of the store; of a folder, MLflow's file store."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if "://" not in store:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # files are what was asked for
        store = Path(store).resolve().as_uri()
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=store)
