"""The plan of a run, which the server sends to every site, and a site's answer about its body."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from msgspec import Meta

from fedlog.algorithms import registry
from fedlog.algorithms.frozen import freeze_bodies
from fedlog.algorithms.shape import Algorithm, ModelPlan
from fedlog.core.clip import parse_clip
from fedlog.engine.protocol.downlink import check_transport as check_method_transport
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
from fedlog.flower.protocol.handshake import Identity, read_greeting, tell_time
from fedlog.models.body import HEAD
from fedlog.privacy.guarantee import Calibration, NoiseSource, Unit
from fedlog.privacy.protection import Protection
from fedlog.settings.fields import Section, read_exactly
from fedlog.settings.presets import OWN_DATA, apply_recipe
from fedlog.settings.privacy import Aggregation
from fedlog.settings.promise import (
    Promise,
    check_largest_share,
    check_noise_of_sums,
    check_transport,
    check_uploads_may_be_hidden,
    count_survivors,
    normalise_clip,
    plan_protection,
    resolve_promise,
    resolve_sums,
)
from fedlog.settings.resolve import options_given
from fedlog.settings.spec import RunSpec, from_plain, list_deployed_settings
from fedlog.settings.training import Decay, Down, Optimiser, World
from fedlog.wire.transport import Transport

DEFAULT_OPTIONS: dict[str, dict[str, Any]] = {
    # Sites choose their bodies, so a first head from untrained features that are added up has no meaning here.
    "fedlog-c": {"first_head": "random"},
    "fedpft": {"fewest": FEWEST_RECORDS},
}
Option = str | int | float | bool | None
Count = Annotated[int, Meta(ge=1, le=100_000)]
SettingValue = str | int | float
LONGEST_BODY_NAME = 1000  # it may hold the path of a file


@dataclass(frozen=True)
class Secure(Section):
    """The terms of a run's secure sums: the honest survivors each needs, and how many sites there are at most."""

    honest: int
    sites: Annotated[int, Meta(le=10_000)]

    def __post_init__(self) -> None:
        super().__post_init__()
        count_survivors(self.honest, self.sites)


@dataclass(frozen=True)
class Plan(Section):
    """The settings of one run that must be equal everywhere."""

    name: str
    method: str = "fedlog"
    options: Mapping[str, Option] = field(default_factory=dict)
    rounds: Count = OWN_DATA.rounds
    seed: int = 0
    codec: str = "f32"
    codec_down: str | None = None
    """Of broadcasts; None: the same both ways."""
    down: Down = Down.WHOLE
    world: World = World.OPEN
    """Closed: sites that said that they meet no other classes get the rows of their own ones only."""
    skip_below: Annotated[float, Meta(ge=0)] | None = None
    largest_share: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Of all records, that one site's statistics can weigh."""
    batch_size: Count = OWN_DATA.batch_size
    optimiser: Optimiser = field(default_factory=Optimiser)
    clip: str | None = None
    """Of the features in a run without a promise, which has a clip of its own."""
    promise: Promise | None = None
    secure: Secure | None = None

    def same_run(self, other: Plan) -> bool:
        """Whether a run of this plan may continue a run of the other: only the number of rounds may differ.

        Not even that may differ with a privacy promise or a falling learning rate: both depend on the number of rounds.
        """
        if self.promise is not None or self.optimiser.decay is not Decay.NONE:
            return self == other
        return replace(self, rounds=other.rounds) == other

    @property
    def transport(self) -> Transport:
        """How the messages of the run cross."""
        return Transport(
            self.codec,
            self.codec_down,
            self.down is Down.DIFFERENCES,
            self.world is World.CLOSED,
            self.skip_below,
        )

    @property
    def feature_clip(self) -> str | None:
        """The clip behind which every site computes its features, if there is one."""
        return self.clip if self.promise is None else self.promise.clip

    @property
    def equal_bodies(self) -> bool:
        """Whether all sites must have the same untrained body, or their features cannot be added up."""
        return registry.find_own_rounds(self.method) is not None or (self.promise is not None and self.promise.frozen)

    @property
    def hides_figures(self) -> bool:
        """Whether a site keeps to itself how well it does, and on how many records."""
        return self.promise is not None or self.secure is not None

    def algorithm(self, n_class: int, width: int) -> Algorithm:
        """The method for heads of this shape."""
        told = {**DEFAULT_OPTIONS.get(self.method, {}), **self.options}
        built = registry.build(self.method, self.model_plan(n_class, width), told)
        return freeze_bodies(built) if self.promise is not None and self.promise.frozen else built

    def protection(self, n_class: int, width: int) -> Protection | None:
        """How the uploads are protected; None for a run without a promise."""
        check_noise_of_sums(self.promise, secure=self.secure is not None)
        sites, honest = (1, 1) if self.secure is None else (self.secure.sites, self.secure.honest)
        algorithm, shape = self.algorithm(n_class, width), self.model_plan(n_class, width)
        return plan_protection(self.promise, algorithm, shape, self.rounds, clients=sites, survivors=honest)

    @staticmethod
    def model_plan(n_class: int, width: int) -> ModelPlan:
        """The plan that all sites share: the head and nothing below it."""
        return ModelPlan(n_class, width, ((HEAD,),), n_class * (1 + width))

    def as_plain(self) -> dict[str, Any]:
        """JSON values; what a run without privacy does not have is left out."""
        values = {**asdict(self), "options": dict(self.options)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Guest:
    """A site's statement about itself when it joins a run."""

    body: str
    width: Annotated[int, Meta(gt=0, lt=2**20)]
    digest: Annotated[str, Meta(min_length=64, max_length=64)] | None = None
    """Of what the body computes, its parameters included; only where all bodies must be equal and stay untrained."""
    closed_world: bool = False
    """Whether the site says that it meets no other classes than its own; asked for in a run with a closed world."""

    @property
    def equal_body(self) -> EqualBody:
        """The body of this site, which every other site must have too."""
        return EqualBody(self.body, self.digest)


@dataclass(frozen=True)
class EqualBody:
    """The untrained body that all sites share: its name, and the digest that each site must have."""

    name: str
    digest: str | None

    def difference(self, guest: Guest) -> str | None:
        """In words, how this site's body differs; None for the same body, wherever its file lies."""
        if self.digest == guest.digest:
            return None
        if self.name != guest.body:
            return f"expected body {self.name} at every site, found: {guest.body}"
        return f"expected the same parameters of body {self.name} at every site, found others"


def make_plan(spec: RunSpec, name: str, count_sites: Callable[[], int]) -> Plan:
    """The plan of a run with these settings, checked; a secure sum asks how many sites are on the list of keys.

    Of the settings it takes those that are marked as deployed; data and bodies are the sites' own.
    """
    promise = resolve_promise(spec, NoiseSource.DISCRETE)
    sums = resolve_sums(spec, promise, spec.refused_share)
    options = registry.read_options(spec.method, options_given(spec))
    sites = 0 if sums is None else count_sites()
    return check_plan(
        Plan(
            name=name,
            method=spec.method,
            options={key: getattr(value, "value", value) for key, value in options.items()},
            rounds=(registry.find_own_rounds(spec.method) or OWN_DATA.rounds) if spec.rounds is None else spec.rounds,
            seed=spec.seed,
            codec=spec.codec,
            codec_down=None if spec.codec_down == spec.codec else spec.codec_down,
            down=spec.down,
            world=spec.world,
            skip_below=spec.skip_below or None,
            largest_share=spec.largest_share,
            batch_size=OWN_DATA.batch_size if spec.batch_size is None else spec.batch_size,
            optimiser=spec.part(Optimiser),
            clip=normalise_clip(spec.clip) if promise is None else None,
            promise=promise,
            secure=None if sums is None else Secure(count_survivors(sums.honest, sites), sites),
        )
    )


def plan_settings(plan: Plan) -> dict[str, SettingValue]:
    """The plan as settings of the Flower app; what is not set is an empty text, so that `flwr run` can set it."""
    values: dict[str, Any] = {**asdict(plan), **asdict(plan.optimiser), "options": json.dumps(dict(plan.options))}
    if plan.promise is not None:
        values |= {**asdict(plan.promise), "privacy": plan.promise.unit}
    if plan.secure is not None:
        values |= {"aggregation": Aggregation.SECURE, "honest": plan.secure.honest}
    names = ["name", *(entry.name for entry in list_deployed_settings())]
    told = {name.replace("_", "-"): values.get(name) for name in names}
    return {name: "" if value is None else getattr(value, "value", value) for name, value in told.items()}


def read_plan_settings(settings: Mapping[str, Any]) -> RunSpec:
    """The settings of the Flower app as those of a run; InputError names what cannot be used."""
    known = {entry.name for entry in list_deployed_settings()}
    given = {name.replace("-", "_"): value for name, value in settings.items() if value != ""}
    try:
        options = parse_json(str(given.get("options", "{}")))
    except ValueError as error:
        raise InputError(f"the app's settings: options must be JSON: {error}") from None
    values = {name: value for name, value in given.items() if name in known}
    spec = from_plain({**values, "options": options}, "the app's settings")
    # Without one they are a plan that has been made, and complete.
    return apply_recipe(spec, given=values) if "recipe" in values else spec


def check_plan(plan: Plan) -> Plan:
    """Return the plan; refuse one that no site would accept."""
    check_site_name(plan.name)  # it names a folder at every site
    # A site refuses any other method: whoever operates the server must not be able to ask for a body, nor to name a
    # function for the site to import.
    federated = registry.find_methods(lambda method: method.may_federate)
    if plan.method not in federated:
        raise InputError(
            f"expected a method that sites take part in, found: {plan.method}",
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
    check_method_transport(algorithm, plan.transport)
    plan.protection(2, 2)
    return plan


def _check_promise(promise: Promise) -> None:
    """Refuse what only the simulator can promise, and numbers that no noise can be computed for."""
    check_promise_numbers(promise)
    if promise.unit is Unit.PAPER:
        raise InputError(
            f"a deployment promises record or client privacy, found: {promise.unit}",
            hint="`fedlog run --privacy paper` reproduces the paper in the simulator",
        )
    if promise.noise is not NoiseSource.DISCRETE or promise.calibration is not Calibration.EXACT:
        raise InputError(
            f"a deployment has discrete noise and exact calibration, found: {promise.noise}, {promise.calibration}"
        )


def read_plan(values: object) -> Plan:
    """The plan in these JSON values; an InputError when they are none."""
    return check_plan(read_exactly(Plan, values, "a plan"))


def encode_hello(ours: Identity, plan: Plan, now: float | None = None) -> bytes:
    """The payload of a HELLO frame; `now` is the server's clock."""
    return json.dumps({**asdict(ours), "plan": plan.as_plain(), **tell_time(now)}).encode()


@dataclass(frozen=True)
class _Offer:
    """The plan in a greeting, not yet read."""

    plan: Any


def read_hello(payload: bytes) -> Plan:
    """The plan in a HELLO payload; a FrameError when there is none that this site would follow."""
    with as_refusal():
        return read_plan(read_greeting(payload, _Offer, "a plan").plan)


def encode_welcome(ours: Identity, guest: Guest, now: float | None = None) -> bytes:
    """The payload of a WELCOME frame; `now` is the site's clock."""
    told = {name: value for name, value in asdict(guest).items() if value}
    return json.dumps({**asdict(ours), **told, **tell_time(now)}).encode()


def read_welcome(payload: bytes) -> Guest:
    """The site's statement about its body."""
    what = "a body and its number of features"
    guest = read_greeting(payload, Guest, what)
    if not is_body_name(guest.body):
        raise FrameError(f"expected {what} in a greeting, found a body that has no such name")
    return guest


def is_body_name(value: str) -> bool:
    """Whether a site's word for its body can be shown to the operator: a line of text, and not a long one."""
    return value.isprintable() and len(value) <= LONGEST_BODY_NAME
