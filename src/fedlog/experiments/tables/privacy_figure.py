"""The privacy experiment: accuracy at six levels of noise, the epsilon of each level, and some runs with guarantees.

Accuracy depends only on the noise on the *sum* of the statistics. So six levels of noise are run, and the epsilon of
each level is computed for every combination of formula (exact, paper), trust (central, local) and delta. A level is a
multiple z of what one record may add to the sum. k releases at level z are mu-GDP with mu = sqrt(k) / z under central
noise, and with mu = sqrt(k * clients) / z under local noise, because then every client's message adds noise to the sum.
One cell of each combination of formula and trust is run to check this.

The bodies in these cells are trained on the records, so none of these epsilons is a guarantee. The epsilons of the last
rows (`client`, and `record` with a frozen body) are guarantees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedlog.experiments.tables.cells import Experiment, ExperimentKind, TableRow
from fedlog.privacy.calibration import compute_epsilon, compute_epsilon_by_paper_formula
from fedlog.privacy.guarantee import Calibration, Trust, Unit
from fedlog.settings.privacy import BodyTraining
from fedlog.settings.spec import RunSpec

ROUNDS = 40
CLIENT_ROUNDS = 10
CLIENTS = 100  # in CIFAR-10's partition, each with five hundred records of two classes
LEVELS = (4, 16, 64, 256, 512, 1024)  # z: std of the noise on the sum, divided by what one record may add
DELTAS = (0.01, 1e-5)  # the paper's, and one that is small enough for fifty thousand records
CLIPS = {"clamp": "clamp:2", "l2": "l2:3"}
VERIFIED_CLIP, VERIFIED_LEVEL = "clamp", 64
REPEATED_LEVELS, NOISE_DRAWS = (16, 64), (1, 2, 3)  # of the verified clip, with other noise on the same seed
MESSAGE_NORM = 500.0  # about the norm of a client's statistics: 250 records a class, features of norm up to 3
CLIENT_EPSILONS = (2.0, 8.0, 20.0)
RECORD_EPSILONS = (0.5, 2.0, 8.0)


@dataclass(frozen=True)
class EpsilonFormula:
    """How an epsilon is computed from a level of noise: the calibration, who adds the noise, and delta."""

    calibration: Calibration
    trust: Trust
    delta: float

    def compute_epsilon(self, level: float, releases: int, clients: int) -> float:
        """Compute the epsilon of a run whose noise on the sum has a std of `level` times what one record may add."""
        parts = clients if self.trust is Trust.LOCAL else 1
        mu = math.sqrt(releases * parts) / level
        return (
            compute_epsilon_by_paper_formula(mu, self.delta)
            if self.calibration is Calibration.PAPER
            else compute_epsilon(mu, self.delta)
        )


EPSILON_FORMULAS = tuple(
    EpsilonFormula(calibration, trust, delta)
    for delta in DELTAS
    for calibration in (Calibration.EXACT, Calibration.PAPER)
    for trust in (Trust.CENTRAL, Trust.LOCAL)
)
# All levels are run at the epsilons of this formula; each verified formula has another calibration or trust.
LEVEL_FORMULA = EpsilonFormula(Calibration.PAPER, Trust.CENTRAL, 0.01)
VERIFIED_FORMULAS = (
    EpsilonFormula(Calibration.EXACT, Trust.CENTRAL, 1e-5),
    EpsilonFormula(Calibration.EXACT, Trust.LOCAL, 1e-5),
    EpsilonFormula(Calibration.PAPER, Trust.LOCAL, 0.01),
)


def find_epsilon_formula(spec: RunSpec) -> EpsilonFormula | None:
    """Return the formula that gives the epsilon of this run; None if it was not run with `--privacy paper`."""
    if spec.privacy != Unit.PAPER or spec.delta is None:
        return None
    return EpsilonFormula(
        Calibration(spec.calibration or Calibration.PAPER), Trust(spec.trust or Trust.CENTRAL), spec.delta
    )


def make_name_of_row_with_noise(clip: str, level: float) -> str:
    """Return the name of the experiment's row with this clip and level of noise."""
    return f"{clip}-noise-{level:g}"


def make_name_of_row_without_noise(clip: str) -> str:
    """Return the name of the experiment's row with this clip and without noise."""
    return f"{clip}-no-noise"


def _make_spec_at_level(formula: EpsilonFormula, clip: str, level: float) -> RunSpec:
    """Make the specification of a run with this level of noise; its epsilon is the formula's, to five digits."""
    epsilon = float(f"{formula.compute_epsilon(level, ROUNDS, CLIENTS):.5g}")
    return RunSpec(
        data="cifar10",
        rounds=ROUNDS,
        clip=CLIPS[clip],
        privacy=Unit.PAPER,
        epsilon=epsilon,
        delta=formula.delta,
        trust=formula.trust,
        calibration=formula.calibration,
    )


def _make_noise_level_rows() -> list[TableRow]:
    rows = []
    for clip, named in CLIPS.items():
        rows.append(
            TableRow(
                make_name_of_row_without_noise(clip),
                f"{named}, no noise",
                RunSpec(data="cifar10", rounds=ROUNDS, clip=named),
            )
        )
        rows += [
            TableRow(
                make_name_of_row_with_noise(clip, level),
                f"{named}, noise {level} x",
                _make_spec_at_level(LEVEL_FORMULA, clip, level),
            )
            for level in LEVELS
        ]
    return rows


def make_name_of_repeated_row(level: float, draw: int) -> str:
    """Return the name of the row with `VERIFIED_CLIP`, this level of noise and this `noise_draw`."""
    return f"{make_name_of_row_with_noise(VERIFIED_CLIP, level)}-draw-{draw}"


def _make_repeated_rows() -> list[TableRow]:
    """Make rows, with one seed, that repeat the rows at the `REPEATED_LEVELS` with other draws of the noise."""
    return [
        TableRow(
            make_name_of_repeated_row(level, draw),
            f"{CLIPS[VERIFIED_CLIP]}, noise {level} x, draw {draw}",
            replace(_make_spec_at_level(LEVEL_FORMULA, VERIFIED_CLIP, level), noise_draw=draw),
            seeds=(0,),
        )
        for level in REPEATED_LEVELS
        for draw in NOISE_DRAWS
    ]


def _make_verification_rows() -> list[TableRow]:
    """Make one row, with one seed, for each of the `VERIFIED_FORMULAS`; all must have the noise of `VERIFIED_LEVEL`."""
    rows = []
    for formula in VERIFIED_FORMULAS:
        spec = _make_spec_at_level(formula, VERIFIED_CLIP, VERIFIED_LEVEL)
        label = f"{spec.clip}, {formula.calibration}, {formula.trust}, epsilon {spec.epsilon:g}, delta {spec.delta:g}"
        rows.append(TableRow(f"verify-{formula.calibration}-{formula.trust}", label, spec, seeds=(0,)))
    return rows


def _make_guarantee_rows() -> list[TableRow]:
    """Make the rows with a privacy guarantee: for whole clients, and for records if bodies are not trained on them."""
    client = RunSpec(
        data="cifar10",
        rounds=CLIENT_ROUNDS,
        clip=CLIPS["l2"],
        privacy=Unit.CLIENT,
        message_norm=MESSAGE_NORM,
        delta=1e-5,
    )
    frozen = RunSpec(data="cifar10", rounds=1, clip=CLIPS["l2"], body_training=BodyTraining.FROZEN)
    record = replace(frozen, privacy=Unit.RECORD, delta=1e-5)
    return [
        *(
            TableRow(f"client-epsilon-{e:g}", f"client, epsilon {e:g}, bodies trained", replace(client, epsilon=e))
            for e in CLIENT_EPSILONS
        ),
        TableRow("frozen-no-noise", "no noise, random frozen body", frozen),
        *(
            TableRow(f"record-epsilon-{e:g}", f"record, epsilon {e:g}, random frozen body", replace(record, epsilon=e))
            for e in RECORD_EPSILONS
        ),
    ]


PRIVACY_FIGURE = Experiment(
    name="figure-privacy",
    title="Figure 2 (bottom), differential privacy on CIFAR-10",
    kind=ExperimentKind.PRIVACY,
    rows=(
        *_make_noise_level_rows(),
        *_make_repeated_rows(),
        *_make_verification_rows(),
        *_make_guarantee_rows(),
    ),
    seeds=(0, 1, 2, 3, 4),
    remarks=(
        f"{ROUNDS} rounds of FedLog are {ROUNDS} releases; 100 clients.",
        "The epsilons of the noise levels are labels, not guarantees, under either formula. The theorem behind them "
        "counts only a record's own statistic. But these bodies are trained on the records, so one record moves the "
        "features of all the client's records. The exact formula mends the composition, not the sensitivity.",
        "The paper's own curve is not comparable. The code behind it calibrates a single release, so its noise is "
        "smaller than its theorem asks for, by the square root of the number of rounds. It also sends exact counts "
        "beside the noisy statistics. Here every round is counted, and the server takes its counts from the noisy "
        "statistics.",
        "The cells with a guarantee stand in a table of their own; `docs/privacy.md` says what each of them hides, and "
        "from whom.",
    ),
)
