"""The end of a run at a site: evaluate the federated and the local-only model, keep one, and report to the server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fedlog import __version__
from fedlog.algorithms.interface import Algorithm
from fedlog.core.classification import Metrics, compute_metrics
from fedlog.core.heads.regression import NumberMetrics, compute_number_metrics
from fedlog.core.keys import Key
from fedlog.data.schema import compute_half_width
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.training.tasks import RecordPool, set_learning_rates
from fedlog.files.json_text import write_json
from fedlog.flower.protocol.frame import Frame, SendableError
from fedlog.flower.site.context import SiteContext
from fedlog.flower.site.run_state import RunState
from fedlog.models.body import Params, find_number_head
from fedlog.models.model import UNSEEN, Model
from fedlog.models.model_folder import save_model
from fedlog.settings.promise import Promise
from fedlog.wire.codec import find_codec
from fedlog.wire.message import make_contribution

ONLY_CLIENT = (0,)  # a site's cohort has one client


@dataclass(frozen=True, eq=False)
class ScoredModel:
    """A model's parameters, and its accuracy (or error) on validation and test rows."""

    params: Params
    validation: Metrics | NumberMetrics
    test: Metrics | NumberMetrics

    @property
    def validation_score(self) -> float:
        """The score on validation rows (higher is better): the accuracy, or in a regression minus the error."""
        if isinstance(self.validation, NumberMetrics):
            return -(math.inf if self.validation.rmse is None else self.validation.rmse)
        return self.validation.accuracy or 0.0


def finish_run(request: Frame, context: SiteContext, state: RunState, cohort: Cohort) -> bytes:
    """Save the federated or the local-only model, whichever is better on the validation rows, and return the report.

    The cohort has received the last broadcast. If single records are protected, the federated model is always kept, in
    the form that a site without rows would have (see `_make_shared_model`). Models that saw the records without noise
    are saved in folders of their own: `RUN.local-only`, and `RUN.personal` if the method made a model for this site (a
    head of its own, the head that it chose, or a head for its classes only).
    """
    personal = _make_personal_model(cohort, context.algorithm)
    federated = _make_shared_model(context, cohort) if context.protects_records else personal
    rounds = min(request.round_number - 1, context.plan.rounds)
    models = {
        "federated": _score_model(context, federated),
        "local-only": _score_model(context, _train_local_only_model(context, rounds)),
    }
    if any(not torch.equal(personal[name], value) for name, value in federated.items()):
        models["personal"] = _score_model(context, personal)
    # A tie keeps the federated model; test rows decide nothing. If records are protected, nothing is chosen: the
    # local-only model saw them without noise, and the choice itself would tell something about them.
    kept = "federated" if context.protects_records else max(models, key=lambda name: models[name].validation_score)
    folder = context.folder.models / context.plan.name
    _save_model(context, folder, kept, models)
    unprotected = [name for name in models if name != kept] if context.protects_records else []
    beside = {name: folder.with_name(f"{folder.name}.{name}") for name in unprotected}
    for name, place in beside.items():
        _save_model(context, place, name, models)
    figures = {name: {"validation": asdict(m.validation), "test": asdict(m.test)} for name, m in models.items()}
    moved = {} if context.protection is None else {"head_moved": state.has_head_changed(request.payload)}
    unseen = _find_unseen_classes(context)
    write_json(folder / "report.json", {"kept": kept, **moved, UNSEEN: unseen, **figures})
    report = json.dumps(_make_report(context, kept, models)).encode()
    state.save_step((request.round_number, request.exchange), request.payload, report, cohort.save)
    context.folder.log(
        "finished",
        run=context.plan.name,
        model=str(folder),
        kept=kept,
        **_make_metric_fields("test_{}", models[kept]),
        **_make_metric_fields("local_only_test_{}", models["local-only"]),
        **moved,
        test_records=models[kept].test.records,
        **({UNSEEN: len(unseen)} if unseen else {}),  # only their number: a log names no label
        **({"unprotected_model": ", ".join(map(str, beside.values()))} if beside else {}),
    )
    return report


def _find_unseen_classes(context: SiteContext) -> list[str]:
    """Return the schema's classes that do not occur in this site's training rows."""
    if context.schema.target_range is not None:
        return []
    federation, shard = context.data.federation, context.data.shard
    seen = set(federation.train.labels[shard.train].tolist())
    return [name for at, name in enumerate(context.schema.label_values) if at not in seen]


def _make_report(
    context: SiteContext, kept: str, models: Mapping[str, ScoredModel]
) -> dict[str, str | int | float | None]:
    """Make the report for the server: the body's name and, unless the run hides results, the test accuracies."""
    if context.plan.hides_site_results:
        return {"body": context.body.name}
    return {
        "body": context.body.name,
        "kept": kept,
        "test_records": models[kept].test.records,
        **_make_metric_fields("{}", models[kept]),
        **_make_metric_fields("federated_{}", models["federated"]),
        **_make_metric_fields("local_only_{}", models["local-only"]),
    }


def _make_metric_fields(template: str, model: ScoredModel) -> dict[str, float | None]:
    """Return the model's test accuracy as a field named by the template: `federated_{}` gives `federated_accuracy`.

    In a regression, accuracy is the share of rows inside the predicted intervals, and `rmse` is returned as well.
    """
    if isinstance(model.test, NumberMetrics):
        return {template.format("accuracy"): model.test.inside, template.format("rmse"): model.test.rmse}
    return {template.format("accuracy"): model.test.accuracy}


def _save_model(context: SiteContext, folder: Path, name: str, models: Mapping[str, ScoredModel]) -> None:
    """Save the model `models[name]` in the folder, with a note on its origin and on how it is protected."""
    provenance: dict[str, object] = {
        "fedlog": __version__,
        "site": context.config.name,
        "run": context.plan.as_json(),
        "kept": name,
    }
    if context.plan.promise is not None:
        provenance["privacy"] = _describe_protection(context.plan.promise, name, context.protects_records)
    if not context.protects_records:  # a figure about the records would leave with the model, and no budget counts it
        figure = "validation_accuracy" if context.schema.target_range is None else "validation_minus_rmse"
        provenance[figure] = {name: found.validation_score for name, found in models.items()}
        provenance[UNSEEN] = _find_unseen_classes(context)
    site, params = context.data, models[name].params
    save_model(folder, Model(context.body, params, context.schema, site.encoder, site.federation.transform, provenance))


def _describe_protection(promise: Promise, name: str, protects_records: bool) -> str:
    """Say in one sentence which part of a model from a private run is protected."""
    if name == "local-only":
        return "not protected: trained on this site's records without noise, by this site alone"
    if name == "personal":
        return "not protected: this site's records solved or chose its head, or its classes, without noise"
    promised = f"{promise.unit} privacy, epsilon {promise.epsilon:g} at delta {promise.delta:g}, {promise.trust} noise"
    if protects_records:
        return f"protected by the run's promise ({promised}): the body never saw the records, the head is from the run"
    return f"the head is protected by the run's promise ({promised}); the body is not: it was trained without noise"


def _score_model(context: SiteContext, params: Params) -> ScoredModel:
    """Evaluate the model with these parameters on the site's validation and test rows."""
    federation, shard, number = context.data.federation, context.data.shard, context.schema.target_range
    model = Model(context.body, params, context.schema, None, federation.transform, {})
    found: list[Metrics | NumberMetrics] = []
    for pool, positions in ((RecordPool.TRAIN, shard.validation), (RecordPool.TEST, shard.test)):
        records = pool.find_records(federation).at(positions)
        inputs = federation.transform.prepare(records.inputs)
        if number is None:
            found.append(compute_metrics(model.probabilities(inputs).double().numpy(), records.labels.numpy()))
        else:
            with torch.no_grad():
                features = context.body.compute_features(params, inputs, None)
            found.append(
                compute_number_metrics(
                    find_number_head(params), features, records.required_targets, compute_half_width(number)
                )
            )
    return ScoredModel(params, *found)


def _train_local_only_model(context: SiteContext, rounds: int) -> Params:
    """Return the site's local-only model, with the same body, epochs and number of rounds, but without other sites.

    In a private run, training that diverges raises no error, because an error would reveal something about the rows.
    """
    if context.schema.target_range is not None:
        return _solve_local_only_model(context)
    cohort = context.make_cohort(context.local_only_method, context.protection)
    for number in range(1, rounds + 1):
        for exchange in context.local_only_method.schedule.round:
            now = set_learning_rates(exchange, context.plan.optimiser, number, context.plan.rounds)
            cohort.make_encoded_uploads(number, now, ONLY_CLIENT)
    return _make_personal_model(cohort, context.local_only_method)


def _solve_local_only_model(context: SiteContext) -> Params:
    """Return the local-only model of a regression, whose head is solved from this site's training rows alone.

    A site without training rows gets the head with which the method starts.
    """
    cohort, algorithm = context.make_cohort(context.algorithm, None), context.algorithm
    cohort.receive_broadcast(find_codec(context.plan.codec).encode(algorithm.broadcast(algorithm.begin(Key(0)))))
    (exchange,) = algorithm.schedule.round
    ((_, message),) = cohort.make_uploads(1, exchange, ONLY_CLIENT)
    if message is None:
        raise SendableError(f"expected a method in which sites send uploads, found: {algorithm.name}")
    server = algorithm.step(exchange.name, algorithm.begin(Key(0)), make_contribution(message))
    cohort.receive_broadcast(find_codec(context.plan.codec).encode(algorithm.broadcast(server)))
    return _make_personal_model(cohort, algorithm)


def _make_shared_model(context: SiteContext, cohort: Cohort) -> Params:
    """Return the model that a site without rows would have: the untrained body, and the last head as it was sent."""
    untrained = context.make_cohort(context.algorithm, None).store.homes[0]
    params = context.algorithm.deploy(untrained, cohort.store.get_received_params(0))
    return {name: value.contiguous().clone() for name, value in params.items()}


def _make_personal_model(cohort: Cohort, algorithm: Algorithm) -> Params:
    ((_, params),) = cohort.make_personal_models(algorithm.schedule.closing, ONLY_CLIENT)
    return {name: value.contiguous().clone() for name, value in params.items()}
