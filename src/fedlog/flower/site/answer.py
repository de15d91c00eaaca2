"""Answer the requests of a run at a site.

The engine trains and evaluates groups of clients (`Cohort`). Here the group has one client, this site, and its state is
loaded and saved for each message. A process that answers several messages keeps the run's `SiteContext` (data, body and
method) in memory. The context is made anew as soon as one of the files it was made from has changed: the data, the
body, the schema, the plan or the site's settings.
"""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from fedlog.algorithms.interface import Exchange
from fedlog.data.schema import load_schema
from fedlog.data.site import refuse_split_by_time
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.training.tasks import set_learning_rates
from fedlog.errors import InputError
from fedlog.files.durable import is_disk_full_error
from fedlog.flower.folders.keys import read_own_roster
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.check_in import describe_clock
from fedlog.flower.protocol.frame import Frame, FrameKind, SendableError, make_errors_sendable, make_run_tag
from fedlog.flower.protocol.greeting import encode_welcome, make_versions, read_hello, read_time
from fedlog.flower.site.context import SiteContext, check_enough_training, check_plain_runs
from fedlog.flower.site.data import refuse_body_that_mixes_records, refuse_trained_body
from fedlog.flower.site.finish import ONLY_CLIENT, finish_run
from fedlog.flower.site.run_state import RunState, parse_step_number
from fedlog.flower.site.site_release_log import (
    PrivacyRequirement,
    record_exact_statistics,
    record_release_at_site,
    refuse_run_beyond_limit,
    refuse_run_without_site_release_log,
)
from fedlog.settings.training import HeadRows, HeldOutRecords
from fedlog.wire.codec import WireError

NO_SPACE = "the disk of this site is full"
WORK_KINDS = (FrameKind.WORK, FrameKind.WORK_ANEW)
# The number of runs for which a process keeps data and method; a site seldom takes part in more than one at once.
KEPT_RUNS = 4
_kept: dict[Path, tuple[str, SiteContext]] = {}


def answer_or_refuse(request: Frame, folder: SiteFolder) -> Frame:
    """Return the answer to a request, or a REFUSAL if the request fails; raise no error.

    Flower would send the text of an exception to the server, and such a text may hold a value from a record. So the
    server learns only the class of the error; the site's log also has the file and the line.
    """
    try:
        return answer_request(request, folder)
    except SendableError as error:
        error.hint = error.hint or "the server's request does not fit the run: tell the operator"
        folder.log("refused", reason=error.one_line, round=request.round_number)
        # The message of a SendableError reveals nothing about the site's data. The hint is for this site only.
        return replace(request, kind=FrameKind.REFUSAL, payload=error.message.encode("ascii", "replace")[:200])
    except Exception as error:
        if is_disk_full_error(error):
            with suppress(OSError):
                folder.log("failed", reason=NO_SPACE, round=request.round_number)
            return replace(request, kind=FrameKind.REFUSAL, payload=NO_SPACE.encode())
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        folder.log("failed", reason=reason, round=request.round_number)
        return replace(
            request, kind=FrameKind.REFUSAL, payload=f"{type(error).__name__}; see the log at the site".encode()
        )


def answer_request(request: Frame, folder: SiteFolder) -> Frame:
    """Do what the request asks for, and return the answer; raise SendableError if the request must be refused."""
    torch.set_num_threads(1)
    if request.kind is FrameKind.HELLO:
        return answer_greeting(request, folder)
    if request.kind not in (*WORK_KINDS, FrameKind.FINISH, FrameKind.SECURE):
        raise SendableError(f"expected a request, found a frame of kind {request.kind.name}")
    state = RunState.of_run(folder, request.run)
    context = load_context(folder, state)
    refuse_unacceptable_plan(context)  # again: the site may have set or lowered its limit since the greeting
    if context.protects_records:
        state.check_body(context.profile)
    if context.plan.world is HeadRows.CLOSED:
        state.check_world_setting(context.profile)
    if request.kind is FrameKind.SECURE:
        return replace(request, kind=FrameKind.SECURED, payload=context.make_secure_sums(state).answer_step(request))
    kind = FrameKind.UPLOAD if request.kind in WORK_KINDS else FrameKind.REPORT
    stored = state.find_stored_reply((request.round_number, request.exchange), request.payload)
    if stored is not None:
        context.folder.log("answered again", run=context.plan.name, round=request.round_number, kind=kind.name)
        return replace(request, kind=kind, payload=stored)
    if request.kind in WORK_KINDS:
        return replace(request, kind=kind, payload=do_local_work(request, context, state))
    state.count_answer(context.max_answers_per_run)
    if not context.plan.hides_site_results:
        record_exact_statistics(folder, context.plan.name, request.round_number, "report")
    cohort = context.make_cohort(context.algorithm, None)
    earlier = state.find_state_before((request.round_number, request.exchange))
    if earlier is not None:
        cohort.load([earlier])
    _deliver_broadcast(context, cohort, request.payload)
    _warn_of_changed_data(context, state)
    return replace(request, kind=kind, payload=finish_run(request, context, state, cohort))


def load_context(folder: SiteFolder, state: RunState) -> SiteContext:
    """Return the site's data, body and method in a run that has begun at this site.

    The context of an earlier message is used again unless one of the files that it was made from has changed.
    """
    digest, context = _kept.pop(state.path, (None, None))
    if context is None or digest is None or digest != _digest_files_of_context(context, state):
        context = SiteContext(folder, folder.read_config(), state.read_plan())
        digest = _digest_files_of_context(context, state)
        if context != SiteContext(folder, folder.read_config(), state.read_plan()):
            digest = None  # a file changed after it was read, so the digest is not that of this context
    if digest is not None:
        _kept[state.path] = (digest, context)
        while len(_kept) > KEPT_RUNS:
            del _kept[next(iter(_kept))]
    return context


def _digest_files_of_context(context: SiteContext, state: RunState) -> str | None:
    """Return one digest of all files that a context is made from; None if a file cannot be read."""
    folder, data = context.folder, Path(context.config.data or "")
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


def refuse_unacceptable_plan(context: SiteContext) -> None:
    """Raise SendableError if the plan exceeds the site's caps, promises too little privacy, or does not fit the site.

    The site's data are not read, so that the error reveals nothing about them.
    """
    config, plan = context.config, context.plan
    try:
        if context.plan_error is not None:
            raise context.plan_error
        if config.privacy is not None:
            PrivacyRequirement.parse(config.privacy).check_promise(plan.promise)
        if plan.secure is not None:
            with _hide_details(
                context, "expected a roster (the list of the sites' keys) with this site's key, found none"
            ):
                read_own_roster(context.folder)
        if context.protects_records:
            refuse_split_by_time(context.schema)
            trained = "expected bodies that never saw private data, found one that a run has trained"
            with _hide_details(context, trained):
                refuse_trained_body(config)
        if plan.promise is not None:
            refuse_body_that_mixes_records(context.body)
    except InputError as error:
        raise SendableError(error.message, hint=error.hint) from None


@contextmanager
def _hide_details(context: SiteContext, sentence: str) -> Iterator[None]:
    """Turn an InputError in the block into a SendableError with this sentence alone; log the details at the site."""
    try:
        yield
    except InputError as error:
        context.folder.log("warning", run=context.plan.name, reason=error.one_line)
        raise SendableError(sentence, hint="the site's log has the details in its last warning") from None


def answer_greeting(request: Frame, folder: SiteFolder) -> Frame:
    """Check and store the plan of a new run, and return a WELCOME frame."""
    config = folder.read_config()
    ours = make_versions(load_schema(folder.schema_file).digest)
    plan = read_hello(request.payload, ours)
    if request.run != make_run_tag(plan.name):  # one run must not have several states here, each with its own caps
        expected = make_run_tag(plan.name).hex()
        raise SendableError(f"expected tag {expected} in the greeting of run {plan.name}, found: {request.run.hex()}")
    context = SiteContext(folder, config, plan)
    refuse_unacceptable_plan(context)
    refuse_run_without_site_release_log(folder)
    with make_errors_sendable():
        check_plain_runs(folder, config.caps, plan)
    state = RunState.of_run(folder, request.run)
    if context.protection is not None:
        refuse_run_beyond_limit(folder, state.path, context.protection.make_release_event(1, plan.method))
    state.store_plan(plan, context.profile)
    folder.log("welcome", run=plan.name, method=plan.method, rounds=plan.rounds, body=context.body.name)
    _check_clock(context, request.payload)
    # In a private run nothing leaves in the greeting but facts about the body; the clock is checked at the check-in.
    now = time.time() if plan.promise is None else None
    return replace(request, kind=FrameKind.WELCOME, payload=encode_welcome(ours, context.profile, now))


def _check_clock(context: SiteContext, hello: bytes) -> None:
    """Log a warning if this machine's clock is behind the server's: a greeting cannot arrive before it was sent."""
    sent = read_time(hello)
    behind = 0.0 if sent is None else min(0.0, time.time() - sent)
    if words := describe_clock(behind):
        reason = f"the clock of this machine is {words}, or more; set it by a time service"
        context.folder.log("warning", run=context.plan.name, reason=reason)


def do_local_work(request: Frame, context: SiteContext, state: RunState) -> bytes:
    """Train as the requested exchange of the method says, save the site's new state, and return the upload."""
    start = time.perf_counter()
    exchange = _find_exchange(context, request)
    step = (request.round_number, request.exchange)
    earlier = state.find_state_before(step)
    if earlier is None:  # the body has not been trained yet: the exchange must train it
        with make_errors_sendable():
            check_enough_training(context.config.caps, context.plan, exchange.phases, context.config)
    state.count_answer(context.max_answers_per_run)
    if earlier is None:
        context.restart_cohort()
    else:
        context.cohort.load([earlier])  # replaces all that a message changes, also if the last one failed halfway
    cohort = context.cohort
    loaded = time.perf_counter()
    if earlier is None:
        context.log_warnings()
    _warn_of_changed_data(context, state)
    announcement, broadcast = None, request.payload
    if context.plan.secure is not None:
        announcement, broadcast = context.make_secure_sums(state).read_and_check_announcement(request.payload)
    _deliver_broadcast(context, cohort, broadcast, anew=request.kind is FrameKind.WORK_ANEW)
    head_since = None if context.protection is None else state.store_head_digest(request.round_number, broadcast)
    # The accuracy of the model as it is now: the site's body after the last round, with the head that has just come.
    ((_, (score,)),) = cohort.evaluate(ONLY_CLIENT, HeldOutRecords.VALIDATION)
    if context.protection is not None:
        release = context.protection.make_release_event(request.round_number, exchange.name)
        record_release_at_site(context.folder, state.path, context.protection, release)
    elif earlier is None:  # once in a run is enough: after the first upload no epsilon bounds the loss
        record_exact_statistics(context.folder, context.plan.name, request.round_number, exchange.name)
    if announcement is None:
        ((_, upload),) = cohort.make_encoded_uploads(request.round_number, exchange, ONLY_CLIENT)
    else:
        ((_, message),) = cohort.make_uploads(request.round_number, exchange, ONLY_CLIENT)
        upload = None
        if message is not None:
            upload = context.make_secure_sums(state).store_vector_and_make_keys(announcement, message, step)
    if upload is None:
        raise SendableError(f"expected a method in which sites send uploads, found: {context.plan.method}")
    state.save_step(step, request.payload, upload, cohort.save)
    context.folder.log(
        "worked",
        run=context.plan.name,
        round=request.round_number,
        of=context.plan.rounds,
        head_since=head_since,
        own_state_of_round=None if earlier is None else parse_step_number(earlier)[0],
        # In a regression a site has no model before the exchange, and so no accuracy.
        validation_accuracy=score.correct / score.records if score.records and score.rmse is None else None,
        bits_up=8 * len(upload),
        bits_down=8 * len(request.payload),
        load_seconds=round(loaded - start, 2),
        work_seconds=round(time.perf_counter() - loaded, 2),
    )
    return upload


def _warn_of_changed_data(context: SiteContext, state: RunState) -> None:
    """Log a warning if the data have changed during the run: other rows may be held out than before.

    Do not warn if the run protects single records: then each row keeps its part (training, validation or test) when
    other rows change, and no run trains the body.
    """
    if not context.protects_records and state.store_data_digest(context.data_digest):
        reason = (
            "the data or --hold-out have changed since the last round: test rows may now be among those that the body "
            "was trained on, and the figures of this run too good; a new run has figures that hold"
        )
        context.folder.log("warning", run=context.plan.name, reason=reason)


def _find_exchange(context: SiteContext, request: Frame) -> Exchange:
    """Return the exchange for which the request asks, with the learning rates of the request's round."""
    algorithm = context.algorithm
    if request.round_number > context.plan.rounds:
        raise SendableError(f"expected a round from 0 to {context.plan.rounds}, found: {request.round_number}")
    if request.round_number == 0 and algorithm.schedule.opening is not None:
        return algorithm.schedule.opening
    if request.round_number == 0 or request.exchange >= len(algorithm.schedule.round):
        raise SendableError(
            f"expected an exchange of {algorithm.name} in round {request.round_number}, found: {request.exchange}"
        )
    exchange = algorithm.schedule.round[request.exchange]
    return set_learning_rates(exchange, context.plan.optimiser, request.round_number, context.plan.rounds)


def _deliver_broadcast(context: SiteContext, cohort: Cohort, broadcast: bytes, *, anew: bool = False) -> None:
    """Let the site's cohort receive a broadcast; with `anew`, the cohort first forgets all earlier messages.

    A broadcast with NaN or infinity is refused here, before the answer is counted as a release.
    """
    if not context.gets_own_broadcasts:
        cohort.receive_broadcast(broadcast)
    else:
        try:
            cohort.receive_own_broadcasts({0: broadcast}, ONLY_CLIENT if anew else ())
        except WireError as error:  # its message is about the server's bytes, so it may be sent
            raise SendableError(error.message) from None
    if not all(torch.isfinite(value).all() for value in cohort.store.get_received_params(0).values()):
        raise SendableError(
            "expected finite numbers in the broadcast, found NaN or infinity",
            hint="training may have diverged: the operator can start a run with a smaller learning rate",
        )
