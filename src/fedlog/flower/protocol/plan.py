"""The plan of a run, which the server sends to every site, and the profile with which a site answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from msgspec import Meta

from fedlog.algorithms import registry
from fedlog.algorithms.shape import Algorithm, ModelPlan
from fedlog.core.clip import parse_clip
from fedlog.engine.protocol.downlink import check_transport_fits_method
from fedlog.errors import InputError
from fedlog.files.json_text import parse_json
from fedlog.flower.folders.folder import check_site_name
from fedlog.flower.protocol.bounds import (
    FEWEST_RECORDS,
    check_clip,
    check_differences,
    check_gaussians,
    check_options,
    check_promise_numbers,
    check_seed,
    check_weight_decay,
)
from fedlog.flower.protocol.frame import FrameError, as_refusal
from fedlog.flower.protocol.handshake import Identity, read_greeting, time_field
from fedlog.models.body import HEAD
from fedlog.privacy.guarantee import Calibration, NoiseSource, Unit
from fedlog.privacy.protection import Protection
from fedlog.settings.fields import Section, read_dataclass
from fedlog.settings.presets import OWN_DATA, apply_recipe
from fedlog.settings.privacy import Aggregation
from fedlog.settings.promise import (
    Promise,
    check_largest_share,
    check_noise_fits_sums,
    check_transport,
    check_uploads_may_be_hidden,
    choose_survivors,
    normalise_clip,
    plan_protection,
    resolve_promise,
    resolve_secure_sums,
)
from fedlog.settings.resolve import list_given_options
from fedlog.settings.spec import RunSpec, list_deployed_settings, spec_from_values
from fedlog.settings.training import BroadcastForm, Decay, Optimiser, World
from fedlog.wire.transport import Transport

DEFAULT_OPTIONS: dict[str, dict[str, Any]] = {
    # Sites choose their bodies, so their untrained features cannot be added up to a first head.
    "fedlog-c": {"first_head": "random"},
    "fedpft": {"fewest": FEWEST_RECORDS},
}
Option = str | int | float | bool | None
Count = Annotated[int, Meta(ge=1, le=100_000)]
SettingValue = str | int | float
LONGEST_BODY_NAME = 1000  # a body's name may be the path of a file


@dataclass(frozen=True)
class SumRules(Section):
    """The rules for a run's secure sums: how many honest survivors each needs, and how many sites it has at most."""

    honest: int
    sites: Annotated[int, Meta(le=10_000)]

    def __post_init__(self) -> None:
        super().__post_init__()
        choose_survivors(self.honest, self.sites)


@dataclass(frozen=True)
class Plan(Section):
    """The settings of one run that must be the same at the server and at all sites."""

    name: str
    method: str = "fedlog"
    options: Mapping[str, Option] = field(default_factory=dict)
    rounds: Count = OWN_DATA.rounds
    seed: int = 0
    codec: str = "f32"
    codec_down: str | None = None
    """The codec of broadcasts; None: the same as for uploads."""
    down: BroadcastForm = BroadcastForm.WHOLE
    world: World = World.OPEN
    """Closed: a site that meets only the classes in its training rows gets only these rows of the head."""
    skip_below: Annotated[float, Meta(ge=0)] | None = None
    largest_share: Annotated[float, Meta(gt=0, le=1)] | None = None
    """The largest share of all records that one site's statistics can count for."""
    batch_size: Count = OWN_DATA.batch_size
    optimiser: Optimiser = field(default_factory=Optimiser)
    clip: str | None = None
    """The clip of the features in a run without privacy; in a private run the promise has the clip."""
    promise: Promise | None = None
    secure: SumRules | None = None

    def list_changes(self, later: Plan) -> list[str]:
        """The settings that keep a run with the later plan from continuing this run; empty if it may.

        Only the number of rounds may differ, and not even that with a privacy promise or a falling learning rate: both
        depend on the number of rounds.
        """
        fixed = self.promise is not None or self.optimiser.decay is not Decay.NONE
        names = [each.name for each in fields(self) if fixed or each.name != "rounds"]
        return [name for name in names if getattr(self, name) != getattr(later, name)]

    @property
    def transport(self) -> Transport:
        """How the messages of the run are encoded."""
        return Transport(
            self.codec,
            self.codec_down,
            self.down is BroadcastForm.DIFFERENCES,
            self.world is World.CLOSED,
            self.skip_below,
        )

    @property
    def feature_clip(self) -> str | None:
        """The clip that every site applies to its features; None if there is none."""
        return self.clip if self.promise is None else self.promise.clip

    @property
    def equal_bodies(self) -> bool:
        """Whether all sites must have the same untrained body, so that their features can be added up."""
        return registry.find_method_rounds(self.method) is not None or (
            self.promise is not None and self.promise.needs_frozen_bodies
        )

    @property
    def hides_figures(self) -> bool:
        """Whether a site does not tell the server its accuracy and its number of records."""
        return self.promise is not None or self.secure is not None

    def algorithm(self, n_class: int, width: int) -> Algorithm:
        """The run's method, for heads of this shape."""
        options = {**DEFAULT_OPTIONS.get(self.method, {}), **self.options}
        built = registry.make_method(self.method, self.model_plan(n_class, width), options)
        return registry.freeze_bodies(built) if self.promise is not None and self.promise.needs_frozen_bodies else built

    def protection(self, n_class: int, width: int) -> Protection | None:
        """How the uploads are protected; None for a run without privacy."""
        check_noise_fits_sums(self.promise, secure=self.secure is not None)
        sites, honest = (1, 1) if self.secure is None else (self.secure.sites, self.secure.honest)
        algorithm, shape = self.algorithm(n_class, width), self.model_plan(n_class, width)
        return plan_protection(self.promise, algorithm, shape, self.rounds, clients=sites, survivors=honest)

    @staticmethod
    def model_plan(n_class: int, width: int) -> ModelPlan:
        """The part of the model that all sites share: the head and nothing below it."""
        return ModelPlan(n_class, width, ((HEAD,),), n_class * (1 + width))

    def as_plain(self) -> dict[str, Any]:
        """The plan as JSON values; settings that are None are left out."""
        values = {**asdict(self), "options": dict(self.options)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class SiteProfile:
    """The facts about itself that a site tells the server when it joins a run."""

    body: str
    width: Annotated[int, Meta(gt=0, lt=2**20)]
    digest: Annotated[str, Meta(min_length=64, max_length=64)] | None = None
    """The digest of the body and its parameters; only in runs where all sites must have the same untrained body."""
    closed_world: bool = False
    """Whether the site meets only the classes in its training rows; asked for in runs with `--world closed`."""

    @property
    def equal_body(self) -> EqualBody:
        """This site's body, in the form in which other sites' bodies are compared with it."""
        return EqualBody(self.body, self.digest)


@dataclass(frozen=True)
class EqualBody:
    """The untrained body that all sites must have: its name and its digest."""

    name: str
    digest: str | None

    def difference(self, profile: SiteProfile) -> str | None:
        """How a site's body differs from the required one, in words; None if it is the same, even from another file."""
        if self.digest == profile.digest:
            return None
        if self.name != profile.body:
            return f"expected body {self.name} at every site, found: {profile.body}"
        return f"expected the same parameters of body {self.name} at every site, found different ones"


def make_plan(spec: RunSpec, name: str, count_sites: Callable[[], int]) -> Plan:
    """The checked plan of a run with these settings.

    It takes the settings that are marked as deployed; the sites choose their data and bodies. `count_sites` counts the
    sites on the list of keys, and is called only if the run has secure sums.
    """
    promise = resolve_promise(spec, NoiseSource.DISCRETE)
    sums = resolve_secure_sums(spec, promise, spec.refused_share)
    options = registry.read_options(spec.method, list_given_options(spec))
    sites = 0 if sums is None else count_sites()
    return check_plan(
        Plan(
            name=name,
            method=spec.method,
            options={key: getattr(value, "value", value) for key, value in options.items()},
            rounds=(registry.find_method_rounds(spec.method) or OWN_DATA.rounds)
            if spec.rounds is None
            else spec.rounds,
            seed=spec.seed,
            codec=spec.codec,
            codec_down=None if spec.codec_down == spec.codec else spec.codec_down,
            down=spec.down,
            world=spec.world,
            skip_below=spec.skip_below or None,
            largest_share=spec.largest_share,
            batch_size=OWN_DATA.batch_size if spec.batch_size is None else spec.batch_size,
            optimiser=spec.take_section(Optimiser),
            clip=normalise_clip(spec.clip) if promise is None else None,
            promise=promise,
            secure=None if sums is None else SumRules(choose_survivors(sums.honest, sites), sites),
        )
    )


def plan_settings(plan: Plan) -> dict[str, SettingValue]:
    """The plan as settings of the Flower app; an unset one is an empty text, so that `flwr run` can still set it."""
    values: dict[str, Any] = {**asdict(plan), **asdict(plan.optimiser), "options": json.dumps(dict(plan.options))}
    if plan.promise is not None:
        values |= {**asdict(plan.promise), "privacy": plan.promise.unit}
    if plan.secure is not None:
        values |= {"aggregation": Aggregation.SECURE, "honest": plan.secure.honest}
    names = ["name", *(entry.name for entry in list_deployed_settings())]
    settings = {name.replace("_", "-"): values.get(name) for name in names}
    return {name: "" if value is None else getattr(value, "value", value) for name, value in settings.items()}


def read_plan_settings(settings: Mapping[str, Any]) -> RunSpec:
    """The settings of a run, from those of the Flower app; InputError names a setting that cannot be used."""
    known = {entry.name for entry in list_deployed_settings()}
    given = {name.replace("-", "_"): value for name, value in settings.items() if value != ""}
    try:
        options = parse_json(str(given.get("options", "{}")))
    except ValueError as error:
        raise InputError(f"the app's settings: options must be JSON: {error}") from None
    values = {name: value for name, value in given.items() if name in known}
    spec = spec_from_values({**values, "options": options}, "the app's settings")
    # Without a recipe the settings come from a complete plan, and nothing has to be filled in.
    return apply_recipe(spec, given=values) if "recipe" in values else spec


def check_plan(plan: Plan) -> Plan:
    """Return the plan; refuse one that no site would accept."""
    check_site_name(plan.name)  # it names a folder at every site
    # A site refuses any other method: a server must not be able to ask for a site's body, or to make the site import a
    # function.
    federated = registry.find_methods(lambda method: method.may_federate)
    if plan.method not in federated:
        raise InputError(
            f"expected a method that can be deployed, found: {plan.method}",
            hint=f"one of {', '.join(federated)}; the others run in the simulator: `fedlog run`",
        )
    check_transport(plan.transport, plan.promise, secure=plan.secure is not None)
    check_largest_share(plan.largest_share, plan.promise, secure=plan.secure is not None)
    check_differences(plan.transport, hidden=plan.hides_figures)
    check_seed(plan.seed)
    check_options(plan.options)
    check_weight_decay(plan.optimiser.weight_decay)
    if plan.clip is not None:
        parse_clip(plan.clip)
        check_clip(plan.clip)
    if plan.promise is not None:
        _check_promise(plan.promise)
    algorithm = plan.algorithm(2, 2)
    check_gaussians(algorithm)
    check_uploads_may_be_hidden(algorithm, secure=plan.secure is not None)
    check_transport_fits_method(algorithm, plan.transport)
    plan.protection(2, 2)
    return plan


def _check_promise(promise: Promise) -> None:
    """Refuse a promise that only the simulator can make, or for which no noise can be computed."""
    check_promise_numbers(promise)
    if promise.unit is Unit.PAPER:
        raise InputError(
            f"a deployment promises record or client privacy, found: {promise.unit}",
            hint="`fedlog run --privacy paper` reproduces the paper in the simulator",
        )
    if promise.noise is not NoiseSource.DISCRETE or promise.calibration is not Calibration.EXACT:
        raise InputError(
            f"a deployment needs discrete noise and exact calibration, found: {promise.noise}, {promise.calibration}"
        )


def read_plan(values: object) -> Plan:
    """The plan in these JSON values; InputError if they are not a plan that a site accepts."""
    return check_plan(read_dataclass(Plan, values, "a plan"))


def encode_hello(ours: Identity, plan: Plan, now: float | None = None) -> bytes:
    """The payload of a HELLO frame; `now` is the time on the server's clock."""
    return json.dumps({**asdict(ours), "plan": plan.as_plain(), **time_field(now)}).encode()


@dataclass(frozen=True)
class _Offer:
    """The plan in a greeting, as JSON values that are not checked yet."""

    plan: Any


def read_hello(payload: bytes) -> Plan:
    """The plan in a HELLO payload; FrameError if there is none that a site accepts."""
    with as_refusal():
        return read_plan(read_greeting(payload, _Offer, "a plan").plan)


def encode_welcome(ours: Identity, profile: SiteProfile, now: float | None = None) -> bytes:
    """The payload of a WELCOME frame; `now` is the time on the site's clock."""
    facts = {name: value for name, value in asdict(profile).items() if value}
    return json.dumps({**asdict(ours), **facts, **time_field(now)}).encode()


def read_welcome(payload: bytes) -> SiteProfile:
    """The site's profile in a WELCOME payload; FrameError if there is none."""
    what = "a body and its number of features"
    profile = read_greeting(payload, SiteProfile, what)
    if not is_body_name(profile.body):
        raise FrameError(f"expected {what} in a greeting, found a body's name that is too long or not printable")
    return profile


def is_body_name(value: str) -> bool:
    """Whether a site's name for its body can be shown to the operator: one line of text that is not too long."""
    return value.isprintable() and len(value) <= LONGEST_BODY_NAME
