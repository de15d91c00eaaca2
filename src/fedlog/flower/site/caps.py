"""Refuse what a site's own caps do not allow, before its data are read or anything is counted.

The caps go by what reaches the server, not by what a plan says of itself: noise of an epsilon at which it hides nothing
is no noise, and a step that is asked again with another head is another step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from fedlog.algorithms.shape import Algorithm, Phase
from fedlog.errors import InputError
from fedlog.flower.folders.caps import Caps, Only
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.protocol.frame import run_tag
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.site.run_state import RunState
from fedlog.models.encoders.names import is_encoder
from fedlog.models.frozen import FROZEN
from fedlog.privacy.guarantee import Trust

DAY_SECONDS = 86400.0
# Epochs times the learning rate before the first upload: below it a body is where its seed put it, or next to that.
LEAST_TRAINING = 1e-4
WEAKEST_EPSILON = 50.0  # above it noise hides nothing
# Answers beyond one for each step of the rounds: the opening, the ends, and steps that come again after a crash.
SPARE_ANSWERS = 10


def check_caps(caps: Caps, plan: Plan, algorithm: Algorithm, config: SiteConfig) -> None:
    """Raise InputError for a plan that asks for more than the site allows."""
    if caps.rounds is not None and plan.rounds > caps.rounds:
        raise InputError(f"this site allows {caps.rounds} rounds a run, found: {plan.rounds}")
    phases = [phase for exchange in algorithm.schedule.round for phase in exchange.phases]
    epochs = sum(phase.epochs for phase in (*phases, *algorithm.schedule.closing))
    if caps.epochs is not None and epochs > caps.epochs:
        raise InputError(f"this site allows {caps.epochs} epochs a round, found: {epochs}")
    local = _is_private(plan) and plan.promise is not None and plan.promise.trust is Trust.LOCAL
    if caps.only is Only.SECURE and plan.secure is None and not local:
        raise InputError("this site takes part in runs with a secure sum or with local noise only")
    if caps.only is Only.PRIVATE and not _is_private(plan):
        raise InputError("this site takes part in private runs only")
    first = algorithm.schedule.opening or algorithm.schedule.round[0]
    check_training(caps, plan, first.phases, config)


def check_training(caps: Caps, plan: Plan, phases: Iterable[Phase], config: SiteConfig) -> None:
    """Raise InputError where a body would be trained in these phases for the first time, and hardly at all.

    Asked of a plan, and of the step that really comes first: the rate may fall over a run, and its last round be asked
    before all others.
    """
    hides = plan.secure is not None or _is_private(plan)
    if hides or caps.untrained or _has_fixed_body(config):
        return
    if sum(phase.epochs * phase.learning_rate for phase in phases) < LEAST_TRAINING:
        raise InputError(
            "this site sends no exact statistics of features that nobody has trained: their seed is known, and so is "
            "the map from its rows to them"
        )


def limit_answers(caps: Caps, algorithm: Algorithm) -> int | None:
    """How many different answers a site gives in a run: as many as its rounds can need; None without a cap."""
    return None if caps.rounds is None else caps.rounds * len(algorithm.schedule.round) + SPARE_ANSWERS


def check_plain_runs(folder: SiteFolder, caps: Caps, plan: Plan) -> None:
    """Raise InputError where the site has begun as many plain runs within a day as it allows."""
    own = RunState.of(folder, run_tag(plan.name)).plan_file
    if caps.plain_runs is None or not _is_plain(plan.as_plain()) or own.exists():
        return
    begun = 0
    for path in folder.state.glob("*/plan.json"):
        stored = json.loads(path.read_text())["plan"]
        recent = time.time() - path.stat().st_mtime < DAY_SECONDS
        begun += recent and _is_plain(stored)
    if begun >= caps.plain_runs:
        raise InputError(
            f"this site begins {caps.plain_runs} runs without noise of its own a day, and has begun {begun}"
        )


def _is_private(plan: Plan) -> bool:
    """Whether a plan has noise that hides something, whoever adds it."""
    return plan.promise is not None and plan.promise.epsilon <= WEAKEST_EPSILON


def _is_plain(plan: dict[str, Any]) -> bool:
    """Whether the server gets exact statistics of one site, or as good as exact ones, in this plan as it is stored."""
    promise = plan.get("promise")
    hides = promise is not None and promise["trust"] != Trust.CENTRAL and promise["epsilon"] <= WEAKEST_EPSILON
    return plan.get("secure") is None and not hides


def _has_fixed_body(config: SiteConfig) -> bool:
    """Whether the site itself chose a body that nobody trains."""
    body = config.body or ""
    return body.startswith(FROZEN) or is_encoder(body)
