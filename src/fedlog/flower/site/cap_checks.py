"""Refuse requests that a site's caps do not allow, before its data are read or anything is counted.

The caps count what really reaches the server, not what a plan calls it: noise of a very large epsilon hides nothing and
does not count as noise, and a step that is asked again with another head counts as another step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from fedlog.algorithms.shape import Algorithm, Phase
from fedlog.errors import InputError
from fedlog.flower.folders.caps import AcceptedRuns, Caps
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.protocol.frame import run_tag
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.site.run_state import RunState
from fedlog.models.encoders.names import is_encoder
from fedlog.models.frozen import FROZEN
from fedlog.privacy.guarantee import Trust

DAY_SECONDS = 86400.0
# Epochs times the learning rate before the first upload: with less, a body is nearly as its seed made it.
LEAST_TRAINING = 1e-4
WEAKEST_EPSILON = 50.0  # with a larger epsilon the noise hides nothing
# More answers than the rounds have steps: for the opening, the end, and steps that are asked again after a crash.
SPARE_ANSWERS = 10


def check_caps(caps: Caps, plan: Plan, algorithm: Algorithm, config: SiteConfig) -> None:
    """Raise InputError if the plan asks for more than the site's caps allow."""
    if caps.rounds is not None and plan.rounds > caps.rounds:
        raise InputError(f"this site allows {caps.rounds} rounds a run, found: {plan.rounds}")
    phases = [phase for exchange in algorithm.schedule.round for phase in exchange.phases]
    epochs = sum(phase.epochs for phase in (*phases, *algorithm.schedule.closing))
    if caps.epochs is not None and epochs > caps.epochs:
        raise InputError(f"this site allows {caps.epochs} epochs a round, found: {epochs}")
    local = _is_private(plan) and plan.promise is not None and plan.promise.trust is Trust.LOCAL
    if caps.only is AcceptedRuns.SECURE and plan.secure is None and not local:
        raise InputError("this site takes part in runs with a secure sum or with local noise only")
    if caps.only is AcceptedRuns.PRIVATE and not _is_private(plan):
        raise InputError("this site takes part in private runs only")
    first = algorithm.schedule.opening or algorithm.schedule.round[0]
    check_training(caps, plan, first.phases, config)


def check_training(caps: Caps, plan: Plan, phases: Iterable[Phase], config: SiteConfig) -> None:
    """Raise InputError if these phases, the first ones that train the body, change it too little.

    It is checked for the plan, and again for the step that really comes first: the learning rate may fall during a run,
    and a server may ask for the last round first.
    """
    hides = plan.secure is not None or _is_private(plan)
    if hides or caps.untrained or _has_fixed_body(config):
        return
    if sum(phase.epochs * phase.learning_rate for phase in phases) < LEAST_TRAINING:
        raise InputError(
            "this plan trains the body too little before it sends exact statistics: the server knows the untrained "
            "body from its seed, and could trace the statistics back to rows",
            hint="a plan with more training, with secure sums or with noise; or allow it at this site: `fedlog "
            "federate caps DIR --remove untrained`",
        )


def check_plain_runs(folder: SiteFolder, caps: Caps, plan: Plan) -> None:
    """Raise InputError if the site has begun as many plain runs in the last 24 hours as its caps allow."""
    own = RunState.of_run(folder, run_tag(plan.name)).plan_file
    if caps.plain_runs is None or not _is_plain(plan.as_plain()) or own.exists():
        return
    begun = 0
    for path in folder.state.glob("*/plan.json"):
        stored = json.loads(path.read_text())["plan"]
        recent = time.time() - path.stat().st_mtime < DAY_SECONDS
        begun += recent and _is_plain(stored)
    if begun >= caps.plain_runs:
        raise InputError(
            f"this site begins {caps.plain_runs} runs without noise of its own in 24 hours, and has begun {begun}"
        )


def _is_private(plan: Plan) -> bool:
    """Whether a plan has enough noise to hide something, no matter who adds it."""
    return plan.promise is not None and plan.promise.epsilon <= WEAKEST_EPSILON


def _is_plain(plan: dict[str, Any]) -> bool:
    """Whether a run with this stored plan shows the server exact, or nearly exact, statistics of a single site."""
    promise = plan.get("promise")
    hides = promise is not None and promise["trust"] != Trust.CENTRAL and promise["epsilon"] <= WEAKEST_EPSILON
    return plan.get("secure") is None and not hides


def _has_fixed_body(config: SiteConfig) -> bool:
    """Whether the site itself chose a body that no run trains: a frozen one, or an encoder."""
    body = config.body or ""
    return body.startswith(FROZEN) or is_encoder(body)
