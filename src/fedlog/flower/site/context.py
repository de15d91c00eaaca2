"""Everything a site brings to one message of a run, and what it refuses before it has looked at its data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from fedlog.algorithms import registry
from fedlog.algorithms.shape import Algorithm
from fedlog.core.keys import Key
from fedlog.data.schema import Schema, load_schema
from fedlog.data.site import Preparation, Site, refuse_split_by_time
from fedlog.engine.clients import Client
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.protocol.secure_sums import IN_A_SUM
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.errors import InputError
from fedlog.flower.folders.event_log import log_event
from fedlog.flower.folders.roster import read_own_roster
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.protocol.frame import FrameError
from fedlog.flower.protocol.plan import Guest, Plan
from fedlog.flower.protocol.promise import Limit, warning
from fedlog.flower.site.data import body_digest, load_body, load_data, refuse_body_across_records, refuse_trained_body
from fedlog.flower.site.run_state import RunState
from fedlog.flower.site.secure_sum import SumAtSite
from fedlog.models.body import Body
from fedlog.privacy.protection import Protection
from fedlog.wire.codec import codec


@dataclass(frozen=True)
class SiteContext:
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
        """The site's data, split and scaled; where single records are protected, each row by itself."""
        return load_data(self.folder, self.config, Preparation.ALONE if self.by_record else Preparation.TOGETHER)

    @property
    def by_record(self) -> bool:
        """Whether single records are protected, behind equal bodies that nobody trains."""
        return self.plan.promise is not None and self.plan.promise.frozen

    @cached_property
    def guest(self) -> Guest:
        """What this site tells of itself; the digest is that of the body with which its cohort begins."""
        key = Key(self.plan.seed).child("initial", "body")
        return Guest(self.body.name, self.body.width, body_digest(self.body, key) if self.by_record else None)

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
        shard = self.site.shard
        # Also without a single training record: an error would tell the server that there is none.
        clients = [Client(0, shard.name, self.body, shard.train, (shard.test,), (shard.validation,))]
        engine = Engine(Settings(self.plan.batch_size))
        wire = codec(self.plan.codec)
        up = wire if self.plan.secure is None else IN_A_SUM
        return Cohort(
            algorithm, federation, clients, engine, up, Key(self.plan.seed), protection=guard, codec_down=wire
        )

    def warn(self) -> None:
        """Nothing; what the person at the site should know before the first answer is in the log of the site alone."""
        shard = self.site.shard
        said = [warning(self.plan.promise, len(shard.train), 1) if self.by_record else None]
        parts = {"training": shard.train, "validation": shard.validation, "test": shard.test}
        said += [f"there are no {name} records" for name, rows in parts.items() if len(rows) == 0]
        for reason in filter(None, said):
            log_event(self.folder.logs / "events.jsonl", "warning", run=self.plan.name, reason=reason)


def accept(place: SiteContext) -> None:
    """Nothing; a FrameError for a plan that promises less than this site asks for, or needs what it does not have.

    Nothing here looks at the data, so that nothing about them is told.
    """
    plan, config, body = place.plan, place.config, place.body
    try:
        if config.privacy is not None:
            Limit.read(config.privacy).check(plan.promise)
        if plan.secure is not None:
            with _hide_details(
                place, "expected the list of the sites' keys at this site, with its own key in it, found none"
            ):
                read_own_roster(place.folder)
        if place.by_record:
            refuse_split_by_time(place.schema)
            with _hide_details(
                place, "single records are protected behind bodies that never saw private data, not this one"
            ):
                refuse_trained_body(config)
        if plan.promise is not None:
            refuse_body_across_records(body)
    except InputError as error:
        raise FrameError(error.message) from None


@contextmanager
def _hide_details(place: SiteContext, sentence: str) -> Iterator[None]:
    """A FrameError with the sentence for an InputError inside, which names files: where they lie stays in the log."""
    try:
        yield
    except InputError as error:
        log_event(place.folder.logs / "events.jsonl", "warning", run=place.plan.name, reason=error.message)
        raise FrameError(sentence) from None
