"""What a run does, as the server tells it to every site, and what a site tells of its body in return."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedlog.algorithms import registry
from fedlog.algorithms.frozen import freeze_bodies
from fedlog.algorithms.shape import Algorithm, ModelPlan
from fedlog.errors import InputError
from fedlog.flower.folders.layout import check_site_name
from fedlog.flower.protocol.frame import FrameError
from fedlog.flower.protocol.handshake import HELLO_LIMIT_BYTES, Identity
from fedlog.flower.protocol.promise import Promise, Secure, checked_secure, protection_of, read_promise, read_secure
from fedlog.models.body import HEAD
from fedlog.privacy.protection import Protection
from fedlog.wire.codec import codec, refuse_open_codec

# Sites choose their bodies, so a first head from untrained features that are added up has no meaning here.
DEFAULT_OPTIONS: dict[str, dict[str, Any]] = {"fedlog-c": {"first_head": "random"}}
Option = str | int | float | None


@dataclass(frozen=True)
class Plan:
    """The settings of one run that must be equal everywhere."""

    name: str
    method: str = "fedlog"
    options: Mapping[str, Option] = field(default_factory=dict)
    rounds: int = 10
    seed: int = 0
    codec: str = "f32"
    batch_size: int = 10
    promise: Promise | None = None
    secure: Secure | None = None

    def same_run(self, other: Plan) -> bool:
        """Whether one can go on where the other stopped: only the number of rounds may differ.

        The noise of a private run is set for its rounds.
        """
        if self.promise is not None:
            return self == other
        return replace(self, rounds=other.rounds) == other

    @property
    def figures_stay(self) -> bool:
        """Whether a site keeps to itself how well it does, and on how many records."""
        return self.promise is not None or self.secure is not None

    def algorithm(self, n_class: int, width: int) -> Algorithm:
        """The method for heads of this shape."""
        told = {**DEFAULT_OPTIONS.get(self.method, {}), **self.options}
        built = registry.build(self.method, self.model_plan(n_class, width), told)
        return freeze_bodies(built) if self.promise is not None and self.promise.frozen else built

    def protection(self, n_class: int, width: int) -> Protection | None:
        """How the uploads are protected; None for a run without a promise."""
        algorithm = self.algorithm(n_class, width)
        schedule = algorithm.schedule
        if self.promise is not None and not algorithm.sends_statistics:
            raise InputError(f"privacy is for methods that send statistics: {self.method}", hint="fedlog or fedlog-c")
        releases = self.rounds * len(schedule.round) + (schedule.opening is not None)
        return protection_of(self.promise, self.secure, releases, (n_class, 1 + width))

    @staticmethod
    def model_plan(n_class: int, width: int) -> ModelPlan:
        """What all sites have in common: the head and nothing below it."""
        return ModelPlan(n_class, width, ((HEAD,),), n_class * (1 + width))

    def as_plain(self) -> dict[str, Any]:
        """JSON values; what a run without privacy does not have is left out."""
        values = {**asdict(self), "options": dict(self.options)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Guest:
    """What a site tells of itself when it takes part."""

    body: str
    width: int
    digest: str | None = None
    """Of what the body computes, its parameters included; only where all bodies must be equal and stay untrained."""

    @property
    def equal_body(self) -> EqualBody:
        """This site's body as the one that every site must have."""
        return EqualBody(self.body, self.digest)


@dataclass(frozen=True)
class EqualBody:
    """The untrained body of all sites: the name that one of them has for it, and the digest that each must have."""

    name: str
    digest: str | None

    def difference(self, guest: Guest) -> str | None:
        """In words, what is another at this site; None for the same body, wherever its file lies there."""
        if self.digest == guest.digest:
            return None
        if self.name != guest.body:
            return f"expected body {self.name} at every site, found: {guest.body}"
        return f"expected the same parameters of body {self.name} at every site, found others"


def checked_plan(plan: Plan) -> Plan:
    """The plan, after refusing what no site would take."""
    check_site_name(plan.name)  # it names a folder at every site
    # A site refuses any other method: whoever operates the server must not be able to ask for a body, nor to name a
    # function for the site to import.
    federated = registry.methods_that(lambda method: method.may_federate)
    if plan.method not in federated:
        raise InputError(
            f"expected a method that keeps bodies at their sites, found: {plan.method}",
            hint=f"one of {', '.join(federated)}; the others run in the simulator: `fedlog run`",
        )
    if not 1 <= plan.rounds <= 100_000 or not 1 <= plan.batch_size <= 100_000:
        raise InputError(f"expected rounds and batch size of at least 1, found: {plan.rounds} and {plan.batch_size}")
    codec(plan.codec)
    if plan.promise is not None:
        refuse_open_codec(plan.codec, "a private run")
    if plan.secure is not None:
        refuse_open_codec(plan.codec, "a secure sum")
        checked_secure(plan.secure)
    plan.algorithm(2, 2)
    plan.protection(2, 2)
    return plan


def read_plan(values: object) -> Plan:
    """The plan in these JSON values; an InputError when they are none."""
    if not isinstance(values, dict):
        raise InputError(f"expected a plan, found: {type(values).__name__}")
    kinds = {"name": str, "method": str, "options": dict, "rounds": int, "seed": int, "codec": str, "batch_size": int}
    promise, secure = read_promise(values.get("promise")), read_secure(values.get("secure"))
    values = {name: value for name, value in values.items() if name not in ("promise", "secure")}
    if set(values) != set(kinds) or any(type(values[name]) is not kind for name, kind in kinds.items()):
        raise InputError(f"expected a plan with {', '.join(kinds)}, found: {', '.join(sorted(map(str, values)))[:200]}")
    return checked_plan(Plan(**values, promise=promise, secure=secure))


def hello(ours: Identity, plan: Plan) -> bytes:
    """The payload of a HELLO frame."""
    return json.dumps({**asdict(ours), "plan": plan.as_plain()}).encode()


def read_hello(payload: bytes) -> Plan:
    """The plan in a HELLO payload; a FrameError when there is none that this site would follow."""
    try:
        return read_plan(_object(payload).get("plan"))
    except InputError as error:
        raise FrameError(error.message) from None


def welcome(ours: Identity, guest: Guest) -> bytes:
    """The payload of a WELCOME frame."""
    told = {name: value for name, value in asdict(guest).items() if value is not None}
    return json.dumps({**asdict(ours), **told}).encode()


def read_welcome(payload: bytes) -> Guest:
    """What the site tells of its body."""
    stored = _object(payload)
    body, width, digest = stored.get("body"), stored.get("width"), stored.get("digest")
    if not isinstance(body, str) or type(width) is not int or not 0 < width < 2**20:
        raise FrameError("expected a body and its number of features in a welcome, found something else")
    if digest is not None and (not isinstance(digest, str) or len(digest) != 64):
        raise FrameError("expected the digest of a body in a welcome, found something else")
    return Guest(body[:200], width, digest)


def _object(payload: bytes) -> dict[str, Any]:
    if len(payload) > HELLO_LIMIT_BYTES:
        raise FrameError(f"expected at most {HELLO_LIMIT_BYTES} bytes in a greeting, found: {len(payload)}")
    try:
        stored = json.loads(payload)
    except (ValueError, RecursionError):
        raise FrameError("expected JSON in a greeting, found something else") from None
    if not isinstance(stored, dict):
        raise FrameError("expected an object in a greeting, found something else")
    return stored
