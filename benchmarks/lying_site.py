"""Measure how much one lying site of ten harms the others, with and without a cap on its weight and a clip.

    python -m benchmarks.lying_site

The liar sends true statistics under false labels (each class's sums under the next class), states that they come from
a million times as many records, or stretches its features a thousand times. Digits in ten sites, FedLog, five rounds,
three seeds; the accuracy is that of the nine others. About a minute; needs no data set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from fedlog.algorithms.interface import Exchange
from fedlog.engine.simulate.simulator import RoundRecord, Simulation
from fedlog.engine.software import list_software_versions
from fedlog.experiments.run.prepare import make_simulation
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec
from fedlog.wire.message import Message

RECORDS = Path(__file__).parent / "records"
SEEDS = (0, 1, 2)
BASE = RunSpec(data="digits", clients=10, partition="dirichlet", dirichlet_alpha=1.0, rounds=5)
SHARE, CLIP = 0.15, "l2:5"
Lie = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One case: how the lying site changes its statistics (classes, 1 + features), and how the others are protected."""

    lie: str
    largest_share: float | None = None
    clip: str | None = None


LIES: dict[str, Lie] = {
    "none": lambda sums: sums,
    "false labels": lambda sums: sums.roll(1, 0),
    "false labels, a million times the count": lambda sums: 1e6 * sums.roll(1, 0),
    "false labels, features a thousand times as long": lambda sums: torch.cat(
        [sums[:, :1], 1e3 * sums[:, 1:]], dim=1
    ).roll(1, 0),
}
CASES = [Case(lie, share, clip) for clip in (None, CLIP) for lie in LIES for share in (None, SHARE)]


def main(out: Path = RECORDS, seeds: tuple[int, ...] = SEEDS, rounds: int = 5) -> None:
    """Run all cases, print them and write `lying-site.json`."""
    rows = []
    for case in CASES:
        found = [measure_accuracy_of_others(case, replace(BASE, seed=seed, rounds=rounds)) for seed in seeds]
        rows.append(
            {
                "lie": case.lie,
                "largest_share": case.largest_share,
                "clip": case.clip,
                "accuracy_of_others": mean(accuracy for accuracy, _ in found),
                "accuracy_by_seed": [accuracy for accuracy, _ in found],
                "rounds_in_which_the_liar_was_left_out": [refused for _, refused in found],
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    content = {"seeds": seeds, "rounds": rounds, "rows": rows, "made_with": list_software_versions()}
    content["command"] = "python -m benchmarks.lying_site"
    (out / "lying-site.json").write_text(json.dumps(content, indent=1) + "\n")


def measure_accuracy_of_others(case: Case, spec: RunSpec) -> tuple[float, int]:
    """The mean accuracy of the honest sites after the last round, and how often the liar was left out."""
    spec = replace(spec, largest_share=case.largest_share, clip=case.clip, refused_share=0.5)
    refused = 0
    with make_simulation(resolve(spec)) as simulation:
        liar = simulation.federation.clients[0]
        _let_lie(simulation, liar, LIES[case.lie])
        last: RoundRecord | None = None
        for last in simulation.rounds():
            refused += liar in last.refused
    assert last is not None
    honest = [accuracy for accuracy in last.accuracy_per_client[1:] if accuracy is not None]
    return mean(honest), refused


def _let_lie(simulation: Simulation, liar: str, lie: Lie) -> None:
    """Let the simulation change the uploads of the lying site before the server gets them."""
    server: Any = simulation.server
    receive, codec = server.receive_uploads, server.transport.upload_codec

    def receive_lies(number: int, exchange: Exchange, uploads: Iterable[tuple[str, bytes]]) -> None:
        def change_upload(blob: bytes) -> bytes:
            message = codec.decode(blob)
            return bytes(codec.encode(Message(message.kind, (lie(message.arrays[0]),))))

        receive(number, exchange, [(name, change_upload(blob) if name == liar else blob) for name, blob in uploads])

    server.receive_uploads = receive_lies


if __name__ == "__main__":
    main()
