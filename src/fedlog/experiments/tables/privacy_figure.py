"""The privacy experiment as data: noise on the sum, the epsilon that each formula gives it, and cells with a guarantee.

Accuracy depends on the noise on the *sum* of the statistics alone. So six levels are run, and every combination of
formula (exact, paper), place (central, local) and delta is read off them: a level is a multiple z of what one record
may add, k releases are mu-GDP with mu = sqrt(k) / z under central noise and sqrt(k * clients) / z under local noise,
where the noise of the sum is that of all clients' messages. Single cells of each kind are run to check that.

The bodies of the levels are trained on the records, so none of these epsilons is a guarantee; the rows that follow them
(`client`, and `record` with a frozen body) are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedlog.experiments.tables.cells import Experiment, Row, Shape
from fedlog.privacy.calibration import epsilon_of, paper_epsilon
from fedlog.privacy.guarantee import Calibration, Trust, Unit
from fedlog.settings.privacy import BodyTraining
from fedlog.settings.spec import RunSpec

ROUNDS = 40
CLIENT_ROUNDS = 10
CLIENTS = 100  # of the data set's partition, each with five hundred records of two classes
LEVELS = (4, 16, 64, 256, 512, 1024)  # z: std of the noise on the sum over what one record may add
DELTAS = (0.01, 1e-5)  # the paper's, and one that means something for fifty thousand records
CLIPS = {"clamp": "clamp:2", "l2": "l2:3"}
VERIFIED_CLIP, VERIFIED_LEVEL = "clamp", 64
MESSAGE_NORM = 500.0  # near that of a client's statistics: 250 records a class, features of norm up to 3
CLIENT_EPSILONS = (2.0, 8.0, 20.0)
RECORD_EPSILONS = (0.5, 2.0, 8.0)


@dataclass(frozen=True)
class Reading:
    """A formula, a place for the noise, and a delta: what turns a level of noise into an epsilon."""

    calibration: Calibration
    trust: Trust
    delta: float

    def epsilon(self, level: float, releases: int, clients: int) -> float:
        """The epsilon that this reading gives to noise on the sum of `level` times what one record may add."""
        parts = clients if self.trust is Trust.LOCAL else 1
        mu = math.sqrt(releases * parts) / level
        return paper_epsilon(mu, self.delta) if self.calibration is Calibration.PAPER else epsilon_of(mu, self.delta)


READINGS = tuple(
    Reading(calibration, trust, delta)
    for delta in DELTAS
    for calibration in (Calibration.EXACT, Calibration.PAPER)
    for trust in (Trust.CENTRAL, Trust.LOCAL)
)
LEVEL_READING = Reading(Calibration.PAPER, Trust.CENTRAL, 0.01)  # by which the levels themselves are run
VERIFIED_READINGS = tuple(
    Reading(calibration, trust, delta)
    for calibration, delta in ((Calibration.EXACT, 1e-5), (Calibration.PAPER, 0.01))
    for trust in (Trust.CENTRAL, Trust.LOCAL)
    if (calibration, trust) != (LEVEL_READING.calibration, LEVEL_READING.trust)
)


def read_budget_terms(spec: RunSpec) -> Reading | None:
    """How a run's budget is read; None for one that is not in mode `paper`."""
    if spec.privacy != Unit.PAPER or spec.delta is None:
        return None
    return Reading(Calibration(spec.calibration or Calibration.PAPER), Trust(spec.trust or Trust.CENTRAL), spec.delta)


def level_name(clip: str, level: float) -> str:
    """The row of a clip and a level of noise."""
    return f"{clip}-noise-{level:g}"


def no_noise_name(clip: str) -> str:
    """The row of a clip without noise."""
    return f"{clip}-no-noise"


def _run_at_level(reading: Reading, clip: str, level: float) -> RunSpec:
    """The run whose budget, read in this way, gives this level of noise; its epsilon is rounded to five digits."""
    epsilon = float(f"{reading.epsilon(level, ROUNDS, CLIENTS):.5g}")
    return RunSpec(
        data="cifar10",
        rounds=ROUNDS,
        clip=CLIPS[clip],
        privacy=Unit.PAPER,
        epsilon=epsilon,
        delta=reading.delta,
        trust=reading.trust,
        calibration=reading.calibration,
    )


def _level_rows() -> list[Row]:
    rows = []
    for clip, named in CLIPS.items():
        rows.append(Row(no_noise_name(clip), f"{named}, no noise", RunSpec(data="cifar10", rounds=ROUNDS, clip=named)))
        rows += [
            Row(level_name(clip, level), f"{named}, noise {level} x", _run_at_level(LEVEL_READING, clip, level))
            for level in LEVELS
        ]
    return rows


def _check_rows() -> list[Row]:
    """One real run for each other reading, on one seed: it must arrive at the level that the formula gives."""
    rows = []
    for reading in VERIFIED_READINGS:
        spec = _run_at_level(reading, VERIFIED_CLIP, VERIFIED_LEVEL)
        label = f"{spec.clip}, {reading.calibration}, {reading.trust}, epsilon {spec.epsilon:g}, delta {spec.delta:g}"
        rows.append(Row(f"verify-{reading.calibration}-{reading.trust}", label, spec, seeds=(0,)))
    return rows


def _guarantee_rows() -> list[Row]:
    """The cells with a guarantee: whole clients, and records behind bodies that never saw them."""
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
            Row(f"client-epsilon-{e:g}", f"client, epsilon {e:g}, bodies trained", replace(client, epsilon=e))
            for e in CLIENT_EPSILONS
        ),
        Row("frozen-no-noise", "no noise, random frozen body", frozen),
        *(
            Row(f"record-epsilon-{e:g}", f"record, epsilon {e:g}, random frozen body", replace(record, epsilon=e))
            for e in RECORD_EPSILONS
        ),
    ]


PRIVACY_FIGURE = Experiment(
    name="figure-privacy",
    title="Figure 2 (bottom), differential privacy on CIFAR-10",
    shape=Shape.PRIVACY,
    rows=(*_level_rows(), *_check_rows(), *_guarantee_rows()),
    seeds=(0, 1),
    remarks=(
        f"{ROUNDS} rounds of FedLog are {ROUNDS} releases; 100 clients. The epsilons of the noise levels are labels, "
        "not guarantees, under either formula: the theorem behind them takes a record's own statistic for its whole "
        "effect, and these bodies are trained on the records, so that one record moves the features of all the "
        "client's records. The exact formula mends the composition, not the sensitivity.",
        "The paper's own curve is not comparable: the code behind it calibrates a single release, without composition "
        "over the rounds, so its noise is smaller than its theorem asks for by the square root of the number of "
        "rounds, and it sends exact counts beside the noisy statistics. Here every round is counted and the server "
        "takes its counts from the noisy statistics. The cells with a guarantee stand in a table of their own; "
        "`docs/privacy.md` says what each of them hides, and from whom.",
    ),
)
