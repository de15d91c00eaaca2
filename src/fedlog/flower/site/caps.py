"""Refuse what a site's own caps do not allow, before its data are read or anything is counted."""

from __future__ import annotations

import json
import time

from fedlog.algorithms.shape import Algorithm
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
SMALLEST_RATE = 1e-6  # of learning: below it a body stays where its seed put it


def check_caps(caps: Caps, plan: Plan, algorithm: Algorithm, config: SiteConfig) -> None:
    """Raise InputError for a plan that asks for more than the site allows."""
    if caps.rounds is not None and plan.rounds > caps.rounds:
        raise InputError(f"this site allows {caps.rounds} rounds a run, found: {plan.rounds}")
    phases = [phase for exchange in algorithm.schedule.round for phase in exchange.phases]
    epochs = sum(phase.epochs for phase in (*phases, *algorithm.schedule.closing))
    if caps.epochs is not None and epochs > caps.epochs:
        raise InputError(f"this site allows {caps.epochs} epochs a round, found: {epochs}")
    local = plan.promise is not None and plan.promise.trust is Trust.LOCAL
    if caps.only is Only.SECURE and plan.secure is None and not local:
        raise InputError("this site takes part in runs with a secure sum or with local noise only")
    if caps.only is Only.PRIVATE and plan.promise is None:
        raise InputError("this site takes part in private runs only")
    if _is_plain(plan) and not caps.untrained and not _has_fixed_body(config) and _sends_untrained(algorithm):
        raise InputError(
            "this site sends no exact statistics of features that nobody has trained: their seed is known, and so is "
            "the map from its rows to them"
        )


def check_plain_runs(folder: SiteFolder, caps: Caps, plan: Plan) -> None:
    """Raise InputError where the site has begun as many plain runs within a day as it allows."""
    own = RunState.of(folder, run_tag(plan.name)).plan_file
    if caps.plain_runs is None or not _is_plain(plan) or own.exists():
        return
    begun = 0
    for path in folder.state.glob("*/plan.json"):
        stored = json.loads(path.read_text())["plan"]
        recent = time.time() - path.stat().st_mtime < DAY_SECONDS
        begun += recent and stored.get("promise") is None and stored.get("secure") is None
    if begun >= caps.plain_runs:
        raise InputError(f"this site begins {caps.plain_runs} runs without noise a day, and has begun {begun}")


def _is_plain(plan: Plan) -> bool:
    return plan.promise is None and plan.secure is None


def _has_fixed_body(config: SiteConfig) -> bool:
    """Whether the site itself chose a body that nobody trains."""
    body = config.body or ""
    return body.startswith(FROZEN) or is_encoder(body)


def _sends_untrained(algorithm: Algorithm) -> bool:
    """Whether something is sent before a body has been trained."""
    schedule = algorithm.schedule
    first = schedule.opening or schedule.round[0]
    return not any(phase.epochs > 0 and phase.learning_rate >= SMALLEST_RATE for phase in first.phases)
