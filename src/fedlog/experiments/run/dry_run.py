"""Forecast the cost of a run: run its first round (or three rounds), count the bits, and measure the time.

Without secure sums, all rounds cost the same except for the last broadcast, so one round is run. With secure sums, the
keys for a round are sent one round early: the first round sends two sets of keys and the last none. So three rounds are
run: a first, a middle and a last one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from fedlog.engine.simulate.simulator import Simulation
from fedlog.experiments.run.prepare import make_simulation
from fedlog.files.duration_text import describe_duration
from fedlog.models.encoders.cache import Progress
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import AdamMoments
from fedlog.wire.bits_text import describe_bits

BASE_MEMORY = 300 * 2**20  # bytes of an interpreter with PyTorch loaded


@dataclass(frozen=True)
class Forecast:
    """The expected cost of a run. `bits_are` is `exact`, or says why they are not. Memory and time are estimates."""

    method: str
    data: str
    clients: int
    rounds: int
    parameters_per_client: int
    bits_up_per_round: int
    bits_down_per_round: int
    bits_opening: int
    bits_total: int
    bits_are: str
    memory_bytes: int
    seconds: float
    advice: tuple[str, ...]  # the method's remarks and warnings about these settings

    def format_lines(self) -> list[str]:
        """Return the forecast as lines of text."""
        return [
            f"{self.method} on {self.data}: {self.clients} clients, {self.rounds} rounds",
            f"parameters per client: {self.parameters_per_client:,}",
            f"up: {describe_bits(self.bits_up_per_round)} a round, all clients",
            f"down: {describe_bits(self.bits_down_per_round)} a round, all clients",
            f"opening: {describe_bits(self.bits_opening)}",
            f"in all: {describe_bits(self.bits_total)}, {self.bits_are}",
            f"memory: about {self.memory_bytes / 2**20:.0f} MiB",
            f"time: about {describe_duration(self.seconds)} with the jobs asked for",
            *self.advice,
        ]


def forecast_cost(spec: RunSpec, progress: Progress | None = None) -> Forecast:
    """Forecast the cost of a run by running its first round, or three rounds if it uses secure sums.

    `progress` is called while a frozen encoder computes features; the run itself then reads them from the cache.
    """
    simulation = make_simulation(resolve(replace(spec, jobs=1)), progress=progress).start()
    settings = simulation.settings
    start = time.perf_counter()
    if simulation.secure is None:
        records = [next(iter(simulation.rounds()))]
        last = _count_extra_bits_of_last_broadcast(simulation) if records[0].bits_down else 0
    else:
        simulation.secure.dropouts = None
        # The noise stays planned for all rounds; only fewer rounds are run.
        simulation.settings = replace(settings, rounds=min(settings.rounds, 3), stop_at_accuracy=None)
        records, last = list(simulation.rounds()), 0
    seconds = (time.perf_counter() - start) / len(records)
    at_once = simulation.workers.count_clients_trained_together()
    opening = sum(simulation.server.ledger.sum_bits_by_kind(0).values())
    simulation.stop()
    record = records[len(records) // 2]
    bits = [each.bits_up + each.bits_down for each in records]
    federation = simulation.federation
    parameters = sum(v.numel() for v in simulation.bodies[0].training_module.parameters())
    parameters += federation.n_class * (1 + simulation.plan.width)
    kept = 3 if spec.moments is AdamMoments.RUN else 1  # a body, and both moments of each of its parameters
    # Each client of a stacked block needs five copies: parameters, gradient, both moments and the next parameters.
    stacked = spec.jobs * min(len(federation.shards), at_once)
    pools = sum(p.inputs.numel() for p in (federation.train, federation.test))
    return Forecast(
        method=spec.method,
        data=spec.data,
        clients=len(federation.shards),
        rounds=settings.rounds,
        parameters_per_client=parameters,
        bits_up_per_round=record.bits_up,
        bits_down_per_round=record.bits_down,
        bits_opening=opening,
        bits_total=sum(bits) + (settings.rounds - len(bits)) * bits[len(bits) // 2] + opening + last,
        bits_are=_describe_certainty_of_bits(spec),
        memory_bytes=BASE_MEMORY + 5 * pools + 4 * parameters * (kept * len(federation.shards) + 5 * stacked),
        seconds=settings.rounds * seconds / spec.jobs,
        advice=tuple(simulation.algorithm.advice(settings.rounds)),
    )


def _describe_certainty_of_bits(spec: RunSpec) -> str:
    """Return `exact`, or the reason why the forecast of bits is not exact."""
    transport = spec.transport
    if (
        transport.broadcasts_differ_by_client
        or "zstd" in f"{transport.upload_codec.name}+{transport.broadcast_codec.name}"
    ):
        return "about: the length of a message depends on its content"
    if spec.aggregation is None:
        return "exact"
    if spec.dropout_rate:
        return "if nobody dropped out"
    return "exact" if spec.participation == 1 else "about: how many keys are sent depends on the clients drawn"


def _count_extra_bits_of_last_broadcast(simulation: Simulation) -> int:
    """Count the additional bits of the last broadcast, which goes to all clients and not only to participants."""
    server = simulation.server
    blob = server.encode_broadcast(0)
    return 8 * len(blob) * (simulation.count_receivers(simulation.settings.rounds) - simulation.count_receivers(1))
