"""A site's part in a run: the engine's cohort with one client, taken up from its state and put back after a message."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from fedlog import __version__
from fedlog.algorithms.shape import Algorithm, Exchange
from fedlog.core.classification import Metrics, metrics
from fedlog.data.schema import load_schema
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.training.tasks import Pool
from fedlog.files.durable import write_file
from fedlog.flower.folders.event_log import log_event
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.frame import Frame, FrameError, FrameKind
from fedlog.flower.protocol.handshake import check_identity, identity, read_identity
from fedlog.flower.protocol.plan import read_hello, welcome
from fedlog.flower.site.budget import record_release_at_site, refuse_beyond_limit
from fedlog.flower.site.context import SiteContext, accept
from fedlog.flower.site.run_state import RunState, step_of
from fedlog.flower.site.secure_sum import open_sum
from fedlog.models.body import Params
from fedlog.models.folder import SavedModel, save_model
from fedlog.settings.training import Judge

ONE = (0,)  # a site's cohort has one client


def respond(request: Frame, folder: SiteFolder) -> Frame:
    """The answer to a proper frame."""
    torch.set_num_threads(1)
    if request.kind is FrameKind.HELLO:
        return greet(request, folder)
    if request.kind not in (FrameKind.WORK, FrameKind.FINISH, FrameKind.SECURE):
        raise FrameError(f"expected a request, found a frame of kind {request.kind.name}")
    state = RunState.of(folder, request.run)
    place = SiteContext(folder, folder.read_config(), state.plan())
    accept(place)  # not in the greeting alone: the site may have set or lowered its limit since then
    if place.by_record:
        state.check_body(place.guest)
    if request.kind is FrameKind.SECURE:
        return request.reply(FrameKind.SECURED, place.sum(state).answer_step(request))
    kind = FrameKind.UPLOAD if request.kind is FrameKind.WORK else FrameKind.REPORT
    step = (request.round_number, request.exchange)
    stored = state.answer(step, request.payload)
    if stored is not None:
        log_event(_log(folder), "answered again", run=place.plan.name, round=request.round_number, kind=kind.name)
        return request.reply(kind, stored)
    made = work(request, place, state) if request.kind is FrameKind.WORK else finish(request, place, state)
    return request.reply(kind, made)


def greet(request: Frame, folder: SiteFolder) -> Frame:
    """WELCOME, after the plan of the run was taken in."""
    config = folder.read_config()
    ours = identity(load_schema(folder.schema_file).digest)
    check_identity(ours, read_identity(request.payload), "the server")
    plan = read_hello(request.payload)
    place = SiteContext(folder, config, plan)
    accept(place)
    state = RunState.of(folder, request.run)
    if place.guard is not None:
        refuse_beyond_limit(folder, state.path, place.guard.release(1, plan.method))
    state.agree(plan, place.guest)
    log_event(_log(folder), "welcome", run=plan.name, method=plan.method, rounds=plan.rounds, body=place.body.name)
    return request.reply(FrameKind.WELCOME, welcome(ours, place.guest))


def work(request: Frame, place: SiteContext, state: RunState) -> bytes:
    """The upload of one exchange; the state after it is kept before anything is sent."""
    start = time.perf_counter()
    algorithm = place.algorithm()
    exchange = _exchange(algorithm, request)
    cohort = place.cohort(algorithm, place.guard)
    loaded = time.perf_counter()
    step = (request.round_number, request.exchange)
    earlier = state.before(step)
    if earlier is not None:
        cohort.load([earlier])
    else:
        place.warn()
    heard, answering = (request.payload, None)
    if place.plan.secure is not None:
        heard, answering = open_sum(request.payload, place.sum(state), step)
    cohort.hear(heard)
    # The model as the last round left it: the own body under the head that has just arrived.
    ((_, (score,)),) = cohort.evaluate(ONE, Judge.VALIDATION)
    if place.guard is not None:
        record_release_at_site(
            place.folder, state.path, place.guard, place.guard.release(request.round_number, exchange.name)
        )
    ((_, upload),) = cohort.exchange(request.round_number, exchange, ONE)
    if upload is None:
        raise FrameError(f"expected a method with uploads, found: {place.plan.method}")
    made = upload if answering is None else answering(upload)
    state.keep(step, request.payload, made, cohort.save)
    log_event(
        _log(place.folder),
        "worked",
        run=place.plan.name,
        round=request.round_number,
        of=place.plan.rounds,
        own_state_of_round=_round_of(earlier),
        validation_accuracy=score.correct / score.records if score.records else None,
        bits_up=8 * len(made),
        bits_down=8 * len(request.payload),
        load_seconds=round(loaded - start, 2),
        work_seconds=round(time.perf_counter() - loaded, 2),
    )
    return made


def finish(request: Frame, place: SiteContext, state: RunState) -> bytes:
    """The site's report, after the model that is better on its validation rows was kept: the federated or its own.

    Where records are protected the federated one is kept, and the other beside it, by a name that says what it is.
    """
    algorithm = place.algorithm()
    cohort = place.cohort(algorithm)
    earlier = state.before((request.round_number, request.exchange))
    if earlier is not None:
        cohort.load([earlier])
    cohort.hear(request.payload)
    judged = {
        "federated": _judged(place, _deployed(cohort, algorithm, state, place.config.name)),
        "local-only": _judged(place, _trained_alone(place, state, min(request.round_number - 1, place.plan.rounds))),
    }
    # A tie keeps the federated model; test rows decide nothing. Where records are protected the choice is no choice:
    # the local-only model saw them without noise, and which of the two is better tells of them too.
    kept = "federated" if place.by_record else max(judged, key=lambda name: judged[name].validation.accuracy or 0.0)
    folder = place.folder.models / place.plan.name
    _save(place, folder, kept, judged)
    beside = folder.with_name(f"{folder.name}.local-only") if place.by_record else None
    if beside is not None:
        _save(place, beside, "local-only", judged)
    full = {name: {"validation": asdict(f.validation), "test": asdict(f.test)} for name, f in judged.items()}
    write_file(folder / "report.json", json.dumps({"kept": kept, **full}, indent=1) + "\n")
    report: dict[str, str | int | float | None] = {
        "body": place.body.name,
        "kept": kept,
        "test_records": judged[kept].test.records,
        "accuracy": judged[kept].test.accuracy,
        "federated_accuracy": judged["federated"].test.accuracy,
        "local_only_accuracy": judged["local-only"].test.accuracy,
    }
    if place.plan.figures_stay:
        report = {"body": place.body.name}
    answer = json.dumps(report).encode()
    state.keep((request.round_number, request.exchange), request.payload, answer, cohort.save)
    log_event(
        _log(place.folder),
        "finished",
        run=place.plan.name,
        model=str(folder),
        kept=kept,
        test_accuracy=judged[kept].test.accuracy,
        local_only_test_accuracy=judged["local-only"].test.accuracy,
        **({} if beside is None else {"unprotected_model": str(beside)}),
    )
    return answer


def _save(place: SiteContext, folder: Path, name: str, judged: Mapping[str, ScoredModel]) -> None:
    """Nothing; the model is then in the folder, and says where it comes from and what of it is protected."""
    provenance: dict[str, object] = {
        "fedlog": __version__,
        "site": place.config.name,
        "run": place.plan.as_plain(),
        "kept": name,
    }
    if place.plan.promise is not None:
        provenance["privacy"] = _protected(place, name)
    if not place.by_record:  # else a figure about the records, which nobody counts, would go with the model
        provenance["validation_accuracy"] = {name: found.validation.accuracy for name, found in judged.items()}
    site, params = place.site, judged[name].params
    save_model(
        folder, SavedModel(place.body, params, place.schema, site.encoder, site.federation.transform, provenance)
    )


def _protected(place: SiteContext, name: str) -> str:
    """What of a model of a private run is protected, for whoever is handed it."""
    promise = place.plan.promise
    assert promise is not None
    if name == "local-only":
        return "not protected: trained on this site's records without noise, by this site alone"
    promised = f"{promise.unit} privacy, epsilon {promise.epsilon:g} at delta {promise.delta:g}, {promise.trust} noise"
    if place.by_record:
        return f"protected by the run's promise ({promised}): the body never saw the records, the head is from the run"
    return f"the head is protected by the run's promise ({promised}); the body is not: it was trained without noise"


@dataclass(frozen=True, eq=False)
class ScoredModel:
    """A model with its figures."""

    params: Params
    validation: Metrics
    test: Metrics


def _judged(place: SiteContext, params: Params) -> ScoredModel:
    federation, shard = place.site.federation, place.site.shard
    found = []
    for pool, positions in ((Pool.TRAIN, shard.validation), (Pool.TEST, shard.test)):
        records = pool.records(federation).at(positions)
        model = SavedModel(place.body, params, place.schema, None, federation.transform, {})
        probabilities = model.probabilities(federation.transform.prepare(records.inputs))
        found.append(metrics(probabilities.double().numpy(), records.labels.numpy()))
    return ScoredModel(params, *found)


def _trained_alone(place: SiteContext, state: RunState, rounds: int) -> Params:
    """The site's local-only model: the same body and epochs, the rounds that there were, nothing from anyone else.

    The guard is there for a training that diverges, which in a private run must not become an error.
    """
    algorithm = place.local_only()
    cohort = place.cohort(algorithm, place.guard)
    for number in range(1, rounds + 1):
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
