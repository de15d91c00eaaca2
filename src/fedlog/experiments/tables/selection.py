"""Grids to choose settings that the paper leaves open; they use no test record, and none of the seeds of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fedlog.experiments.tables.cells import Experiment, Row, Shape
from fedlog.experiments.tables.other_settings import FALLING_FROM, FEDLOG_C_WEIGHT_DECAY
from fedlog.experiments.tables.paper import FULL_BATCH, LABELS, SMALL_BATCHES, TO_THE_LETTER, beta_for_growth
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import AdamMoments, Decay, Judge

SELECTION_SEED = 100  # never among a table's seeds


def _make_run(data: str, method: str, rounds: int) -> RunSpec:
    """The specification of a run that uses no test record."""
    if data == "mnist":
        # A fifth of 60 records would be a dozen a client; the training file has 57000 that no table is made from.
        return RunSpec(method=method, data="mnist-selection", rounds=rounds)
    return RunSpec(method=method, data=data, rounds=rounds, validation_fraction=0.2, judge=Judge.VALIDATION)


def _make_grid(name: str, title: str, rows: Iterable[Row], seeds: int = 1) -> Experiment:
    """An experiment with these rows, on this many seeds that no table uses."""
    rows = tuple(rows)
    apart = rows[0].spec.data == "mnist-selection"
    judged = (
        "10000 training images that no table is made from" if apart else "a fifth of each client's training records"
    )
    return Experiment(
        name=name,
        title=title,
        shape=Shape.GRID,
        rows=rows,
        seeds=tuple(range(SELECTION_SEED, SELECTION_SEED + seeds)),
        remarks=(f"Judged on {judged}, on seeds that no table uses.",),
    )


def _method_grid(
    data: str, method: str, settings: Mapping[str, Mapping[str, Any]], rounds: int = 30, name: str = "", title: str = ""
) -> Experiment:
    """An experiment that compares options of one method; a method's second grid needs a name and a title."""
    base = _make_run(data, method, rounds)
    rows = (Row(row, row, replace(base, options=dict(options))) for row, options in settings.items())
    title = title or f"Selection of {LABELS[method]}'s settings on {data}"
    return _make_grid(name or f"select-{method}-{data}", title, rows)


def _details_grid(data: str) -> Experiment:
    """An experiment on the details that the paper leaves open; each row changes one of them."""
    base = _make_run(data, "fedlog", rounds=30)
    changes: dict[str, dict[str, Any]] = {
        "as-described": {},
        "moments-for-a-round": {"moments": AdamMoments.ROUND},
        "moments-for-the-run": {"moments": AdamMoments.RUN},
        "no-dropout": {"body": ("cnn-plain",)},
        "separate-starts": {"initialisation": "separate", "options": {"first_head": "random"}},
        "nu-0": {"options": {"nu": 0.0}},
    }
    rows = [
        Row(f"{method}-{name}", f"{LABELS[method]}, {name.replace('-', ' ')}", replace(base, method=method, **change))
        for method, other in (("fedlog", "statistics"), ("fedlog-c", "random"), ("local", None))
        for name, change in {**changes, "other-first-head": {"options": {"first_head": other}}}.items()
        if method != "local" or "options" not in change  # which are about the head
    ]
    return _make_grid(f"details-{data}", f"The details that the paper leaves out, on {data}", rows, seeds=2)


def _fedlog_c_options(alphas: Iterable[float], growths: Iterable[float], **more: Any) -> dict[str, dict[str, Any]]:
    """Options of FedLog-C for ten classes: every alpha with the beta for every growth of the class means."""
    return {
        f"alpha-{alpha:g}-g-{growth:g}": {"alpha": alpha, "beta": beta_for_growth(alpha, growth, 10), **more}
        for alpha in alphas
        for growth in growths
    }


def _fedrep_grid(data: str) -> Experiment:
    """A grid for FedRep; each row changes one setting towards that of FedRep's source.

    It has a fifth of the table's clients, because FedRep is the slowest method: it trains the head for ten epochs.
    """
    base = replace(_make_run(data, "fedrep", rounds=60), clients=20, train_records=10_000)
    changes: dict[str, RunSpec] = {
        "as-in-the-table": base,
        "head-rate-as-the-bodys": replace(base, options={"head_learning_rate": 0.0005}),
        "head-epochs-1": replace(base, options={"head_epochs": 1}),
        "batches-of-10": replace(base, batch_size=10),
        "one-personal-layer": replace(base, options={"personal_layers": 1}),
    }
    rows = (Row(name, name.replace("-", " "), spec) for name, spec in changes.items())
    return _make_grid(f"select-fedrep-{data}", f"Selection of FedRep's settings on {data}, 20 clients", rows)


def _rate_grid(data: str) -> Experiment:
    """A grid of constant and falling learning rates, with Adam's moments kept, and of FedLog-C's pull."""
    base = replace(_make_run(data, "fedlog", rounds=30), moments=AdamMoments.RUN)
    level, falling = ("none", 0.001), [("cosine", rate) for rate in (0.001, 0.002, 0.004, 0.008, 0.016)]
    tried: list[tuple[str, dict[str, float], list[tuple[str, float]]]]
    tried = [(method, {}, [level, *falling]) for method in ("fedlog", "fedlog-c", "local")]
    tried += [("fedlog-c", {"alpha": pull, "beta": pull / 100}, [level, falling[2]]) for pull in (0.03, 0.3, 1.0)]
    rows = [
        Row(
            "-".join([method, *(f"{name}-{value:g}" for name, value in pull.items()), decay, f"{rate:g}"]),
            LABELS[method],
            replace(base, method=method, decay=Decay(decay), options={"learning_rate": rate, **pull}),
        )
        for method, pull, rates in tried
        for decay, rate in rates
    ]
    title = f"Selection of the learning rate on {data}, where bodies keep their optimiser"
    return _make_grid(f"select-rate-{data}", title, rows, seeds=4)


def _weight_decay_grid(data: str) -> Experiment:
    """A grid of AdamW's weight decays, with Adam's moments kept for the run and each method's falling rate."""
    base = replace(_make_run(data, "fedlog", rounds=30), moments=AdamMoments.RUN, decay=Decay.COSINE)
    rows = [
        Row(
            f"{method}-weight-decay-{shrinking:g}",
            LABELS[method],
            replace(base, method=method, options={"learning_rate": FALLING_FROM[method]}, weight_decay=shrinking),
        )
        for method in ("fedlog", "fedlog-c", "local")
        for shrinking in (0.0, 0.3, 1.0, 3.0)
    ]
    title = f"Selection of the weight decay on {data}, where bodies keep their optimiser and its rate falls"
    return _make_grid(f"select-weight-decay-{data}", title, rows, seeds=8)


def _second_fedlog_c_grid(data: str) -> Experiment:
    """A grid for FedLog-C with the chosen weight decay; each row changes one setting."""
    plain = _make_run(data, "fedlog-c", rounds=30)
    base = replace(plain, moments=AdamMoments.RUN, decay=Decay.COSINE, weight_decay=FEDLOG_C_WEIGHT_DECAY)
    rate = FALLING_FROM["fedlog-c"]
    changes: dict[str, dict[str, Any]] = {
        "as-chosen": {},
        "rate-0.003": {"learning_rate": 0.003},
        "rate-0.006": {"learning_rate": 0.006},
        "pull-0.2": {"alpha": 0.2, "beta": 0.002},
        "pull-0.3": {"alpha": 0.3, "beta": 0.003},
        "push-0": {"beta": 0.0},
        "push-0.003": {"beta": 0.003},
        "push-0.01": {"beta": 0.01},
        "first-head-random": {"first_head": "random"},
    }
    rows = (
        Row(name, name.replace("-", " "), replace(base, options={"learning_rate": rate, **change}))
        for name, change in changes.items()
    )
    title = f"FedLog-C's settings on {data} once more, beside weight decay"
    return _make_grid(f"select-fedlog-c-once-more-{data}", title, rows, seeds=8)


def _synthetic_grid() -> Experiment:
    grid: dict[str, RunSpec] = {}
    for reading, chosen, rates in (
        ("full-batch", FULL_BATCH, (0.001, 0.003, 0.01)),
        ("batches", SMALL_BATCHES, (0.003, 0.01, 0.03)),
    ):
        for width in (16, 64, 128):
            for rate in rates:
                tried = replace(chosen, width=width, learning_rate=rate)
                grid[f"local-{reading}-width-{width}-rate-{rate:g}"] = tried.make_spec("local")
        for norm in (1.0, 2.0, 5.0):
            grid[f"fedlog-{reading}-head-norm-{norm:g}"] = chosen.make_spec("fedlog", head_norm=norm)
    return Experiment(
        name="select-synthetic",
        title="Selection for the synthetic experiment",
        shape=Shape.SYNTHETIC,
        rows=tuple(Row(name, name, spec) for name, spec in grid.items()),
        seeds=(SELECTION_SEED, SELECTION_SEED + 1, SELECTION_SEED + 2),
        remarks=(
            "Judged by the training accuracy with 30 local iterations; ties go to the wider body, then to the higher "
            "rate.",
        ),
    )


_FEDLOG_C = _fedlog_c_options((0.001, 0.01, 0.1), (1.0, 1.1, 1.3))
# Exactly as in the paper: unbounded push, random first head, distances after dropout.
_FEDLOG_C_LETTER = _fedlog_c_options((0.001, 0.01, 0.1, 0.3, 1.0), (1.0, 1.03, 1.1), **TO_THE_LETTER)
_FEDLOG_C_PUSH = {
    name: {"alpha": 0.01, "beta": 0.0001, "margin": margin} for name, margin in (("unbounded", None), ("margin-5", 5.0))
}
_FEDLOG_C_PULL = {f"alpha-{alpha:g}": {"alpha": alpha, "beta": alpha / 100, "margin": 5.0} for alpha in (0.1, 0.3, 1.0)}
_FIRST_HEADS: dict[str, dict[str, Any]] = {
    **{f"random-norm-{norm:g}": {"head_norm": norm} for norm in (2.0, 3.0, 5.0, 15.0)},
    "statistics": {"first_head": "statistics"},
}
_FEDPROTO = {f"lambda-{weight:g}": {"regularisation": weight} for weight in (0.01, 0.1, 1.0, 10.0)}
_FEDDBE = {
    f"kappa-{kappa:g}-mu-{momentum:g}": {"kappa": kappa, "momentum": momentum}
    for kappa, momentum in ((0.0, 1.0), (1.0, 0.1), (1.0, 1.0), (50.0, 0.1), (50.0, 1.0))
}
# What each part of CS-FL contributes; the paper's code differs in one of them.
_CS_FL_PARTS: dict[str, dict[str, Any]] = {
    "as-described": {},
    "signs-alone": {"phase_1_rate": 0.0},  # whatever the recovery keeps has no effect
    "full-step": {"phase_1_rate": 1.0},
    "no-error-carried": {"threshold": 0.0},
    "only-error-carried": {"threshold": 1e9},
}

SELECTION = (
    _synthetic_grid(),
    _method_grid("mnist", "fedlog-c", _FEDLOG_C),
    _method_grid("cifar10", "fedlog-c", _FEDLOG_C),
    _method_grid(
        "mnist",
        "fedlog-c",
        _FEDLOG_C_PUSH,
        100,
        "select-fedlog-c-push-mnist",
        "FedLog-C's push on mnist: the paper's, and ours",
    ),
    _method_grid(
        "mnist",
        "fedlog-c",
        _FEDLOG_C_PULL,
        30,
        "select-fedlog-c-pull-mnist",
        "FedLog-C's pull on mnist, with a bounded push",
    ),
    _method_grid(
        "mnist",
        "fedlog-c",
        _FEDLOG_C_LETTER,
        30,
        "select-fedlog-c-letter-mnist",
        "FedLog-C to the letter of the paper on mnist: its pull and its push",
    ),
    _fedrep_grid("cifar10"),
    _method_grid("mnist", "fedlog", _FIRST_HEADS),
    _rate_grid("mnist"),
    _weight_decay_grid("mnist"),
    _second_fedlog_c_grid("mnist"),
    _method_grid("mnist", "fedproto", _FEDPROTO),
    _method_grid("cifar10", "fedproto", _FEDPROTO),
    _method_grid("mnist", "feddbe", _FEDDBE),
    _method_grid("mnist", "cs-fl", _CS_FL_PARTS, 60, "parts-cs-fl-mnist", "The parts of CS-FL on mnist"),
    _details_grid("mnist"),
)
