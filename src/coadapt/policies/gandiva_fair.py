"""Gandiva_fair (Chaudhary et al., EuroSys 2020): GPU time by tickets, and trade between
GPU types.
"""

from collections.abc import Mapping
from enum import StrEnum
from itertools import combinations
from typing import ClassVar

import numpy as np

from coadapt.model import ClusterView, Plan
from coadapt.policies.allocation.paced_jobs import (
    DividedTime,
    FloatArray,
    IntArray,
    PacedJobs,
)
from coadapt.policies.allocation.time_share_rounds import RoundOptions
from coadapt.policies.allocation.turns import GAVEL_ROUND_S
from coadapt.policies.base import PolicyCard

NEGLIGIBLE_GPUS = 1e-9


class Form(StrEnum):
    """TICKETS: shares of GPU time per tenant, and trade. EQUAL: the stand-in of
    Shockwave's comparison.
    """

    TICKETS = "tickets"
    EQUAL = "equal"


class GandivaFair:
    """Each tenant with jobs has its tickets' share of the GPU time, which its jobs have
    in equal parts.

    Tickets are the tenants' weights. round_s, resolve_s, hold_back: see RoundOptions.
    form: what is divided; `equal` gives every job the same part of the time, whatever
    its GPUs and whose it is. trade: whether tenants swap fast GPUs for more slow ones.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Chaudhary et al., Gandiva_fair, EuroSys 2020",
        decides="tenants' part of the time on each GPU type",
    )

    def __init__(
        self,
        *,
        form: str = Form.TICKETS,
        trade: bool = True,
        round_s: float = GAVEL_ROUND_S,
        resolve_s: float = 0.0,
        hold_back: bool = False,
    ) -> None:
        if form not in list(Form):
            raise ValueError(f"form must be one of {', '.join(Form)}, got {form!r}")
        self._form = Form(form)
        self._trade = trade
        options = RoundOptions(
            round_s=round_s, resolve_s=resolve_s, hold_back=hold_back
        )
        self._time = DividedTime(options, needs_length=False)

    def allocate(self, view: ClusterView) -> Plan:
        tickets = {
            job.spec.tenant: view.tenant(job.spec.tenant).weight for job in view.jobs
        }
        return self._time.plan(view, lambda jobs: self._decide(jobs, tickets))

    def _decide(self, jobs: PacedJobs, tickets: Mapping[str, float]) -> FloatArray:
        base = jobs.base
        if self._form is Form.EQUAL:
            part_T = base.gpus_T / max(len(jobs.jobs), 1)
            part_JT = np.where(base.can, part_T[None, :], 0.0)
            alike_JT: FloatArray = part_JT / np.maximum(
                part_JT.sum(axis=1, keepdims=True), 1.0
            )
            return alike_JT
        tenants = sorted(tickets)
        owner_J = np.array(
            [tenants.index(job.spec.tenant) for job in jobs.jobs], dtype=np.int64
        )
        demand_U = np.zeros(len(tenants))
        np.add.at(demand_U, owner_J, np.where(base.can.any(axis=1), base.width_J, 0))
        ticket_U = np.array([tickets[name] for name in tenants])
        gpus_U = capped_shares(float(base.gpus_T.sum()), demand_U, ticket_U)
        owned_UT = (
            gpus_U[:, None] * (base.gpus_T / max(int(base.gpus_T.sum()), 1))[None, :]
        )
        if self._trade:
            owned_UT = traded(owned_UT, _rates_by_tenant(jobs, owner_J, len(tenants)))
        return _to_jobs(jobs, owner_J, owned_UT)


def capped_shares(
    amount: float, most_U: FloatArray, weight_U: FloatArray
) -> FloatArray:
    """Return `amount` divided by weight, each share at most `most_U`; what a tenant
    cannot use goes to the others.
    """
    share_U = np.zeros(len(most_U))
    open_U = most_U > 0.0
    while open_U.any():
        level = (amount - share_U[~open_U].sum()) / weight_U[open_U].sum()
        full_U = open_U & (weight_U * level >= most_U)
        if not full_U.any():
            share_U[open_U] = weight_U[open_U] * level
            return share_U
        share_U[full_U] = most_U[full_U]
        open_U &= ~full_U
    return share_U


def traded(owned_UT: FloatArray, rate_UT: FloatArray) -> FloatArray:
    """Return what tenants own after trade. owned_UT: GPUs by type. rate_UT: their mean
    rate on each type.

    For each two types: the tenant that speeds up most on the faster one buys it, with
    GPUs of the slower one, from the tenant that speeds up least, at the second largest
    speedup of the possible buyers (the geometric mean of both where there are two). So
    both gain. It ends when no two tenants would gain.
    """
    owned_UT = owned_UT.copy()
    for fast, slow in combinations(range(owned_UT.shape[1]), 2):
        able_U = (rate_UT[:, fast] > 0.0) & (rate_UT[:, slow] > 0.0)
        speedup_U = np.where(
            able_U, rate_UT[:, fast] / np.where(able_U, rate_UT[:, slow], 1.0), 0.0
        )
        while True:
            buyers = [
                u
                for u in np.flatnonzero(able_U).tolist()
                if owned_UT[u, slow] > NEGLIGIBLE_GPUS
            ]
            sellers = [
                u
                for u in np.flatnonzero(able_U).tolist()
                if owned_UT[u, fast] > NEGLIGIBLE_GPUS
            ]
            if not buyers or not sellers:
                break
            buyer = max(buyers, key=lambda u: (speedup_U[u], -u))
            seller = min(sellers, key=lambda u: (speedup_U[u], u))
            if not speedup_U[buyer] > speedup_U[seller]:
                break
            price = _price(speedup_U, sorted({*buyers, seller}), buyer, seller)
            amount = min(owned_UT[seller, fast], owned_UT[buyer, slow] / price)
            owned_UT[seller, fast] -= amount
            owned_UT[buyer, fast] += amount
            owned_UT[buyer, slow] -= amount * price
            owned_UT[seller, slow] += amount * price
    return owned_UT


def _price(speedup_U: FloatArray, present: list[int], buyer: int, seller: int) -> float:
    if len(present) == 2:
        return float(np.sqrt(speedup_U[buyer] * speedup_U[seller]))
    second = max(float(speedup_U[u]) for u in present if u != buyer)
    return min(max(second, float(speedup_U[seller])), float(speedup_U[buyer]))


def _rates_by_tenant(
    jobs: PacedJobs, owner_J: IntArray, num_tenants: int
) -> FloatArray:
    """Return each tenant's mean over its jobs of their rate on a type over their best
    one; 0: none can.
    """
    best_J = np.where(jobs.best > 0.0, jobs.best, 1.0)
    relative_JT = np.where(jobs.base.can, jobs.base.rate_JT / best_J[:, None], 0.0)
    sum_UT, num_UT = np.zeros((2, num_tenants, len(jobs.types)))
    np.add.at(sum_UT, owner_J, relative_JT)
    np.add.at(num_UT, owner_J, jobs.base.can)
    mean_UT: FloatArray = sum_UT / np.maximum(num_UT, 1.0)
    return mean_UT


def _to_jobs(jobs: PacedJobs, owner_J: IntArray, owned_UT: FloatArray) -> FloatArray:
    """Return X_JT: each tenant's GPUs among its jobs alike, as far as each can use
    them.
    """
    base = jobs.base
    x_JT = np.zeros(base.rate_JT.shape)
    for tenant, owned_T in enumerate(owned_UT):
        mine = np.flatnonzero((owner_J == tenant) & base.can.any(axis=1))
        width_M = base.width_J[mine].astype(np.float64)
        gpus_M = capped_shares(float(owned_T.sum()), width_M, np.ones(len(mine)))
        mix_MT = np.where(base.can[mine], owned_T[None, :], 0.0)
        # A job that may use none of its tenant's types still has its part, of those
        # that it may use.
        mix_MT = np.where(
            mix_MT.sum(axis=1, keepdims=True) > 0.0, mix_MT, base.can[mine]
        )
        x_JT[mine] = (
            (gpus_M / width_M)[:, None] * mix_MT / mix_MT.sum(axis=1, keepdims=True)
        )
    return x_JT
