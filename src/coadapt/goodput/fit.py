"""From measured step times to ThroughputParams, by Pollux's loss and optimistic priors
(OSDI'21, §4.1).
"""

from dataclasses import astuple

import numpy as np

from coadapt.goodput import fit_kernel
from coadapt.goodput.profile import Profile, ProfileBuilder
from coadapt.goodput.throughput import PARAM_NAMES
from coadapt.model import ThroughputParams

__all__ = ["Profile", "ProfileBuilder", "fit_throughput"]

# A wider link that was never used is taken to cost at least this much of the next
# narrower one (Pollux).
WIDER_LINK_FACTOR = 1.1


def fit_throughput(
    profile: Profile, start: ThroughputParams | None = None
) -> ThroughputParams:
    """Return the parameters that explain `profile` best; what was never observed is
    taken to cost nothing.

    Minimises RMSE(log T_grad) + RMSE(log T_step) + 1e-3 (γ - 1)² + 1e-2 Σ (β / α)², in
    bounds. Pinned while data are missing: alpha_c at half of the mean compute time with
    one atomic batch size; the terms of a link (one node, several nodes, several racks)
    until it was used; the growth with replicas until three were used. A link not used
    costs at least 1.1 times the narrower one. `start`, a former fit, is one more place
    to search from. ValueError for an empty profile.
    """
    if len(profile) == 0:
        raise ValueError("a profile needs at least one observation to be fitted")
    x = fit_kernel.search(
        profile.columns(), np.array(() if start is None else astuple(start))
    )
    replicated = profile.num_replicas > 1
    one_rack = profile.num_racks == 1
    if not (replicated & one_rack & (profile.num_nodes > 1)).any():
        x[4:6] = np.maximum(x[4:6], WIDER_LINK_FACTOR * x[2:4])
    if not (replicated & ~one_rack).any():
        x[6:8] = np.maximum(x[6:8], WIDER_LINK_FACTOR * x[4:6])
    return ThroughputParams(**dict(zip(PARAM_NAMES, x.tolist(), strict=True)))
