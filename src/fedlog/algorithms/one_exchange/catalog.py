"""The one-exchange methods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from fedlog.algorithms.one_exchange.ccvr import CCVR
from fedlog.algorithms.one_exchange.fed_cof import FedCOF
from fedlog.algorithms.one_exchange.fed_heads import FedHeads
from fedlog.algorithms.one_exchange.fed_lda import FedLDA
from fedlog.algorithms.one_exchange.fed_nb import FedNB
from fedlog.algorithms.one_exchange.fed_ncm import FedNCM
from fedlog.algorithms.one_exchange.fed_qda import FedQDA
from fedlog.algorithms.one_exchange.fed_regression import FedRegression
from fedlog.algorithms.one_exchange.fed_ridge import FedRidge
from fedlog.algorithms.one_exchange.fedlog_once import FedLogOnce
from fedlog.algorithms.one_exchange.fedpft import FedPFT
from fedlog.algorithms.shape import Algorithm

_KINDS = (FedLogOnce, FedNCM, FedLDA, FedNB, FedQDA, FedRidge, FedCOF, CCVR, FedPFT, FedHeads, FedRegression)
METHODS: dict[str, Callable[..., Algorithm]] = {kind.name: cast(Callable[..., Algorithm], kind) for kind in _KINDS}
