"""Make the simulation of a resolved run: load the data, make the bodies, and build the method and the engine."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

import torch

from fedlog.algorithms import registry
from fedlog.algorithms.interface import Algorithm, ModelPlan
from fedlog.core.keys import Key
from fedlog.data.catalog import load_federation
from fedlog.data.federation import Federation
from fedlog.engine.clients import make_model_plan
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine, read_decisions
from fedlog.engine.training.tasks import Settings
from fedlog.errors import InputError, get_first_line_of_error
from fedlog.experiments.run.privacy import make_run_protection, make_secure_sums
from fedlog.models.body import Body, load_weights
from fedlog.models.catalog import make_body
from fedlog.models.encoders.cache import Progress
from fedlog.models.encoders.federation import encode_federation
from fedlog.privacy.release_log import ReleaseRecorder
from fedlog.settings.execution import Execution
from fedlog.settings.promise import apply_body_training, check_uploads_may_be_hidden, make_upload_limits
from fedlog.settings.resolve import ResolvedRun
from fedlog.settings.spec import RunSpec


def make_simulation(
    run: ResolvedRun,
    federation: Federation | None = None,
    progress: Progress | None = None,
    backends: Mapping[str, str] | None = None,
    releases: ReleaseRecorder | None = None,
) -> Simulation:
    """Make the simulation of a run, without starting it; if `federation` is None, load the data that the run names.

    `progress` is called while a frozen encoder computes features of new records. For a resumed run,
    `backends` has the name of the backend that trained each body before, by the body's name. `releases` records the
    releases of a private run, by default in memory.
    """
    spec, settings = run.spec, run.settings
    _check_device(settings.execution)
    # Workers are forked, and a process forked after PyTorch has used its threads waits for them for ever.
    torch.set_num_threads(settings.execution.threads if settings.execution.jobs == 1 else 1)
    federation = encode_federation(federation or load_federation(run.data), spec.body[0], progress)
    bodies = make_bodies(spec, federation)
    plan = make_model_plan(federation, bodies)
    algorithm = build_method(spec, plan)
    protection = make_run_protection(run, algorithm, plan, len(bodies))
    training = Settings(settings.batch_size, settings.execution.device, optimiser=settings.optimiser)
    engine = Engine(
        training,
        settings.execution.backend,
        dp_sgd=None if protection is None else protection.training,
        decisions=read_decisions(backends or {}),
    )
    sums = make_secure_sums(run, protection, len(bodies))
    limits, releases = make_upload_limits(spec.clip, algorithm), releases or ReleaseRecorder()
    return Simulation(algorithm, federation, bodies, plan, engine, settings, protection, sums, limits, releases)


def build_method(spec: RunSpec, plan: ModelPlan) -> Algorithm:
    """Make the run's method with its options; refuse epochs below 1 and learning rates that are not positive."""
    algorithm = registry.make_method(spec.method, plan, spec.options)
    schedule = algorithm.schedule
    for phase in (*(phase for exchange in schedule.round for phase in exchange.phases), *schedule.closing):
        if phase.epochs < 1:
            raise InputError(
                f"method {spec.method}: the number of epochs must be at least 1, found: {phase.epochs}",
                hint="--set epochs=1",
            )
        if not 0 < phase.learning_rate < inf:
            raise InputError(
                f"method {spec.method}: the learning rate must be positive, found: {phase.learning_rate}",
                hint="--set learning_rate=0.001",
            )
    check_uploads_may_be_hidden(algorithm, secure=spec.aggregation is not None)
    return apply_body_training(algorithm, spec.method, spec.body_training)


def make_bodies(spec: RunSpec, federation: Federation) -> list[Body]:
    """Make each client's body: the one given for it (`north=cnn`), or one of those given without a client's name.

    Several bodies without a client's name are assigned to about equally many clients each.
    """
    own = dict(name.split("=", 1) for name in spec.body if "=" in name)
    common = [name for name in spec.body if "=" not in name]
    if own:
        _check_own_bodies(own, common, federation.clients)
        names = [own[client] if client in own else common[0] for client in federation.clients]
    else:
        order = Key(spec.seed).child("bodies").numpy().permutation(len(federation.shards))
        turn = {int(client): at % len(common) for at, client in enumerate(order)}
        names = [common[turn[client]] for client in range(len(federation.shards))]
    clip = "" if spec.clip is None else f"@{spec.clip}"
    made = {name: make_body(name + clip, federation.input_shape) for name in dict.fromkeys((*common, *own.values()))}
    if spec.body_file is not None:
        made = {name: load_weights(each, Path(spec.body_file)) for name, each in made.items()}
    return [made[name] for name in names]


def _check_own_bodies(own: Mapping[str, str], common: Sequence[str], clients: Sequence[str]) -> None:
    """Check the bodies of a run in which some clients have a body of their own (`own`, from `north=cnn`).

    Refuse unknown clients, clients without a body, and more than one body for all other clients (`common`).
    """
    hint = f"--body CLIENT=NAME for each of {', '.join(clients[:10])}"
    if len(common) > 1:
        raise InputError(
            "--body: if some clients have a body of their own (CLIENT=NAME), all others must share one body, found: "
            f"{', '.join(common)}",
            hint=hint,
        )
    if unknown := [name for name in own if name not in clients]:
        raise InputError(f"--body is given for clients that do not exist: {', '.join(unknown)}", hint=hint)
    missing = [name for name in clients if name not in own]
    if missing and not common:
        raise InputError(f"--body is missing for clients: {', '.join(missing)}", hint=hint)


def _explain_unusable_device(device: str, error: Exception) -> str:
    """Return in a few words why PyTorch cannot use a device; PyTorch's own message is short only for graphics cards."""
    kind = device.partition(":")[0]
    if kind == "meta":
        return "its tensors hold no numbers"
    return (
        get_first_line_of_error(error).split(". ")[0] if kind in ("cuda", "xpu") else "PyTorch has no such device here"
    )


def _check_device(execution: Execution) -> None:
    """Refuse a device that PyTorch cannot use, and several worker processes on another device than the CPU."""
    device, jobs = execution.device, execution.jobs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says what is wrong with an old kind of device
            float(torch.ones(1, device=device).sum())  # `meta` has tensors too, and computes nothing
    except (RuntimeError, AssertionError, ImportError) as error:
        raise InputError(
            f"device {device} cannot be used: {_explain_unusable_device(device, error)}", hint="--device cpu"
        ) from error
    if device.startswith("cpu:"):
        raise InputError(f"device {device} cannot be used: the CPU is given without a number", hint="--device cpu")
    if device != "cpu" and jobs > 1:
        # An accelerator's context does not survive the fork that makes a worker.
        raise InputError(
            f"only the CPU can run several worker processes, found: {jobs} jobs on {device}", hint="use --jobs 1"
        )
