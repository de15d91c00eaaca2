"""Execute a run in its folder: write its configuration, records, checkpoint, models and summary."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

import fedlog
from fedlog.algorithms.interface import TrainingRecords
from fedlog.core.heads.regression import INTERVAL_LEVEL
from fedlog.data.catalog import can_data_change, hold_out_validation, load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation
from fedlog.data.public_data_sets import find_data_folder
from fedlog.engine.clients import POOLED_CLIENT
from fedlog.engine.protocol import checkpoint
from fedlog.engine.simulate.simulator import RoundRecord, Simulation
from fedlog.engine.software import list_software_versions
from fedlog.errors import InputError, RunError
from fedlog.experiments.run import privacy, records
from fedlog.experiments.run.callbacks import Callback, RunStart
from fedlog.experiments.run.client_files import write_client_descriptions, write_geometry
from fedlog.experiments.run.prepare import make_simulation
from fedlog.experiments.run.probability_calibration import write_calibration
from fedlog.experiments.run.records import Summary
from fedlog.files.durable import is_draft
from fedlog.files.json_text import parse_json, write_json
from fedlog.files.lock import LockTakenError, lock_folder
from fedlog.models.model import Model
from fedlog.models.model_folder import write_run_description
from fedlog.privacy.accounting import BudgetSpentError
from fedlog.privacy.release_log import FILE_NAME, ReleaseRecorder
from fedlog.settings.differences import describe_changed_settings
from fedlog.settings.privacy import BodyTraining
from fedlog.settings.resolve import ResolvedRun, add_data_digest, resolve
from fedlog.settings.spec import RunSpec, convert_spec_to_json, make_spec
from fedlog.wire.ledger import Direction

SECONDS_TO_WAIT_FOR_LOCK = 10.0
CONFIG, RECORDS, SUMMARY, MODELS = "config.json", "records.jsonl", "summary.json", "models"


class RunFilesToKeep(Enum):
    """Which files of a finished run are kept in addition to its configuration and summary."""

    RECORDS_AND_MODELS = "records and models"
    RECORDS_ONLY = "records only"


def execute(
    spec: RunSpec,
    folder: Path,
    callbacks: Sequence[Callback] = (),
    keep: RunFilesToKeep = RunFilesToKeep.RECORDS_AND_MODELS,
    federation: Federation | None = None,
    seconds_between_checkpoints: float = 0.0,
    load: Callable[[DataSpec], Federation] = load_federation,
) -> Summary:
    """Run the specification in the folder, or continue from its checkpoint; write the summary there and return it.

    A folder with a run on other data is refused. So data that the user can change are read first, with `load`, even if
    the run is finished. A checkpoint is written at the end of a round if `seconds_between_checkpoints` have passed
    since the last one. A private run writes one after every round, because repeating a round would release its
    statistics again.
    """
    run = resolve(spec, federation)
    if federation is not None:
        federation = hold_out_validation(federation, run.data)
    elif can_data_change(run.data.name):
        federation = load(run.data)
    run = add_data_digest(run, federation)
    found = read_summary_if_finished(folder)
    if found is None or read_spec(folder).digest != run.digest:
        made = make_run_folder(folder, run.spec)
        with lock_run_folder(folder):
            found = read_summary_if_finished(folder)  # written by the run that held the lock until now
            if found is None:
                summary = _run_in_folder(run, federation, folder, callbacks, keep, made, seconds_between_checkpoints)
                for callback in callbacks:
                    callback.run_ended(summary, True)
                return summary
    for callback in callbacks:
        callback.run_ended(found, False)
    return found


def read_summary_if_finished(folder: Path) -> Summary | None:
    """Read the summary of the run in the folder; None if the run is not finished or its rounds are incomplete."""
    if not (folder / SUMMARY).exists():
        return None
    summary = read_summary(folder)
    return summary if records.count_rounds(folder / RECORDS) == summary.rounds else None


def _run_in_folder(
    run: ResolvedRun,
    federation: Federation | None,
    folder: Path,
    callbacks: Sequence[Callback],
    keep: RunFilesToKeep,
    made: list[Path],
    seconds_between_checkpoints: float,
) -> Summary:
    """Run the rounds that the folder does not have yet; if the run cannot start, remove the folders `made` for it."""

    def report_features(done: int, new_records: int) -> None:
        for callback in callbacks:
            callback.features_computed(done, new_records)

    spec = run.spec
    try:
        backends, releases = _read_backends(folder), ReleaseRecorder(folder / FILE_NAME)
        simulation = make_simulation(run, federation, report_features, backends, releases).start()
    except BaseException:
        for path in made:  # so that the next attempt can use the same names
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()
        raise
    try:
        with _explain_write_errors(folder):
            _write_config(folder, spec, simulation)
            if keep is RunFilesToKeep.RECORDS_AND_MODELS:
                write_client_descriptions(folder, simulation.federation, simulation.bodies)
            done = _restore_checkpoint(simulation, folder)
            privacy.start_release_log(simulation, folder)
        for callback in callbacks:
            callback.run_began(RunStart(run, simulation, tuple(done)))
        reason_for_early_end = None
        try:
            for record in _run_rounds(simulation, folder, done, seconds_between_checkpoints):
                for callback in callbacks:
                    callback.round_ended(record)
        except BudgetSpentError as error:
            reason_for_early_end = _go_back_to_last_round(simulation, folder, error)
        with _explain_write_errors(folder):
            return _finish_run(spec, simulation, folder, keep, reason_for_early_end)
    finally:
        simulation.stop()


@contextlib.contextmanager
def _explain_write_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError in the `with` block into a RunError that names the folder."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write to {folder}: {error.strerror or error}",
            hint="make sure that it is writable and has free space, then resume the run",
        ) from error


def read_spec(folder: Path) -> RunSpec:
    """Read the resolved specification of the run in the folder; InputError if the folder holds no run."""
    path = folder / CONFIG
    try:
        return make_spec(parse_json(path.read_text())["spec"], str(path))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"not a run folder: {folder} ({error})", hint="give a folder that `fedlog run` has written"
        ) from error


def read_summary(folder: Path) -> Summary:
    """Read the summary of the run in the folder; InputError if the run is not finished."""
    try:
        return Summary(**{**parse_json((folder / SUMMARY).read_text()), "run_dir": str(folder)})
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"not a finished run: {folder} ({error})", hint=f"continue it with `fedlog run --resume {folder}`"
        ) from error


def make_run_folder(folder: Path, spec: RunSpec) -> list[Path]:
    """Make the run's folder and its parents, and return the folders that did not exist before.

    Refuse a folder that holds another run or other files, or that cannot be written.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / CONFIG).exists():
            _refuse_other_run(folder, read_spec(folder), spec)
        elif any(not is_draft(path, CONFIG) for path in folder.iterdir()):
            raise InputError(f"{folder} is not empty and not a run folder", hint="choose another --out")
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}", hint="choose another --out") from error
    return missing


def _refuse_other_run(folder: Path, found: RunSpec, spec: RunSpec) -> None:
    """Refuse the folder if `found`, the run in it, has other settings or other data than `spec`."""
    if found.digest == spec.digest:
        return
    if replace(found, data_sha256=spec.data_sha256).digest == spec.digest:
        own = can_data_change(spec.data)
        data = spec.data if own else find_data_folder(None if spec.data_dir is None else Path(spec.data_dir))
        raise InputError(
            f"{folder} holds a run with the same settings, but on other records than those of {data}",
            hint="the data have changed: choose another --out"
            if own
            else "give --data-dir the data folder that the run was started with, or choose another --out",
        )
    raise InputError(
        f"{folder} holds a run with other settings; the new run has {describe_changed_settings(found, spec)}",
        hint="choose another --out, or remove the folder",
    )


@contextlib.contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Lock the folder while one run uses it, because two runs in a folder would mix their records."""
    try:
        with lock_folder(folder, SECONDS_TO_WAIT_FOR_LOCK):
            yield
    except LockTakenError:
        raise InputError(
            f"{folder} is in use by another run", hint="wait until that run ends, or choose another --out"
        ) from None


def _write_config(folder: Path, spec: RunSpec, simulation: Simulation) -> None:
    """Write `config.json`: the run's settings, its backends and the software versions."""
    written = {"digest": spec.digest, "spec": convert_spec_to_json(spec), "backends": simulation.engine.name_backends()}
    write_json(folder / CONFIG, {**written, "made_with": list_software_versions()})


def _read_backends(folder: Path) -> dict[str, str]:
    """Read which backend has trained each body so far, by the body's name, so that a resumed run uses the same."""
    path = folder / CONFIG
    found = parse_json(path.read_text()).get("backends", {}) if path.exists() else {}
    return {str(name): str(backend) for name, backend in found.items()}


def _restore_checkpoint(simulation: Simulation, folder: Path) -> list[RoundRecord]:
    """Continue from the checkpoint, if there is one, and return the records of the rounds up to it."""
    where = folder / "checkpoint"
    if not checkpoint.exists(where):
        records.delete_rounds_after(folder / RECORDS, 0)
        return []
    simulation.resume(where)
    return records.delete_rounds_after(folder / RECORDS, simulation.round_number)


def _run_rounds(
    simulation: Simulation, folder: Path, done: list[RoundRecord], seconds_between_checkpoints: float
) -> Iterator[RoundRecord]:
    """Run the remaining rounds; write each record, and a checkpoint if one is due, then yield the record."""
    saved_at = time.monotonic()
    for record in simulation.rounds(done[-1] if done else None):
        with _explain_write_errors(folder):
            records.append_round(folder / RECORDS, record)
            due = time.monotonic() - saved_at >= seconds_between_checkpoints
            if due or simulation.protection is not None:
                simulation.save(folder / "checkpoint")
                saved_at = time.monotonic()
        yield record


def _go_back_to_last_round(simulation: Simulation, folder: Path, error: BudgetSpentError) -> str:
    """Restore the last complete round after the privacy budget ran out, and return why the run ends early."""
    if not checkpoint.exists(folder / "checkpoint"):
        raise error
    simulation.resume(folder / "checkpoint")  # undoes the training of the round that cannot be released
    return f"ended after round {simulation.round_number} of {simulation.settings.rounds}: {error.message}"


def _write_model_descriptions(spec: RunSpec, simulation: Simulation, folder: Path) -> None:
    """Write each model's body, schema and encoder beside its weights, so that `fedlog predict` can use it."""
    federation = simulation.federation
    pooled = simulation.algorithm.training is TrainingRecords.POOLED
    provenance = {"fedlog": fedlog.__version__, "digest": spec.digest, "method": spec.method, "data": spec.data}
    models, weights_of = {}, {}
    for at, (client, body) in enumerate(zip(federation.clients, simulation.bodies, strict=True)):
        encoding = federation.encoding_of(at)
        plain = replace(encoding.transform, crop_padding=0, flip=False)  # no random crops when predicting
        models[client] = Model(
            body, {}, federation.make_schema(), encoding.encoder, plain, provenance, federation.labels
        )
        weights_of[client] = POOLED_CLIENT if pooled else client
    write_run_description(folder, models, weights_of)


def _save_models(spec: RunSpec, simulation: Simulation, folder: Path) -> None:
    """Write the clients' models, their descriptions, the server's state, and the files that the run's page shows."""
    models = folder / MODELS
    models.mkdir(exist_ok=True)
    simulation.save_models(models)
    _write_model_descriptions(spec, simulation, models)
    write_geometry(folder, models, simulation)
    if spec.body_training is BodyTraining.FROZEN:
        write_calibration(folder, models, simulation)
    save_file({n: v.contiguous().clone() for n, v in simulation.server.state.items()}, folder / "server.safetensors")


def _finish_run(
    spec: RunSpec, simulation: Simulation, folder: Path, keep: RunFilesToKeep, reason_for_early_end: str | None = None
) -> Summary:
    """Write the models and the summary, and delete the checkpoint."""
    closed = simulation.evaluate_after_closing()
    if keep is RunFilesToKeep.RECORDS_AND_MODELS:
        _save_models(spec, simulation, folder)
    lines = records.read_rounds(folder / RECORDS)
    best = max(lines, key=lambda record: record.accuracy_mean_over_clients)
    ledger = simulation.server.ledger
    summary = Summary(
        method=spec.method,
        data=spec.data,
        seed=spec.seed,
        digest=spec.digest,
        rounds=lines[-1].round,
        accuracy_mean_over_clients=lines[-1].accuracy_mean_over_clients,
        accuracy_per_client=[None if share is None else round(share, 6) for share in lines[-1].accuracy_per_client],
        accuracy_after_closing=None if closed is None else sum(closed) / len(closed),
        best_round=best.round,
        best_accuracy=best.accuracy_mean_over_clients,
        bits_up=ledger.sum_bits(Direction.UP),
        bits_down=ledger.sum_bits(Direction.DOWN),
        seconds=sum(record.seconds for record in lines),
        run_dir=str(folder),
        made_with=list_software_versions(),
        bits_opening=ledger.sum_bits_by_kind(0),
        privacy=privacy.summarise_privacy(folder, lines, reason_for_early_end),
        uploads_refused=sum(len(record.refused) for record in lines),
        clients=list(simulation.federation.clients),
        regression=_describe_regression(lines[-1], simulation.federation.target_range),
        accuracy_at_chosen_rounds=records.compute_accuracy_at_chosen_rounds(lines),
    )
    # The path is put in when the summary is read: a folder may be moved, or committed from someone's machine.
    write_json(folder / SUMMARY, records.make_summary_json(summary))
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    return summary


def _describe_regression(last: RoundRecord, target_range: tuple[float, float] | None) -> dict[str, Any] | None:
    """Describe the errors and the interval coverage of predicted numbers; None if the run predicts classes."""
    if target_range is None:
        return None
    errors, inside = last.rmse_per_client, last.accuracy_per_client
    return {
        "range": list(target_range),
        "rmse_mean_over_clients": _average_without_none(errors),
        "rmse_per_client": errors,
        "interval_level": INTERVAL_LEVEL,
        "inside_mean_over_clients": _average_without_none(inside),
        "inside_per_client": inside,
    }


def _average_without_none(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)
