"""The server's side of the protocol: check uploads, sum their contributions, update the state, encode the broadcast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedlog.algorithms.interface import NO_MIXTURES, Algorithm, Exchange, FeatureSummary, ModelPlan, WorkResult
from fedlog.core.heads.mixtures import fit_mixtures
from fedlog.core.keys import Key
from fedlog.core.stats import Moments
from fedlog.engine.protocol.checkpoint import Memory, ServerState, SumsProgress
from fedlog.engine.protocol.downlink import Downlink
from fedlog.engine.protocol.share_caps import CappedClient, cap_shares, check_uploads_have_counts
from fedlog.errors import InputError, RunError
from fedlog.models.body import Params
from fedlog.privacy.limits import UploadLimits
from fedlog.privacy.protection import Protection
from fedlog.wire.ledger import Direction, Ledger
from fedlog.wire.message import Contribution, Kind, Message, add_contributions, make_contribution
from fedlog.wire.transport import PAPER_TRANSPORT, Transport

NAMED = 5  # how many clients an error names


@dataclass(frozen=True)
class RefusedUpload:
    """An upload that was left out of the sum: its client, and the reason."""

    client: str
    reason: str


@dataclass
class Server:
    """The server of a run: it sums uploads, updates its state, encodes broadcasts and counts bits."""

    algorithm: Algorithm
    state: Params
    templates: Mapping[str, Message | None]
    """By exchange: an upload of the right kind and shapes, which uploads are compared with; None: no upload."""
    ledger: Ledger = field(default_factory=Ledger)
    refusals: list[tuple[int, RefusedUpload]] = field(default_factory=list)
    refused_share_allowed: float = 0.0
    protection: Protection | None = None
    limits: UploadLimits | None = None  # bounds on statistics, if there is a clip
    noise_key: Key = field(default_factory=lambda: Key(0))
    wire_key: Key = field(default_factory=lambda: Key(0))  # for codecs that round at random
    memory: Memory | None = None  # every client's last upload; None: a step sums only the uploads of its exchange
    transport: Transport = PAPER_TRANSPORT
    downlink: Downlink | None = None  # None: every client gets the same bytes
    largest_share: float | None = None  # upper limit on one upload's share of all counts; None: no limit
    capped: list[tuple[int, CappedClient]] = field(default_factory=list)
    kept_state: bool = False  # whether the last step kept the old state, e.g. because the sum was mostly noise

    @staticmethod
    def create(
        algorithm: Algorithm,
        plan: ModelPlan,
        initial: Params,
        key: Key,
        protection: Protection | None = None,
        transport: Transport = PAPER_TRANSPORT,
        *,
        refused_share: float = 0.0,
        limits: UploadLimits | None = None,
        remembers: bool = False,
        largest_share: float | None = None,
    ) -> Server:
        """A server before its first broadcast; `initial` is an untrained model, which gives the shapes of uploads.

        If more than `refused_share` of an exchange's uploads are unusable, the run stops. Without protection, uploads
        with statistics beyond `limits` are unusable; a protection has limits of its own. With `remembers`, sums also
        include the last uploads of absent clients, if the method allows it. An upload that claims more than
        `largest_share` of all clients' records is scaled down.
        """
        schedule = algorithm.schedule
        exchanges = [*schedule.round, *([schedule.opening] if schedule.opening else [])]
        templates = {exchange.name: make_upload_template(algorithm, exchange, initial, plan) for exchange in exchanges}
        if largest_share is not None:
            check_uploads_have_counts(algorithm.name, templates)
        if protection is not None:
            templates = {name: p and protection.protect(p, key) for name, p in templates.items()}
        return Server(
            algorithm,
            algorithm.begin(key),
            templates,
            refused_share_allowed=refused_share,
            protection=protection,
            limits=(protection.limits if protection is not None else None) or limits,
            noise_key=key.child("noise"),
            wire_key=key.child("wire"),
            memory={} if remembers and algorithm.sums_last_uploads else None,
            transport=transport,
            downlink=Downlink(transport, key.child("downlink")) if transport.broadcasts_differ_by_client else None,
            largest_share=largest_share,
        )

    def make_checkpoint_state(self, round_number: int, sums: SumsProgress | None = None) -> ServerState:
        """The server's part of a checkpoint after this round; `sums` only with secure sums."""
        known = {} if self.downlink is None else self.downlink.as_tensors()
        return ServerState(round_number, self.state, self.ledger, self.memory or {}, sums, known)

    def resume(self, saved: ServerState) -> None:
        """Restore the server from its part of a checkpoint."""
        self.state, self.ledger = saved.values, saved.ledger
        if self.memory is not None:
            self.memory = saved.memory
        if self.downlink is not None:
            self.downlink.restore(saved.downlink)

    def encode_and_count_broadcast(self, round_number: int, receivers: int) -> bytes:
        """Encode one broadcast for all clients, and count its bits `receivers` times."""
        blob = self.encode_broadcast(round_number)
        self.ledger.count(round_number, Direction.DOWN, self.algorithm.broadcast(self.state).kind, blob, receivers)
        return blob

    def encode_and_count_separate_broadcasts(
        self, downlink: Downlink, round_number: int, clients: Sequence[str]
    ) -> dict[str, bytes]:
        """Encode a broadcast for each of these clients, count the bits, and return the bytes by client."""
        sent = downlink.encode_for_clients(round_number, self.algorithm.broadcast(self.state), clients)
        for kind, blob in sent.values():
            self.ledger.count(round_number, Direction.DOWN, kind, blob)
        return {client: blob for client, (_, blob) in sent.items()}

    def encode_broadcast(self, round_number: int) -> bytes:
        """Encode the broadcast after this round, without counting its bits; every call returns the same bytes."""
        message = self.algorithm.broadcast(self.state)
        key = self.wire_key.child("round", round_number, message.kind.name)
        return self.transport.broadcast_codec.encode(message, key)

    def receive_uploads(self, round_number: int, exchange: Exchange, uploads: Iterable[tuple[str, bytes]]) -> None:
        """Update the state with the sum of these uploads, given in the clients' order.

        Unusable uploads are left out and recorded; RunError if there are too many of them.
        """
        summed: Contribution | None = None
        apart: dict[str, Contribution] = {}  # uploads that must be weighed, or kept, before they are summed
        refused: list[RefusedUpload] = []
        seen: list[str] = []
        for client, blob in uploads:
            taken = self._read_upload(round_number, exchange, client, blob, seen)
            seen.append(client)
            if isinstance(taken, RefusedUpload):
                refused.append(taken)
                if self.downlink is not None:
                    self.downlink.forget(client)
            elif self.memory is not None:
                self.memory[client] = taken
            elif self.largest_share is not None:
                apart[client] = taken
            else:
                summed = taken if summed is None else summed + taken
        self.refusals += [(round_number, refusal) for refusal in refused]
        if len(refused) > self.refused_share_allowed * len(seen):
            raise RunError(
                f"round {round_number}: {len(refused)} of {len(seen)} uploads cannot be used: "
                + "; ".join(f"{one.client}: {one.reason}" for one in refused[:NAMED])
                + ("; ..." if len(refused) > NAMED else ""),
                hint="check what these clients send; --refused-share sets how many unusable uploads a run tolerates",
            )
        if self.memory:
            # Sorted by name, so that the order in which clients joined does not matter.
            apart = {client: self.memory[client] for client in sorted(self.memory)}
        if self.largest_share is not None:
            apart, capped = cap_shares(apart, self.largest_share)
            self.capped += [(round_number, one) for one in capped]
        if apart:
            summed = add_contributions(list(apart.values()))
        if summed is not None:
            self.apply_sum(round_number, exchange, summed)

    def apply_sum(self, round_number: int, exchange: Exchange, summed: Contribution) -> None:
        """Update the state with the sum of an exchange's contributions, after adding the server's noise if any."""
        if self.protection is not None:
            summed = self.protection.add_server_noise(
                summed, self.noise_key.child("round", round_number, exchange.name)
            )
        before = self.state
        self.state = self.algorithm.step(exchange.name, before, summed)
        self.kept_state = self.state is before

    def _read_upload(
        self, round_number: int, exchange: Exchange, client: str, blob: bytes, seen: list[str]
    ) -> Contribution | RefusedUpload:
        try:
            last = None if self.memory is None else self.memory.get(client)
            known = None if last is None else Message(Kind.STATISTICS, last.arrays)
            message = self.transport.upload_codec.decode(blob, known)
            self.ledger.count(round_number, Direction.UP, message.kind, blob)
            if client in seen:
                raise InputError("the client has already sent an upload in this exchange")
            if message.kind is Kind.SAME:
                if last is None:
                    raise InputError("the upload refers to the client's last upload, which the server does not have")
                return last
            _check_against_template(message, self.templates[exchange.name])
            lifted = self.read_contribution(message)
            if self.limits is not None and message.kind in (Kind.STATISTICS, Kind.MOMENTS):
                # Rounding by the codec may bring values a little beyond the clip.
                limits = replace(self.limits, rounding=max(self.limits.rounding, self.transport.upload_codec.rounding))
                limits.check_statistics(lifted.arrays[0])
                if message.kind is Kind.MOMENTS:
                    limits.check_second_moments(*lifted.arrays)
            else:
                _check_counts(message)
            if self.downlink is not None and message.kind is Kind.STATISTICS:
                held = message.arrays[0].any(dim=1).nonzero().flatten()
                self.downlink.classes[client] = frozenset(int(row) for row in held)
            return lifted
        except InputError as error:
            return RefusedUpload(client, error.message)

    def read_contribution(self, message: Message) -> Contribution:
        """What this upload adds to the sum of all uploads.

        In secure sums over a network, the sites compute the same before they mask it, so the server sees no upload.
        """
        found = make_contribution(message)
        return found if self.protection is None else self.protection.convert_to_feature_units(found)


def make_upload_template(algorithm: Algorithm, exchange: Exchange, initial: Params, plan: ModelPlan) -> Message | None:
    """An upload without data, with the kind and shapes of all uploads of this exchange; None if it has no uploads."""
    received = algorithm.receive(algorithm.broadcast(algorithm.begin(Key(0))), {})
    home = algorithm.join(initial)
    work = algorithm.start_exchange(exchange.name, home, received)
    nothing = Moments.zeros(plan.n_class, exchange.count_summed_features(plan.width), exchange.detail)
    mixtures = NO_MIXTURES
    if exchange.summary is FeatureSummary.MIXTURES:
        no_records = torch.zeros(0, plan.width), torch.zeros(0, dtype=torch.int64)
        mixtures = fit_mixtures(*no_records, plan.n_class, exchange.parts, Key(0))
    trained = WorkResult(work.params, nothing.statistics, 0, nothing.second, mixtures)
    return algorithm.finish_exchange(exchange.name, home, work, trained)[1]


def _check_against_template(message: Message, template: Message | None) -> None:
    """Refuse an upload whose kind, shapes or types differ from those of `template`, or that is not finite."""
    kind = message.kind.name.lower()
    if template is None or message.kind is not template.kind:
        raise InputError(
            f"the upload is of kind {kind}, expected: {template.kind.name.lower() if template else 'none'}"
        )
    found, expected = ([tuple(array.shape) for array in m.arrays] for m in (message, template))
    if found != expected:
        raise InputError(f"the upload has arrays of shape {found}, expected: {expected}")
    for number, (array, like) in enumerate(zip(message.arrays, template.arrays, strict=True)):
        if _describe_type(array) != _describe_type(like):
            raise InputError(f"array {number} ({kind}) has {_describe_type(array)}, expected: {_describe_type(like)}")
        if array.is_floating_point() and not bool(torch.isfinite(array).all()):
            entry = [int(at) for at in (~torch.isfinite(array)).nonzero()[0]]
            raise InputError(f"entry {entry} of array {number} ({kind}) is not finite: {float(array[tuple(entry)])}")


def _check_counts(message: Message) -> None:
    """Refuse an upload with a negative count or variance, or with sums of a class that has a count of 0."""
    kind = message.kind.name.lower()
    by_class = message.kind in (Kind.STATISTICS, Kind.MOMENTS)
    if message.kind is Kind.MIXTURES:
        counts = message.arrays[0]
    else:
        counts = message.arrays[0][:, 0] if by_class else message.arrays[-1]
    if bool((counts < 0).any()):
        entry = int((counts < 0).nonzero()[0, 0])
        owner = "class" if by_class else "Gaussian" if message.kind is Kind.MIXTURES else "entry"
        raise InputError(f"{owner} {entry} of {kind} has a negative count: {float(counts[entry]):g}")
    if message.kind is Kind.MIXTURES and bool((message.arrays[2] < 0).any()):
        entry = int((message.arrays[2] < 0).any(dim=1).nonzero()[0, 0])
        variance = float(message.arrays[2][entry].min())
        raise InputError(f"Gaussian {entry} of {kind} has a negative variance: {variance:g}")
    if by_class:
        of_nothing = (counts == 0) & (message.arrays[0] != 0).any(dim=1)
        if bool(of_nothing.any()):
            raise InputError(
                f"class {int(of_nothing.nonzero()[0, 0])} of {kind} has a count of 0, but its sums are not 0"
            )


def _describe_type(array: Tensor) -> str:
    if array.dtype == torch.bool:
        return "truth values"
    return "numbers" if array.is_floating_point() else "whole numbers"
