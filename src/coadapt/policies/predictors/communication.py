"""The cost of communication for a job on a placement, from its step times."""

# A step of the user's batch takes T(placement); its passes alone take T_compute. The
# difference is what the job waits for its network, since part of the exchange hides
# behind the last pass. Without a model of the GPU type the one of the type on which
# most replicas were timed speaks: the network is that of the cluster, and shares of a
# step are what is asked for.
#
# A job that reported a forecast but no model is known on packed placements only: T(n)
# is reported, and its passes take at least T(1) / n. So what a replica spends on each
# pass whatever its samples counts as communication.

from typing import NamedTuple

from coadapt.goodput.throughput import step_time
from coadapt.model import JobView, Placement, ThroughputParams


class Step(NamedTuple):
    """One optimiser step. whole_s: its seconds; compute_s: those of its passes
    alone.
    """

    whole_s: float
    compute_s: float

    @property
    def comm_s(self) -> float:
        """Seconds that it waits for the network."""
        return max(self.whole_s - self.compute_s, 0.0)


def step_on(job: JobView, gpu_type: str, placement: Placement) -> Step | None:
    """Return a step of the requested batch of `job` on `placement`; None if the job
    reported no step times.
    """
    params = _params(job, gpu_type)
    forecast = job.measured.forecast
    if params is None:
        if forecast is None:
            return None
        packed_s = forecast.step_time_s[
            min(placement.num_replicas, len(forecast.step_time_s)) - 1
        ]
        return Step(
            packed_s, min(forecast.step_time_s[0] / placement.num_replicas, packed_s)
        )
    batch = job.spec.batch
    share = -(-batch.requested // placement.num_replicas)
    passes = max(-(-share // (batch.max_atomic or share)), 1)
    atomic = -(-share // passes)
    whole_s = float(step_time(params, placement, float(atomic), float(passes - 1)))
    return Step(whole_s, passes * (params.alpha_c + params.beta_c * atomic))


def _params(job: JobView, gpu_type: str) -> ThroughputParams | None:
    known = job.measured.by_type
    if gpu_type in known:
        return known[gpu_type].params
    best = max(
        known, key=lambda name: (known[name].num_replicas_profiled, name), default=None
    )
    return None if best is None else known[best].params
