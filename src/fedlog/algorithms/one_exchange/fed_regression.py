"""Predict a number instead of a class: Bayesian linear regression from summed moments, with predictive intervals."""

from __future__ import annotations

from dataclasses import dataclass

from fedlog.algorithms.interface import Exchange, FeatureSummary, Schedule
from fedlog.algorithms.one_exchange.base import OneExchange, PredictedClasses
from fedlog.core.heads.regression import NumberHead, solve_regression
from fedlog.core.stats import Detail, Moments
from fedlog.errors import InputError
from fedlog.models.body import HEAD, NOISE, SPREAD, Params
from fedlog.wire.message import Kind, Message

PARTS = (HEAD, SPREAD, NOISE)


@dataclass(frozen=True)
class FedRegression(OneExchange):
    """Bayesian linear regression: the exact posterior of a linear head, solved from summed moments.

    `strength` scales the precision of the prior on the weights; None chooses the strength with the largest evidence.
    """

    strength: float | None = None

    name = "fed-regression"
    detail = Detail.SECOND

    def __post_init__(self) -> None:
        self._check_option("strength", self.strength is None or self.strength > 0, "must be above 0")
        if self.personal or self.classes is not PredictedClasses.ALL:
            raise InputError(
                "fed-regression solves one head for all clients: it cannot be used with personal heads or own classes",
                hint="leave out --personal and the option `classes`",
            )

    @property
    def schedule(self) -> Schedule:
        """One exchange without training: clients send the joint moments of the features and the number to predict."""
        return Schedule(round=(Exchange("statistics", (), FeatureSummary.NUMBERS, self.detail),))

    def solve_model_parts(self, moments: Moments, noise_std: float) -> Params:
        """The parts of the posterior from the summed moments, by name."""
        head = NumberHead.from_posterior(solve_regression(moments, self.strength, noise_std))
        return dict(zip(PARTS, head.arrays, strict=True))

    def broadcast(self, server: Params) -> Message:
        """A message with the posterior; until it is solved, one with the seed of the initial model."""
        if HEAD not in server:
            return Message(Kind.SEED, (server["seed"],))
        return Message(Kind.NUMBER_HEAD, tuple(server[name] for name in PARTS))

    def receive(self, message: Message, known: Params) -> Params:
        """The parts of the posterior by name; a head of zeros if the message holds only the seed."""
        if message.kind is Kind.SEED:
            return super().receive(message, known)
        return dict(zip(PARTS, message.arrays, strict=True))
