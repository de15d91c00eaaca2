"""What a run is, as data: validated, complete, and with a digest that says whether two runs are the same experiment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, get_type_hints

import torch

from fedlog.algorithms import registry
from fedlog.algorithms.shape import Algorithm, ModelPlan
from fedlog.core.keys import Key
from fedlog.data.catalog import DataSpec, Partition, content_digest, load_federation, resolved
from fedlog.data.federation import Federation
from fedlog.engine.clients import model_plan
from fedlog.engine.protocol.cohort import Initialisation, Judge
from fedlog.engine.protocol.server import REFUSED_SHARE
from fedlog.engine.simulate.run_settings import Course, Decay
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Choice, Engine
from fedlog.engine.training.tasks import Moments, Settings
from fedlog.errors import InputError
from fedlog.experiments.run import private
from fedlog.experiments.run.presets import preset
from fedlog.files.names import did_you_mean
from fedlog.files.toml import read_toml
from fedlog.models.body import Body, with_weights
from fedlog.models.catalog import body

# How a run is computed, where its data lie: nothing of this changes what is computed beyond the last bits.
# A file of parameters counts by its content, and so does a folder that is a data set of its own.
_NOT_IN_DIGEST = ("backend", "jobs", "threads", "device", "data_dir", "body_file")


@dataclass(frozen=True)
class RunSpec:
    """A run. What is None is filled in by `resolve` from the data set's preset."""

    method: str = "fedlog"
    data: str = "digits"
    clients: int | None = None
    classes_per_client: int | None = None
    partition: Partition | None = None
    dirichlet_alpha: float | None = None
    train_records: int | None = None
    validation_fraction: float = 0.0
    body: tuple[str, ...] = ()  # several: dealt out evenly among the clients
    rounds: int | None = None
    batch_size: int | None = None
    seed: int = 0
    participation: float = 1.0
    initialisation: str = "shared"
    judge: str = "test"
    stop_at_accuracy: float | None = None
    codec: str = "f32"
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own
    backend: str = "auto"
    jobs: int = 1
    threads: int = 1  # of PyTorch, in each process: the kernels are too small to split
    device: str = "cpu"
    data_dir: str | None = None
    data_sha256: str | None = None  # of a LEAF folder, filled in when the run starts
    moments: str | None = None  # of Adam, made anew for each epoch (None), each round, or never: run
    decay: str | None = None  # of the learning rate over the run: cosine
    weight_decay: float | None = None  # of AdamW; the paper has none
    privacy: str | None = None  # record, client or paper
    epsilon: float | None = None
    delta: float | None = None
    trust: str | None = None  # central, local or distributed noise
    calibration: str | None = None  # exact or paper
    noise: str | None = None  # float (simulation only) or discrete
    clip: str | None = None  # clamp:B or l2:R, of the features
    message_norm: float | None = None  # of a client's whole message
    body_training: str | None = None  # frozen: bodies stay as they were initialised or loaded; dp-sgd
    sgd_noise: float | None = None  # of DP-SGD, over the clip; None: what half of epsilon pays for
    sgd_clip: float | None = None  # of each record's gradient
    sample_rate: float | None = None  # the chance of a record to be in a step of DP-SGD
    body_file: str | None = None  # parameters that every body starts from
    body_file_sha256: str | None = None
    aggregation: str | None = None  # secure: the server sees sums only
    honest: int | None = None  # survivors a secure sum needs
    dropout_rate: float | None = None  # the chance of a client to fall silent in a secure sum
    refused_share: float | None = None  # of a round's uploads that may be unusable before the run stops

    @property
    def digest(self) -> str:
        """The same for two specifications exactly when they are the same experiment.

        What is None is left out, so that a setting added later does not change the digests of older records.
        """
        values = {name: value for name, value in as_plain(self).items() if name not in _NOT_IN_DIGEST}
        values["options"] = {name: value for name, value in values["options"].items() if value is not None}
        said = {name: value for name, value in values.items() if value is not None}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def data_spec(self) -> DataSpec:
        """The part that is about data."""
        return DataSpec(
            name=self.data,
            clients=self.clients,
            classes_per_client=self.classes_per_client,
            partition=self.partition,
            dirichlet_alpha=self.dirichlet_alpha,
            train_records=self.train_records,
            validation_fraction=self.validation_fraction,
            data_dir=None if self.data_dir is None else Path(self.data_dir),
            seed=self.seed,
        )


def resolve(spec: RunSpec) -> RunSpec:
    """The specification with every default of its data set and method written out."""
    defaults = preset(spec.data)
    spec = _with_floats(spec)
    spec = private.settled(replace(spec, body=spec.body or (defaults.body,)))
    registry.factory(spec.method)
    data = resolved(spec.data_spec)
    told = {**_known(spec.method, defaults.options(spec.method)), **spec.options}
    # As their types, so that `--set alpha=1` and `alpha = 1.0` in a file are one experiment.
    told = registry.typed(spec.method, {**registry.options(spec.method), **told})
    options = {name: _plain(value) for name, value in told.items()}
    return replace(
        spec,
        clients=data.clients,
        classes_per_client=data.classes_per_client,
        partition=data.partition,
        dirichlet_alpha=data.dirichlet_alpha,
        train_records=data.train_records,
        # Said or not, the default is one experiment.
        moments=None if spec.moments == Moments.EPOCH else spec.moments,
        decay=None if spec.decay == Decay.NONE else spec.decay,
        weight_decay=spec.weight_decay or None,
        refused_share=None if spec.refused_share == _usual_refused_share(spec) else spec.refused_share,
        rounds=defaults.rounds if spec.rounds is None else spec.rounds,
        batch_size=defaults.batch_size_of(spec.method) if spec.batch_size is None else spec.batch_size,
        options=options,
    )


def _with_floats(spec: RunSpec) -> RunSpec:
    """The same with 1.0 where a file or a program says 1 for a real number: both are one experiment."""
    real: dict[str, Any] = {}
    for name, hint in get_type_hints(RunSpec).items():
        value = getattr(spec, name)
        if type(value) is int and float in getattr(hint, "__args__", (hint,)):
            real[name] = float(value)
    return replace(spec, **real)


def on_its_data(spec: RunSpec) -> RunSpec:
    """The specification with the digest of its data, where a folder is the data set; this reads the whole folder."""
    return replace(spec, data_sha256=content_digest(spec.data_spec))


def _known(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's options that this method has."""
    known = registry.options(method)
    return {name: value for name, value in options.items() if name in known}


def _usual_refused_share(spec: RunSpec) -> float:
    """The share of a round's uploads that a run does without before it stops, unless told otherwise."""
    # An error that depends on the records would be a release of its own; elsewhere a table must not quietly lose one.
    return 0.0 if spec.privacy is None else REFUSED_SHARE


def prepare(spec: RunSpec) -> Simulation:
    """The simulation that a resolved specification describes, its data loaded and its workers started."""
    assert spec.rounds is not None
    assert spec.batch_size is not None
    _check_device(spec.device, spec.jobs)
    if spec.batch_size < 1:
        raise InputError(f"a batch needs at least one record: {spec.batch_size}")
    course = Course(
        rounds=spec.rounds,
        seed=spec.seed,
        participation=spec.participation,
        judge=_chosen(Judge, "judge", spec.judge),
        initialisation=_chosen(Initialisation, "initialisation", spec.initialisation),
        stop_at_accuracy=spec.stop_at_accuracy,
        codec=spec.codec,
        jobs=spec.jobs,
        threads=spec.threads,
        refused_share=_usual_refused_share(spec) if spec.refused_share is None else spec.refused_share,
        decay=_chosen(Decay, "decay", spec.decay or Decay.NONE),
    )
    # Workers are forked, and whoever is forked from a process that has used its threads waits for them for ever.
    torch.set_num_threads(spec.threads if spec.jobs == 1 else 1)
    settings = Settings(
        spec.batch_size,
        spec.device,
        moments=_chosen(Moments, "moments", spec.moments or Moments.EPOCH),
        weight_decay=spec.weight_decay or 0.0,
    )
    engine = Engine(settings, _chosen(Choice, "backend", spec.backend))
    federation = load_federation(spec.data_spec)
    bodies = bodies_of(spec, federation)
    plan = model_plan(federation, bodies)
    algorithm = method_of(spec, plan)
    guard = private.protection_of(spec, algorithm, plan, len(bodies))
    if guard is not None:
        engine = replace(engine, training=guard.training)
    secure = private.secure_sums(spec, guard, len(bodies))
    limits = private.limits_of(spec)
    return Simulation(algorithm, federation, bodies, plan, engine, course, guard, secure, limits)


def method_of(spec: RunSpec, plan: ModelPlan) -> Algorithm:
    """The method, told its options; one that would train backwards or not at all is refused."""
    algorithm = registry.build(spec.method, plan, spec.options)
    schedule = algorithm.schedule
    for phase in (*(phase for exchange in schedule.round for phase in exchange.phases), *schedule.closing):
        if phase.epochs < 1:
            raise InputError(f"method {spec.method}: a phase needs at least one epoch: {phase.epochs}")
        if not 0 < phase.learning_rate < inf:
            raise InputError(f"method {spec.method}: the learning rate must be positive: {phase.learning_rate}")
    return private.with_body_training(algorithm, spec)


def bodies_of(spec: RunSpec, federation: Federation) -> list[Body]:
    """Each client's body: the one given, or several dealt out evenly and at random."""
    clip = "" if spec.clip is None else f"@{spec.clip}"
    made = [body(name + clip, federation.input_shape) for name in spec.body]
    if spec.body_file is not None:
        made = [with_weights(each, Path(spec.body_file)) for each in made]
    order = Key(spec.seed).child("bodies").numpy().permutation(len(federation.shards))
    turn = {int(client): at % len(made) for at, client in enumerate(order)}
    return [made[turn[client]] for client in range(len(federation.shards))]


def as_plain(spec: RunSpec) -> dict[str, Any]:
    """The specification as JSON values."""
    values = asdict(spec)
    values["body"] = list(spec.body)
    values["options"] = {name: _plain(value) for name, value in spec.options.items()}
    return values


def from_plain(values: Mapping[str, Any], where: str, start: RunSpec | None = None) -> RunSpec:
    """The specification in these values on top of `start`; an unknown name or a wrong type is refused, saying where."""
    known = get_type_hints(RunSpec)
    for name in values:
        if name not in known:
            hint = did_you_mean(name, known, f"it can hold {', '.join(sorted(known))}")
            raise InputError(f"{where}: unknown setting: {name}", hint=hint)
    given = {name: _checked(where, name, value, known[name]) for name, value in values.items()}
    return replace(start or RunSpec(), **given)


def from_toml(path: Path, start: RunSpec | None = None) -> RunSpec:
    """The specification in a TOML file, on top of `start`."""
    return from_plain(read_toml(path, "the configuration"), str(path), start)


def _checked(where: str, name: str, value: Any, hint: Any) -> Any:
    """The value, if it is of the setting's type; one body stands for a list of one."""
    if name == "body":
        listed = (value,) if isinstance(value, str) else value
        if not isinstance(listed, list | tuple) or not all(isinstance(each, str) for each in listed):
            raise InputError(f"{where}: body must be a name or a list of names: {value!r}")
        return tuple(listed)
    if name == "options":
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: options must be a table of names and values: {value!r}")
        return value
    wanted = getattr(hint, "__args__", (hint,))
    if value is None and type(None) in wanted:
        return None
    for kind in (int, float, str):
        if kind in wanted and (isinstance(value, bool) or not isinstance(value, _accepted(kind))):
            raise InputError(f"{where}: {name} must be of type {kind.__name__}: {value!r}")
    return value


def _accepted(kind: type) -> tuple[type, ...]:
    return (int, float) if kind is float else (kind,)


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _chosen(kind: Any, name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"unknown {name}: {value}", hint=f"one of {', '.join(k.value for k in kind)}") from None


def _check_device(device: str, jobs: int) -> None:
    try:
        float(torch.ones(1, device=device).sum())  # `meta` has tensors too, and computes nothing
    except (RuntimeError, AssertionError, ImportError) as error:
        raise InputError(f"device {device} cannot be used: {str(error).splitlines()[0]}", hint="use cpu") from error
    if device != "cpu" and jobs > 1:
        # An accelerator's context does not survive the fork that makes a worker.
        raise InputError(f"worker processes are for the CPU: {jobs} jobs on {device} asked for", hint="use --jobs 1")
