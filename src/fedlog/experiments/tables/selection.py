"""Define grids to choose settings that the paper leaves open; no grid uses test records or the seeds of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fedlog.experiments.tables.cells import Experiment, ExperimentKind, TableRow
from fedlog.experiments.tables.other_settings import DECAYING_FROM, FEDLOG_C_WEIGHT_DECAY
from fedlog.experiments.tables.paper import (
    FULL_BATCH,
    LABELS,
    SMALL_BATCHES,
    TABLE_1,
    TO_THE_LETTER,
    compute_beta_for_growth,
)
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import AdamMoments, Decay, HeldOutRecords

SELECTION_SEED = 100  # never among a table's seeds


def _make_spec(data: str, method: str, rounds: int) -> RunSpec:
    """Make the specification of a run that uses no test record."""
    if data == "mnist":
        # A fifth of 60 records would be a dozen a client; the training file has 57000 that no table is made from.
        return RunSpec(method=method, data="mnist-selection", rounds=rounds)
    return RunSpec(method=method, data=data, rounds=rounds, validation_fraction=0.2, judge=HeldOutRecords.VALIDATION)


def _make_grid(name: str, title: str, rows: Iterable[TableRow], seeds: int = 1) -> Experiment:
    """Make an experiment of these rows, on this many seeds that no table of the paper uses."""
    rows = tuple(rows)
    apart = rows[0].spec.data == "mnist-selection"
    judged = (
        "10000 training images that no table is made from" if apart else "a fifth of each client's training records"
    )
    return Experiment(
        name=name,
        title=title,
        kind=ExperimentKind.GRID,
        rows=rows,
        seeds=tuple(range(SELECTION_SEED, SELECTION_SEED + seeds)),
        remarks=(f"Judged on {judged}, on seeds that no table uses.",),
    )


def _make_options_grid(
    name: str, method: str, data: str, options: Mapping[str, Mapping[str, Any]], title: str = "", rounds: int = 30
) -> Experiment:
    """Make a grid that compares options of one method; `options` maps the name of a row to the options of the row."""
    base = _make_spec(data, method, rounds)
    rows = [TableRow(row, row, replace(base, options=dict(chosen))) for row, chosen in options.items()]
    return _make_grid(name, title or f"Selection of {LABELS[method]}'s settings on {TABLE_1[data].title}", rows)


def _make_changed_rows(base: RunSpec, changes: Mapping[str, Mapping[str, Any]]) -> list[TableRow]:
    """Make one row for each entry of `changes`: the base run with the settings and options of this entry."""
    rows = []
    for name, change in changes.items():
        options = {**base.options, **change.get("options", {})}
        rows.append(TableRow(name, name.replace("-", " "), replace(base, **{**change, "options": options})))
    return rows


def _make_unstated_details_grid() -> Experiment:
    """Make a grid of training details that the paper does not state; each row changes one detail."""
    base = _make_spec("mnist", "fedlog", rounds=30)
    changes: dict[str, dict[str, Any]] = {
        "as-described": {},
        "moments-for-a-round": {"moments": AdamMoments.ROUND},
        "moments-for-the-run": {"moments": AdamMoments.RUN},
        "no-dropout": {"body": ("cnn-plain",)},
        "separate-starts": {"initialisation": "separate", "options": {"first_head": "random"}},
        "nu-0": {"options": {"nu": 0.0}},
    }
    rows = [
        replace(row, name=f"{method}-{row.name}", label=f"{LABELS[method]}, {row.label}")
        for method, other in (("fedlog", "statistics"), ("fedlog-c", "random"), ("local", None))
        for row in _make_changed_rows(
            replace(base, method=method), {**changes, "other-first-head": {"options": {"first_head": other}}}
        )
        if method != "local" or not row.spec.options  # which are about the head
    ]
    return _make_grid("details-mnist", "The details that the paper leaves out, on MNIST", rows, seeds=2)


def _list_fedlog_c_options(alphas: Iterable[float], growths: Iterable[float], **more: Any) -> dict[str, dict[str, Any]]:
    """Return options of FedLog-C for each `alpha` with each growth factor, by the row's name.

    The options in `more` are added to each row. `beta` is computed from `alpha` and the growth factor, for ten classes.
    """
    return {
        f"alpha-{alpha:g}-g-{growth:g}": {"alpha": alpha, "beta": compute_beta_for_growth(alpha, growth, 10), **more}
        for alpha in alphas
        for growth in growths
    }


def _make_fedrep_grid() -> Experiment:
    """Make a grid for FedRep: the first row has the settings of Table 1, and each other row changes one setting.

    It has a fifth of the table's clients, because FedRep is the slowest method: it trains the head for ten epochs.
    """
    base = replace(_make_spec("cifar10", "fedrep", rounds=60), clients=20, train_records=10_000)
    changes: dict[str, dict[str, Any]] = {
        "as-in-the-table": {},
        "head-rate-as-the-bodys": {"options": {"head_learning_rate": 0.0005}},
        "head-epochs-1": {"options": {"head_epochs": 1}},
        "batches-of-10": {"batch_size": 10},
        "one-personal-layer": {"options": {"personal_layers": 1}},
    }
    title = "Selection of FedRep's settings on CIFAR-10, 20 clients"
    return _make_grid("select-fedrep-cifar10", title, _make_changed_rows(base, changes))


def _make_learning_rate_grid() -> Experiment:
    """Make a grid of learning rates (constant or decaying) and of FedLog-C's `alpha`; Adam's moments are not reset."""
    base = replace(_make_spec("mnist", "fedlog", rounds=30), moments=AdamMoments.RUN)
    level, falling = ("none", 0.001), [("cosine", rate) for rate in (0.001, 0.002, 0.004, 0.008, 0.016)]
    tried: list[tuple[str, dict[str, float], list[tuple[str, float]]]]
    tried = [(method, {}, [level, *falling]) for method in ("fedlog", "fedlog-c", "local")]
    tried += [("fedlog-c", {"alpha": pull, "beta": pull / 100}, [level, falling[2]]) for pull in (0.03, 0.3, 1.0)]
    rows = [
        TableRow(
            "-".join([method, *(f"{name}-{value:g}" for name, value in pull.items()), decay, f"{rate:g}"]),
            LABELS[method],
            replace(base, method=method, decay=Decay(decay), options={"learning_rate": rate, **pull}),
        )
        for method, pull, rates in tried
        for decay, rate in rates
    ]
    title = "Selection of the learning rate on MNIST, where bodies keep their optimiser"
    return _make_grid("select-rate-mnist", title, rows, seeds=4)


def _make_spec_with_decaying_rate(method: str, weight_decay: float) -> RunSpec:
    """Make a specification with this weight decay, a decaying learning rate, and Adam's moments kept in all rounds."""
    base = replace(_make_spec("mnist", method, rounds=30), moments=AdamMoments.RUN, decay=Decay.COSINE)
    return replace(base, options={"learning_rate": DECAYING_FROM[method]}, weight_decay=weight_decay)


def _make_weight_decay_grid() -> Experiment:
    """Make a grid of AdamW's weight decay, for FedLog, FedLog-C and training alone."""
    rows = [
        TableRow(f"{method}-weight-decay-{decay:g}", LABELS[method], _make_spec_with_decaying_rate(method, decay))
        for method in ("fedlog", "fedlog-c", "local")
        for decay in (0.0, 0.3, 1.0, 3.0)
    ]
    title = "Selection of the weight decay on MNIST, where bodies keep their optimiser and its rate falls"
    return _make_grid("select-weight-decay-mnist", title, rows, seeds=8)


def _make_fedlog_c_grid_with_weight_decay() -> Experiment:
    """Make a grid for FedLog-C with the chosen weight decay; each row changes one option."""
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
    base = _make_spec_with_decaying_rate("fedlog-c", FEDLOG_C_WEIGHT_DECAY)
    rows = _make_changed_rows(base, {name: {"options": options} for name, options in changes.items()})
    title = "FedLog-C's settings on MNIST once more, beside weight decay"
    return _make_grid("select-fedlog-c-once-more-mnist", title, rows, seeds=8)


def _make_synthetic_grid() -> Experiment:
    """Make a grid for the synthetic experiment: widths, learning rates, and norms of FedLog's first head."""
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
        kind=ExperimentKind.SYNTHETIC,
        rows=tuple(TableRow(name, name, spec) for name, spec in grid.items()),
        seeds=(SELECTION_SEED, SELECTION_SEED + 1, SELECTION_SEED + 2),
        remarks=(
            "Judged by the training accuracy with 30 local iterations; ties go to the wider body, then to the higher "
            "rate.",
        ),
    )


_FEDLOG_C = _list_fedlog_c_options((0.001, 0.01, 0.1), (1.0, 1.1, 1.3))
# Exactly as in the paper: unbounded push, random first head, distances after dropout.
_FEDLOG_C_LETTER = _list_fedlog_c_options((0.001, 0.01, 0.1, 0.3, 1.0), (1.0, 1.03, 1.1), **TO_THE_LETTER)
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

_PUSH_TITLE = "FedLog-C's push on MNIST: the paper's, and ours"
_PULL_TITLE = "FedLog-C's pull on MNIST, with a bounded push"
_LETTER_TITLE = "FedLog-C to the letter of the paper on MNIST: its pull and its push"
SELECTION = (
    _make_synthetic_grid(),
    _make_options_grid("select-fedlog-c-mnist", "fedlog-c", "mnist", _FEDLOG_C),
    _make_options_grid("select-fedlog-c-cifar10", "fedlog-c", "cifar10", _FEDLOG_C),
    _make_options_grid("select-fedlog-c-push-mnist", "fedlog-c", "mnist", _FEDLOG_C_PUSH, _PUSH_TITLE, rounds=100),
    _make_options_grid("select-fedlog-c-pull-mnist", "fedlog-c", "mnist", _FEDLOG_C_PULL, _PULL_TITLE),
    _make_options_grid("select-fedlog-c-letter-mnist", "fedlog-c", "mnist", _FEDLOG_C_LETTER, _LETTER_TITLE),
    _make_fedrep_grid(),
    _make_options_grid("select-fedlog-mnist", "fedlog", "mnist", _FIRST_HEADS),
    _make_learning_rate_grid(),
    _make_weight_decay_grid(),
    _make_fedlog_c_grid_with_weight_decay(),
    _make_options_grid("select-fedproto-mnist", "fedproto", "mnist", _FEDPROTO),
    _make_options_grid("select-fedproto-cifar10", "fedproto", "cifar10", _FEDPROTO),
    _make_options_grid("select-feddbe-mnist", "feddbe", "mnist", _FEDDBE),
    _make_options_grid("parts-cs-fl-mnist", "cs-fl", "mnist", _CS_FL_PARTS, "The parts of CS-FL on MNIST", rounds=60),
    _make_unstated_details_grid(),
)
