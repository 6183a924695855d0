"""Jobs and GPUs as arrays, for policies that divide time; and the round that follows
from it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coadapt.model import ClusterView, JobId, JobView, Plan
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.allocation.time_share_rounds import (
    Parts,
    RoundOptions,
    TimeShareRounds,
)
from coadapt.policies.predictors.paces import Pace, Paces
from coadapt.policies.solvers.time_shares import Base, equal_parts

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class PacedJobs(NamedTuple):
    """Jobs J on types T, fastest first. left_J: steps left. passes_J: of a step, over
    all replicas.
    """

    at: float
    jobs: tuple[JobView, ...]
    types: tuple[str, ...]
    base: Base
    left_J: FloatArray
    passes_J: FloatArray

    @property
    def best(self) -> FloatArray:
        """Steps per second on the best type that the job can have; 0 if it can run
        nowhere.
        """
        best_J: FloatArray = np.where(self.base.can, self.base.rate_JT, 0.0).max(
            axis=1, initial=0.0
        )
        return best_J


Decide = Callable[[PacedJobs], FloatArray | None]


class DividedTime:
    """What a policy of this kind is made of: the paces that it knows, and the rounds
    that realise its parts.

    needs_length: whether it decides by what jobs have left; those that do not tell hear
    what they count as.
    """

    def __init__(self, options: RoundOptions, *, needs_length: bool) -> None:
        self._needs_length = needs_length
        self._paces = Paces()
        self._rounds = TimeShareRounds(options)
        self._equal = False

    def plan(self, view: ClusterView, decide: Decide) -> Plan:
        """Return the round's plan. decide: X_JT of the jobs; None where it finds none:
        then all are alike.

        `plan.diagnostics["equal_parts"]` is 1 while parts are in force that `decide`
        did not find.
        """
        paces = self._paces.observe(view)
        jobs = paced_jobs(view, paces)

        def parts() -> Parts:
            x_JT = decide(jobs)
            self._equal = x_JT is None
            return as_parts(jobs, equal_parts(jobs.base) if x_JT is None else x_JT)

        notes: dict[JobId, str] = {}
        if self._needs_length:
            guess = "its length is not known: it counts as half done"
            notes = {job.id: guess for job in view.jobs if not paces[job.id].known}
        plan = self._rounds.plan(view, parts, jobs.types, notes)
        return replace(plan, diagnostics={"equal_parts": float(self._equal)})


def as_parts(jobs: PacedJobs, x_JT: FloatArray) -> Parts:
    """Return X_JT by job and type."""
    return {
        job.id: {name: float(x) for name, x in zip(jobs.types, x_T, strict=True)}
        for job, x_T in zip(jobs.jobs, x_JT, strict=True)
    }


def paced_jobs(view: ClusterView, paces: dict[JobId, Pace]) -> PacedJobs:
    """Return the jobs of `view` as arrays; a job may run on the types that its pace
    names.
    """
    gpus: dict[str, int] = {}
    for node in view.nodes:
        gpus[node.gpu_type] = gpus.get(node.gpu_type, 0) + node.num_gpus
    slow = {name: _slowness(name, paces) for name in gpus}
    types = tuple(sorted(gpus, key=lambda name: (slow[name], name)))
    rate_JT = np.array(
        [
            [1.0 / paces[job.id].step_s.get(name, np.inf) for name in types]
            for job in view.jobs
        ]
    ).reshape(len(view.jobs), len(types))
    base = Base(
        rate_JT=rate_JT,
        width_J=np.array([requested_gpus(job) for job in view.jobs], dtype=np.int64),
        gpus_T=np.array([gpus[name] for name in types], dtype=np.int64),
    )
    return PacedJobs(
        at=view.at,
        jobs=view.jobs,
        types=types,
        base=base,
        left_J=np.array([paces[job.id].steps_left for job in view.jobs]),
        passes_J=np.array(
            [paces[job.id].passes for job in view.jobs], dtype=np.float64
        ),
    )


def _slowness(gpu_type: str, paces: dict[JobId, Pace]) -> float:
    """Return the mean of a step's time on `gpu_type` over that on the job's best
    type.
    """
    all_s = [pace.step_s for pace in paces.values() if gpu_type in pace.step_s]
    return sum(step_s[gpu_type] / min(step_s.values()) for step_s in all_s) / max(
        len(all_s), 1
    )
