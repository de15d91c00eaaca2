"""A site in one run: its data, body and method, each made once and then used for every message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedlog.algorithms import registry
from fedlog.algorithms.shape import Algorithm
from fedlog.core.keys import Key
from fedlog.data.rows import BadRows
from fedlog.data.schema import Schema, load_schema
from fedlog.data.site import Preparation, Site, make_empty_site
from fedlog.engine.clients import Client, check_method_fits_labels
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.errors import InputError
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.protocol.frame import FrameError
from fedlog.flower.protocol.greeting import SiteProfile
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.protocol.run_privacy import describe_large_delta
from fedlog.flower.site.cap_checks import SPARE_ANSWERS, check_caps
from fedlog.flower.site.data import compute_body_digest, load_body, load_data
from fedlog.flower.site.run_state import RunState
from fedlog.flower.site.secure_sums import SiteSecureSums
from fedlog.models.body import Body
from fedlog.models.body_files import list_body_files
from fedlog.privacy.protection import Protection
from fedlog.settings.training import World
from fedlog.wire.transport import Transport


@dataclass(frozen=True)
class SiteContext:
    """A site in one run. Each part is made once, when it is first needed."""

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
        """The site's data, split and scaled; if single records are protected, each row is scaled by itself."""
        if self.plan.promise is None:
            return load_data(self.folder, self.config)
        try:
            if self.protects_records:
                return load_data(self.folder, self.config, Preparation.ALONE, BadRows.LEFT_OUT)
            return load_data(self.folder, self.config)
        except Exception as error:  # any error: a failed answer would tell the server something about the rows
            reason = error.message if isinstance(error, InputError) else f"{type(error).__name__} while reading"
            self.folder.log(
                "warning", run=self.plan.name, reason=f"this site sends the message of a site without rows: {reason}"
            )
            return make_empty_site(self.schema, self.config.name)

    @cached_property
    def protects_records(self) -> bool:
        """Whether single records are protected; then all sites have the same body and no run trains it."""
        return self.plan.promise is not None and self.plan.promise.needs_frozen_bodies

    @cached_property
    def profile(self) -> SiteProfile:
        """The facts about itself that the site tells the server; the digest is that of the body before any training."""
        key = Key(self.plan.seed).child("initial", "body")
        digest = compute_body_digest(self.body, key, self.schema.shape) if self.plan.needs_equal_bodies else None
        return SiteProfile(self.body.name, self.body.width, digest, self.closed_world)

    @cached_property
    def transport(self) -> Transport:
        """How this site's messages are encoded."""
        return replace(self.plan.transport, closed_world=self.closed_world)

    @cached_property
    def gets_own_broadcasts(self) -> bool:
        """Whether the server sends each site a broadcast made for that site."""
        return self.plan.transport.differs_by_client

    @property
    def closed_world(self) -> bool:
        """Whether this site receives only the head's rows of its classes: the run offers it, and the site chose it."""
        return self.plan.world is World.CLOSED and self.config.world == World.CLOSED

    @cached_property
    def protection(self) -> Protection | None:
        """The protection of the uploads; None in a run without privacy."""
        return self.plan.build_protection(self.schema.n_class, self.body.width)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The run's method."""
        return self.plan.build_algorithm(self.schema.n_class, self.body.width)

    @cached_property
    def plan_error(self) -> InputError | None:
        """The error if the site's caps or its target do not allow this plan; None if they do."""
        try:
            # The shape of the head does not matter here, so the body need not be loaded yet.
            algorithm = self.plan.build_algorithm(2, 2)
            check_caps(self.config.caps, self.plan, algorithm, self.config)
            check_method_fits_labels(algorithm, numbers=self.schema.number is not None)
        except InputError as error:
            return error
        return None

    @cached_property
    def most_answers(self) -> int | None:
        """The most different answers that the site gives in this run, from its cap of rounds; None without that cap."""
        rounds = self.config.caps.rounds
        return None if rounds is None else rounds * len(self.algorithm.schedule.round) + SPARE_ANSWERS

    @cached_property
    def local_only_method(self) -> Algorithm:
        """The method of training alone, with the run's epochs and learning rate."""
        options = {n: getattr(self.algorithm, n) for n in registry.list_options("local") if hasattr(self.algorithm, n)}
        return registry.make_method("local", self.plan.model_plan(self.schema.n_class, self.body.width), options)

    @cached_property
    def cohort(self) -> Cohort:
        """The cohort of this one site, in the state that the last message left it in."""
        return self.make_cohort(self.algorithm, self.protection)

    def restart_cohort(self) -> None:
        """Put the cohort back to the start of the run."""
        self.__dict__.pop("cohort", None)

    def make_cohort(self, algorithm: Algorithm, protection: Protection | None) -> Cohort:
        """Return the cohort of this one site at the start of a run."""
        federation = self.data.federation
        shard = self.data.shard
        # Also if there is no training record: an error would tell the server so.
        clients = [Client(0, shard.name, self.body, shard.train, (shard.test,), (shard.validation,))]
        engine = Engine(Settings(self.plan.batch_size, optimiser=self.plan.optimiser))
        return Cohort(
            algorithm, federation, clients, engine, Key(self.plan.seed), self.transport, protection=protection
        )

    def make_secure_sums(self, state: RunState) -> SiteSecureSums:
        """Return this site's side of the run's secure sums; raise FrameError in a run without secure sums."""
        if self.plan.secure is None:
            raise FrameError("expected a request of a run without secure sums, found a step of a secure sum")
        return SiteSecureSums(self.folder, self.plan.secure, self.protection, state)

    def log_warnings(self) -> None:
        """Log warnings for the person at the site, before the first upload; the server does not get them."""
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
