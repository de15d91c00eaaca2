"""A site's part in a run: the engine's cohort with one client, taken up from its state and put back after a message."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file

from fedlog import __version__
from fedlog.algorithms import registry
from fedlog.algorithms.shape import Algorithm, Exchange
from fedlog.core.classification import Metrics, metrics
from fedlog.core.keys import Key
from fedlog.data.schema import Schema, load_schema
from fedlog.data.site import Scaling, Site
from fedlog.engine.backends import Engine
from fedlog.engine.clients import clients_of
from fedlog.engine.cohort import Cohort, Judge
from fedlog.engine.local_sgd import Pool, Settings
from fedlog.errors import InputError
from fedlog.flower.events import note
from fedlog.flower.folders import SiteConfig, SiteFolder, write_atomically
from fedlog.flower.frame import Frame, FrameError, FrameKind
from fedlog.flower.handshake import check_identity, identity, read_identity
from fedlog.flower.plan import Guest, Plan, read_hello, welcome
from fedlog.flower.promise import Limit, release, warning
from fedlog.flower.roster import read_roster
from fedlog.flower.secure_site import SumAtSite, opened
from fedlog.flower.site_data import load_body, load_data
from fedlog.flower.site_state import RunState, step_of
from fedlog.models.body import Body, Params
from fedlog.models.folder import SavedModel, save_model
from fedlog.privacy.guarantee import Unit
from fedlog.privacy.protection import Protection
from fedlog.wire.codec import codec

ONE = (0,)  # a site's cohort has one client


@dataclass(frozen=True)
class Workplace:
    """Everything a site needs for one message of a run; data are read only where they are needed."""

    folder: SiteFolder
    config: SiteConfig
    plan: Plan

    @cached_property
    def schema(self) -> Schema:
        """The agreed schema."""
        return load_schema(self.folder.schema_file)

    @cached_property
    def body(self) -> Body:
        """The site's own body."""
        promise = self.plan.promise
        return load_body(self.config, self.schema.shape, None if promise is None else promise.clip)

    @cached_property
    def site(self) -> Site:
        """The site's data, split and scaled; where single records are protected, by nothing that they can move."""
        promise = self.plan.promise
        scaling = Scaling.PUBLIC if promise is not None and promise.unit == Unit.RECORD else Scaling.OWN
        return load_data(self.folder, self.config, scaling)

    @cached_property
    def guard(self) -> Protection | None:
        """What protects the uploads."""
        return self.plan.protection(self.schema.n_class, self.body.width)

    def algorithm(self) -> Algorithm:
        """The run's method."""
        return self.plan.algorithm(self.schema.n_class, self.body.width)

    def local_only(self) -> Algorithm:
        """Training alone, with the run's epochs and learning rate."""
        own = self.algorithm()
        told = {name: getattr(own, name) for name in registry.options("local") if hasattr(own, name)}
        return registry.build("local", self.plan.model_plan(self.schema.n_class, self.body.width), told)

    def sum(self, state: RunState) -> SumAtSite:
        """This site in the secure sums of the run; a FrameError in a run that has none."""
        if self.plan.secure is None:
            raise FrameError("expected no secure sum in this run, found one of its steps")
        return SumAtSite(self.folder, self.plan, self.guard, state)

    def cohort(self, algorithm: Algorithm, guard: Protection | None = None) -> Cohort:
        """The cohort of this one site at the start of a run."""
        federation = self.site.federation
        clients = clients_of(federation, [self.body], algorithm)
        engine = Engine(Settings(self.plan.batch_size))
        return Cohort(
            algorithm, federation, clients, engine, codec(self.plan.codec), Key(self.plan.seed), protection=guard
        )


def respond(request: Frame, folder: SiteFolder) -> Frame:
    """The answer to a proper frame."""
    torch.set_num_threads(1)
    if request.kind is FrameKind.HELLO:
        return greeted(request, folder)
    if request.kind not in (FrameKind.WORK, FrameKind.FINISH, FrameKind.SECURE):
        raise FrameError(f"expected a request, found a frame of kind {request.kind.name}")
    state = RunState.of(folder, request.run)
    place = Workplace(folder, folder.read_config(), state.plan())
    if request.kind is FrameKind.SECURE:
        return request.answer(FrameKind.SECURED, place.sum(state).stepped(request))
    kind = FrameKind.UPLOAD if request.kind is FrameKind.WORK else FrameKind.REPORT
    step = (request.round_number, request.exchange)
    stored = state.answer(step, request.payload)
    if stored is not None:
        note(_log(folder), "answered again", run=place.plan.name, round=request.round_number, kind=kind.name)
        return request.answer(kind, stored)
    made = work(request, place, state) if request.kind is FrameKind.WORK else finish(request, place, state)
    return request.answer(kind, made)


def greeted(request: Frame, folder: SiteFolder) -> Frame:
    """WELCOME, after the plan of the run was taken in."""
    config = folder.read_config()
    ours = identity(load_schema(folder.schema_file).digest)
    check_identity(ours, read_identity(request.payload), "the server")
    plan = read_hello(request.payload)
    accept(plan, folder, config)
    body = Workplace(folder, config, plan).body
    guest = Guest(body.name, body.width)
    RunState.of(folder, request.run).agree(plan, guest)
    note(_log(folder), "welcome", run=plan.name, method=plan.method, rounds=plan.rounds, body=body.name)
    return request.answer(FrameKind.WELCOME, welcome(ours, guest))


def accept(plan: Plan, folder: SiteFolder, config: SiteConfig) -> None:
    """Nothing; a FrameError for a plan that promises less than this site asks for, or needs what it does not have."""
    try:
        if config.privacy is not None:
            Limit.read(config.privacy).check(plan.promise)
        if plan.secure is not None:
            read_roster(folder.path)
    except InputError as error:
        raise FrameError(error.message) from None


def work(request: Frame, place: Workplace, state: RunState) -> bytes:
    """The upload of one exchange; the state after it is kept before anything is sent."""
    start = time.perf_counter()
    algorithm = place.algorithm()
    exchange = _exchange(algorithm, request)
    cohort = place.cohort(algorithm, place.guard)
    loaded = time.perf_counter()
    if said := warning(place.plan.promise, len(place.site.shard.train), 1):
        note(_log(place.folder), "warning", run=place.plan.name, reason=said)
    step = (request.round_number, request.exchange)
    earlier = state.before(step)
    if earlier is not None:
        cohort.load([earlier])
    heard, answering = (request.payload, None)
    if place.plan.secure is not None:
        heard, answering = opened(request.payload, place.sum(state), step)
    cohort.hear(heard)
    # The model as the last round left it: the own body under the head that has just arrived.
    ((_, (score,)),) = cohort.evaluate(ONE, Judge.VALIDATION)
    if place.config.privacy is not None:
        # All runs together: another name for a run must not be a new budget.
        limit = Limit.read(place.config.privacy)
        release(place.folder.state, place.guard, request.round_number, exchange.name, limit.budget)
    release(state.path, place.guard, request.round_number, exchange.name)
    ((_, upload),) = cohort.exchange(request.round_number, exchange, ONE)
    if upload is None:
        raise FrameError(f"expected a method with uploads, found: {place.plan.method}")
    made = upload if answering is None else answering(upload)
    state.keep(step, request.payload, made, cohort.save)
    note(
        _log(place.folder),
        "worked",
        run=place.plan.name,
        round=request.round_number,
        of=place.plan.rounds,
        own_state_of_round=_round_of(earlier),
        validation_accuracy=score.correct / score.records,
        bits_up=8 * len(made),
        bits_down=8 * len(request.payload),
        load_seconds=round(loaded - start, 2),
        work_seconds=round(time.perf_counter() - loaded, 2),
    )
    return made


def finish(request: Frame, place: Workplace, state: RunState) -> bytes:
    """The site's report, after the model that is better on its validation rows was kept: the federated or its own."""
    algorithm = place.algorithm()
    cohort = place.cohort(algorithm)
    earlier = state.before((request.round_number, request.exchange))
    if earlier is not None:
        cohort.load([earlier])
    cohort.hear(request.payload)
    judged = {
        "federated": _judged(place, _deployed(cohort, algorithm, state, place.config.name)),
        "local-only": _judged(place, _trained_alone(place, state)),
    }
    # A tie keeps the federated model; test rows decide nothing.
    kept = max(judged, key=lambda name: judged[name].validation.accuracy or 0.0)
    folder = place.folder.models / place.plan.name
    provenance = {
        "fedlog": __version__,
        "site": place.config.name,
        "run": place.plan.as_plain(),
        "kept": kept,
        "validation_accuracy": {name: found.validation.accuracy for name, found in judged.items()},
    }
    site = place.site
    save_model(
        folder,
        SavedModel(place.body, judged[kept].params, place.schema, site.encoder, site.federation.transform, provenance),
    )
    full = {name: {"validation": asdict(f.validation), "test": asdict(f.test)} for name, f in judged.items()}
    write_atomically(folder / "report.json", json.dumps({"kept": kept, **full}, indent=1) + "\n")
    report: dict[str, str | int | float | None] = {
        "body": place.body.name,
        "kept": kept,
        "test_records": judged[kept].test.records,
        "accuracy": judged[kept].test.accuracy,
        "federated_accuracy": judged["federated"].test.accuracy,
        "local_only_accuracy": judged["local-only"].test.accuracy,
    }
    if place.plan.promise is not None:
        report = {"body": place.body.name}  # how well a site does, and on how many records, is information of its own
    answer = json.dumps(report).encode()
    state.keep((request.round_number, request.exchange), request.payload, answer, cohort.save)
    note(
        _log(place.folder),
        "finished",
        run=place.plan.name,
        model=str(folder),
        kept=kept,
        test_accuracy=judged[kept].test.accuracy,
        local_only_test_accuracy=judged["local-only"].test.accuracy,
    )
    return answer


@dataclass(frozen=True, eq=False)
class Judged:
    """A model with its figures."""

    params: Params
    validation: Metrics
    test: Metrics


def _judged(place: Workplace, params: Params) -> Judged:
    federation, shard = place.site.federation, place.site.shard
    found = []
    for pool, positions in ((Pool.TRAIN, shard.validation), (Pool.TEST, shard.test)):
        records = pool.records(federation).at(positions)
        model = SavedModel(place.body, params, place.schema, None, federation.transform, {})
        probabilities = model.probabilities(federation.transform.prepare(records.inputs))
        found.append(metrics(probabilities.double().numpy(), records.labels.numpy()))
    return Judged(params, *found)


def _trained_alone(place: Workplace, state: RunState) -> Params:
    """The site's local-only model: the same body, epochs and rounds, and nothing from anyone else."""
    algorithm = place.local_only()
    cohort = place.cohort(algorithm)
    for number in range(1, place.plan.rounds + 1):
        for exchange in algorithm.schedule.round:
            cohort.exchange(number, exchange, ONE)
    return _deployed(cohort, algorithm, state, place.config.name)


def _deployed(cohort: Cohort, algorithm: Algorithm, state: RunState, name: str) -> Params:
    """The personalised model, as the engine writes it."""
    state.path.mkdir(parents=True, exist_ok=True)
    cohort.save_models(algorithm.schedule.closing, ONE, state.path)
    path = state.path / f"{name}.safetensors"
    params = load_file(path)
    path.unlink()
    return params


def _round_of(state: Path | None) -> int | None:
    """The round that left this state; None for a body that has not been trained yet."""
    return None if state is None else step_of(state)[0]


def _exchange(algorithm: Algorithm, request: Frame) -> Exchange:
    if request.round_number == 0 and algorithm.schedule.opening is not None:
        return algorithm.schedule.opening
    if request.round_number == 0 or request.exchange >= len(algorithm.schedule.round):
        raise FrameError(
            f"expected an exchange of {algorithm.name}, found: round {request.round_number}, {request.exchange}"
        )
    return algorithm.schedule.round[request.exchange]


def _log(folder: SiteFolder) -> Path:
    return folder.logs / "events.jsonl"
