"""Profile of measured step times -> ThroughputParams, with Pollux's loss and optimistic priors."""

import numpy as np
import scipy.optimize

from coadapt.goodput.profile import FloatArray, Profile, ProfileBuilder
from coadapt.model import ThroughputParams

__all__ = ["Profile", "ProfileBuilder", "fit_throughput"]


def fit_throughput(profile: Profile, start: ThroughputParams | None = None) -> ThroughputParams:
    """Return the parameters that explain `profile` best; what was never observed is assumed free of cost."""
    single = (profile.num_nodes == 1) & (profile.num_replicas > 1)
    multi = (profile.num_nodes > 1) & (profile.num_racks == 1)
    racks = profile.num_racks > 1
    extra = np.maximum(profile.num_replicas - 2, 0.0)
    x0 = np.array([0.1, 0.01] * 4 + [1.001])
    low, high = np.full(9, 1e-8), np.array([np.inf] * 8 + [10.0])
    low[8] = 1.0

    def pin(i: int, v: float) -> None:
        x0[i] = low[i] = high[i] = v

    if len(np.unique(profile.atomic)) == 1:
        pin(0, float(profile.compute_s.mean()) / 2)
    for i, mask in ((2, single), (4, multi), (6, racks)):
        if not mask.any():
            pin(i, 1e-8)
            pin(i + 1, 1e-8)
        elif not (extra > 0).any():
            pin(i + 1, 1e-8)

    def loss(x: FloatArray) -> float:
        c = x[0] + x[1] * profile.atomic
        s = np.where(
            single,
            x[2] + x[3] * extra,
            np.where(multi, x[4] + x[5] * extra, np.where(racks, x[6] + x[7] * extra, 1e-8)),
        )
        t = (c ** x[8] + s ** x[8]) ** (1 / x[8])
        r1 = np.sqrt(np.mean((np.log(c) - np.log(profile.compute_s)) ** 2))
        r2 = np.sqrt(np.mean((np.log(t) - np.log(profile.step_s)) ** 2))
        return float(r1 + r2 + 1e-3 * (x[8] - 1) ** 2 + 1e-2 * sum((x[i + 1] / x[i]) ** 2 for i in (2, 4, 6)))

    x = scipy.optimize.minimize(loss, x0, bounds=list(zip(low, high, strict=True))).x
    if not multi.any() and not racks.any():
        x[4], x[5] = max(x[4], 1.1 * x[2]), max(x[5], 1.1 * x[3])
    if not racks.any():
        x[6], x[7] = max(x[6], 1.1 * x[4]), max(x[7], 1.1 * x[5])
    return ThroughputParams(**dict(zip(ThroughputParams.__slots__, map(float, x), strict=True)))
