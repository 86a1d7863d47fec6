"""FLANP (Reisizadeh et al. 2022): a solver of one model for all, on the fastest few sites, then on twice as many.

======================  ====================================================================================
paper                   here
======================  ====================================================================================
Federated_Solver        FedAvg; for LG-FLANP (Tziotis et al., section 5) LG-FedAvg
n_0, n                  ``n0``, then twice as many; a stage keeps the sites that were first in its first round
until statistical       ``stall``: the loss of three rounds is less than this part below that of the three
accuracy of n sites     before; or ``stage_rounds`` rounds
======================  ====================================================================================

The paper ends a stage where the squared gradient is at most 2 mu V_ns. That needs the parameter mu of strong convexity,
which a network does not have and nobody knows, and the constant of the sample's error; so a stage ends here where its
loss stalls. FLANP with fine-tuning: `fedspan.learning.Learning.tune`.
"""

from __future__ import annotations

from typing import Any

from fedspan.learners.fedavg import FedAvg
from fedspan.learners.lg_fedavg import LGFedAvg
from fedspan.solvers import Doubling


def FLANP(*, n0: int = 4, stall: float = 0.02, stage_rounds: int = 50, **settings: Any) -> Doubling:
    """Return FLANP: doubling around FedAvg, of these ``settings``, on sites that a stage holds on to.

    >>> FLANP(n0=2, rounds=30).stage.own
    'none'
    """
    stage = FedAvg(stall=stall, **settings)
    return Doubling(stage=stage, n0=n0, rounds=stage_rounds, resample="stage")


def LGFLANP(*, n0: int = 4, stall: float = 0.02, stage_rounds: int = 50, **settings: Any) -> Doubling:
    """Return LG-FLANP: the same around LG-FedAvg.

    >>> LGFLANP(n0=2, rounds=30).stage.own
    'body'
    """
    stage = LGFedAvg(stall=stall, **settings)
    return Doubling(stage=stage, n0=n0, rounds=stage_rounds, resample="stage")
