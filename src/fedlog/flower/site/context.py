"""A site in one run: its data, body and method, and the checks of a plan before the data are read.

A process that answers several messages keeps data, body and method in memory. They are made anew as soon as one of the
files they were made from has changed: the data, the body, the schema, the plan or the site's settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from fedlog.algorithms import registry
from fedlog.algorithms.shape import Algorithm, Exchange
from fedlog.core.keys import Key
from fedlog.data.rows import BadRows
from fedlog.data.schema import Schema, load_schema
from fedlog.data.site import Preparation, Site, empty_site, refuse_split_by_time
from fedlog.engine.clients import Client, check_target
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings, with_learning_rates
from fedlog.errors import InputError
from fedlog.flower.folders.folder import Value
from fedlog.flower.folders.roster import read_own_roster
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.protocol.frame import FrameError, as_refusal
from fedlog.flower.protocol.plan import Plan, SiteProfile
from fedlog.flower.protocol.promise import PrivacyRequirement, warn_of_delta
from fedlog.flower.site.caps import check_caps, count_allowed_answers
from fedlog.flower.site.data import body_digest, load_body, load_data, refuse_body_across_records, refuse_trained_body
from fedlog.flower.site.run_state import RunState
from fedlog.flower.site.secure_sum import SumAtSite
from fedlog.models.body import Body
from fedlog.models.named_files import list_files
from fedlog.privacy.protection import Protection
from fedlog.settings.training import World
from fedlog.wire.codec import WireError
from fedlog.wire.transport import Transport

# The number of runs for which a process keeps data and method; a site seldom takes part in more than one at once.
KEPT_RUNS = 4
_kept: dict[Path, tuple[str, SiteContext]] = {}


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
        return list_files(self.config.body or "")

    @cached_property
    def site(self) -> Site:
        """The site's data, split and scaled; if single records are protected, each row is scaled by itself."""
        if self.plan.promise is None:
            return load_data(self.folder, self.config)
        try:
            if self.by_record:
                return load_data(self.folder, self.config, Preparation.ALONE, BadRows.LEFT_OUT)
            return load_data(self.folder, self.config)
        except Exception as error:  # any error: a failed answer would tell the server something about the rows
            reason = error.message if isinstance(error, InputError) else f"{type(error).__name__} while reading"
            self.log("warning", reason=f"this site sends the message of a site without rows: {reason}")
            return empty_site(self.schema, self.config.name)

    @cached_property
    def by_record(self) -> bool:
        """Whether single records are protected; then all sites have the same body and no run trains it."""
        return self.plan.promise is not None and self.plan.promise.frozen

    @cached_property
    def profile(self) -> SiteProfile:
        """The facts about itself that the site tells the server; the digest is that of the body before any training."""
        key = Key(self.plan.seed).child("initial", "body")
        digest = body_digest(self.body, key, self.schema.shape) if self.plan.equal_bodies else None
        return SiteProfile(self.body.name, self.body.width, digest, self.closed_world)

    @cached_property
    def transport(self) -> Transport:
        """How this site's messages are encoded."""
        return replace(self.plan.transport, closed_world=self.closed_world)

    @cached_property
    def _gets_own_broadcasts(self) -> bool:
        """Whether the server sends each site a broadcast made for that site."""
        return self.plan.transport.differs_by_client

    @property
    def closed_world(self) -> bool:
        """Whether this site gets only the rows of its classes: the run offers it, and the site has chosen it."""
        return self.plan.world is World.CLOSED and self.config.world == World.CLOSED

    @cached_property
    def guard(self) -> Protection | None:
        """The protection of the uploads; None in a run without privacy."""
        return self.plan.protection(self.schema.n_class, self.body.width)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The run's method."""
        return self.plan.algorithm(self.schema.n_class, self.body.width)

    @cached_property
    def _plan_error(self) -> InputError | None:
        """The error if the site's caps or its target do not allow this plan; None if they do."""
        try:
            # The shape of the head does not matter here, so the body need not be loaded yet.
            algorithm = self.plan.algorithm(2, 2)
            check_caps(self.config.caps, self.plan, algorithm, self.config)
            check_target(algorithm, numbers=self.schema.number is not None)
        except InputError as error:
            return error
        return None

    @cached_property
    def most_answers(self) -> int | None:
        """How many different answers the site's caps allow in this run; None: any number."""
        return count_allowed_answers(self.config.caps, self.algorithm)

    @cached_property
    def local_only(self) -> Algorithm:
        """The method of training alone, with the run's epochs and learning rate."""
        options = {n: getattr(self.algorithm, n) for n in registry.options("local") if hasattr(self.algorithm, n)}
        return registry.build("local", self.plan.model_plan(self.schema.n_class, self.body.width), options)

    @cached_property
    def _cohort(self) -> Cohort:
        return self.new_cohort(self.algorithm, self.guard)

    def cohort_after(self, state: Path | None) -> Cohort:
        """Return this site's cohort with the state in this file; for None, as it is at the start of the run."""
        if state is None:
            self.__dict__.pop("_cohort", None)  # a new one is at the start of the run
        else:
            self._cohort.load([state])  # replaces all that a message changes, also if the last one failed halfway
        return self._cohort

    def new_cohort(self, algorithm: Algorithm, guard: Protection | None) -> Cohort:
        """Return the cohort of this one site at the start of a run."""
        federation = self.site.federation
        shard = self.site.shard
        # Also if there is no training record: an error would tell the server so.
        clients = [Client(0, shard.name, self.body, shard.train, (shard.test,), (shard.validation,))]
        engine = Engine(Settings(self.plan.batch_size, optimiser=self.plan.optimiser))
        transport = self.transport
        return Cohort(
            algorithm,
            federation,
            clients,
            engine,
            Key(self.plan.seed),
            transport,
            protection=guard,
        )

    def at_round(self, exchange: Exchange, number: int) -> Exchange:
        """Return the exchange with the learning rates of this round."""
        return with_learning_rates(exchange, self.plan.optimiser, number, self.plan.rounds)

    def hear(self, cohort: Cohort, broadcast: bytes, *, anew: bool = False) -> None:
        """Give a broadcast to the cohort; with `anew`, the cohort first forgets which messages it received and sent.

        Numbers that are not finite are refused here, before the answer is counted as a release.
        """
        if not self._gets_own_broadcasts:
            cohort.hear(broadcast)
        else:
            try:
                cohort.hear_own({0: broadcast}, (0,) if anew else ())
            except WireError as error:  # its message is about the server's bytes, so it may be sent
                raise FrameError(error.message) from None
        if not all(torch.isfinite(value).all() for value in cohort.store.heard_by(0).values()):
            raise FrameError("expected finite numbers in the broadcast, found NaN or infinity")

    def secure_sum(self, state: RunState) -> SumAtSite:
        """Return this site's side of the run's secure sums; raise FrameError in a run without secure sums."""
        if self.plan.secure is None:
            raise FrameError("expected a request of a run without secure sums, found a step of a secure sum")
        return SumAtSite(self.folder, self.plan.secure, self.guard, state)

    def warn(self) -> None:
        """Log warnings for the person at the site, before the first upload; the server does not get them."""
        shard = self.site.shard
        reasons: list[str | None] = []
        if self.by_record:
            reasons = [warn_of_delta(self.plan.promise, len(shard.train), 1), self.site.left_out, self.site.warning]
        parts = {"training": shard.train, "validation": shard.validation, "test": shard.test}
        reasons += [f"there are no {name} records" for name, rows in parts.items() if len(rows) == 0]
        for reason in filter(None, reasons):
            self.log("warning", reason=reason)

    def log(self, event: str, **fields: Value) -> None:
        """Append an event of this run to the site's log."""
        self.folder.log(event, run=self.plan.name, **fields)

    def check_plan(self) -> None:
        """Refuse a plan that promises less than this site requires, or needs something that the site lacks.

        The data are not read, so that a FrameError tells nothing about them.
        """
        with as_refusal():
            if self._plan_error is not None:
                raise self._plan_error
            if self.config.privacy is not None:
                PrivacyRequirement.read(self.config.privacy).check(self.plan.promise)
            if self.plan.secure is not None:
                with self._hide_details("expected the list of the sites' keys with this site's key, found none"):
                    read_own_roster(self.folder)
            if self.by_record:
                refuse_split_by_time(self.schema)
                with self._hide_details(
                    "expected bodies that never saw private data, found one that a run has trained"
                ):
                    refuse_trained_body(self.config)
            if self.plan.promise is not None:
                refuse_body_across_records(self.body)

    @contextmanager
    def _hide_details(self, sentence: str) -> Iterator[None]:
        """Turn an InputError in the block into a FrameError with this sentence; its text goes to the site's log."""
        try:
            yield
        except InputError as error:
            self.log("warning", reason=error.message)
            raise FrameError(sentence) from None


def site_context(folder: SiteFolder, state: RunState) -> SiteContext:
    """Return the site's context in a run that has begun at this site.

    The context of an earlier message is used again if no file that it was made from has changed.
    """
    digest, context = _kept.pop(state.path, (None, None))
    if context is None or digest is None or digest != _digest_sources(context, state):
        context = SiteContext(folder, folder.read_config(), state.plan())
        digest = _digest_sources(context, state)
        if context != SiteContext(folder, folder.read_config(), state.plan()):
            digest = None  # a file changed after it was read, so the digest is not that of this context
    if digest is not None:
        _kept[state.path] = (digest, context)
        while len(_kept) > KEPT_RUNS:
            del _kept[next(iter(_kept))]
    return context


def forget_contexts() -> None:
    """Drop the contexts that this process keeps between messages."""
    _kept.clear()


def _digest_sources(context: SiteContext, state: RunState) -> str | None:
    """Return the digest of the files that a context is made from; None if a function makes the data."""
    folder, config = context.folder, context.config
    data = Path(config.data or "")
    files = [folder.config_file, state.plan_file, folder.schema_file]
    files += sorted(path for path in data.rglob("*") if path.is_file()) if data.is_dir() else [data]
    found = hashlib.sha256()
    try:
        files += context.body_files
        for path in files:
            with path.open("rb") as file:
                found.update(f"{path}\n".encode() + hashlib.file_digest(file, "sha256").digest())
    except (OSError, InputError):
        return None
    return found.hexdigest()
