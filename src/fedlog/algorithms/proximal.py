"""FedProx and Ditto: FedAvg with a loss term that keeps a client's parameters near the global parameters.

FedProx (Li et al. 2020) applies the term to the model that is averaged. Ditto (Li et al. 2021) averages as FedAvg does,
and each client also trains a personal model near the global one. The personal model is never sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedlog.algorithms.averaging import Averaging, fedavg
from fedlog.algorithms.interface import EVERYTHING, Exchange, ModelPlan, Phase, Schedule, Work, WorkResult
from fedlog.algorithms.losses import NearModelLoss
from fedlog.errors import InputError
from fedlog.models.body import Params
from fedlog.wire.message import Message

PERSONAL = "personal"  # the name of Ditto's exchange without an upload, and the prefix of the personal parameters


class FedProx(Averaging):
    """Averaging with a loss that keeps parameters near their values at the start of the round."""

    def start_exchange(self, exchange: str, home: Params, received: Params) -> Work:
        """The start of training: the global model, which the loss also gets as the parameters to stay near."""
        work = super().start_exchange(exchange, home, received)
        return replace(work, constants=work.params)


def fedprox(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001, mu: float = 1.0) -> FedProx:
    """FedProx (Li et al. 2020): FedAvg with mu / 2 * |w - w_global|^2 added to each client's loss."""
    train = Phase(EVERYTHING, epochs, NearModelLoss(_require_not_negative("fedprox", "mu", mu)), learning_rate)
    return FedProx("fedprox", plan.list_top_params(len(plan.layers)), (train,))


@dataclass(frozen=True)
class Ditto(Averaging):
    """Trains a personal model near the global one in each round, and averages the global one as FedAvg does."""

    personal_phases: tuple[Phase, ...] = ()

    @property
    def schedule(self) -> Schedule:
        """Train the personal model near the last broadcast model; then train and average the global one."""
        return Schedule(round=(Exchange(PERSONAL, self.personal_phases), *super().schedule.round))

    def join(self, initial: Params) -> Params:
        """What a new client keeps at first: the initial model, and a copy of it as the first personal model."""
        return {**initial, **_add_personal_prefix(initial)}

    def start_exchange(self, exchange: str, home: Params, received: Params) -> Work:
        """The start of training: first the personal model, whose loss gets the global one; then the global model."""
        common = {
            **{name: value for name, value in home.items() if name not in _select_personal_entries(home)},
            **received,
        }
        return Work(_strip_personal_prefix(home), common) if exchange == PERSONAL else Work(common)

    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        """To keep: the personal model. To send: the newly trained global one with the client's number of records."""
        if exchange == PERSONAL:
            return {**home, **_add_personal_prefix(trained.params)}, None
        kept, message = super().finish_exchange(exchange, home, work, trained)
        return {**kept, **_select_personal_entries(home)}, message

    def deploy(self, home: Params, received: Params) -> Params:
        """The client's personal model."""
        return _strip_personal_prefix(home)


def ditto(
    plan: ModelPlan,
    epochs: int = 5,
    learning_rate: float = 0.001,
    regularisation: float = 1.0,
    personal_epochs: int | None = None,
    personal_learning_rate: float | None = None,
) -> Ditto:
    """Ditto (Li et al. 2021): FedAvg, and a personal model v with lambda / 2 * |v - w_global|^2 in its loss.

    `regularisation` is lambda. Without `personal_epochs` or `personal_learning_rate`, the personal model takes the
    epochs or the learning rate of the global model.
    """
    near = NearModelLoss(_require_not_negative("ditto", "regularisation", regularisation))
    personal = Phase(
        EVERYTHING,
        epochs if personal_epochs is None else personal_epochs,
        near,
        learning_rate if personal_learning_rate is None else personal_learning_rate,
    )
    common = fedavg(plan, epochs, learning_rate)
    return Ditto("ditto", common.shared, common.phases, personal_phases=(personal,))


def _require_not_negative(method: str, option: str, value: float) -> float:
    """Return the option's value; InputError if it is negative."""
    if value < 0:
        raise InputError(f"option {option} of {method} must not be negative, found: {value}")
    return value


def _select_personal_entries(home: Params) -> Params:
    """The entries of a client's state that belong to its personal model; names keep their prefix."""
    return {name: value for name, value in home.items() if name.startswith(f"{PERSONAL}/")}


def _strip_personal_prefix(home: Params) -> Params:
    return {name.removeprefix(f"{PERSONAL}/"): value for name, value in _select_personal_entries(home).items()}


def _add_personal_prefix(model: Params) -> Params:
    return {f"{PERSONAL}/{name}": value for name, value in model.items()}
