"""A site in one run: its data, body and method, each made once and then used for every message, and its caps.

Caps apply to what really reaches the server, whatever the plan calls it. Noise with a very large epsilon hides nothing,
so it does not count as noise. If the server asks for a step again with another head, that counts as another step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedlog.algorithms import registry
from fedlog.algorithms.interface import Algorithm, Phase
from fedlog.core.keys import Key
from fedlog.data.rows import BadRowPolicy
from fedlog.data.schema import Schema, load_schema
from fedlog.data.site import RowPreparation, Site, make_empty_site
from fedlog.engine.clients import Client, check_method_fits_labels
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.errors import InputError
from fedlog.flower.folders.site_folder import AcceptedRuns, RunCaps, SiteConfig, SiteFolder
from fedlog.flower.protocol.frame import SendableError, make_run_tag
from fedlog.flower.protocol.greeting import SiteProfile
from fedlog.flower.protocol.plan import Plan, describe_large_delta
from fedlog.flower.site.data import compute_body_digest, load_body, load_data
from fedlog.flower.site.run_state import RunState
from fedlog.flower.site.secure_sums import SiteSecureSums
from fedlog.models.body import Body
from fedlog.models.body_files import list_body_files
from fedlog.models.encoders.names import is_encoder
from fedlog.models.frozen import FROZEN
from fedlog.privacy.guarantee import Trust
from fedlog.privacy.protection import Protection
from fedlog.settings.training import HeadRows

DAY_SECONDS = 86400.0
# Epochs times the learning rate before the first upload: with less, a body is nearly as its seed made it.
LEAST_TRAINING = 1e-4
WEAKEST_EPSILON = 50.0  # with a larger epsilon the noise hides nothing
# More answers than the rounds have steps: for the opening, the end, and steps that are asked again after a crash.
SPARE_ANSWERS = 10


@dataclass(frozen=True)
class SiteContext:
    """The data, body and method with which a site takes part in one run. Each is made when it is first needed."""

    folder: SiteFolder
    config: SiteConfig
    plan: Plan

    @cached_property
    def schema(self) -> Schema:
        """The schema on which all sites agreed."""
        return load_schema(self.folder.schema_file)

    @cached_property
    def body(self) -> Body:
        """The body that this site chose."""
        return load_body(self.config, self.schema.shape, self.plan.feature_clip)

    @cached_property
    def body_files(self) -> list[Path]:
        """The files that the body is read from."""
        return list_body_files(self.config.body or "")

    @cached_property
    def data(self) -> Site:
        """The site's data, split and scaled; if single records are protected, each row is scaled by itself.

        In a private run, data that cannot be read give a site without rows, and a warning in the site's log.
        """
        if self.plan.promise is None:
            return load_data(self.folder, self.config)
        try:
            if self.protects_records:
                return load_data(self.folder, self.config, RowPreparation.ALONE, BadRowPolicy.LEFT_OUT)
            return load_data(self.folder, self.config)
        except Exception as error:  # any error: a failed answer would tell the server something about the rows
            reason = error.message if isinstance(error, InputError) else f"{type(error).__name__} while reading"
            self.folder.log(
                "warning", run=self.plan.name, reason=f"this site sends the message of a site without rows: {reason}"
            )
            return make_empty_site(self.schema, self.config.name)

    @cached_property
    def data_digest(self) -> str:
        """A digest of the site's data, and of the choice of rows that are held out."""
        return self.data.federation.content_digest()

    @cached_property
    def protects_records(self) -> bool:
        """Whether the run protects single records; all sites then have the same body, and no run trains it."""
        return self.plan.promise is not None and self.plan.promise.needs_frozen_bodies

    @cached_property
    def profile(self) -> SiteProfile:
        """What the site tells the server about itself: its body, the number of features, and `closed_world`.

        If all sites must have the same body, the profile also has the body's digest.
        """
        key = Key(self.plan.seed).child("initial", "body")
        digest = compute_body_digest(self.body, key, self.schema.shape) if self.plan.needs_equal_bodies else None
        return SiteProfile(self.body.name, self.body.width, digest, self.closed_world)

    @cached_property
    def gets_own_broadcasts(self) -> bool:
        """Whether the server makes a separate broadcast for each site."""
        return self.plan.transport.broadcasts_differ_by_client

    @property
    def closed_world(self) -> bool:
        """Whether this site gets only the part of the head for its own classes; run and site must both ask for this."""
        return self.plan.world is HeadRows.CLOSED and self.config.world == HeadRows.CLOSED

    @cached_property
    def protection(self) -> Protection | None:
        """The clipping and the noise that protect the uploads; None in a run without privacy."""
        return self.plan.build_protection(self.schema.n_class, self.body.width)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The run's method, for the site's number of classes and features."""
        return self.plan.build_algorithm(self.schema.n_class, self.body.width)

    @cached_property
    def plan_error(self) -> InputError | None:
        """The error if the plan exceeds the site's caps, or if the method does not fit the labels; else None."""
        try:
            # The shape of the head does not matter here, so the body need not be loaded yet.
            algorithm = self.plan.build_algorithm(2, 2)
            check_caps(self.config.caps, self.plan, algorithm, self.config)
            check_method_fits_labels(algorithm, numbers=self.schema.target_range is not None)
        except InputError as error:
            return error
        return None

    @cached_property
    def max_answers_per_run(self) -> int | None:
        """The most answers that the site gives in a run, computed from its cap on rounds; None without that cap."""
        rounds = self.config.caps.rounds
        return None if rounds is None else rounds * len(self.algorithm.schedule.round) + SPARE_ANSWERS

    @cached_property
    def local_only_method(self) -> Algorithm:
        """The method `local` (training without other sites), with the run's epochs and learning rate."""
        options = {n: getattr(self.algorithm, n) for n in registry.list_options("local") if hasattr(self.algorithm, n)}
        return registry.make_method("local", self.plan.make_model_plan(self.schema.n_class, self.body.width), options)

    @cached_property
    def cohort(self) -> Cohort:
        """The engine's object for this site, a cohort of one client, in the state after the last message."""
        return self.make_cohort(self.algorithm, self.protection)

    def restart_cohort(self) -> None:
        """Reset the site's cohort to its state at the start of the run."""
        self.__dict__.pop("cohort", None)

    def make_cohort(self, algorithm: Algorithm, protection: Protection | None) -> Cohort:
        """Make the engine's object for this site, a cohort of one client, in the state at the start of a run."""
        federation = self.data.federation
        shard = self.data.shard
        # Also if there is no training record: an error would tell the server so.
        clients = [Client(0, shard.name, self.body, shard.train, (shard.test,), (shard.validation,))]
        engine = Engine(Settings(self.plan.batch_size, optimiser=self.plan.optimiser))
        transport = replace(self.plan.transport, closed_world=self.closed_world)
        return Cohort(algorithm, federation, clients, engine, Key(self.plan.seed), transport, protection=protection)

    def make_secure_sums(self, state: RunState) -> SiteSecureSums:
        """Make this site's side of the run's secure sums; raise SendableError if the run has no secure sums."""
        if self.plan.secure is None:
            raise SendableError(f"found a step of a secure sum in run {self.plan.name}, which has no secure sums")
        return SiteSecureSums(self.folder, self.plan.secure, self.protection, state)

    def log_warnings(self) -> None:
        """Log warnings about the site's data for the person at the site; the server does not receive them."""
        shard = self.data.shard
        reasons: list[str | None] = []
        if self.protects_records:
            reasons = [
                describe_large_delta(self.plan.promise, len(shard.train), 1),
                self.data.left_out,
                self.data.warning,
            ]
        parts = {"training": shard.train, "validation": shard.validation, "test": shard.test}
        reasons += [f"there are no {name} records" for name, rows in parts.items() if len(rows) == 0]
        for reason in filter(None, reasons):
            self.folder.log("warning", run=self.plan.name, reason=reason)


def check_caps(caps: RunCaps, plan: Plan, algorithm: Algorithm, config: SiteConfig) -> None:
    """Raise InputError if the plan asks for more than the site's caps allow."""
    if caps.rounds is not None and plan.rounds > caps.rounds:
        raise InputError(
            f"this site allows {caps.rounds} rounds a run, found: {plan.rounds}",
            hint=_suggest_changes("fewer rounds", f"--rounds {plan.rounds}"),
        )
    phases = [phase for exchange in algorithm.schedule.round for phase in exchange.phases]
    epochs = sum(phase.epochs for phase in (*phases, *algorithm.schedule.closing))
    if caps.epochs is not None and epochs > caps.epochs:
        raise InputError(
            f"this site allows {caps.epochs} epochs a round, found: {epochs}",
            hint=_suggest_changes("fewer epochs", f"--epochs {epochs}"),
        )
    local = _has_useful_epsilon(plan) and plan.promise is not None and plan.promise.trust is Trust.LOCAL
    if caps.only is AcceptedRuns.SECURE and plan.secure is None and not local:
        raise InputError(
            "this site takes part only in runs with a secure sum or with local noise",
            hint=_suggest_changes("--aggregation secure, or with --trust local", "--remove only"),
        )
    if caps.only is AcceptedRuns.PRIVATE and not _has_useful_epsilon(plan):
        raise InputError(
            f"this site takes part in private runs only (epsilon {WEAKEST_EPSILON:g} or less), found: "
            f"{'no privacy' if plan.promise is None else f'epsilon {plan.promise.epsilon:g}'}",
            hint=_suggest_changes(f"--privacy and epsilon {WEAKEST_EPSILON:g} or less", "--remove only"),
        )
    first = algorithm.schedule.opening or algorithm.schedule.round[0]
    check_enough_training(caps, plan, first.phases, config)


def check_enough_training(caps: RunCaps, plan: Plan, phases: Iterable[Phase], config: SiteConfig) -> None:
    """Raise InputError if the training before the first upload changes the body too little to hide single rows.

    This is checked for the plan, and again for the request that really comes first: the learning rate may fall during
    a run, and a server may ask for the last round first.
    """
    hides = plan.secure is not None or _has_useful_epsilon(plan)
    if hides or caps.untrained or _has_fixed_body(config):
        return
    if sum(phase.epochs * phase.learning_rate for phase in phases) < LEAST_TRAINING:
        raise InputError(
            "this plan trains the body too little before it sends exact statistics: the server knows the untrained "
            "body from its seed, and could trace the statistics back to rows",
            hint=_suggest_changes("more training, secure sums or noise", "--remove untrained"),
        )


def _suggest_changes(of_plan: str, of_caps: str) -> str:
    """Return the hint for a refused plan: what the operator can change in the plan, or the site in its caps."""
    return f"start a run with {of_plan}; or allow it at this site: `fedlog federate caps DIR {of_caps}`"


def check_plain_runs(folder: SiteFolder, caps: RunCaps, plan: Plan) -> None:
    """Raise InputError if the site would begin more plain runs in 24 hours than its cap allows.

    A plain run shows the server (nearly) exact statistics of this site alone: no secure sum, no noise from the site.
    """
    own = RunState.of_run(folder, make_run_tag(plan.name)).plan_file
    if caps.plain_runs is None or not _shows_exact_statistics(plan.as_json()) or own.exists():
        return
    begun = 0
    for path in folder.state.glob("*/plan.json"):
        stored = json.loads(path.read_text())["plan"]
        recent = time.time() - path.stat().st_mtime < DAY_SECONDS
        begun += recent and _shows_exact_statistics(stored)
    if begun >= caps.plain_runs:
        raise InputError(
            f"this site begins at most {caps.plain_runs} plain runs in 24 hours (no secure sum, no noise from the "
            f"site), and has begun {begun}",
            hint=_suggest_changes("secure sums or local noise, or wait", f"--plain-runs {begun + 1}"),
        )


def _has_useful_epsilon(plan: Plan) -> bool:
    """Whether the plan promises an epsilon that is small enough to hide something."""
    return plan.promise is not None and plan.promise.epsilon <= WEAKEST_EPSILON


def _shows_exact_statistics(plan: dict[str, Any]) -> bool:
    """Whether this plan, given as JSON values, shows the server (nearly) exact statistics of each site."""
    promise = plan.get("promise")
    hides = promise is not None and promise["trust"] != Trust.CENTRAL and promise["epsilon"] <= WEAKEST_EPSILON
    return plan.get("secure") is None and not hides


def _has_fixed_body(config: SiteConfig) -> bool:
    """Whether the site chose a body that no run trains: a frozen body or an encoder."""
    body = config.body or ""
    return body.startswith(FROZEN) or is_encoder(body)
