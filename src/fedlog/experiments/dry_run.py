"""What a run would cost, before it is started: bits from real messages, time from its real first round."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from fedlog.engine.local_sgd import Moments
from fedlog.engine.simulator import Simulation
from fedlog.experiments.spec import RunSpec, prepare


@dataclass(frozen=True)
class Forecast:
    """The expected cost of a run; the bits are exact, the memory and the time are estimates."""

    method: str
    data: str
    clients: int
    rounds: int
    parameters_per_client: int
    bits_up_per_round: int
    bits_down_per_round: int
    bits_opening: int
    bits_total: int
    memory_bytes: int
    seconds: float

    def lines(self) -> list[str]:
        """The forecast in words."""
        return [
            f"{self.method} on {self.data}: {self.clients} clients, {self.rounds} rounds",
            f"parameters per client: {self.parameters_per_client:,}",
            f"up: {self.bits_up_per_round / 1e6:.3f} Mb a round, all clients",
            f"down: {self.bits_down_per_round / 1e6:.3f} Mb a round, all clients",
            f"opening: {self.bits_opening / 1e6:.3f} Mb",
            f"in all: {self.bits_total / 1e6:.3f} Mb",
            f"memory: about {self.memory_bytes / 2**20:.0f} MiB",
            f"time: about {self.seconds:.0f} s with the jobs asked for",
        ]


def forecast(spec: RunSpec) -> Forecast:
    """The cost of a resolved specification, measured on its first round."""
    assert spec.rounds is not None
    simulation = prepare(replace(spec, jobs=1))
    start = time.perf_counter()
    record = next(iter(simulation.rounds()))
    seconds = time.perf_counter() - start
    opening = sum(simulation.server.ledger.by_kind(0).values())
    last = _extra_bits_of_last_broadcast(simulation) if record.bits_down else 0
    simulation.stop()
    federation = simulation.federation
    parameters = sum(v.numel() for v in simulation.bodies[0].training.parameters())
    parameters += federation.n_class * (1 + simulation.plan.width)
    kept = 3 if spec.moments == Moments.RUN else 1  # a body, and both moments of each of its parameters
    pools = sum(p.inputs.numel() for p in (federation.train, federation.test))
    return Forecast(
        method=spec.method,
        data=spec.data,
        clients=len(federation.shards),
        rounds=spec.rounds,
        parameters_per_client=parameters,
        bits_up_per_round=record.bits_up,
        bits_down_per_round=record.bits_down,
        bits_opening=opening,
        bits_total=spec.rounds * (record.bits_up + record.bits_down) + opening + last,
        memory_bytes=_base_memory() + 5 * pools + 8 * parameters * kept * len(federation.shards),
        seconds=spec.rounds * seconds / spec.jobs,
    )


def _extra_bits_of_last_broadcast(simulation: Simulation) -> int:
    """The last broadcast goes to everyone, the others to the next round's participants only."""
    server = simulation.server
    blob = server.codec.encode(simulation.algorithm.broadcast(server.state))
    return 8 * len(blob) * (simulation.copies_after(simulation.course.rounds) - simulation.copies_after(1))


def _base_memory() -> int:
    return 300 * 2**20  # an interpreter with PyTorch loaded
