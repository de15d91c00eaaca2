"""Answer the requests of a run at a site. The site is a cohort of one client, loaded and saved for each message."""

from __future__ import annotations

import time
import traceback
from contextlib import suppress
from pathlib import Path

import torch

from fedlog.algorithms.shape import Exchange
from fedlog.data.schema import load_schema
from fedlog.files.durable import is_full
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.check_in import describe_clock
from fedlog.flower.protocol.frame import Frame, FrameError, FrameKind, as_refusal, run_tag
from fedlog.flower.protocol.handshake import check_identity, identity, read_identity, read_time
from fedlog.flower.protocol.plan import encode_welcome, read_hello
from fedlog.flower.site.budget import (
    record_exact_statistics,
    record_release_at_site,
    refuse_beyond_limit,
    refuse_run_without_record,
)
from fedlog.flower.site.caps import check_plain_runs, check_training
from fedlog.flower.site.context import SiteContext, site_context
from fedlog.flower.site.finish import finish
from fedlog.flower.site.run_state import RunState, step_of
from fedlog.settings.training import Judge, World

NO_SPACE = "the disk of this site is full"
ONE = (0,)  # a site's cohort has one client
WORK_KINDS = (FrameKind.WORK, FrameKind.WORK_ANEW)


def answer_frame(request: Frame, folder: SiteFolder) -> Frame:
    """Return the frame to send back, also if the request fails.

    Flower would send the text of an exception to the server, and such a text may hold a value from a record. So the
    server learns only the class of the error; the site's log also has the file and the line.
    """
    try:
        return respond(request, folder)
    except FrameError as error:
        folder.log("refused", reason=error.message, round=request.round_number)
        # The message of a FrameError says nothing about the site's data, so it may be sent.
        return request.reply(FrameKind.REFUSAL, error.message.encode("ascii", "replace")[:200])
    except Exception as error:
        if is_full(error):
            with suppress(OSError):
                folder.log("failed", reason=NO_SPACE, round=request.round_number)
            return request.reply(FrameKind.REFUSAL, NO_SPACE.encode())
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        folder.log("failed", reason=reason, round=request.round_number)
        return request.reply(FrameKind.REFUSAL, f"{type(error).__name__}; see the log at the site".encode())


def respond(request: Frame, folder: SiteFolder) -> Frame:
    """Do what the request asks for and return the reply."""
    torch.set_num_threads(1)
    if request.kind is FrameKind.HELLO:
        return answer_greeting(request, folder)
    if request.kind not in (*WORK_KINDS, FrameKind.FINISH, FrameKind.SECURE):
        raise FrameError(f"expected a request, found a frame of kind {request.kind.name}")
    state = RunState.of(folder, request.run)
    context = site_context(folder, state)
    context.check_plan()  # again, after the greeting: the site may have set or lowered its limit since then
    if context.by_record:
        state.check_body(context.profile)
    if context.plan.world is World.CLOSED:
        state.check_world(context.profile)
    if request.kind is FrameKind.SECURE:
        return request.reply(FrameKind.SECURED, context.secure_sum(state).answer_step(request))
    kind = FrameKind.UPLOAD if request.kind in WORK_KINDS else FrameKind.REPORT
    stored = state.find_stored_reply((request.round_number, request.exchange), request.payload)
    if stored is not None:
        context.log("answered again", round=request.round_number, kind=kind.name)
        return request.reply(kind, stored)
    if request.kind in WORK_KINDS:
        return request.reply(kind, do_work(request, context, state))
    _count_answer(context, state)
    if not context.plan.hides_figures:
        record_exact_statistics(folder, context.plan.name, request.round_number, "report")
    return request.reply(kind, finish(request, context, state))


def answer_greeting(request: Frame, folder: SiteFolder) -> Frame:
    """Check and store the plan of a new run, and return a WELCOME frame."""
    config = folder.read_config()
    ours = identity(load_schema(folder.schema_file).digest)
    check_identity(ours, read_identity(request.payload), "the server")
    plan = read_hello(request.payload)
    if request.run != run_tag(plan.name):  # one run must not have several states here, each with its own caps
        expected = run_tag(plan.name).hex()
        raise FrameError(f"expected tag {expected} in the greeting of run {plan.name}, found: {request.run.hex()}")
    context = SiteContext(folder, config, plan)
    context.check_plan()
    refuse_run_without_record(folder)
    with as_refusal():
        check_plain_runs(folder, config.caps, plan)
    state = RunState.of(folder, request.run)
    if context.guard is not None:
        refuse_beyond_limit(folder, state.path, context.guard.release_event(1, plan.method))
    state.accept_plan(plan, context.profile)
    context.log("welcome", method=plan.method, rounds=plan.rounds, body=context.body.name)
    _check_clock(context, request.payload)
    # In a private run nothing leaves in the greeting but facts about the body; the clock is checked at the check-in.
    now = time.time() if plan.promise is None else None
    return request.reply(FrameKind.WELCOME, encode_welcome(ours, context.profile, now))


def _check_clock(context: SiteContext, hello: bytes) -> None:
    """Log a warning if this machine's clock is behind the server's: a greeting cannot arrive before it was sent."""
    sent = read_time(hello)
    behind = 0.0 if sent is None else min(0.0, time.time() - sent)
    if words := describe_clock(behind):
        context.log("warning", reason=f"the clock of this machine is {words}, or more; set it by a time service")


def _count_answer(context: SiteContext, state: RunState) -> None:
    """Count a new answer; refuse to give it if the site has given as many in this run as its caps allow."""
    most = context.most_answers
    if most is not None and state.count_answers() >= most:
        raise FrameError(f"this site gives at most {most} different answers in a run, and has given that many")
    state.add_answer()


def do_work(request: Frame, context: SiteContext, state: RunState) -> bytes:
    """Do the local work of one exchange and return the upload; the site's new state is saved before it is sent."""
    start = time.perf_counter()
    exchange = _find_exchange(context, request)
    step = (request.round_number, request.exchange)
    earlier = state.state_before(step)
    if earlier is None:  # the body has not been trained yet: the exchange must train it
        with as_refusal():
            check_training(context.config.caps, context.plan, exchange.phases, context.config)
    _count_answer(context, state)
    cohort = context.cohort_after(earlier)
    loaded = time.perf_counter()
    if earlier is None:
        context.warn()
    opening, broadcast = None, request.payload
    if context.plan.secure is not None:
        opening, broadcast = context.secure_sum(state).open(request.payload)
    context.hear(cohort, broadcast, anew=request.kind is FrameKind.WORK_ANEW)
    head_since = None if context.guard is None else state.record_head(request.round_number, broadcast)
    # The accuracy of the model as it is now: the site's body after the last round, with the head that has just come.
    ((_, (score,)),) = cohort.evaluate(ONE, Judge.VALIDATION)
    if context.guard is not None:
        release = context.guard.release_event(request.round_number, exchange.name)
        record_release_at_site(context.folder, state.path, context.guard, release)
    elif earlier is None:  # once in a run is enough: after the first upload no epsilon bounds the loss
        record_exact_statistics(context.folder, context.plan.name, request.round_number, exchange.name)
    if opening is None:
        ((_, upload),) = cohort.exchange(request.round_number, exchange, ONE)
    else:
        ((_, message),) = cohort.messages(request.round_number, exchange, ONE)
        upload = None if message is None else context.secure_sum(state).advertise(opening, message, step)
    if upload is None:
        raise FrameError(f"expected a method in which sites send uploads, found: {context.plan.method}")
    state.save_step(step, request.payload, upload, cohort.save)
    context.log(
        "worked",
        round=request.round_number,
        of=context.plan.rounds,
        head_since=head_since,
        own_state_of_round=None if earlier is None else step_of(earlier)[0],
        # In a regression a site has no model before the exchange, and so no accuracy.
        validation_accuracy=score.correct / score.records if score.records and score.rmse is None else None,
        bits_up=8 * len(upload),
        bits_down=8 * len(request.payload),
        load_seconds=round(loaded - start, 2),
        work_seconds=round(time.perf_counter() - loaded, 2),
    )
    return upload


def _find_exchange(context: SiteContext, request: Frame) -> Exchange:
    """Return the exchange that the request names, with the learning rates of its round."""
    algorithm = context.algorithm
    if request.round_number > context.plan.rounds:
        raise FrameError(f"expected a round from 0 to {context.plan.rounds}, found: {request.round_number}")
    if request.round_number == 0 and algorithm.schedule.opening is not None:
        return algorithm.schedule.opening
    if request.round_number == 0 or request.exchange >= len(algorithm.schedule.round):
        raise FrameError(f"{algorithm.name} has no exchange {request.exchange} in round {request.round_number}")
    return context.at_round(algorithm.schedule.round[request.exchange], request.round_number)
