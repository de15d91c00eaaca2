"""The weight of one client in a sum is capped, and runs report it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.algorithms.interface import Exchange
from fedlog.cli.main import main
from fedlog.engine.protocol.share_caps import cap_shares
from fedlog.errors import InputError
from fedlog.experiments.run.prepare import make_simulation
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec
from fedlog.wire.message import Contribution, Message

BASE = RunSpec(data="digits", clients=10, partition="dirichlet", dirichlet_alpha=1.0)


def _uploads(counts: list[float]) -> dict[str, Contribution]:
    return {
        f"site-{at}": Contribution((torch.tensor([[count, 3 * count], [0.0, 0.0]], dtype=torch.float64),))
        for at, count in enumerate(counts)
    }


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e9)), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_nobody_weighs_more_than_the_share_and_means_stay(counts: list[float], largest: float) -> None:
    before = _uploads(counts)
    after, capped = cap_shares(before, largest)
    weights = {site: float(upload.arrays[0][:, 0].sum()) for site, upload in after.items()}
    everything, taking_part = sum(weights.values()), sum(count > 0 for count in counts)
    allowed = max(largest, 1 / max(1, taking_part))
    assert all(weight <= allowed * everything * (1 + 1e-9) for weight in weights.values())
    for upload in after.values():
        assert torch.allclose(upload.arrays[0][:, 1], 3 * upload.arrays[0][:, 0])
    told = {one.client for one in capped}
    assert told == {site for site in before if after[site] is not before[site]}
    # Nobody below its share loses anything.
    assert all(counts[int(site[5:])] > allowed * everything * (1 - 1e-9) for site in told)


def test_one_large_client_is_cut_to_its_share_of_what_is_left() -> None:
    after, (capped,) = cap_shares(_uploads([10.0, 10.0, 1e6, 10.0, 10.0]), 0.2)
    # c = 0.2 (c + 40): 10.
    assert float(after["site-2"].arrays[0][0, 0]) == pytest.approx(10)
    assert capped.client == "site-2"
    assert capped.stated_share == pytest.approx(1e6 / (1e6 + 40))


def _lie_about_labels(sums: torch.Tensor, count: float = 1.0, length: float = 1.0) -> torch.Tensor:
    """Each class's statistics under the next class, from more records and with longer features than there are."""
    return (count * torch.cat([sums[:, :1], length * sums[:, 1:]], dim=1)).roll(1, 0)


def _run_with_liar(spec: RunSpec, lie: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, int]:
    """The mean accuracy of the nine others after two rounds, and how often the liar was left out."""
    with make_simulation(resolve(replace(spec, rounds=2, refused_share=0.5))) as simulation:
        server: Any = simulation.server
        receive, liar = server.receive_uploads, simulation.federation.clients[0]

        def receive_lies(number: int, exchange: Exchange, uploads: Iterable[tuple[str, bytes]]) -> None:
            sent = dict(uploads)
            message = server.transport.upload_codec.decode(sent[liar])
            sent[liar] = server.transport.upload_codec.encode(Message(message.kind, (lie(message.arrays[0]),)))
            receive(number, exchange, sent.items())

        server.receive_uploads = receive_lies
        records = list(simulation.rounds())
    honest = [accuracy for accuracy in records[-1].accuracy_per_client[1:] if accuracy is not None]
    return sum(honest) / len(honest), sum(liar in record.refused for record in records)


def test_a_liar_owns_the_head_without_the_cap_and_does_not_with_it() -> None:
    lie = partial(_lie_about_labels, count=1e6)
    assert _run_with_liar(BASE, lie)[0] < 0.4
    assert _run_with_liar(replace(BASE, largest_share=0.15), lie)[0] > 0.65


def test_features_beyond_the_clip_are_left_out_which_no_cap_can_do() -> None:
    lie, capped = partial(_lie_about_labels, length=1e3), replace(BASE, largest_share=0.15)
    accuracy, left_out = _run_with_liar(capped, lie)
    assert accuracy < 0.4
    assert left_out == 0
    accuracy, left_out = _run_with_liar(replace(capped, clip="l2:5"), lie)
    assert accuracy > 0.65
    assert left_out == 2


def test_the_cap_is_named_in_the_records_of_the_round() -> None:
    # The largest of these sites has more than 12 % of all records.
    with make_simulation(resolve(replace(BASE, rounds=1, largest_share=0.12))) as simulation:
        (record,) = simulation.rounds()
    assert record.capped
    assert all(share > 0.12 for share in record.capped.values())


def test_a_run_says_who_was_capped_and_a_run_without_the_setting_is_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [
        "run",
        "--data",
        "digits",
        "--clients",
        "10",
        "--partition",
        "dirichlet",
        "--dirichlet-alpha",
        "1",
        "--rounds",
        "1",
    ]
    assert main([*common, "--largest-share", "0.12", "--out", str(tmp_path / "capped")]) == 0
    said = capsys.readouterr()
    assert "% of all records and was capped" in said.out + said.err
    assert main([*common, "--out", str(tmp_path / "open")]) == 0
    lines = {name: json.loads((tmp_path / name / "records.jsonl").read_text()) for name in ("capped", "open")}
    assert lines["capped"]["capped"]
    assert "capped" not in lines["open"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"aggregation": "secure"}, "they hide single uploads"),
        ({"privacy": "record", "body_training": "frozen", "clip": "l2:3"}, "depend on the others' counts"),
        ({"privacy": "client", "message_norm": 20.0}, "depend on the others' counts"),
    ],
)
def test_it_is_refused_where_nobody_may_weigh_single_uploads(more: dict[str, object], said: str) -> None:
    budget = {"epsilon": 1.0, "delta": 1e-5} if "privacy" in more else {}
    with pytest.raises(InputError, match=said):
        resolve(replace(BASE, largest_share=0.2, **budget, **more))  # type: ignore[arg-type]


def test_it_is_refused_for_uploads_without_counts() -> None:
    with pytest.raises(InputError, match="needs a method that sends statistics"):
        make_simulation(resolve(replace(BASE, method="fedavg", largest_share=0.2)))
