"""The plan of a run: the settings that the server sends to every site, with all checks of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from msgspec import Meta

from fedlog.algorithms import registry
from fedlog.algorithms.interface import Algorithm, ModelPlan
from fedlog.core.clip import parse_clip
from fedlog.engine.protocol.downlink import check_transport_fits_method
from fedlog.errors import InputError
from fedlog.files.json_text import parse_json
from fedlog.flower.folders.folder import check_site_or_run_name
from fedlog.flower.protocol.bounds import check_broadcast_form, check_gaussian_mixtures, check_numbers
from fedlog.models.body import HEAD
from fedlog.privacy.guarantee import Calibration, NoiseSetting, Unit, warn_of_large_delta
from fedlog.privacy.protection import Protection
from fedlog.settings import promise as promise_rules
from fedlog.settings.fields import Section, read_dataclass
from fedlog.settings.presets import DEPLOYED_OPTIONS, OWN_DATA, apply_recipe
from fedlog.settings.privacy import Aggregation
from fedlog.settings.promise import Promise
from fedlog.settings.resolve import choose_rounds, list_given_options
from fedlog.settings.spec import RunSpec, list_deployed_settings, make_spec
from fedlog.settings.training import BroadcastForm, Decay, HeadRows, Optimiser
from fedlog.wire.transport import Transport

Option = str | int | float | bool | None
Count = Annotated[int, Meta(ge=1, le=100_000)]
SettingValue = str | int | float


@dataclass(frozen=True)
class SecureSumRules(Section):
    """The rules for the secure sums of a run: the fewest honest sites that must stay, and the most sites in a sum."""

    honest: int
    sites: Annotated[int, Meta(le=10_000)]

    def __post_init__(self) -> None:
        super().__post_init__()
        promise_rules.choose_fewest_honest_survivors(self.honest, self.sites)


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
    world: HeadRows = HeadRows.OPEN
    """Closed: a site that meets only the classes in its training rows gets only the part of the head for them."""
    skip_below: Annotated[float, Meta(ge=0)] | None = None
    largest_share: Annotated[float, Meta(gt=0, le=1)] | None = None
    """The largest share of all records that one site's statistics can count for."""
    batch_size: Count = OWN_DATA.batch_size
    optimiser: Optimiser = field(default_factory=Optimiser)
    clip: str | None = None
    """The clip of the features in a run without privacy; in a private run the promise has the clip."""
    promise: Promise | None = None
    secure: SecureSumRules | None = None

    def list_forbidden_changes(self, later: Plan) -> list[str]:
        """List the settings that the plan `later` changes, although they must not change within a run.

        No setting may change except the number of rounds. In a run with a privacy promise or a falling learning rate,
        which depend on the number of rounds, it must not change either.
        """
        fixed = self.promise is not None or self.optimiser.decay is not Decay.NONE
        names = [each.name for each in fields(self) if fixed or each.name != "rounds"]
        return [name for name in names if getattr(self, name) != getattr(later, name)]

    @property
    def transport(self) -> Transport:
        """How the messages of the run are encoded, and what the server's broadcasts contain."""
        return Transport(
            self.codec,
            self.codec_down,
            self.down is BroadcastForm.DIFFERENCES,
            self.world is HeadRows.CLOSED,
            self.skip_below,
        )

    @property
    def feature_clip(self) -> str | None:
        """How every site clips its features, e.g. `l2:1`: in a private run as the promise says, else as `clip` says."""
        return self.clip if self.promise is None else self.promise.clip

    @property
    def needs_equal_bodies(self) -> bool:
        """Whether all sites must have the same untrained body, so that their features can be added up."""
        return registry.find_method_rounds(self.method) is not None or (
            self.promise is not None and self.promise.needs_frozen_bodies
        )

    @property
    def hides_site_results(self) -> bool:
        """Whether sites keep their accuracy and their number of records secret from the server."""
        return self.promise is not None or self.secure is not None

    def build_algorithm(self, n_class: int, width: int) -> Algorithm:
        """Build the run's method, an `Algorithm`, for this number of classes and of features (`width`)."""
        options = {**DEPLOYED_OPTIONS.get(self.method, {}), **self.options}
        built = registry.make_method(self.method, self.make_model_plan(n_class, width), options)
        return registry.freeze_bodies(built) if self.promise is not None and self.promise.needs_frozen_bodies else built

    def build_protection(self, n_class: int, width: int) -> Protection | None:
        """Build the clipping and noise that protect the uploads; return None for a run without privacy."""
        promise_rules.check_noise_fits_secure_sums(self.promise, secure=self.secure is not None)
        sites, honest = (1, 1) if self.secure is None else (self.secure.sites, self.secure.honest)
        algorithm, shape = self.build_algorithm(n_class, width), self.make_model_plan(n_class, width)
        return promise_rules.plan_protection(
            self.promise, algorithm, shape, self.rounds, clients=sites, honest_survivors=honest
        )

    @staticmethod
    def make_model_plan(n_class: int, width: int) -> ModelPlan:
        """Return what the models of all sites share: number of classes, number of features (`width`), and the head."""
        return ModelPlan(n_class, width, ((HEAD,),), n_class * (1 + width))

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON values; settings that are None are left out."""
        values = {**asdict(self), "options": dict(self.options)}
        return {name: value for name, value in values.items() if value is not None}


def make_plan(spec: RunSpec, name: str, count_sites: Callable[[], int]) -> Plan:
    """Make and check the plan of a deployed run from the settings of a user.

    Settings of data and bodies are ignored, because the sites choose their own. `count_sites` counts the sites in the
    roster (the list of the sites' keys), and is called only if the run has secure sums.
    """
    promise = promise_rules.resolve_promise(spec, NoiseSetting.DISCRETE)
    sums = promise_rules.resolve_secure_sums(spec, promise, spec.refused_share)
    options = registry.read_options(spec.method, list_given_options(spec))
    sites = 0 if sums is None else count_sites()
    return check_plan(
        Plan(
            name=name,
            method=spec.method,
            options={key: getattr(value, "value", value) for key, value in options.items()},
            rounds=choose_rounds(spec, OWN_DATA),
            seed=spec.seed,
            codec=spec.codec,
            codec_down=None if spec.codec_down == spec.codec else spec.codec_down,
            down=spec.down,
            world=spec.world,
            skip_below=spec.skip_below or None,
            largest_share=spec.largest_share,
            batch_size=OWN_DATA.batch_size if spec.batch_size is None else spec.batch_size,
            optimiser=spec.extract_section(Optimiser),
            clip=promise_rules.normalise_clip(spec.clip) if promise is None else None,
            promise=promise,
            secure=None
            if sums is None
            else SecureSumRules(promise_rules.choose_fewest_honest_survivors(sums.honest, sites), sites),
        )
    )


def format_plan_settings(plan: Plan) -> dict[str, SettingValue]:
    """Return the plan as settings of the Flower app, which `read_run_spec` reads.

    A setting that is None becomes an empty text, so that `flwr run` can set it.
    """
    values: dict[str, Any] = {**asdict(plan), **asdict(plan.optimiser), "options": json.dumps(dict(plan.options))}
    if plan.promise is not None:
        values |= {**asdict(plan.promise), "privacy": plan.promise.unit}
    if plan.secure is not None:
        values |= {"aggregation": Aggregation.SECURE, "honest": plan.secure.honest}
    names = ["name", *(entry.name for entry in list_deployed_settings())]
    settings = {name.replace("_", "-"): values.get(name) for name in names}
    return {name: "" if value is None else getattr(value, "value", value) for name, value in settings.items()}


def describe_forbidden_changes(plan: Plan, later: Plan) -> str | None:
    """List, for the operator, each setting that must not change within a run and differs in the plan `later`.

    Each setting comes with its old and its new value. Return None if there is none.
    """
    changed = plan.list_forbidden_changes(later)
    before, after = (
        {name: "not set" if value == "" else value for name, value in format_plan_settings(each).items()}
        for each in (plan, later)
    )
    values = [
        f"{name} {after[name]} instead of {before[name]}"
        for name in before
        if before[name] != after[name] and (name != "rounds" or name in changed)
    ]
    return ", ".join(values or changed) if changed else None


def read_run_spec(settings: Mapping[str, Any]) -> RunSpec:
    """Read the settings of a run, from which `make_plan` makes its plan, from the settings of the Flower app.

    Raise InputError if a setting is unknown or invalid.
    """
    known = {entry.name for entry in list_deployed_settings()}
    given = {name.replace("-", "_"): value for name, value in settings.items() if value != ""}
    try:
        options = parse_json(str(given.get("options", "{}")))
    except ValueError as error:
        raise InputError(
            f"expected options as a JSON object in the app's settings, found: {error}",
            hint="""for example options = '{"epochs": 3}'""",
        ) from None
    values = {name: value for name, value in given.items() if name in known}
    spec = make_spec({**values, "options": options}, "the app's settings")
    # Without a recipe the settings come from a complete plan, and nothing has to be filled in.
    return apply_recipe(spec, given=values) if "recipe" in values else spec


def check_plan(plan: Plan) -> Plan:
    """Return the plan; raise InputError if it cannot be deployed."""
    check_site_or_run_name(plan.name)  # it names a folder at every site
    # A site refuses any other method: a server must not be able to ask for a site's body, or to make the site import a
    # function.
    federated = registry.find_methods(lambda method: method.may_federate)
    if plan.method not in federated:
        raise InputError(
            f"expected a method that can be deployed, found: {plan.method}",
            hint=f"one of {', '.join(federated)}; the others run in the simulator: `fedlog run`",
        )
    promise_rules.check_transport(plan.transport, plan.promise, secure=plan.secure is not None)
    promise_rules.check_largest_share(plan.largest_share, plan.promise, secure=plan.secure is not None)
    check_broadcast_form(plan.transport, hidden=plan.hides_site_results)
    if plan.clip is not None:
        parse_clip(plan.clip)
    check_numbers(plan)
    if plan.promise is not None:
        _check_promise(plan.promise)
    algorithm = plan.build_algorithm(2, 2)
    check_gaussian_mixtures(algorithm)
    promise_rules.check_uploads_may_be_hidden(algorithm, secure=plan.secure is not None)
    check_transport_fits_method(algorithm, plan.transport)
    plan.build_protection(2, 2)
    return plan


def _check_promise(promise: Promise) -> None:
    """Raise InputError for a privacy promise that only the simulator can make."""
    if promise.unit is Unit.PAPER:
        raise InputError(
            f"expected --privacy record or client in a deployment, found: {promise.unit}",
            hint="`fedlog run --privacy paper` reproduces the paper in the simulator",
        )
    if promise.noise is not NoiseSetting.DISCRETE or promise.calibration is not Calibration.EXACT:
        raise InputError(
            f"expected discrete noise and exact calibration in a deployment, found: {promise.noise} noise, "
            f"{promise.calibration} calibration",
            hint="leave out the settings noise and calibration; `fedlog run` simulates the other kinds",
        )


def describe_large_delta(promise: Promise | None, records: int, sites: int) -> str | None:
    """Return a warning if delta is above 1/n, else None.

    n is the number of records or of sites, whichever the promise protects.
    """
    if promise is None:
        return None
    protected = records if promise.unit is Unit.RECORD else sites
    return warn_of_large_delta(promise.delta, max(1, protected), promise.unit)


def read_plan(values: object) -> Plan:
    """Read a plan from JSON values; raise InputError if they are not a plan that can be deployed."""
    return check_plan(read_dataclass(Plan, values, "a plan"))
