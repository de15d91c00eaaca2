"""The broadcast that each client gets, against computations by hand: differences, own rows, nothing new, carry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlog.algorithms.registry import make_method
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import IDENTITY
from fedlog.engine.clients import make_model_plan
from fedlog.engine.protocol.client_store import NEVER, MessagesByClient
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.errors import InputError, RunError
from fedlog.models.body import HEAD
from fedlog.models.catalog import make_body
from fedlog.settings.execution import BackendChoice
from fedlog.settings.training import RunSettings
from fedlog.wire.codec import WireError, find_codec
from fedlog.wire.message import Kind, Message
from fedlog.wire.transport import Transport, compute_relative_change, zero_classes_except

CLASSES, WIDTH = 4, 5
HELD = [(0, 1), (1, 2), (2, 3), (0, 3), (3,)]


def federation() -> Federation:
    """Five clients with two classes each, the last with one."""
    draws = Key(8).torch()
    labels = torch.tensor([held[at % len(held)] for held in HELD for at in range(12)])
    inputs = torch.randn(len(labels), 4, generator=draws) + torch.eye(CLASSES)[labels] * 3
    shards = tuple(
        Shard(
            f"c{at}", torch.arange(12 * at, 12 * at + 8), torch.arange(12 * at + 8, 12 * at + 12), torch.zeros(0).long()
        )
        for at in range(len(HELD))
    )
    records = Records(inputs, labels)
    return Federation("four", CLASSES, (4,), records, records, shards, IDENTITY, tuple("abcd"))


def simulation(method: str = "fedlog", options: dict[str, Any] | None = None, **course: Any) -> Simulation:
    data = federation()
    bodies = [make_body(f"mlp:6,{WIDTH}", (4,))] * len(data.shards)
    plan = make_model_plan(data, bodies)
    told = {"epochs": 1, "learning_rate": 0.02, **(options or {})}
    engine = Engine(Settings(batch_size=4), BackendChoice.LOOP)
    return Simulation(
        make_method(method, plan, told), data, bodies, plan, engine, RunSettings(**{"rounds": 4, **course})
    ).start()


def heard(run: Simulation) -> dict[int, torch.Tensor]:
    cohort = run.workers.cohort  # type: ignore[attr-defined]
    return {index: cohort.store.get_received_params(index)[HEAD] for index in cohort._clients}


@pytest.mark.parametrize("method", ["fedlog", "fedlog-c", "fedproto", "lg-fedavg-1", "fedavg"])
def test_differences_reach_everyone_and_cost_what_is_booked(method: str) -> None:
    run = simulation(method, codec="q8", down="differences")
    sent: list[int] = []
    tell = run.workers.receive_own_broadcasts

    def counted(blobs: dict[int, bytes], anew: list[int]) -> None:
        sent.append(8 * sum(len(blob) for blob in blobs.values()))
        tell(blobs, anew)

    run.workers.receive_own_broadcasts = counted  # type: ignore[method-assign]
    records = list(run.rounds())
    assert sum(sent) == sum(r.bits_down for r in records) + sum(
        bits for kind, bits in run.server.ledger.sum_bits_by_kind(0).items() if kind.endswith("down")
    )
    assert run.server.downlink is not None
    cohort = run.workers.cohort  # type: ignore[attr-defined]
    for index, copy in cohort.store.messages.received.items():
        ours = run.server.downlink.last_broadcasts[f"c{index}"].message
        for theirs, mine in zip(copy.arrays, ours.arrays, strict=True):
            assert torch.equal(theirs, mine), "the server does not know what the client has"


def test_differences_follow_a_head_that_stands_still_ever_more_closely() -> None:
    run = simulation(codec="q4", down="differences", rounds=1)
    list(run.rounds())
    exact = run.server.state[HEAD].float()
    first = max(float((head - exact).abs().max()) for head in heard(run).values())
    for number in range(2, 12):
        run._broadcast(number, run._all_client_numbers)
    assert max(float((head - exact).abs().max()) for head in heard(run).values()) < first / 50


def test_a_client_that_paused_gets_the_difference_to_what_it_has() -> None:
    run = simulation(codec="q8", down="differences", participation=0.4, rounds=6)
    for _ in run.rounds():
        pass
    exact = run.server.state[HEAD].float()
    # After the last round everyone hears: rounding alone is left, however old what a client had was.
    for head in heard(run).values():
        assert float((head - exact).abs().max()) < 0.02 * float(exact.abs().max())


def test_a_closed_world_sends_own_rows_only_and_never_predicts_others() -> None:
    run = simulation(codec="rows", world="closed")
    list(run.rounds())
    for index, head in heard(run).items():
        own = sorted(HELD[index])
        others = [row for row in range(CLASSES) if row not in own]
        assert torch.equal(head[own], run.server.state[HEAD][own].float())
        assert head[others, 0].tolist() == [NEVER] * len(others)
        assert not head[others, 1:].any()
    rows = sum(len(held) for held in HELD)
    frame = len(find_codec("rows").encode(Message(Kind.HEAD, (torch.zeros(CLASSES, 1 + WIDTH),))))
    assert run.server.ledger.sum_bits_by_kind(2)["head down"] == 8 * (len(HELD) * frame + rows * 4 * (1 + WIDTH))


def test_restricting_changes_nothing_but_the_other_rows() -> None:
    head = torch.arange(12.0).reshape(4, 3) + 1
    found = zero_classes_except(Message(Kind.HEAD, (head,)), frozenset({1, 3})).arrays[0]
    assert torch.equal(found, head * torch.tensor([[0.0], [1.0], [0.0], [1.0]]))
    seed = Message(Kind.SEED, (torch.tensor([4]),))
    assert zero_classes_except(seed, frozenset({1})) is seed


def test_skipping_keeps_the_last_statistics_and_counts_the_word() -> None:
    """A threshold that nothing reaches: after the first round only `same` crosses, and the head stands still."""
    run = simulation(codec="rows", skip_below=1e9)
    heads, records = [], []
    for record in run.rounds():
        heads.append(run.server.state[HEAD])
        records.append(record)
    word = 8 * len(find_codec("rows").encode(Message(Kind.SAME, ())))
    assert [r.bits_up for r in records[1:]] == [5 * word] * 3
    # The seed and the first head cannot be compared, so that head is sent.
    assert [r.bits_down for r in records[1:]] == [5 * word] * 3
    assert all(torch.equal(head, heads[0]) for head in heads)


def test_an_upload_that_was_refused_is_not_taken_to_be_there() -> None:
    """The client thinks that it was heard; the server has something else, says so, and gets a whole upload."""
    run = simulation(codec="rows", skip_below=1e9, refused_share=0.5)
    work, seen = run.workers.make_encoded_uploads, list[dict[int, int]]()

    def spoiled(number: int, exchange: Any, indices: Any) -> Any:
        uploads = work(number, exchange, indices)
        seen.append({index: len(blob) for index, blob in uploads if blob is not None})
        return [(index, b"?" if (number, index) == (1, 2) else blob) for index, blob in uploads]

    run.workers.make_encoded_uploads = spoiled  # type: ignore[method-assign]
    records = list(run.rounds())
    word = len(find_codec("rows").encode(Message(Kind.SAME, ())))
    assert [sorted(r.refused) for r in records] == [["c2"], [], [], []]
    assert [sizes[2] == word for sizes in seen] == [False, False, True, True]
    assert [sizes[3] == word for sizes in seen] == [False, True, True, True]
    assert run.server.memory is not None
    assert "c2" in run.server.memory


def test_same_that_refers_to_another_upload_is_refused() -> None:
    run = simulation(codec="rows", skip_below=1e9)
    records = run.rounds()
    next(records)
    (exchange,) = run.algorithm.schedule.round
    other = Message(Kind.STATISTICS, (torch.ones(CLASSES, 1 + WIDTH),))
    with pytest.raises(RunError, match="refers to an earlier message"):
        run.server.receive_uploads(
            2, exchange, [("c0", find_codec("rows").encode(Message(Kind.SAME, ()), known=other))]
        )


def test_a_client_that_is_forgotten_gets_a_whole_head() -> None:
    run = simulation(codec="q8", down="differences")
    list(run.rounds())
    downlink, before = run.server.downlink, heard(run)
    assert downlink is not None
    downlink.forget("c1")
    sent = run.server.encode_and_count_separate_broadcasts(downlink, 5, ["c0", "c1"])
    with pytest.raises(WireError, match="does not have"):
        find_codec("q8").decode(sent["c0"])
    whole = find_codec("q8").decode(sent["c1"]).arrays[0]
    run.workers.receive_own_broadcasts({at: sent[f"c{at}"] for at in (0, 1)}, [1])
    assert torch.equal(heard(run)[1], whole)
    torch.testing.assert_close(whole, before[1], rtol=0, atol=0.2)


def test_a_checkpoint_keeps_the_classes_of_a_client_whose_head_was_forgotten() -> None:
    run = simulation(codec="rows", world="closed")
    rounds = run.rounds()
    next(rounds)
    downlink = run.server.downlink
    assert downlink is not None
    downlink.forget("c1")
    again = replace(downlink, last_broadcasts={}, classes={})
    again.restore(downlink.as_tensors())
    assert again.classes == downlink.classes
    assert again.classes["c1"] == frozenset({1, 2})
    assert again.last_broadcasts.keys() == downlink.last_broadcasts.keys()
    rounds.close()


def test_skipping_nothing_is_the_run_without_it() -> None:
    plain, skipping = simulation(codec="rows"), simulation(codec="rows", skip_below=1e-12)
    for a, b in zip(plain.rounds(), skipping.rounds(), strict=True):
        assert (a.correct_per_client, a.bits_up, a.bits_down) == (b.correct_per_client, b.bits_up, b.bits_down)


def test_movement_is_relative_and_infinite_between_strangers() -> None:
    old = Message(Kind.HEAD, (torch.tensor([[3.0, 4.0]]),))
    assert compute_relative_change(Message(Kind.HEAD, (torch.tensor([[3.0, 4.5]]),)), old) == pytest.approx(0.1)
    assert compute_relative_change(Message(Kind.SEED, (torch.tensor([1]),)), old) == float("inf")


@pytest.mark.parametrize(
    "course",
    [
        {"codec": "q4", "down": "differences", "participation": 0.6},
        {"codec": "rows+q8", "down": "differences", "world": "closed"},
        {"codec": "rows+q8", "codec_down": "q4", "down": "differences", "skip_below": 0.3},
    ],
)
@pytest.mark.parametrize("method", ["fedlog", "fedlog-c"])
def test_a_resumed_run_sends_and_knows_the_same(method: str, course: dict[str, Any], tmp_path: Path) -> None:
    whole = list(simulation(method, **course).rounds())
    stopped = simulation(method, **course)
    going = stopped.rounds()
    next(going), next(going)
    stopped.save(tmp_path)
    resumed = simulation(method, **course)
    resumed.resume(tmp_path)
    rest = list(resumed.rounds())
    for expected, found in zip(whole[2:], rest, strict=True):
        assert expected.bits_by_kind == found.bits_by_kind
        assert expected.correct_per_client == found.correct_per_client
        assert expected.observed == found.observed


@pytest.mark.parametrize("keep", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("method", ["fedlog", "fedlog-c"])
def test_carrying_is_the_decayed_sum_of_all_rounds(method: str, keep: float) -> None:
    """T <- g * T + Phi, by hand from the uploads of each round."""
    run = simulation(method, {"carry": keep, "first_head": "random"}, participation=0.4)
    assert run.server.memory is None
    expected = torch.zeros(CLASSES, 1 + WIDTH, dtype=torch.float64)
    work = run.workers.make_encoded_uploads

    def spied(number: int, exchange: Any, indices: Any) -> Any:
        uploads = work(number, exchange, indices)
        summed = sum(find_codec("f32").decode(blob).arrays[0].double() for _, blob in uploads if blob is not None)
        expected.mul_(keep).add_(summed)
        return uploads

    run.workers.make_encoded_uploads = spied  # type: ignore[method-assign]
    for _ in run.rounds():
        torch.testing.assert_close(run.server.state["statistics"], expected, rtol=1e-12, atol=1e-12)
    if method == "fedlog-c":  # the clients solve the same head from the statistics alone
        for head in heard(run).values():
            torch.testing.assert_close(head.double(), run.server.state[HEAD], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("transport", "said"),
    [
        ({"codec": "f32", "differences": True}, "but codec f32 cannot do that"),
        ({"codec": "q8", "closed_world": True}, "sends all rows"),
        ({"skip_below": -1.0}, "0 or more"),
        ({"codec_down": "f31"}, "unknown codec: f31"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(transport: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Transport(**transport)


@pytest.mark.parametrize(
    "transport",
    [
        Transport(codec="rows"),
        Transport(codec="q8+zstd"),
        Transport(codec_down="rows+q8"),
        Transport(codec="f32", codec_down="rows", closed_world=True),
        Transport(skip_below=0.1),
    ],
)
def test_private_modes_refuse_what_shows_classes_or_news(transport: Transport) -> None:
    with pytest.raises(InputError, match="cannot be used in a private run"):
        transport.refuse_revealing_settings("a private run")


def test_private_modes_take_dense_codecs_and_differences() -> None:
    Transport(codec="q8", codec_down="q4", differences=True).refuse_revealing_settings("a private run")


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_methods_that_cannot_skip_or_close_their_world_say_so(method: str) -> None:
    for course in ({"skip_below": 0.1}, {"codec": "rows", "world": "closed"}):
        with pytest.raises(InputError, match=method):
            simulation(method, **course)
    with pytest.raises(InputError, match="keeps every client's last upload"):
        simulation("fedlog", {"carry": 0.5}, skip_below=0.1)


def test_a_stored_message_of_more_than_ten_arrays_keeps_their_order() -> None:
    message = Message(Kind.PARAMETERS, tuple(torch.full((1,), float(at)) for at in range(12)))
    stored = MessagesByClient(received={3: message}, sent={3: message}).as_tensors()
    restored = MessagesByClient()
    restored.restore({(3, name.removeprefix("3/")): value for name, value in sorted(stored.items())})
    for found in (restored.received[3], restored.sent[3]):
        assert found.kind is Kind.PARAMETERS
        assert torch.cat(found.arrays).tolist() == list(range(12))
