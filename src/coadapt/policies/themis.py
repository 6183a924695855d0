"""Themis (Mahajan et al., NSDI 2020) by its objective: the largest finish-time ratio is
as small as possible.
"""

from typing import ClassVar

from coadapt.model import ClusterView, Plan
from coadapt.policies.allocation.ideal_time import IdealTimes
from coadapt.policies.allocation.paced_jobs import DividedTime
from coadapt.policies.allocation.time_share_rounds import RoundOptions
from coadapt.policies.allocation.turns import GAVEL_ROUND_S
from coadapt.policies.base import PolicyCard


class Themis:
    """Finish-time fairness as Gavel, Shockwave and Sia compare with it: without the
    auction. A job of unknown length counts as half done.

    round_s, resolve_s, hold_back: see RoundOptions. central: of equally good time
    shares, take the most central ones.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Mahajan et al., Themis, NSDI 2020",
        decides="part of the time on each GPU type",
        oracle="time left",
        needs_scipy=True,
    )

    def __init__(
        self,
        *,
        round_s: float = GAVEL_ROUND_S,
        resolve_s: float = 0.0,
        hold_back: bool = False,
        central: bool = False,
    ) -> None:
        options = RoundOptions(
            round_s=round_s, resolve_s=resolve_s, hold_back=hold_back
        )
        self._time = DividedTime(options, needs_length=True)
        self._ideal = IdealTimes(central=central)

    def allocate(self, view: ClusterView) -> Plan:
        return self._time.plan(view, self._ideal.least_worst)
