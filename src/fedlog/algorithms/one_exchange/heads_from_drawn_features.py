"""Heads that the server trains on features drawn from Gaussians: CCVR and FedPFT.

CCVR (Luo et al. 2021): a Gaussian for each class, with exact means and covariances from sums. Luo et al. calibrate the
classifier of a trained FedAvg model; here the body is frozen, and only the head is trained.

FedPFT (Beitollahi et al. 2024): each client sends a mixture of Gaussians for each of its classes. The server needs each
client's mixtures separately, so secure sums cannot be used. Covariances are diagonal; Beitollahi et al. also have
spherical and full ones.

Personal heads are not in these papers: a client draws features from its own Gaussians and trains a head on them, with
the global head as the prior. No further message is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.algorithms.interface import Exchange, FeatureSummary, Schedule, Work, WorkResult
from fedlog.algorithms.one_exchange.base import OWN_MIXTURES, OneExchange
from fedlog.core.heads.gaussian import MAX_QUADRATIC
from fedlog.core.heads.logistic import fit_logistic
from fedlog.core.heads.mixtures import Mixtures, draw_features
from fedlog.core.heads.personal import fit_personal_softmax_head
from fedlog.core.keys import Key
from fedlog.core.stats import Detail, Moments
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Kind, Message

RANK_ROUNDING = 1e-12  # variances below this share of the largest one are only rounding


@dataclass(frozen=True)
class HeadFromDrawnFeatures(OneExchange):
    """The base class of methods that train a softmax head on features drawn from Gaussians; `seed` fixes the draws."""

    penalty: float = 1e-3
    seed: int = 0

    sends_moments_for_personal = False

    def __post_init__(self) -> None:
        self._check_option("penalty", self.penalty >= 0, "must not be negative")

    def train_head(self, features: Tensor, labels: Tensor) -> Tensor:
        """The head (n_class, 1 + w) trained on drawn features (n, w)."""
        return fit_logistic(features, labels, self.plan.n_class, self.penalty)

    def train_personal_head(
        self, features: Tensor, labels: Tensor, n_records: float, received: Params, strength: float
    ) -> Tensor:
        """A client's personal head; the global head counts as `strength` records.

        `features` (n, w) and `labels` (n,) were drawn from Gaussians of the client's `n_records` records.
        """
        if not strength:
            return self.train_head(features, labels)
        return fit_personal_softmax_head(features, labels, n_records, received[HEAD], strength)


@dataclass(frozen=True)
class CCVR(HeadFromDrawnFeatures):
    """A softmax head trained on feature vectors drawn from each class's Gaussian, `drawn` of them for each class."""

    drawn: int = 200

    name = "ccvr"
    detail = Detail.CLASS_SECOND

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_option("drawn", self.drawn >= 1, "must be at least 1")
        if self.plan.n_class * self.plan.width**2 > MAX_QUADRATIC:
            raise InputError(
                f"ccvr sends at most {MAX_QUADRATIC} entries of covariances (classes x features x features), "
                f"found: {self.plan.n_class * self.plan.width**2} ({self.plan.n_class} classes and {self.plan.width} "
                "features)",
                hint="project the features first: --project 64",
            )

    def solve(self, moments: Moments, noise_std: float = 0.0) -> Tensor:
        """The head trained on features drawn from the classes' Gaussians."""
        return self.train_head(*self._draw_features(moments))

    def solve_personal_head(self, own: Moments, received: Params, strength: float) -> Tensor:
        """The head trained on features drawn from the client's Gaussians, with the global head as the prior."""
        return self.train_personal_head(*self._draw_features(own), own.statistics.total, received, strength)

    def _draw_features(self, moments: Moments) -> tuple[Tensor, Tensor]:
        """Features (n, w) drawn from the classes' Gaussians, equally many for each class, and their labels (n,)."""
        means, present = moments.statistics.means()
        scatters = moments.class_scatters()
        features, labels = [], []
        for y in present.nonzero()[:, 0].tolist():
            covariance = scatters[y] / max(1.0, float(moments.statistics.counts[y]) - 1)
            key = Key(self.seed).child("ccvr", y)
            normal = torch.randn(self.drawn, moments.width, dtype=torch.float64, generator=key.torch())
            features.append(means[y, 1:] + normal @ _compute_square_root(covariance))
            labels.append(torch.full((self.drawn,), y))
        return torch.cat(features), torch.cat(labels)


@dataclass(frozen=True)
class FedPFT(HeadFromDrawnFeatures):
    """A softmax head trained on features drawn from all clients' mixtures of `parts` Gaussians for each class.

    With many Gaussians, one of them may describe a single record. Gaussians of fewer than `fewest` records are joined.
    """

    parts: int = 1
    fewest: int | None = None

    name = "fedpft"
    sums_in_the_open = True
    sends_statistics = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_option("parts", self.parts >= 1, "must be at least 1")
        self._check_option("fewest", self.fewest is None or self.fewest >= 1, "must be at least 1")

    @property
    def schedule(self) -> Schedule:
        """One exchange without training: clients send their mixtures of Gaussians."""
        return Schedule(
            round=(Exchange("mixtures", (), FeatureSummary.MIXTURES, parts=self.parts, fewest=self.fewest),)
        )

    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        """To keep: the body, and the mixtures if the client trains a personal head. To send: the mixtures."""
        found = trained.mixtures
        arrays = (found.counts, found.means, found.variances)
        counts = found.counts.reshape(self.plan.n_class, -1).sum(1)
        kept = dict(zip(OWN_MIXTURES, arrays, strict=True)) if self.personal else {}
        return {**self.join(trained.params), **kept, **self.mark_own_classes(counts)}, Message(Kind.MIXTURES, arrays)

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The server's next state, with the head trained on features drawn from all clients' mixtures."""
        features, labels = self._draw_features(Mixtures(*total.arrays))
        return {"seed": server["seed"], HEAD: self.train_head(features, labels)} if len(features) else server

    def solve_personal_head_from_home(self, home: Params, received: Params, strength: float) -> Tensor | None:
        """The head trained on features drawn from the client's mixtures, with the global head as the prior."""
        own = Mixtures(*(home[name] for name in OWN_MIXTURES))
        features, labels = self._draw_features(own)
        n_records = float(own.counts.sum())  # of many records fewer features are drawn, and the prior must not gain
        return self.train_personal_head(features, labels, n_records, received, strength) if len(features) else None

    def _draw_features(self, mixtures: Mixtures) -> tuple[Tensor, Tensor]:
        """Features (n, w) drawn from the mixtures, and their labels (n,).

        There are as many features as the mixtures had records, or fewer if that would be too many.
        """
        # Every client lists `parts` Gaussians of class 0, then of class 1, and so on.
        of_one = torch.arange(self.plan.n_class).repeat_interleave(self.parts)
        labels = of_one.repeat(len(mixtures.counts) // len(of_one))
        return draw_features(mixtures, labels, Key(self.seed).child("fedpft"))

    def observe(self, server: Params) -> dict[str, float]:
        """An empty dictionary: the server keeps no sums from which the records could be counted."""
        return {}


def _compute_square_root(covariance: Tensor) -> Tensor:
    """The symmetric square root of a covariance, without directions whose variance is only rounding error.

    Eigenvectors times standard deviations would give the same distribution. But their signs and order depend on the
    last bit of the sums, so sums added in another order would give other features.
    """
    values, vectors = torch.linalg.eigh(covariance)
    kept = torch.where(values > RANK_ROUNDING * values.max(), values, 0.0)
    root: Tensor = (vectors * kept.clamp_min(0).sqrt()) @ vectors.mT
    return root
